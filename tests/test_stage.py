"""A copy is whole, verified, resumable and alone: blocks, journals, the table, versions, damage, and no room."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import Said, make_tree, pack, run_cli
from places import mounted
from staged import (
    CountingPlace,
    Telling,
    large_data_set,
    num_blocks_of,
    only,
    run_stage,
    shard_bytes,
    small_data_set,
    staged_shards_of,
)

from shardtool.assignment.assignment import Wish, assign
from shardtool.errors import (
    CorruptShard,
    DestinationError,
    DestinationExists,
    FormatError,
    NoSpace,
    SourceChanged,
    SourceNotFound,
    StageTimeout,
    UsageProblem,
)
from shardtool.hashing import BLOCK_BYTES
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset
from shardtool.staging import lease, reached, wait
from shardtool.staging.arriving import TRIES
from shardtool.staging.folder import read_staged
from shardtool.staging.lock import CopierLock, is_held
from shardtool.staging.share import node_share
from shardtool.verification.verify import verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data_set(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_data_set(tmp_path_factory.mktemp("large"))


def check(folder: Path) -> None:
    """`verify --deep` finds it whole."""
    result = verify(os.fspath(folder), WorkerPool(0), Said(), is_deep=True)
    assert result.is_ok, result.faults


def parts_of(folder: Path) -> list[str]:
    """Names of what is not complete."""
    return sorted(name for _, _, names in os.walk(folder / ".stage" / "parts") for name in names)


# What is brought


def test_all_of_a_data_set_is_the_same_byte_for_byte(small: Path, tmp_path: Path) -> None:
    say = Telling()
    result = run_stage(small, tmp_path, say=say)
    folder = only(tmp_path)
    manifest = load_manifest(os.fspath(small))
    assert folder.name == f"out-{manifest.dataset_id[:12]}"
    assert shard_bytes(folder) == shard_bytes(small)
    assert (folder / "manifest.json").read_bytes() == (small / "manifest.json").read_bytes()
    assert (result.num_bytes, result.fetched_bytes, result.reused_bytes) == (manifest.num_bytes,) * 2 + (0,)
    assert (say.shards, say.num_bytes, say.samples) == (4, manifest.num_bytes, manifest.num_samples)
    assert parts_of(folder) == []
    check(folder)


def test_a_share_is_a_data_set_that_every_reader_opens(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="1,3")
    folder = only(tmp_path)
    assert len(staged_shards_of(folder)) == 2
    check(folder)
    with Dataset.open(os.fspath(small)) as whole, Dataset.open(os.fspath(folder)) as part:
        assert [sample.key for sample in part.samples(3)] == [sample.key for sample in whole.samples(3)]
        with pytest.raises(CorruptShard, match="cannot be opened") as caught:
            list(part.samples(0))
    assert "--shards 0 this one" in caught.value.hint


def test_a_shard_that_is_declared_and_missing_is_damage(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="1,3")
    folder = only(tmp_path)
    min((folder / "data").iterdir()).unlink()
    result = verify(os.fspath(folder), WorkerPool(0), Said())
    assert [(fault.kind, fault.shard) for fault in result.faults] == [("missing", 1)]


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 1), (4, 2)])
def test_every_node_has_the_union_of_what_assign_gives_its_ranks(
    tmp_path: Path, small: Path, nodes: int, ranks: int
) -> None:
    wish = Wish(world_size=nodes * ranks, num_nodes=nodes, mode="shard")
    manifest = load_manifest(os.fspath(small))
    found = assign(manifest, wish)
    for node in range(nodes):
        run_stage(small, tmp_path / str(node), select="share", wish=wish, node=node)
        union = {
            int(shard)
            for local in range(ranks)
            for segments in found.coverage(local * nodes + node)
            for shard in segments.shard.tolist()
        }
        names = sorted(os.path.basename(manifest.shards[shard].path) for shard in union)
        assert staged_shards_of(only(tmp_path / str(node))) == names
        assert set(node_share(found, node, range(1)).shards) == union


def test_labels_and_side_files_come_too(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"{name}/{n}.txt": name * n for name in ("a", "b") for n in range(9)})
    pack(tmp_path / "in", tmp_path / "out", shards=2, label_from="parent")
    run_stage(tmp_path / "out", tmp_path / "nvme")
    assert (only(tmp_path / "nvme") / "labels.json").read_bytes() == (tmp_path / "out" / "labels.json").read_bytes()
    check(only(tmp_path / "nvme"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two files, of which the second has no block digests."""
    root = tmp_path_factory.mktemp("pairs")
    lines = [json.dumps({"text": f"hello {number} " * 60}) for number in range(200)]
    (root / "texts.jsonl").write_text("\n".join(lines) + "\n")
    options = ("--format", "bin", "--shard-tokens", "50000", "--durability", "none", "-q")
    assert run_cli("pack", root / "texts.jsonl", root / "out", *options).code == 0
    return root / "out"


