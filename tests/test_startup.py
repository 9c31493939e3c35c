"""Starting is light: what moves no data loads nothing that does."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "pyarrow", "boto3", "webdataset", "tqdm", "xxhash", "zstandard")
PROBE = f"""
import sys
from shardtool.__main__ import run
code = run(sys.argv[1:])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
commands = [name for name in sys.modules if name.startswith("shardtool.cli.")]
print(code, loaded, commands, file=sys.stderr)
"""


def probe(*args: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROBE, *args], capture_output=True, text=True, check=True)
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("completion", "bash")], ids=" ".join)
def test_start_loads_no_heavy_library(args: tuple[str, ...]) -> None:
    assert probe(*args).startswith("0 [] ")


def test_help_loads_no_command() -> None:
    last = probe("--help")
    for name in ("pack", "verify", "stats", "completion"):
        assert f"shardtool.cli.{name}'" not in last


def test_a_mistyped_command_loads_no_heavy_library() -> None:
    assert probe("pakc").startswith("2 [] ")
