"""Files that are not what the scan saw when their turn comes."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import json_lines, make_tree, pack, read_members, run_cli, shard_paths

import shardtool.packing.build
import shardtool.packing.pack
from shardtool.errors import AccessDenied, ShardtoolError, SourceChanged, SourceError, SourceNotFound
from shardtool.manifest import load_manifest
from shardtool.packing.receipts import read_receipts
from shardtool.planning import plan_file
from shardtool.planning.plan_file import load_plan, read_rows
from shardtool.sources.reader import LocalReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helpers import Ran


MIB = 1 << 20
FILES: dict[Any, bytes | str] = {f"{n:02d}.bin": bytes([n]) * (100 * n) for n in range(24)}
FILES |= {f"{n:02d}.txt": f"text {n}" for n in range(24)}
FILES |= {f"big{n}.bin": bytes([n]) * (MIB + 1000 * n) for n in range(6)}  # larger than a slab, several in a shard


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def vanish(path: Path) -> None:
    path.unlink()


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_an_endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


CHANGES: dict[str, tuple[Callable[[Path], None], type[ShardtoolError]]] = {
    "grows": (grow, SourceChanged),
    "shrinks": (shrink, SourceChanged),
    "is written again": (touch, SourceChanged),
    "vanishes": (vanish, SourceNotFound),
    "becomes a folder": (become_a_folder, SourceError),
    "becomes a fifo": (become_a_fifo, SourceChanged),
    "becomes an endless link": (become_an_endless_link, SourceError),
}
EACH_CHANGE = pytest.mark.parametrize("change", CHANGES)
EACH_SIZE = pytest.mark.parametrize("name", ["07.bin", "big3.bin"], ids=["small", "large"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "in", FILES)


@pytest.fixture
def after_plan(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have something happen once, between the plan and the first byte packed, as if the scan were long ago."""
    monkeypatch.setattr(shardtool.packing.pack, "FRESH_SECONDS", -1e9)

    def arrange(action: Callable[[], object]) -> None:
        real, todo = plan_file.write_plan, [action]

        def write_plan(*args: Any, **options: Any) -> Any:
            stored = real(*args, **options)
            while todo:
                todo.pop()()
            return stored

        monkeypatch.setattr(shardtool.packing.build, "write_plan", write_plan)

    return arrange


def check_whole(out: Path, lost: set[str], *, extra: int = 0) -> None:
    """All members but those of lost samples are there, byte for byte, and the books balance."""
    members = read_members(out)
    kept = {name: data for name, data in FILES.items() if name.partition(".")[0] not in lost}
    files = {os.fsdecode(name): data for name, data in members.items() if not name.endswith(b".cls")}
    assert files == {name: data if isinstance(data, bytes) else data.encode() for name, data in kept.items()}
    manifest = load_manifest(os.fspath(out))
    for shard in manifest.shards:
        assert (out / shard.path).stat().st_size == shard.num_bytes
    assert manifest.ledger == {
        "seen": len(FILES) + extra,
        "packed": len(kept),
        "ignored": {"excluded": extra} if extra else {},
        "failed": len(FILES) - len(kept),
    }
    assert manifest.num_samples == len({name.partition(".")[0] for name in kept})
    assert not [path for path in out.rglob("*") if ".tmp-" in path.name]