@pytest.mark.parametrize("name", ["parquet", "arrow", "arrow-stream", "tfrecord", "mds", "litdata"])
def test_every_format_is_staged_with_what_its_readers_need(tmp_path: Path, name: str) -> None:
    pets = Path(__file__).parent.parent / "fixtures" / "pets"
    options = ("--format", name, "--shard-size", "32KiB", "--durability", "none", "-q")
    assert run_cli("pack", pets, tmp_path / "out", *options).code == 0
    run_stage(tmp_path / "out", tmp_path / "nvme")
    staged = only(tmp_path / "nvme")
    files = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for file in files:
        if file.parts[0] != ".shardtool":
            assert (staged / file).read_bytes() == (tmp_path / "out" / file).read_bytes(), file
    check(staged)


@pytest.fixture(params=["its own digest", "no digest of a block"])
def one_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small second file of a shard; as it is, and as one of several blocks would be, which has no digest of any."""
    if request.param != "its own digest":
        monkeypatch.setattr("shardtool.staging.transfer.of_whole", lambda _: None)


@pytest.mark.usefixtures("one_block")
def test_a_file_without_block_digests_is_compared_whole(pairs: Path, tmp_path: Path) -> None:
    spoiled: list[str] = []

    def flip(path: str, offset: int, view: memoryview) -> None:
        if path.endswith("00001-of-00003.idx") and len(spoiled) < 2:
            spoiled.append(path)
            view[40] ^= 1

    say = Telling()
    run_stage(CountingPlace(pairs, flip), tmp_path, say=say)
    assert len(spoiled) == 2
    assert shard_bytes(only(tmp_path)) == shard_bytes(pairs)
    assert (say.shards, say.num_bytes) == (3, load_manifest(os.fspath(pairs)).num_bytes)
    check(only(tmp_path))


@pytest.mark.usefixtures("one_block")
def test_a_file_that_is_wrong_as_a_whole_ends_the_copy(pairs: Path, tmp_path: Path) -> None:
    def flip(path: str, offset: int, view: memoryview) -> None:
        if path.endswith("00001-of-00003.idx"):
            view[40] ^= 1

    with pytest.raises(CorruptShard, match=r"00001-of-00003\.idx.* should have digest"):
        run_stage(CountingPlace(pairs, flip), tmp_path)
    assert "train-00001-of-00003.idx" not in shard_bytes(only(tmp_path))


def test_a_later_share_adds_to_what_is_there(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="1")
    again = run_stage(small, tmp_path, select="list", listed="0-1")
    folder = only(tmp_path)
    staged = read_staged(os.fspath(folder))
    assert staged is not None
    assert staged.shards == (0, 1)
    sizes = [shard.num_bytes for shard in load_manifest(os.fspath(small)).shards]
    assert (again.fetched_bytes, again.reused_bytes) == (sizes[0], sizes[1])


def test_each_socket_gets_what_its_ranks_read(small: Path, tmp_path: Path) -> None:
    wish = Wish(world_size=4, num_nodes=1, mode="shard", lanes=4)
    targets = tuple(os.fspath(tmp_path / name) for name in ("nvme0", "nvme1"))
    result = run_stage(small, tmp_path, select="share", wish=wish, targets=targets)
    assert len(result.paths) == 2
    found = assign(load_manifest(os.fspath(small)), wish)
    share = node_share(found, 0, range(1))
    for number, target in enumerate(targets):
        staged = read_staged(os.fspath(only(Path(target))))
        assert staged is not None
        assert set(staged.shards) == set(share.of_ranks(range(2 * number, 2 * number + 2)).shards)
        check(only(Path(target)))


# Once


def test_a_rerun_reads_nothing_but_the_manifest(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path)
    place = CountingPlace(small)
    result = run_stage(place, tmp_path)
    assert (place.reads, dict(place.small), place.stats) == ({}, {"manifest.json": 1}, {})
    assert result.fetched_bytes == 0
    assert result.reused_bytes == result.num_bytes


def test_each_block_is_read_once(large: Path, tmp_path: Path) -> None:
    place = CountingPlace(large)
    run_stage(place, tmp_path)
    assert len(place.reads) == num_blocks_of(large)
    assert set(place.reads.values()) == {1}
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


def test_eight_at_once_read_each_block_once(large: Path, tmp_path: Path) -> None:
    place, results, errors = CountingPlace(large), [], []

    def run() -> None:
        try:
            results.append(run_stage(place, tmp_path))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(results) == 8
    assert len(place.reads) == num_blocks_of(large)
    assert set(place.reads.values()) == {1}
    assert sum(result.fetched_bytes for result in results) == results[0].num_bytes
    check(only(tmp_path))


def test_a_waiter_returns_when_its_own_shards_are_there(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="1")
    lock = CopierLock(os.fspath(only(tmp_path) / ".stage" / "lock"))
    assert lock.try_take()
    try:
        assert is_held(lock.path)
        result = run_stage(small, tmp_path, select="list", listed="1")
        assert (result.fetched_bytes, result.reused_bytes) == (0, result.num_bytes)
    finally:
        lock.release()
    assert not is_held(lock.path)


def test_a_waiter_takes_over_when_the_copier_is_gone(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="1")
    lock = CopierLock(os.fspath(only(tmp_path) / ".stage" / "lock"))
    assert lock.try_take()
    place, done = CountingPlace(small), threading.Event()

    def run() -> None:
        run_stage(place, tmp_path)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert not done.wait(0.2)
    assert not place.reads
    lock.release()
    thread.join()
    assert done.is_set()
    check(only(tmp_path))


# Damage on the way


@pytest.mark.parametrize("block", range(3))
def test_a_flipped_bit_is_caught_and_only_its_block_is_read_again(large: Path, tmp_path: Path, block: int) -> None:
    seen: set[int] = set()

    def flip(path: str, offset: int, view: memoryview) -> None:
        if offset == block * BLOCK_BYTES and path.endswith("00001-of-00002.tar") and offset not in seen:
            seen.add(offset)
            view[len(view) // 3] ^= 4

    place = CountingPlace(large, flip)
    result = run_stage(place, tmp_path)
    assert result.refetched_blocks == 1
    assert {key[1] for key, count in place.reads.items() if count == 2} == {block * BLOCK_BYTES}
    assert sum(place.reads.values()) == num_blocks_of(large) + 1
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


def test_a_block_that_never_verifies_names_shard_block_and_both_digests(large: Path, tmp_path: Path) -> None:
    def flip(path: str, offset: int, view: memoryview) -> None:
        if offset == BLOCK_BYTES and path.endswith("00001-of-00002.tar"):
            view[7] ^= 1

    place = CountingPlace(large, flip)
    with pytest.raises(CorruptShard, match=r"train-00001-of-00002\.tar: block 1 at byte 16,777,216") as caught:
        run_stage(place, tmp_path, jobs=1)
    assert caught.value.exit_code == 4
    assert {"expected", "found", "block"} <= caught.value.where.keys()
    assert max(place.reads.values()) == TRIES
    folder = only(tmp_path)
    assert staged_shards_of(folder) == ["train-00000-of-00002.tar"]
    again = CountingPlace(large)
    run_stage(again, tmp_path)
    assert set(again.reads) == {("data/train-00001-of-00002.tar", block * BLOCK_BYTES) for block in (1, 2)}
    check(folder)


def test_an_interrupt_ends_the_copy_and_a_rerun_goes_on(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if timeout is None:
                raise KeyboardInterrupt
            super().join(timeout)

    with monkeypatch.context() as patched:
        patched.setattr("shardtool.staging.transfer.threading.Thread", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            run_stage(large, tmp_path)
    assert not is_held(os.fspath(only(tmp_path) / ".stage" / "lock"))
    run_stage(large, tmp_path)
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


def test_a_journal_that_a_kill_left_beside_a_finished_shard_goes(large: Path, tmp_path: Path) -> None:
    run_stage(large, tmp_path)
    parts = only(tmp_path) / ".stage" / "parts" / "data"
    name = min(shard_bytes(large))
    (parts / f"{name}.blocks").write_text("x")
    (parts / "other.part").write_text("x")
    (parts / "other.blocks").write_text("x")
    again = run_stage(large, tmp_path)
    assert again.fetched_bytes == 0
    assert sorted(os.listdir(parts)) == ["other.blocks", "other.part"]


def test_threads_say_side_by_side_how_far_they_are(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path)
    folder = os.fspath(only(tmp_path))

    def say(_: int) -> None:
        for position in range(100):
            reached(folder, position)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(say, range(4)))
    assert (only(tmp_path) / ".stage" / "position").read_text() == "99\n"


def test_a_short_answer_is_no_block(large: Path, tmp_path: Path) -> None:
    class Short(CountingPlace):
        def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
            count = super().read_into(path, offset, view, version=version)
            return count - 1 if offset == 0 else count

    with pytest.raises(CorruptShard, match="only 16,777,215 bytes"):
        run_stage(Short(large), tmp_path)
    assert staged_shards_of(only(tmp_path)) == [] if (only(tmp_path) / "data").exists() else True


def test_a_source_that_is_written_to_meanwhile_is_an_error(tmp_path: Path) -> None:
    out = large_data_set(tmp_path / "src", shards=1)
    (shard,) = (out / "data").iterdir()

    def touch(path: str, offset: int, view: memoryview) -> None:
        os.utime(shard, ns=(1, 1 + shard.stat().st_mtime_ns))

    with pytest.raises(SourceChanged) as caught:
        run_stage(CountingPlace(out, touch), tmp_path / "nvme", jobs=1)
    assert caught.value.hint
    run_stage(out, tmp_path / "nvme")
    check(only(tmp_path / "nvme"))


def test_a_damaged_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    out = small_data_set(tmp_path / "src")
    index = out / "index" / "00002.arrow"
    index.write_bytes(index.read_bytes()[:-8] + b"eight by")
    with pytest.raises(CorruptShard, match=r"00002\.arrow should have digest"):
        run_stage(out, tmp_path / "nvme")


def test_a_shard_of_another_size_is_an_error_at_its_first_block(tmp_path: Path) -> None:
    out = small_data_set(tmp_path / "src")
    shard = sorted((out / "data").iterdir())[1]
    shard.write_bytes(shard.read_bytes() + b"x")
    place = CountingPlace(out)
    with pytest.raises(CorruptShard, match="the manifest says"):
        run_stage(place, tmp_path / "nvme")
    assert [offset for path, offset in place.reads if path.endswith(shard.name)] == [0]
    assert not list(only(tmp_path / "nvme").glob(f"data/{shard.name}"))


def test_a_missing_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    out = small_data_set(tmp_path / "src")
    shard = sorted((out / "data").iterdir())[1]
    shard.unlink()
    with pytest.raises(SourceNotFound, match=shard.name):
        run_stage(out, tmp_path / "nvme")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "x"}'])
def test_a_manifest_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    make_tree(tmp_path / "out", {"manifest.json": text})
    with pytest.raises(FormatError, match="no manifest of ours"):
        run_stage(tmp_path / "out", tmp_path / "nvme")
    assert not (tmp_path / "nvme").exists()


@pytest.mark.parametrize("place", ["labels", "dataset_id"])
def test_a_manifest_cannot_lead_out_of_the_target(tmp_path: Path, place: str) -> None:
    out = tmp_path / "out"
    pack(make_tree(tmp_path / "src", {"a/1.jpg": b"x", "b/2.jpg": b"y"}), out, label_from="parent")
    (out / "labels.json").rename(tmp_path / "outside.json")
    document = json.loads((out / "manifest.json").read_bytes())
    if place == "labels":
        document["labels"]["path"] = "../outside.json"
    else:
        document["dataset_id"] = "/../outside"
    (out / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="no manifest of ours"):
        run_stage(out, tmp_path / "deep" / "nvme")
    assert not (tmp_path / "deep").exists()


def test_a_source_without_a_manifest_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="does not exist"):
        run_stage(tmp_path / "nowhere", tmp_path / "nvme")


# What was left, or spoiled, by others


def cut_run(place: CountingPlace, target: Path, after: int, **options: Any) -> None:
    """A run that ends in the middle, as if it were killed after so many reads."""

    class Killed(BaseException):
        pass

    def kill(path: str, offset: int, view: memoryview) -> None:
        if sum(place.reads.values()) > after:
            raise Killed

    place._spoil = kill
    with pytest.raises(Killed):
        run_stage(place, target, **options)
    place._spoil = None


@pytest.mark.parametrize("after", range(6))
def test_what_was_copied_before_is_not_read_again(large: Path, tmp_path: Path, after: int) -> None:
    place = CountingPlace(large)
    cut_run(place, tmp_path, after, jobs=1)
    folder = only(tmp_path)
    for name, data in (shard_bytes(folder) if (folder / "data").exists() else {}).items():
        assert data == (large / "data" / name).read_bytes()
    run_stage(place, tmp_path)
    assert sum(place.reads.values()) <= num_blocks_of(large) + 1
    assert shard_bytes(folder) == shard_bytes(large)
    assert parts_of(folder) == []


def test_a_journal_does_not_vouch_for_bytes_that_are_not_there(large: Path, tmp_path: Path) -> None:
    cut_run(CountingPlace(large), tmp_path, 2, jobs=1)
    (part,) = (path for path in only(tmp_path).rglob("*.part") if path.with_suffix(".blocks").exists())
    with part.open("r+b") as file:
        file.seek(5)
        file.write(b"lost")
    place = CountingPlace(large)
    run_stage(place, tmp_path)
    assert 0 in {offset for path, offset in place.reads if path.endswith(part.stem)}
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


@pytest.mark.parametrize("spoil", [b"", b"nonsense", b"x" * 500])
def test_a_journal_that_is_none_is_made_anew(large: Path, tmp_path: Path, spoil: bytes) -> None:
    cut_run(CountingPlace(large), tmp_path, 2, jobs=1)
    (journal,) = only(tmp_path).rglob("*.blocks")
    journal.write_bytes(spoil)
    run_stage(large, tmp_path)
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


def test_a_file_that_got_its_name_before_a_crash_is_checked_not_fetched(large: Path, tmp_path: Path) -> None:
    run_stage(large, tmp_path)
    (only(tmp_path) / ".stage" / "verified.jsonl").unlink()
    place = CountingPlace(large)
    result = run_stage(place, tmp_path)
    assert not place.reads
    assert result.fetched_bytes == 0
    assert not place.small.keys() - {"manifest.json"}


def test_a_torn_line_in_the_table_costs_one_check(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path)
    table = only(tmp_path) / ".stage" / "verified.jsonl"
    table.write_bytes(table.read_bytes()[:-20])
    place = CountingPlace(small)
    run_stage(place, tmp_path)
    assert not place.reads
    assert run_stage(small, tmp_path).fetched_bytes == 0
    check(only(tmp_path))


def test_a_file_that_was_altered_is_mended_block_by_block(large: Path, tmp_path: Path) -> None:
    run_stage(large, tmp_path)
    shard = only(tmp_path) / "data" / "train-00001-of-00002.tar"
    with shard.open("r+b") as file:
        file.seek(BLOCK_BYTES + 3)
        file.write(b"altered")
    place = CountingPlace(large)
    run_stage(place, tmp_path)
    assert dict(place.reads) == {("data/train-00001-of-00002.tar", BLOCK_BYTES): 1}
    assert shard_bytes(only(tmp_path)) == shard_bytes(large)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "shardtool/staged/1", "shards": 5}', '"abc"'])
def test_a_damaged_declaration_is_damage_and_stage_writes_it_again(small: Path, tmp_path: Path, text: str) -> None:
    run_stage(small, tmp_path, select="list", listed="0-1")
    run_stage(small, tmp_path, select="list", listed="2")
    folder = only(tmp_path)
    text = (
        json.dumps(json.loads((folder / "staged.json").read_bytes()) | {"shards": "abc"}) if text == '"abc"' else text
    )
    (folder / "staged.json").write_text(text)
    result = verify(os.fspath(folder), WorkerPool(0), Said())
    assert [fault.kind for fault in result.faults] == ["staged"]
    assert f"shardtool stage SRC {tmp_path} writes it again" in run_cli("verify", folder).err
    run_stage(small, tmp_path, select="list", listed="1")
    staged = read_staged(os.fspath(folder))
    assert staged is not None
    assert staged.shards == (0, 1, 2)
    check(folder)


def test_a_folder_that_is_not_ours_is_refused(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path / "a")
    name = only(tmp_path / "a").name
    make_tree(tmp_path / "b" / name, {"precious": "mine"})
    with pytest.raises(DestinationExists):
        run_stage(small, tmp_path / "b")
    assert [path.name for path in (tmp_path / "b" / name).iterdir()] == ["precious"]


def test_two_versions_of_a_data_set_never_mix(tmp_path: Path) -> None:
    out = small_data_set(tmp_path / "src")
    run_stage(out, tmp_path / "nvme")
    before = shard_bytes(only(tmp_path / "nvme"))
    first = only(tmp_path / "nvme")
    (tmp_path / "src" / "tree" / "more.bin").write_bytes(b"more")
    pack(tmp_path / "src" / "tree", out, shards=4, overwrite=True)
    run_stage(out, tmp_path / "nvme")
    folders = sorted(path for path in (tmp_path / "nvme").iterdir())
    assert len(folders) == 2
    assert shard_bytes(first) == before
    for folder in folders:
        check(folder)


@pytest.mark.parametrize("place", ["", "below"])
def test_a_target_in_the_source_is_refused(tmp_path: Path, place: str) -> None:
    out = small_data_set(tmp_path)
    with pytest.raises(DestinationError, match="one place"):
        run_stage(out, out / place)
    assert sorted(path.name for path in out.iterdir() if path.name != ".shardtool") == [
        "data",
        "index",
        "manifest.json",
    ]


def test_a_staged_folder_is_a_source_itself(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path / "one", select="list", listed="0-1")
    run_stage(only(tmp_path / "one"), tmp_path / "two", select="list", listed="1")
    check(only(tmp_path / "two"))


# No room


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=8m,nr_inodes=100") as found:
        yield found


@pytest.fixture(scope="module")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 MB in four shards."""
    return small_data_set(tmp_path_factory.mktemp("middling"), samples=40, size=250_000)


