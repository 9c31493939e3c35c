"""Runs that are killed or interrupted at random moments, then repeated, give the bytes of a run that was left alone."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from groups import Run, error_of, start, until
from helpers import make_tree, pack
from snapshots import content, leftovers, rewritten, stamps, temps

from shardtool.packing.receipts import read_receipts, valid_receipts
from shardtool.planning.plan_file import load_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("SHARDTOOL_TORTURE", "20"))  # scripts/test-full asks for more
NUM_SHARDS = 60
OPTIONS = ("--shards", str(NUM_SHARDS), "--workers", "2")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(3)
    files = {f"{n % 7}/{n:04d}.{part}": rng.randbytes(rng.randrange(40_000)) for n in range(240) for part in ("a", "b")}
    return make_tree(tmp_path_factory.mktemp("source") / "tree", files)


@pytest.fixture(scope="module")
def wanted(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("wanted") / "out"
    pack(tree, out, shards=NUM_SHARDS)
    return content(out)


def num_receipts(out: Path) -> int:
    """Receipts that are there, as seen from outside."""
    try:
        return sum(name.endswith(".json") and name[0] != "." for name in os.listdir(out / ".shardtool" / "receipts"))
    except FileNotFoundError:
        return 0


def proven(out: Path) -> dict[str, tuple[int, int]]:
    """Stamps of the files that a valid receipt vouches for: they must never be written again."""
    place = os.fspath(out)
    stored = load_plan(place) if out.exists() else None
    if stored is None:
        return {}
    receipts = valid_receipts(place, read_receipts(place), stored.plan_id, len(stored.shards), deep=True)
    paths = {record.path for receipt in receipts.values() for record in (*receipt.files, receipt.index)}
    return {path: stamp for path, stamp in stamps(out).items() if path in paths}


def wait_for_a_moment(run: Run, out: Path, rng: random.Random) -> str:
    """Return at a random place of a run: planning, packing (mostly), or publishing."""
    kind = rng.choice(["start", "plan", *["pack"] * 7, "publish"])
    hidden = out / ".shardtool"
    if kind == "start":
        until(lambda: run.is_over or hidden.exists())
    elif kind == "plan":
        until(lambda: run.is_over or (hidden / "plan").exists())
    elif kind == "pack":
        count = num_receipts(out) + rng.randrange(1, NUM_SHARDS // 3)
        until(lambda: run.is_over or num_receipts(out) >= count or (out / "manifest.json").exists())
    else:
        until(lambda: run.is_over or num_receipts(out) >= NUM_SHARDS or (out / "manifest.json").exists())
    for _ in range(rng.randrange(20_000)):  # up to about a millisecond, so that no moment is privileged
        pass
    return kind


def test_any_number_of_kills_changes_nothing(tree: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng, out, kills = random.Random(seed), tmp_path / "out", 0
    while kills < KILLS:
        before = proven(out)
        run = start("pack", tree, out, *OPTIONS)
        wait_for_a_moment(run, out, rng)
        run.signal(signal.SIGKILL, group=rng.random() < 0.6)  # the whole group, or the command alone
        code, err = run.end()
        assert code in (0, -signal.SIGKILL), err
        kills += code != 0
        assert not rewritten(before, stamps(out) if out.exists() else {}) & before.keys()
        if code == 0:
            check_whole(out, wanted)
    pack(tree, out, shards=NUM_SHARDS)
    check_whole(out, wanted)


def check_whole(out: Path, wanted: dict[str, bytes]) -> None:
    """All bytes are there, nothing else is; then make room for the next round."""
    assert content(out) == wanted
    assert leftovers(out) == []
    shutil.rmtree(out)


def test_killed_workers_are_replaced(tree: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng, out = random.Random(seed), tmp_path / "out"
    run = start("pack", tree, out, *OPTIONS)
    for count in sorted(rng.sample(range(NUM_SHARDS - 10), 6)):
        until(lambda count=count: run.is_over or num_receipts(out) > count)  # type: ignore[misc]
        for worker in run.workers()[: rng.randrange(1, 3)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
    code, err = run.end()
    assert code == 0, err
    check_whole(out, wanted)


@pytest.mark.parametrize("to_group", [True, False], ids=["group", "command"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_says_so_and_goes_on_later(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path, number: int, code: int, to_group: bool
) -> None:
    out = tmp_path / "out"
    run = start("pack", tree, out, *OPTIONS, "--json")
    until(lambda: run.is_over or num_receipts(out) > 3)
    run.signal(number, group=to_group)
    ended, err = run.end()
    assert ended == code, err
    assert error_of(err)["exit_code"] == code
    assert "goes on" in error_of(err)["hint"]
    assert "Traceback" not in err
    assert temps(out) == []
    before = proven(out)
    assert 3 < len(before) // 2 < NUM_SHARDS
    assert pack(tree, out, shards=NUM_SHARDS).num_resumed == len(before) // 2
    assert not rewritten(before, stamps(out)) & before.keys()
    check_whole(out, wanted)


def test_ctrl_c_while_planning_leaves_something_to_go_on_with(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = start("pack", tree, out, *OPTIONS, "--json")
    until(lambda: run.is_over or (out / ".shardtool").exists())
    run.signal(signal.SIGINT)
    code, err = run.end()
    assert code == 130, err
    assert not out.exists() or temps(out) == []
    pack(tree, out, shards=NUM_SHARDS)
    check_whole(out, wanted)
