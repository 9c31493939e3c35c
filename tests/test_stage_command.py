"""`shardtool stage`: options, documents, exit codes, the copy in the background, upkeep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from groups import HOME, until
from helpers import make_tree, pack, run_cli
from staged import large_data_set, only, shard_bytes, small_data_set, staged_shards_of
from test_schemas import check as check_schema

from shardtool.manifest import load_manifest
from shardtool.staging import reached, wait
from shardtool.staging.lock import CopierLock, is_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers import Ran

QUICK = ("--durability", "none")
LAUNCHERS = ("GROUP_RANK", "PET_NODE_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data_set(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_data_set(tmp_path_factory.mktemp("large"))


@pytest.fixture
def nvme(tmp_path: Path) -> Iterator[Path]:
    """A target; copies that still run in the background of it are ended."""
    target = tmp_path / "nvme"
    yield target
    for folder in target.iterdir() if target.exists() else ():
        lock = os.fspath(folder / ".stage" / "lock")
        for pid in holders_of(lock):
            os.kill(pid, signal.SIGKILL)
        until(lambda lock=lock: not is_held(lock))  # type: ignore[misc]


def holders_of(lock: str) -> list[int]:
    """Processes of stage that have the lock file open."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
            if b"shardtool.staging.background" in words:
                fds = Path(f"/proc/{name}/fd").iterdir()
                found += [int(name) for fd in fds if os.readlink(fd) == os.path.realpath(lock)]
        except OSError:
            continue
    return found


def stage(*args: str | Path) -> Ran:
    done = run_cli("stage", *args, *QUICK, "--json")
    assert done.code == 0, done.err
    return done


def test_the_document_says_what_was_brought(out: Path, nvme: Path) -> None:
    document = stage(out, nvme).json
    check_schema("stage", document)
    manifest = load_manifest(os.fspath(out))
    assert document["path"] == os.fspath(only(nvme))
    assert (document["shards"], document["bytes"]) == (4, manifest.num_bytes)
    assert (document["fetched_bytes"], document["reused_bytes"]) == (manifest.num_bytes, 0)
    again = stage(out, nvme).json
    assert (again["fetched_bytes"], again["reused_bytes"]) == (0, manifest.num_bytes)


def test_the_text_tells_path_and_bytes(out: Path, nvme: Path) -> None:
    done = run_cli("stage", out, nvme, *QUICK)
    assert done.out.startswith(f"done   {only(nvme)}   4 shards verified")
    assert "stage  node 0 of 1   4 of 4 shards" in done.err
    again = run_cli("stage", out, nvme, *QUICK)
    assert "nothing to fetch" in again.out
    assert run_cli("stage", out, nvme, *QUICK, "-q").out.strip() == os.fspath(only(nvme))


def test_the_launcher_tells_the_node(out: Path, nvme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ("--num-nodes", "2", "--node-rank", "1", "--local-world-size", "2", "--order", "shard")
    stage(out, nvme / "a", *by_hand)
    launcher = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    done = run_cli("stage", out, nvme / "b", *QUICK, "--order", "shard", "-v")
    assert "torchrun: node 1 of 2, ranks on each: 2" in done.err
    assert staged_shards_of(only(nvme / "b")) == staged_shards_of(only(nvme / "a"))
    assert 0 < len(staged_shards_of(only(nvme / "a"))) < 4


def test_later_epochs_that_need_more_are_announced(out: Path, nvme: Path) -> None:
    wish = ("--num-nodes", "3", "--node-rank", "1", "--order", "shard", "--lanes", "4")
    first = run_cli("stage", out, nvme, *QUICK, *wish, "--epochs", "0:1")
    run_cli("stage", out, nvme / "both", *QUICK, *wish, "--epochs", "2")
    more = len(staged_shards_of(only(nvme / "both"))) - len(staged_shards_of(only(nvme)))
    assert ("--epochs 0:2 brings them too" in first.err) == (more > 0)
    assert run_cli("stage", out, nvme, "--epochs", "2:1").code == 2


def test_progress_is_told_in_events(out: Path, nvme: Path) -> None:
    done = run_cli("stage", out, nvme, *QUICK, "--progress", "json")
    events = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]
    assert {event["step"] for event in events} == {"copy"}
    assert events[-1]["shards"] == events[-1]["total_shards"] == 4
    assert events[-1]["bytes"] == events[-1]["total_bytes"]


