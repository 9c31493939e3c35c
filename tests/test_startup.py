"""Starting is light: what moves no data loads nothing that does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = ("numpy", "pyarrow", "boto3", "webdataset", "tqdm", "xxhash", "zstandard")
NETWORK = ("http.client", "urllib.request", "ssl", "email", "boto3", "webdataset")
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


def test_packing_a_folder_loads_nothing_that_speaks_to_a_network(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jpg").write_bytes(b"x")
    code = PROBE.replace(repr(HEAVY), repr(NETWORK))
    done = subprocess.run(
        [sys.executable, "-c", code, "pack", str(tmp_path / "in"), str(tmp_path / "out"), "-q"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip().splitlines()[-1].startswith("0 [] ")
