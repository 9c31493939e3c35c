"""Token runs that are killed at random moments, then repeated, give the bytes of a run that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import sys
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest
from groups import start, until
from helpers import make_tree
from test_tokens_pack import digests, jsonl, pack_tokens

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("SHARDTOOL_TORTURE", "20"))
TOKENS = {"context": 256}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(5)
    texts = [["".join(rng.choices("abcdef ", k=rng.randrange(600))) for _ in range(300)] for _ in range(30)]
    return make_tree(tmp_path_factory.mktemp("s") / "in", {f"{n:02d}.jsonl": jsonl(t) for n, t in enumerate(texts)})


@pytest.mark.timeout(600)
def test_killed_runs_go_on_and_end_with_the_same_bytes(source: Path, tmp_path: Path) -> None:
    pack_tokens(source, tmp_path / "wanted", tokens=TOKENS, shards=20, split="train=0.9,test=0.1")
    wanted = digests(tmp_path / "wanted")
    rng = random.Random(os.environ.get("SHARDTOOL_SEED", "20"))
    out = tmp_path / "out"
    options = (
        "--format", "bin", "--shards", "20", "--context", "256", "--split", "train=0.9,test=0.1", "--workers", "2",
    )  # fmt: skip
    kills = 0
    while kills < KILLS:
        run = start("pack", source, out, *options)
        before = steps_done(out)
        goal = before + rng.randrange(1, 14)
        until(lambda: run.is_over or steps_done(out) >= goal)  # noqa: B023
        if not run.is_over:
            run.signal(SIGKILL)
            kills += 1
        run.process.communicate(timeout=60)
        until(lambda: not run.alive())  # noqa: B023
        if (out / "manifest.json").exists():
            assert digests(out) == wanted
            shutil.rmtree(out)
    run = start("pack", source, out, *options)
    code, err = run.end()
    assert code == 0, err
    assert digests(out) == wanted
    assert not (out / ".shardtool" / "parts").exists()
    left = [path for path in out.rglob("*") if path.name.startswith(".tmp-")]
    assert not left


def steps_done(out: Path) -> int:
    """Receipts of slices and of shards, as seen from outside."""
    count = 0
    for folder in ("parts", "receipts"):
        try:
            names = os.listdir(out / ".shardtool" / folder)
        except FileNotFoundError:
            continue
        count += sum(name.endswith(".json") and name[0] != "." for name in names)
    return count + 100 * (out / ".shardtool" / "plan.json").exists()