def test_a_target_that_is_too_small_is_refused_before_anything_moves(middling: Path, disk: Path) -> None:
    place = CountingPlace(middling)
    with pytest.raises(NoSpace, match="are needed") as caught:
        run_stage(place, disk)
    assert caught.value.exit_code == 7
    assert (place.reads, set(place.small)) == ({}, {"manifest.json"})
    assert list(disk.iterdir()) == []


def test_a_target_with_too_few_inodes_is_refused(middling: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "few", "size=80m,nr_inodes=8") as few, pytest.raises(NoSpace, match="inodes"):
        run_stage(middling, few)


def test_room_to_leave_free_counts(middling: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk12", "size=16m") as disk:
        with pytest.raises(NoSpace, match="stay free"):
            run_stage(middling, disk, reserve=8 << 20)
        run_stage(middling, disk, reserve=1 << 20)


def test_room_that_is_taken_meanwhile_is_found_before_anything_moves(
    middling: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.staging.stage.check_room", lambda *_: None)
    place = CountingPlace(middling)
    with pytest.raises(NoSpace):
        run_stage(place, disk)
    assert not place.reads
    assert parts_of(only(disk)) == []
    assert not (only(disk) / "manifest.json").exists()


def test_what_was_begun_goes_on_after_room_is_made(middling: Path, disk: Path) -> None:
    (disk / "other").write_bytes(bytes(1 << 20))
    with pytest.raises(NoSpace):
        run_stage(middling, disk)
    run_stage(middling, disk, select="list", listed="0-1")
    (disk / "other").unlink()
    with pytest.raises(NoSpace):
        run_stage(middling, disk)
    check(only(disk))


# Readers


def test_wait_gives_the_path_of_a_shard_that_is_there(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="2")
    folder = only(tmp_path)
    (shard,) = (folder / "data").iterdir()
    assert wait(os.fspath(folder), 2, timeout=0) == os.fspath(shard)
    assert wait(os.fspath(folder), f"data/{shard.name}", timeout=0) == os.fspath(shard)


def test_wait_ends_when_the_shard_arrives(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="2")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(wait(os.fspath(only(tmp_path)), 0, timeout=60)))
    thread.start()
    run_stage(small, tmp_path)
    thread.join()
    assert found[0].endswith("00000-of-00004.tar")


def test_waiting_in_vain_says_whether_a_copy_runs(small: Path, tmp_path: Path) -> None:
    run_stage(small, tmp_path, select="list", listed="2")
    with pytest.raises(StageTimeout, match="no copy is running") as caught:
        wait(os.fspath(only(tmp_path)), 0, timeout=0)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(UsageProblem):
        wait(os.fspath(only(tmp_path)), 99, timeout=0)


# A budget


def window_of(out: Path, target: Path, budget: int, **options: Any) -> Any:
    wish = Wish(world_size=1, num_nodes=1, mode="shard")
    return run_stage(out, target, select="share", wish=wish, budget=budget, **options)


def test_a_budget_holds_the_shards_that_are_read_first(small: Path, tmp_path: Path) -> None:
    manifest = load_manifest(os.fspath(small))
    size = max(shard.num_bytes for shard in manifest.shards)
    result = window_of(small, tmp_path, 2 * size)
    assert not result.is_complete
    share = node_share(assign(manifest, Wish(world_size=1, num_nodes=1, mode="shard")), 0, range(1))
    names = sorted(os.path.basename(manifest.shards[shard].path) for shard in share.shards[:2])
    assert staged_shards_of(only(tmp_path)) == names
    check(only(tmp_path))


@pytest.mark.parametrize(("mode", "is_warned"), [("plw", True), ("shard", False)])
def test_a_budget_that_an_order_cannot_work_with_is_told_with_its_cure(
    small: Path, tmp_path: Path, mode: Any, is_warned: bool
) -> None:
    say = Telling()
    size = max(shard.num_bytes for shard in load_manifest(os.fspath(small)).shards)
    wish = Wish(world_size=1, num_nodes=1, mode=mode)
    run_stage(small, tmp_path, select="share", wish=wish, budget=2 * size, say=say)
    told = [text for text in say.warnings if "times an epoch" in text]
    assert bool(told) is is_warned
    assert all("--order shard" in text for text in told)


def test_a_budget_smaller_than_a_shard_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="less than one shard"):
        window_of(small, tmp_path, 5000)


