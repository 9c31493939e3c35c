"""`shardtool status`: how far a data set is, before, while and after it is packed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import make_tree, pack, run_cli

from shardtool.errors import SourceError
from shardtool.packing.destination import locked
from shardtool.packing.status import _rate, is_locked, read_status
from shardtool.report.text import width

PETS = Path(__file__).parent.parent / "fixtures" / "pets"


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    run_cli("plan", PETS, tmp_path / "out", "--shard-size", "50KB", "--write", "-q")
    return tmp_path / "out"


@pytest.fixture
def halted(tmp_path: Path) -> Path:
    """A run that stopped at a file that changed: some shards are done."""
    source = make_tree(tmp_path / "in", {f"{n:03d}.txt": "x" * 400 for n in range(100)})
    run_cli("plan", source, tmp_path / "out", "--shards", "10", "--write", "-q")
    (source / "042.txt").write_text("changed")
    with pytest.raises(SourceError):
        pack([], tmp_path / "out")
    return tmp_path / "out"


def test_a_stored_plan_has_nothing_done_yet(planned: Path) -> None:
    document = run_cli("status", planned, "--json").json
    assert document["state"] == "unfinished"
    assert document["done"] == {"shards": 0, "samples": 0, "bytes": 0}
    assert document["planned"]["samples"] == 64
    assert document["next"] == f"shardtool pack {planned}"
    assert document["sources"] == [str(PETS)]


def test_a_halted_run_counts_what_is_done(halted: Path) -> None:
    document = run_cli("status", halted, "--json").json
    done, planned = document["done"], document["planned"]
    assert document["state"] == "unfinished"
    assert 0 < done["shards"] < planned["shards"] == 10
    assert done["shards"] == len(list((halted / ".shardtool" / "receipts").glob("*.json")))
    assert done["bytes"] == sum(path.stat().st_size for path in (halted / "data").glob("*.tar"))
    text = run_cli("status", halted)
    assert f"{done['shards']}/10" in text.out
    assert f"next   shardtool pack {halted}" in text.err


def test_a_shard_whose_file_is_gone_is_not_done(halted: Path) -> None:
    before = run_cli("status", halted, "--json").json["done"]["shards"]
    next(iter((halted / "data").glob("*.tar"))).unlink()
    assert run_cli("status", halted, "--json").json["done"]["shards"] == before - 1


def test_a_finished_data_set_is_finished(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", shard_size=50_000)
    document = run_cli("status", tmp_path / "out", "--json").json
    assert document["state"] == "finished"
    assert document["done"] == document["planned"]
    assert document["missing_files"] == []
    assert document["next"].startswith("shardtool verify")


def test_a_finished_data_set_that_lost_a_file_says_so(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", shard_size=50_000)
    path = next(iter((tmp_path / "out" / "data").glob("*.tar")))
    path.unlink()
    done = run_cli("status", tmp_path / "out")
    assert "finished, but 1 file is gone" in done.out
    assert f"data/{path.name}" in done.out


def test_failed_samples_are_counted_by_reason(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{n:03d}.txt": "x" * 400 for n in range(100)})
    os.symlink("nowhere", source / "999.txt")
    run_cli("plan", source, tmp_path / "out", "--shards", "10", "--write", "-q", "--on-error", "skip")
    (source / "042.txt").write_text("changed")
    pack([], tmp_path / "out", on_changed="skip", on_error="skip")
    document = run_cli("status", tmp_path / "out", "--json").json
    assert document["failed"] == {"changed": 1, "dangling_link": 1}
    assert document["failed_shards"] == 1
    assert document["next"] == f"shardtool pack {tmp_path / 'out'}"
    assert "1 changed   1 dangling_link   in 1 shard" in run_cli("status", tmp_path / "out").out


def test_temp_files_are_counted_and_explained(planned: Path) -> None:
    make_tree(planned, {"data/.tmp-abc-0-1-train.tar": "x" * 2048})
    document = run_cli("status", planned, "--json").json
    assert (document["temp_files"], document["temp_bytes"]) == (1, 2048)
    assert "of a run that was stopped" in " ".join(run_cli("status", planned).out.split())


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list locks")
def test_a_run_that_goes_on_is_seen_and_not_disturbed(planned: Path) -> None:
    assert is_locked(str(planned)) is False
    with locked(str(planned), None):
        status = read_status(str(planned), 0.0)
        assert status.is_running
        assert status.next == ""
        done = run_cli("status", planned)
        assert "packing now" in done.out
        assert "next" not in done.err
    with locked(str(planned), (0, 2)):
        assert is_locked(str(planned))
    assert is_locked(str(planned)) is False


def test_planning_that_was_killed_is_told_from_a_plan(tmp_path: Path) -> None:
    make_tree(tmp_path / "out", {".shardtool/plan/000.arrow": "half"})
    done = run_cli("status", tmp_path / "out")
    assert done.code == 0
    assert "planning was interrupted" in done.out
    assert "shardtool pack SRC" in done.err


def test_the_rate_is_that_of_the_latest_run() -> None:
    first = [(float(n), 10) for n in range(5)]
    second = [(10_000.0 + 2 * n, 10) for n in range(11)]
    found = _rate(first + second, None)
    assert found is not None
    assert (found.shards, found.seconds) == (10, 20.0)
    assert found.bytes_per_s == pytest.approx(5.0)


def test_the_rate_of_a_run_that_stalls_falls() -> None:
    times = [(float(n), 10) for n in range(11)]
    found = _rate(times, 110.0)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(100 / 110)
    assert _rate(times[:1], 5.0) is None
    assert _rate([], None) is None


def test_time_left_is_told_while_a_run_goes_on(halted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = sorted((halted / ".shardtool" / "receipts").glob("*.json"))
    for number, path in enumerate(receipts):
        os.utime(path, (1000 + number, 1000 + number))
    monkeypatch.setattr("shardtool.packing.status.is_locked", lambda out: True)
    status = read_status(str(halted), 1000.0 + len(receipts) - 1)
    assert status.rate is not None
    assert status.rate.shards_per_s == pytest.approx(1.0)
    assert status.left_s is not None
    assert status.left_s == pytest.approx(10 - len(receipts), rel=0.1)


@pytest.mark.parametrize("name", ["nowhere", "empty", "foreign"])
def test_what_holds_no_data_set_exits_5(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path, {"empty/": "", "foreign/a.txt": "x"})
    done = run_cli("status", tmp_path / name, "--json")
    assert (done.code, done.out, done.error["code"]) == (5, "", "SourceNotFound")


def test_a_damaged_plan_exits_4(planned: Path) -> None:
    (planned / ".shardtool" / "plan.json").write_text("{}")
    assert run_cli("status", planned).code == 4


def test_quiet_is_one_line(planned: Path) -> None:
    assert run_cli("status", planned, "-q").out == "unfinished 0/6\n"


def test_lines_stay_in_80_columns(halted: Path) -> None:
    make_tree(halted, {"data/.tmp-abc-0-1-train.tar": "x" * 2048})
    for line in run_cli("status", halted).out.splitlines():
        assert width(line) <= 80
