"""The tar reader under altered input: 10,000 archives here, a million by `scripts/fuzz tar --count 1000000`."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "fuzz"


@pytest.fixture(scope="module")
def fuzz() -> Any:
    loader = SourceFileLoader("shardtool_fuzz", str(SCRIPT))
    spec = spec_from_loader("shardtool_fuzz", loader)
    assert spec is not None
    module = module_from_spec(spec)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return module


@pytest.mark.parametrize("seed", range(4))
def test_altered_archives_raise_nothing_but_our_errors(fuzz: Any, seed: int) -> None:
    counts = fuzz.fuzz_tar(2500, seed)
    assert counts["whole"] + counts["damage"] + counts["unsupported"] == 2500
    assert min(counts["whole"], counts["damage"], counts["unsupported"]) > 25  # all three are exercised


def test_one_input_can_be_tried_again() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "tar", "--seed", "1", "--only", "17"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 inputs, seed 1:")