def test_a_budget_follows_the_readers_to_the_end(small: Path, tmp_path: Path) -> None:
    manifest = load_manifest(os.fspath(small))
    size = max(shard.num_bytes for shard in manifest.shards)
    most, seen, done = [0], set(), threading.Event()
    results: list[Any] = []

    def copy() -> None:
        from shardtool.staging.request import StageRequest
        from shardtool.staging.stage import stage
        from shardtool.storage import open_place

        wish = Wish(world_size=1, num_nodes=1, mode="shard")
        request = StageRequest(os.fspath(small), (os.fspath(tmp_path),), wish=wish, budget=2 * size, durable=False)
        results.append(stage(open_place(os.fspath(small)), request, Telling(), stays=True))
        done.set()

    thread = threading.Thread(target=copy)
    thread.start()
    found = assign(manifest, Wish(world_size=1, num_nodes=1, mode="shard"))
    chunk = next(found.sequence(0, 0, found.order.num_samples))
    folder = tmp_path / f"out-{manifest.dataset_id[:12]}"
    for position, shard in zip(chunk.position.tolist(), chunk.shard.tolist(), strict=True):
        if shard not in seen:
            while not (folder / "manifest.json").exists():
                done.wait(0.005)
            reached(os.fspath(folder), position)
            with lease(wait(os.fspath(folder), shard, timeout=60)) as file:
                assert file.read() == (small / manifest.shards[shard].path).read_bytes()
            seen.add(shard)
            most.append(sum(path.stat().st_size for path in (folder / "data").iterdir()))
    reached(os.fspath(folder), found.order.num_samples)
    thread.join()
    assert seen == set(range(4))
    assert max(most) <= 2 * size
    assert results[0].evicted_shards == 2
    assert results[0].is_complete
    check(folder)