@pytest.mark.parametrize("limit", ["--bwlimit=1GB", "--page-cache=drop", "--jobs=1", "--durability=full"])
def test_how_it_is_copied_changes_no_byte(out: Path, nvme: Path, limit: str) -> None:
    done = run_cli("stage", out, nvme, limit, "--json")
    assert done.code == 0, done.err
    assert shard_bytes(only(nvme)) == shard_bytes(out)


def test_a_dry_run_tells_bytes_and_requests_and_writes_nothing(large: Path, nvme: Path) -> None:
    document = run_cli("stage", large, nvme, "--dry-run", "--json").json
    check_schema("stage-plan", document)
    assert document["missing_bytes"] == document["bytes"] == load_manifest(os.fspath(large)).num_bytes
    assert document["requests"] == 1 + 2 * (1 + 3)  # manifest; index and blocks of each shard
    assert not nvme.exists()
    stage(large, nvme, "--shards", "0")
    rest = run_cli("stage", large, nvme, "--dry-run", "--json").json
    assert rest["requests"] == 1 + 4
    assert "to fetch" in run_cli("stage", large, nvme, "--dry-run").out
    stage(large, nvme)
    assert run_cli("stage", large, nvme, "--dry-run", "--json").json["missing_bytes"] == 0


REFUSED = {
    "no target": (["OUT"], 2),
    "two targets": (["OUT", "a", "b"], 2),
    "one target twice": (["OUT", "a", "a", "--numa"], 2),
    "all and some": (["OUT", "a", "--all", "--shards", "1"], 2),
    "no such shard": (["OUT", "a", "--shards", "9"], 2),
    "no such split": (["OUT", "a", "--all", "--split", "testt"], 2),
    "no such node": (["OUT", "a", "--node-rank", "3", "--num-nodes", "2"], 2),
    "drop alone": (["a", "--drop", "x"], 2),
    "two modes": (["a", "--gc", "--status"], 2),
    "status of two": (["a", "b", "c", "--status"], 2),
    "budget without order": (["OUT", "a", "--all", "--budget", "300000"], 2),
    "no source": (["nowhere", "a"], 5),
    "into itself": (["OUT", "OUT"], 6),
    "verify nothing": ([".", "--verify"], 5),
    "status of nothing": (["nowhere", "--status"], 6),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_a_hint(
    out: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, code = REFUSED[case]
    done = run_cli("stage", *[os.fspath(out) if word == "OUT" else word for word in words], "--json")
    assert done.code == code, done.err
    assert done.error["hint"] or case == "status of nothing"
    assert done.out == ""


def test_status_tells_what_is_here(large: Path, nvme: Path) -> None:
    nvme.mkdir()
    assert "nothing is staged" in run_cli("stage", "--status", nvme).out
    stage(large, nvme, "--shards", "0")
    document = run_cli("stage", "--status", nvme, "--json").json
    check_schema("stage-status", document)
    (folder,) = document["folders"]
    assert (folder["shards"], folder["ready_shards"], folder["is_running"], folder["is_complete"]) == (
        1,
        1,
        False,
        True,
    )
    next((only(nvme) / "data").iterdir()).unlink()
    lock = CopierLock(os.fspath(only(nvme) / ".stage" / "lock"))
    assert lock.try_take()
    assert "copying   0 of 1 shard" in run_cli("stage", "--status", only(nvme)).out
    lock.release()
    said = run_cli("stage", "--status", nvme).out
    assert "incomplete" in said
    assert f"shardtool stage {os.path.abspath(large)} {nvme} goes on" in said


def test_verify_finds_damage_and_the_next_run_mends_only_that(large: Path, nvme: Path) -> None:
    stage(large, nvme)
    assert run_cli("stage", "--verify", nvme).out.startswith("ok     2 shards")
    shard = only(nvme) / "data" / "train-00001-of-00002.tar"
    before = shard.stat()
    with shard.open("r+b") as file:
        file.seek(100)
        file.write(b"rotten")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # as bits rot: nothing tells
    assert stage(large, nvme).json["fetched_bytes"] == 0
    done = run_cli("stage", "--verify", nvme, "--json")
    assert done.code == 4
    check_schema("verify", done.json)
    assert "only those" in done.error["hint"]
    again = stage(large, nvme).json
    assert again["fetched_bytes"] == 16 << 20
    assert shard_bytes(only(nvme)) == shard_bytes(large)
    assert run_cli("stage", "--verify", nvme).code == 0


@pytest.mark.parametrize("option", ["--status", "--verify", "--gc"])
def test_a_folder_that_does_not_exist_is_an_error_with_a_way_out(option: str, tmp_path: Path) -> None:
    ran = run_cli("stage", tmp_path / "nowhere", option)
    assert ran.code == 6
    assert f"{tmp_path / 'nowhere'} cannot be read: No such file" in ran.err
    assert f"stage there first: shardtool stage SRC {tmp_path / 'nowhere'}" in " ".join(ran.err.split())
    assert not (tmp_path / "nowhere").exists()


def test_gc_removes_leftovers_of_the_dead_and_nothing_else(large: Path, nvme: Path) -> None:
    stage(large, nvme, "--shards", "0")
    folder, whole = only(nvme), shard_bytes(only(nvme))
    part = folder / ".stage" / "parts" / "data" / "train-00001-of-00002.tar.part"
    part.write_bytes(b"x" * 100_000)
    lock = CopierLock(os.fspath(folder / ".stage" / "lock"))
    assert lock.try_take()
    assert run_cli("stage", "--gc", nvme, "--json").json["removed_bytes"] == 0
    assert part.exists()
    lock.release()
    document = run_cli("stage", "--gc", nvme, "--json").json
    check_schema("stage-status", document)
    assert document["removed_bytes"] >= 100_000
    assert not part.exists()
    assert shard_bytes(folder) == whole
    assert "freed" in run_cli("stage", "--gc", nvme).out


def test_a_version_goes_only_when_it_is_named(large: Path, out: Path, nvme: Path) -> None:
    stage(large, nvme)
    stage(out, nvme)
    folders = sorted(nvme.iterdir())
    assert len(folders) == 2
    run_cli("stage", "--gc", nvme)
    assert sorted(nvme.iterdir()) == folders
    (folders[0] / "mine.txt").write_text("kept")
    assert run_cli("stage", "--gc", nvme, "--drop", "nothing").code == 2
    done = run_cli("stage", "--gc", nvme, "--drop", folders[0].name)
    assert done.code == 0, done.err
    assert [os.fspath(path.relative_to(folders[0])) for path in folders[0].rglob("*")] == ["mine.txt"]
    assert shard_bytes(folders[1])


# In the background


def test_ready_after_returns_with_the_first_shards_and_the_rest_comes(large: Path, nvme: Path) -> None:
    done = stage(large, nvme, "--ready-after", "1", "--bwlimit", "60MB", "--order", "none")
    assert done.json["is_complete"] is False
    assert done.json["shards"] == 1
    folder = os.fspath(only(nvme))
    assert Path(wait(folder, 0, timeout=0)).exists()
    assert Path(wait(folder, 1, timeout=60)).read_bytes() == (large / "data" / "train-00001-of-00002.tar").read_bytes()
    until(lambda: not is_held(os.path.join(folder, ".stage", "lock")))
    assert shard_bytes(only(nvme)) == shard_bytes(large)


def test_the_first_of_all_shards_are_those_of_the_manifest(large: Path, nvme: Path) -> None:
    done = stage(large, nvme, "--all", "--ready-after", "1", "--bwlimit", "60MB")
    assert done.json["shards"] == 1
    assert Path(wait(os.fspath(only(nvme)), 0, timeout=0)).exists()


def test_a_copy_in_the_background_that_fails_says_why(tmp_path: Path, nvme: Path) -> None:
    source = small_data_set(tmp_path / "src")
    for shard in (source / "data").iterdir():
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    done = run_cli("stage", source, nvme, "--ready-after", "1", *QUICK, "--json")
    assert done.code == 4
    assert done.error["code"] == "CorruptShard"
    assert "should have digest" in done.error["message"]


def test_a_window_moves_in_the_background_and_ends_with_the_last_epoch(tmp_path: Path, nvme: Path) -> None:
    source = small_data_set(tmp_path / "src")
    manifest = load_manifest(os.fspath(source))
    budget = 2 * max(shard.num_bytes for shard in manifest.shards)
    words = ("--budget", str(budget), "--order", "none", "--ready-after", "1")
    assert stage(source, nvme, *words).json["is_complete"] is False
    folder = os.fspath(only(nvme))
    lock = os.path.join(folder, ".stage", "lock")
    position = 0
    for shard, record in enumerate(manifest.shards):
        reached(folder, position)
        assert Path(wait(folder, shard, timeout=60)).read_bytes() == (source / record.path).read_bytes()
        assert is_held(lock) or shard >= 2  # then the last two are here, and nothing is left to do
        position += record.num_samples
    reached(folder, position)
    until(lambda: not is_held(lock))
    assert run_cli("verify", folder, "--deep").code == 0


def test_a_window_ends_with_its_launcher(tmp_path: Path, nvme: Path) -> None:
    source = small_data_set(tmp_path / "src")
    budget = max(shard.num_bytes for shard in load_manifest(os.fspath(source)).shards)
    words = ["stage", source, nvme, "--budget", str(budget), "--order", "none", "--ready-after", "1", *QUICK]
    command = " ".join([sys.executable, "-m", "shardtool", *map(str, words), "&& read line"])
    launcher = subprocess.Popen(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": os.fspath(HOME)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert launcher.stdout is not None
    assert b"shard" in launcher.stdout.readline()
    lock = os.fspath(only(nvme) / ".stage" / "lock")
    assert is_held(lock)
    launcher.communicate(b"\n")
    until(lambda: not is_held(lock))


def test_a_stale_position_of_an_earlier_run_moves_no_window(tmp_path: Path, nvme: Path) -> None:
    source = small_data_set(tmp_path / "src")
    stage(source, nvme, "--shards", "3")
    reached(os.fspath(only(nvme)), 40)
    budget = 2 * max(shard.num_bytes for shard in load_manifest(os.fspath(source)).shards)
    document: dict[str, Any] = stage(source, nvme, "--budget", str(budget), "--order", "none").json
    assert document["is_complete"] is False
    assert staged_shards_of(only(nvme)) == ["train-00000-of-00004.tar", "train-00001-of-00004.tar"]


def test_epochs_without_end_are_refused(tmp_path: Path) -> None:
    ran = run_cli("stage", tmp_path, tmp_path / "nvme", "--epochs", "0:1000000000")
    assert ran.code == 2
    assert "more than 10,000 epochs" in ran.err
    assert "--all" in ran.err


def test_a_source_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    ran = run_cli("stage", tmp_path / "nowhere", tmp_path / "nvme")
    assert ran.code == 5
    assert "nowhere does not exist" in ran.err


def test_a_source_that_is_a_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for words in (("ls",), ("stats",), ("stage", tmp_path / "nvme")):
        ran = run_cli(words[0], tmp_path / "file", *words[1:])
        assert ran.code == 5
        assert "file is no folder" in ran.err


@pytest.mark.parametrize("words", [["--all", "--decompress"], ["--shards", "0"]])
def test_index_leaves_a_staged_folder_what_it_is(tmp_path: Path, words: list[str]) -> None:
    tree = make_tree(tmp_path / "in", {f"{n:02d}.txt": f"text {n} " * 200 for n in range(12)})
    pack(tree, tmp_path / "out", shards=2, compress="zstd")
    stage_it: list[str | Path] = ["stage", tmp_path / "out", tmp_path / "nvme", *words, *QUICK, "-q"]
    assert run_cli(*stage_it).code == 0
    folder = only(tmp_path / "nvme")
    assert run_cli("index", folder, "--json").json["made"]["indexes"] == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".stage" not in path.parts}
    for lost in ("manifest.json", "index/00000.arrow"):
        (folder / lost).unlink()
        done = run_cli("index", folder, "--json")
        assert done.code == 3
        assert ("--decompress" in done.error["hint"]) is ("--decompress" in words)
        assert not (folder / lost).exists()
        assert run_cli(*stage_it).code == 0
    assert {path: path.read_bytes() for path in before} == before
    assert run_cli("verify", folder, "--deep").code == 0