def run_pack(source: Path, out: Path, *options: str) -> Ran:
    return run_cli("pack", source, out, "--shards", "3", "--durability", "none", "--json", *options)


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "is written again"])
def test_a_change_right_after_the_scan_is_found_too(
    source: Path, tmp_path: Path, after_plan: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(shardtool.packing.pack, "FRESH_SECONDS", 1e9)
    action, error = CHANGES[change]
    after_plan(lambda: action(source / "07.bin"))
    with pytest.raises(error, match=r"07\.bin"):
        pack(source, tmp_path / "out", shards=3)


# error: the run stops, and leaves nothing half-written


@EACH_SIZE
@EACH_CHANGE
def test_a_file_that_changes_stops_the_run_and_leaves_no_shard_half_written(
    source: Path, tmp_path: Path, after_plan: Any, change: str, name: str
) -> None:
    action, error = CHANGES[change]
    after_plan(lambda: action(source / name))
    out = tmp_path / "out"
    with pytest.raises(error, match=name) as caught:
        pack(source, out, shards=3)
    assert caught.value.exit_code == 5
    assert caught.value.where["path"] == os.fspath(source / name)
    assert not (out / "manifest.json").exists()
    done = read_receipts(os.fspath(out))
    stored = load_plan(os.fspath(out))
    assert stored is not None
    have = {path.name for path in (out / "data").iterdir()}
    assert have == {os.path.basename(stored.shards[shard].path) for shard in done}
    assert len(done) < 3


@EACH_CHANGE
def test_a_run_goes_on_once_the_file_is_mended(source: Path, tmp_path: Path, after_plan: Any, change: str) -> None:
    action, error = CHANGES[change]
    path = source / "07.bin"
    before = path.stat()
    after_plan(lambda: action(path))
    with pytest.raises(error):
        pack(source, tmp_path / "out", shards=3)
    mend(path, before)
    result = pack(source, tmp_path / "out", shards=3)
    assert result.num_packed + result.num_resumed == 3
    check_whole(tmp_path / "out", set())


def mend(path: Path, before: os.stat_result) -> None:
    """The file as the scan saw it."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    content = FILES[path.name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# skip: the run goes on without the sample, and says so


@EACH_SIZE
@EACH_CHANGE
def test_a_sample_that_changes_can_be_left_out_and_is_listed(
    source: Path, tmp_path: Path, after_plan: Any, change: str, name: str
) -> None:
    after_plan(lambda: CHANGES[change][0](source / name))
    done = run_pack(source, tmp_path / "out", "--on-changed", "skip", "--on-error", "skip")
    assert (done.code, done.error["exit_code"]) == (3, 3)
    key = name.partition(".")[0]
    check_whole(tmp_path / "out", {key})
    assert done.json["ledger"] == load_manifest(os.fspath(tmp_path / "out")).ledger
    assert done.json["ledger"]["failed"] == len([path for path in FILES if path.startswith(f"{key}.")])
    failed = json_lines(tmp_path / "out/.shardtool/failed.jsonl")
    assert [entry["key"] for entry in failed] == [key]
    assert os.fspath(source / name) in failed[0]["reason"]


@pytest.mark.parametrize(
    ("change", "option"), [("grows", "--on-changed"), ("is written again", "--on-changed"), ("vanishes", "--on-error")]
)
def test_each_policy_is_for_its_own_kind_of_trouble(
    source: Path, tmp_path: Path, after_plan: Any, change: str, option: str
) -> None:
    other = {"--on-changed": "--on-error", "--on-error": "--on-changed"}[option]
    after_plan(lambda: CHANGES[change][0](source / "07.bin"))
    assert run_pack(source, tmp_path / "one", other, "skip").code == 5
    shutil.rmtree(source)
    make_tree(source, FILES)
    after_plan(lambda: CHANGES[change][0](source / "07.bin"))
    assert run_pack(source, tmp_path / "two", option, "skip").code == 3


def test_a_shard_of_another_trouble_stops_although_the_first_may_be_skipped(
    source: Path, tmp_path: Path, after_plan: Any
) -> None:
    def two() -> None:
        for number in range(24):
            grow(source / f"{number:02d}.bin")
        vanish(source / "00.txt")

    after_plan(two)
    assert run_pack(source, tmp_path / "out", "--on-changed", "skip").code == 5


@EACH_CHANGE
def test_a_rerun_packs_what_was_left_out_once_it_is_mended(
    source: Path, tmp_path: Path, after_plan: Any, change: str
) -> None:
    path, skip = source / "07.bin", ("--on-changed", "skip", "--on-error", "skip")
    before = path.stat()
    after_plan(lambda: CHANGES[change][0](path))
    assert run_pack(source, tmp_path / "out", *skip).code == 3
    mend(path, before)
    done = run_pack(source, tmp_path / "out", *skip)
    assert (done.code, done.json["resumed_shards"]) == (0, 2)
    check_whole(tmp_path / "out", set())
    assert json_lines(tmp_path / "out/.shardtool/failed.jsonl") == []
    whole = pack(source, tmp_path / "other", shards=3)
    assert whole.manifest is not None
    assert done.json["dataset_id"] == whole.manifest.dataset_id


def test_a_rerun_with_nothing_mended_says_again_what_is_missing(source: Path, tmp_path: Path, after_plan: Any) -> None:
    options = ("--on-error", "skip")
    after_plan(lambda: vanish(source / "07.bin"))
    assert run_pack(source, tmp_path / "out", *options).code == 3
    again = run_cli("pack", tmp_path / "out", "--json", "--durability", "none", *options)
    assert again.code == 3
    check_whole(tmp_path / "out", {"07"})


def test_generated_parts_of_lost_samples_are_no_lost_files(source: Path, tmp_path: Path, after_plan: Any) -> None:
    after_plan(lambda: vanish(source / "07.bin"))
    done = run_pack(source, tmp_path / "out", "--on-error", "skip", "--label-from", "regex:^(.)")
    assert done.json["ledger"] == {"seen": 54, "packed": 52, "ignored": {}, "failed": 2}
    check_whole(tmp_path / "out", {"07"})


def test_a_file_that_may_not_be_read_any_more_is_told_apart(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, b"07.bin")
    with pytest.raises(AccessDenied, match=r"07\.bin cannot be read: Permission denied"):
        pack(source, tmp_path / "out", shards=3)
    assert run_pack(source, tmp_path / "out2", "--on-error", "skip").code == 3
    check_whole(tmp_path / "out2", {"07"})


def refuse(monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """Let the system refuse one file, to root too."""
    real = os.open

    def fake(path: Any, *args: Any, **options: Any) -> int:
        if path == name:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", fake)


def test_too_many_failures_stop_the_run(source: Path, tmp_path: Path, after_plan: Any) -> None:
    def lose_ten() -> None:
        for number in range(10):
            vanish(source / f"{number:02d}.bin")

    after_plan(lose_ten)
    done = run_pack(source, tmp_path / "out", "--on-error", "skip", "--max-errors", "4")
    assert done.code == 5
    assert "more than 4 samples failed" in done.error["message"]
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_shard_of_which_nothing_can_be_read_stops_the_run(source: Path, tmp_path: Path, after_plan: Any) -> None:
    after_plan(lambda: make_tree(source.rename(tmp_path / "away").with_name("in"), {}))
    done = run_pack(source, tmp_path / "out", "--on-error", "skip")
    assert done.code == 5
    assert "not one of the" in done.error["message"]
    assert not (tmp_path / "out/data").exists() or not list((tmp_path / "out/data").iterdir())


def test_a_source_that_is_gone_is_named(source: Path, tmp_path: Path, after_plan: Any) -> None:
    after_plan(lambda: shutil.rmtree(source))
    with pytest.raises(SourceNotFound, match=r"source .*in cannot be read") as caught:
        pack(source, tmp_path / "out", on_error="skip")
    assert caught.value.where["path"] == os.fspath(source)


def test_a_file_that_keeps_changing_costs_only_itself(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file changes while the shard is written for the second time, and one more at the third."""
    victims = ["03.bin", "04.bin", "05.bin"]

    def reader(*args: Any) -> Any:
        if victims:
            grow(source / victims.pop())
        return LocalReader(*args)

    monkeypatch.setattr(shardtool.packing.pack, "open_reader", reader)
    done = run_cli("pack", source, tmp_path / "out", "--shards", "1", "--on-changed", "skip", "--json")
    assert done.code == 3
    check_whole(tmp_path / "out", {"03", "04", "05"})


def test_a_read_that_comes_in_pieces_is_no_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems may hand out less than was asked for."""
    real = os.readv

    def readv(fd: int, buffers: Any) -> int:
        return real(fd, [buffers[0][:700]])

    monkeypatch.setattr(os, "readv", readv)
    pack(source, tmp_path / "out", shards=3)
    check_whole(tmp_path / "out", set())


def test_many_small_files_of_one_slab_come_in_their_order(tmp_path: Path) -> None:
    files: dict[Any, bytes | str] = {f"{number:03d}.txt": f"{number}" * (number % 7) for number in range(200)}
    pack(make_tree(tmp_path / "many", files), tmp_path / "out")
    assert {os.fsdecode(name): data.decode() for name, data in read_members(tmp_path / "out").items()} == files


def test_the_plan_on_disk_is_not_touched_by_failures(source: Path, tmp_path: Path, after_plan: Any) -> None:
    after_plan(lambda: vanish(source / "07.bin"))
    run_pack(source, tmp_path / "out", "--on-error", "skip")
    stored = load_plan(os.fspath(tmp_path / "out"))
    assert stored is not None
    assert sum(read_rows(os.fspath(tmp_path / "out"), shard).num_samples for shard in range(3)) == 30
    assert len(shard_paths(tmp_path / "out")) == 3