def test_a_shard_that_is_held_is_not_evicted(small: Path, tmp_path: Path) -> None:
    from shardtool.staging.arriving import CopyOptions, Route
    from shardtool.staging.folder import Target, VerifiedTable
    from shardtool.staging.rolling import evict
    from shardtool.staging.throttle import Throttle
    from shardtool.storage import open_place

    run_stage(small, tmp_path)
    target = Target(os.fspath(only(tmp_path)))
    route = Route(open_place(os.fspath(small)), target, VerifiedTable(target), CopyOptions(1, Throttle(0), False, True))
    shards = load_manifest(os.fspath(small)).shards
    path = target.final(shards[0].path)
    with lease(path):
        assert not evict(route, shards[0])
    assert Path(path).exists()
    assert evict(route, shards[0])
    assert not Path(path).exists()
    Path(target.final(shards[1].path)).write_bytes(b"not what stage copied")
    assert not evict(route, shards[1])
    assert Path(target.final(shards[1].path)).exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_at_once(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(fd: int, kind: int) -> None:
        assert kind & fcntl.LOCK_NB  # never waits inside of the system
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DestinationError, match="cannot be locked") as caught:
        run_stage(small, tmp_path)
    assert "local disk" in caught.value.hint


@pytest.mark.parametrize(("kind", "word"), [("nfs", "shared over a network"), ("tmpfs", "memory")])
def test_a_target_that_is_no_local_disk_comes_with_a_warning(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    monkeypatch.setattr("shardtool.staging.disk.file_system", lambda path: kind)
    say = Telling()
    run_stage(small, tmp_path, say=say)
    assert [text for text in say.warnings if f"is on {kind}" in text and word in text]
