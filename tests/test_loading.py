"""What the training adapters share: samples read in batches, positions, read-ahead, page cache, telemetry."""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import make_tree, pack, run_cli

from shardtool.assignment.assignment import SplitShards
from shardtool.errors import CorruptShard, FormatError, PlanMismatch, UsageProblem
from shardtool.loading.ahead import PiecesAhead
from shardtool.loading.available import available_memory
from shardtool.loading.cursor import Cursor, start_cursor
from shardtool.loading.decode import decoder_for, decoders_named
from shardtool.loading.reader import SampleReader, threads_of
from shardtool.loading.telemetry import Telemetry
from shardtool.order.order import Order
from shardtool.order.params import OrderParams
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardtool.model import Int64Array

NUM_SAMPLES = 90


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """90 samples with parts from 0 bytes to 100 KB, 16 a shard."""
    folder = tmp_path_factory.mktemp("loading")
    files: dict[str, bytes] = {}
    for number in range(NUM_SAMPLES):
        files[f"d{number % 3}/s{number:04d}.txt"] = str(number).encode()
        if number % 2:
            files[f"d{number % 3}/s{number:04d}.bin"] = random.Random(number).randbytes(number * number * 12)
        if number % 5 == 0:
            files[f"d{number % 3}/s{number:04d}.json"] = json.dumps({"number": number}).encode()
    pack(make_tree(folder / "tree", files), folder / "out", samples_per_shard=16)
    return str(folder / "out")


def contents(packed: str) -> list[dict[str, Any]]:
    with Dataset.open(packed) as dataset:
        return [
            {"__key__": sample.key.decode(), **sample.parts}
            for shard in range(dataset.num_shards)
            for sample in dataset.samples(shard)
        ]


def table(counts: list[int]) -> SplitShards:
    array = np.array(counts, np.int64)
    return SplitShards("train", np.arange(len(counts), dtype=np.int64), array, array * 1000)


@pytest.mark.parametrize("io", ["pread", "map", "threads:4"])
def test_a_batch_is_the_samples_asked_for_in_that_order(packed: str, io: str) -> None:
    wanted = contents(packed)
    numbers = random.Random(1).choices(range(NUM_SAMPLES), k=200)
    found = SampleReader(packed, io=io).read(numbers)
    assert found == [wanted[number] for number in numbers]
    assert [list(sample) for sample in found] == [list(wanted[number]) for number in numbers], "order of the parts"


def test_samples_that_lie_side_by_side_are_one_read(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SampleReader(packed, parts=["txt"])
    calls = []
    read = reader._files.read

    def counted(shard: int, offset: int, size: int) -> bytes:
        calls.append(offset)
        return read(shard, offset, size)

    monkeypatch.setattr(reader._files, "read", counted)
    small = [number for number, sample in enumerate(contents(packed)[:16]) if len(sample.get("bin", b"")) < 4096]
    reader.read(small)
    assert len(calls) < len(small)


def test_only_the_parts_asked_for_are_there(packed: str) -> None:
    wanted = contents(packed)
    for parts in (["json"], ["bin", "txt"], ["none"]):
        found = SampleReader(packed, parts=parts, check=True).read(range(NUM_SAMPLES))
        assert found == [
            {name: data for name, data in sample.items() if name in ("__key__", *parts)} for sample in wanted
        ]


def test_a_large_part_is_read_into_bytes_of_its_own(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, wanted = SampleReader(packed), contents(packed)
    data: list[bytes] = []
    read = reader._files.read

    def kept(*run: int) -> bytes:
        data.append(read(*run))
        return data[-1]

    monkeypatch.setattr(reader._files, "read", kept)
    found = reader.read(range(NUM_SAMPLES))
    assert found == wanted
    large = [sample["bin"] for sample in found if len(sample.get("bin", b"")) >= 32 << 10]
    assert large
    assert {id(payload) for payload in large} <= {id(piece) for piece in data}, "a copy was cut out of a longer read"


def test_a_transform_is_called_in_order_right_after_each_sample_was_read(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = contents(packed)
    events: list[str] = []
    numbers = random.Random(4).choices(range(NUM_SAMPLES), k=40)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        events.append(sample["__key__"])
        return sample

    reader = SampleReader(packed, transform=transform)
    read = reader._files.read

    def noted(*run: int) -> bytes:
        events.append("read")
        return read(*run)

    monkeypatch.setattr(reader._files, "read", noted)
    assert reader.read(numbers) == [wanted[number] for number in numbers]
    assert [event for event in events if event != "read"] == [wanted[number]["__key__"] for number in numbers]
    first, last = (events.index(wanted[number]["__key__"]) for number in (numbers[0], numbers[-1]))
    assert "read" in events[first:last], "the whole batch was read before"
    for io in ("threads:2", "map"):
        found = SampleReader(packed, transform=lambda sample: dict(sample), io=io).read(numbers)
        assert found == [wanted[number] for number in numbers]


def test_views_are_read_only_and_stay_when_all_else_is_closed(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.loading.files.MAX_VIEWED", 2)  # maps are let go of all the time
    wanted = contents(packed)
    reader = SampleReader(packed, io="map", check=True)
    with monkeypatch.context() as context:
        context.setattr(os, "pread", lambda *_: pytest.fail("pread was called"))
        found = [reader.read([number])[0] for number in range(NUM_SAMPLES)]
    reader.close()
    for sample, whole in zip(found, wanted, strict=True):
        assert all(type(part) is memoryview and part.readonly for name, part in sample.items() if name != "__key__")
        assert sample == whole
    decoded = SampleReader(packed, io="map", decode=["json"]).read(range(NUM_SAMPLES))
    numbers = [int(sample["txt"].tobytes()) for sample in decoded if "json" in sample]
    assert numbers == [sample["json"]["number"] for sample in decoded if "json" in sample] != []


def test_views_of_a_shard_that_is_cut_short_or_gone_say_so(packed: str, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(packed, tmp_path / "copy")
    dataset = Dataset.open(str(copy))
    os.truncate(dataset.shard_path(1), 700)
    os.truncate(dataset.shard_path(2), 0)
    os.unlink(dataset.shard_path(3))
    reader = SampleReader(str(copy), io="map")
    for number, said in ((31, "ends at byte"), (32, "ends at byte"), (48, "cannot be opened")):
        with pytest.raises(CorruptShard, match=said):
            reader.read([number])


def test_no_batch_is_read_past_the_end(packed: str) -> None:
    reader = SampleReader(packed)
    assert reader.read([]) == []
    for number in (-1, NUM_SAMPLES):
        with pytest.raises(IndexError, match=str(number)):
            reader.read([0, number])


def test_decoders_make_values_of_four_kinds(packed: str) -> None:
    found = SampleReader(packed, decode=True).read(range(NUM_SAMPLES))
    assert all(sample["json"] == {"number": int(sample["txt"])} for sample in found if "json" in sample)
    assert decoder_for("seg.cls", decoders_named(["cls"]))(b"12") == 12  # type: ignore[misc]
    assert decoder_for("png", decoders_named(True)) is None
    with pytest.raises(FormatError, match="'json' is no json"):
        decoder_for("json", ("json",))(b"{")  # type: ignore[misc]
    with pytest.raises(UsageProblem, match="jpg"):
        decoders_named(["jpg"])


@pytest.mark.parametrize(
    ("kind", "data"), [("npy", b""), ("npy", b"PK\3\4"), ("json", b"[" * 100_000), ("cls", b""), ("txt", b"\xff")]
)
def test_a_part_that_cannot_be_decoded_is_named_whatever_its_decoder_raises(kind: str, data: bytes) -> None:
    with pytest.raises(FormatError, match=f"part 'a.{kind}' is no {kind}"):
        decoder_for(f"a.{kind}", (kind,))(data)  # type: ignore[misc]


def test_an_array_with_a_pickle_in_it_is_refused() -> None:
    import io

    data = io.BytesIO()
    np.save(data, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FormatError, match="npy"):
        decoder_for("npy", ("npy",))(data.getvalue())  # type: ignore[misc]


def test_transform_and_marks_reach_each_sample(packed: str) -> None:
    reader = SampleReader(packed, valid="is_new", transform=lambda sample: (sample["txt"], sample["is_new"]))
    wanted = contents(packed)
    assert reader.read([3, 4]) == [(wanted[3]["txt"], True), (wanted[4]["txt"], True)]
    assert reader.read([3, 4], np.array([True, False]))[1] == (wanted[4]["txt"], False)


def test_altered_bytes_are_found_where_asked(packed: str, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(packed, tmp_path / "copy")
    dataset = Dataset.open(str(copy))
    offset = int(dataset.index(0).part_offset[0])
    with open(dataset.shard_path(0), "r+b") as file:
        file.seek(offset)
        file.write(b"#")
    with pytest.raises(CorruptShard, match="digest"):
        SampleReader(str(copy), check=True).read(range(16))
    os.truncate(dataset.shard_path(1), 700)
    with pytest.raises(CorruptShard, match="ends at byte"):
        SampleReader(str(copy)).read(range(16, 32))
    os.unlink(dataset.shard_path(2))
    with pytest.raises(CorruptShard, match="cannot be opened"):
        SampleReader(str(copy)).read([32])


def test_a_reader_travels_to_another_process(packed: str) -> None:
    reader = SampleReader(packed, io="threads:2")
    reader.read([1])
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read([5, 6]) == reader.read([5, 6])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reader.read([7]) == [contents(packed)[7]] else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("max_files", [256, 1])
def test_threads_share_a_reader(packed: str, max_files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr("shardtool.loading.files.MAX_FILES", max_files)
    wanted = contents(packed)
    numbers = random.Random(2).choices(range(NUM_SAMPLES), k=300)
    for _ in range(5):
        reader = SampleReader(packed)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda number, reader=reader: reader.read([number])[0], numbers))
        assert found == [wanted[number] for number in numbers]


@pytest.mark.parametrize("io", ["mmap", "threads:0", "threads:x", "threads"])
def test_io_is_pread_map_or_threads(io: str) -> None:
    with pytest.raises(UsageProblem, match="io is"):
        threads_of(io)


def test_sequences_of_tokens_are_samples_whose_ids_are_counted(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": "abcdefgh" * (number % 5 + 1)}) + "\n" for number in range(40))
    source = make_tree(tmp_path / "in", {"a.jsonl": lines})
    assert run_cli("pack", source, tmp_path / "out", "--format", "bin", "--shards", "2", "-q").code == 0
    reader = SampleReader(str(tmp_path / "out"), decode=True)
    numbers = np.arange(40)
    samples = reader.read(numbers)
    counts = [len(sample["tokens"]) for sample in samples]
    assert reader.tokens(numbers).tolist() == counts
    assert sum(counts) == sum(8 * (number % 5 + 1) + 1 for number in range(40)), "256 ends each document"
    for sample in samples:
        ids = sample["tokens"]
        assert (ids.dtype, ids.flags.writeable, ids[-1]) == (np.uint16, True, 256)
        assert bytes(ids[:-1].tolist()) == b"abcdefgh" * (len(ids) // 8)
    assert SampleReader(str(tmp_path / "out")).read([7])[0]["tokens"] == samples[7]["tokens"].tobytes()


def test_a_part_called_tokens_in_other_formats_stays_bytes(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "in", {"a.tokens": b"123"}), tmp_path / "out")
    reader = SampleReader(str(tmp_path / "out"), decode=True)
    assert reader.read([0]) == [{"__key__": "a", "tokens": b"123"}]
    assert reader.tokens(np.arange(1)).tolist() == [0]


def test_preloaded_shards_are_resident_and_read_without_a_call(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, wanted = SampleReader(packed), contents(packed)
    size = reader.preload()
    assert size == sum(os.path.getsize(reader._dataset.shard_path(shard)) for shard in range(6))
    assert all(residency(mapped) == 1.0 for mapped in reader._files._maps.values())
    with monkeypatch.context() as context:
        context.setattr(os, "pread", lambda *_: pytest.fail("pread was called"))
        assert reader.read(range(NUM_SAMPLES)) == wanted
    assert reader.preload() == 0, "a second call has nothing to do"
    assert pickle.loads(pickle.dumps(reader)).read([3]) == [wanted[3]]


RANK = """
import sys
from shardtool.loading.reader import SampleReader

def reads():
    return int(next(line for line in open("/proc/self/io") if line.startswith("read_bytes")).split()[1])

def mapped(field):
    lines, inside, total = open("/proc/self/smaps").read().splitlines(), False, 0
    for line in lines:
        if "-" in line.split()[0]:
            inside = line.endswith(".tar")
        elif inside and line.startswith(field + ":"):
            total += int(line.split()[1]) << 10
    return total

reader = SampleReader(sys.argv[1])
size = reader.preload()
print("ready", flush=True)
sys.stdin.readline()
before = reads()
count = len(reader.read(range(len(reader))))
print(size, mapped("Rss"), mapped("Pss"), reads() - before, count, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_two_ranks_share_one_preloaded_copy(packed: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, packed], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(2)
    ]
    try:
        for rank in ranks:
            assert line_of(rank) == "ready"
        for rank in ranks:
            tell(rank)
        told = [[int(word) for word in line_of(rank).split()] for rank in ranks]
    finally:
        for rank in ranks:
            rank.communicate("\n\n")
    size = told[0][0]
    for _, resident, share, blocks_read, count in told:
        assert resident >= 0.95 * size, "each sees all of it in memory"
        assert share <= 0.55 * resident, "and is charged for half"
        assert blocks_read == 0, "nothing is read from the disk any more"
        assert count == NUM_SAMPLES


def line_of(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


def tell(rank: subprocess.Popen[str]) -> None:
    assert rank.stdin is not None
    rank.stdin.write("\n")
    rank.stdin.flush()


def residency(mapped: memoryview) -> float:
    """Share of the pages of a map that are in memory."""
    import ctypes

    pages = -(-len(mapped) // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), flags) == 0
    return float(np.mean(np.frombuffer(bytes(flags), np.uint8) & 1))


def test_preload_refuses_what_does_not_fit(packed: str) -> None:
    reader = SampleReader(packed)
    with pytest.raises(UsageProblem, match="do not fit into 100 KiB") as caught:
        reader.preload(available_bytes=100 << 10)
    assert "node's share" in caught.value.hint
    assert reader.preload(np.array([0], np.int64)) < 1 << 20
    assert available_memory() > 1 << 20


def test_pieces_are_told_once_and_cover_what_is_read() -> None:
    shards = table([100, 40, 0, 260, 112])
    params = OrderParams("plw", 3, 4, (2, 2), 1, 8, 2)
    cursor = start_cursor(shards, "f", global_batch=16, world_size=2, rank=1, params=params)
    ahead = PiecesAhead(Order(shards.counts, params), 1000, 2)
    assert ahead.num_windows == 2
    told: set[tuple[int, int]] = set()
    turn = cursor.turn()
    most = 0
    for step, batch in enumerate(turn.batches(range(turn.num_steps))):
        for shard, row, count in zip(*(column.tolist() for column in ahead.next_pieces(batch.positions)), strict=True):
            rows = {(shard, number) for number in range(row, row + count)}
            assert not rows & told, "told twice"
            told |= rows
        assert set(zip(batch.shards.tolist(), batch.rows.tolist(), strict=True)) <= told
        most = max(most, len(told) - (step + 1) * 8)
    assert most <= 2 * 2 * 16, "no more than two windows of each of its two lanes are told ahead"


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batches_of_any_size_are_told_the_same_pieces(batch: int) -> None:
    order = Order(np.array([100, 40, 0, 260, 112], np.int64), OrderParams("plw", 3, 4, (2, 2), 1, 8, 2))
    positions = np.arange(3 * order.num_samples)

    def told(size: int) -> list[tuple[int, ...]]:
        ahead = PiecesAhead(order, 1000, 4)
        parts = [ahead.next_pieces(positions[at : at + size]) for at in range(0, len(positions), size)]
        return sorted(zip(*(np.concatenate(column).tolist() for column in zip(*parts, strict=True)), strict=True))

    assert told(batch) == told(4)


@pytest.mark.parametrize(("limit", "windows"), [(1 << 30, 2), (40_000, 1), (10_000, 0)])
def test_pieces_ahead_keep_within_their_limit(limit: int, windows: int) -> None:
    order = Order(np.array([512], np.int64), OrderParams("plw", 3, 4, (2, 2), 1, 8, 2))
    assert PiecesAhead(order, 1000, 2, limit_bytes=limit).num_windows == windows


@pytest.mark.parametrize("mode", ["none", "full"])
def test_orders_without_pieces_tell_nothing(mode: Any) -> None:
    order = Order(np.array([64], np.int64), OrderParams(mode, piece=1, window=1))
    assert PiecesAhead(order, 1000, 1).next_pieces(np.arange(8))[0].size == 0


def read_epoch(cursor: Cursor) -> Iterator[Int64Array]:
    turn = cursor.turn()
    for batch in turn.batches(range(turn.num_steps)):
        cursor.advance()
        yield batch.shards * 10_000 + batch.rows


def global_stream(params: OrderParams, shards: SplitShards, first: int, stop: int) -> set[int]:
    located = Order(shards.counts, params).locate(np.arange(first, stop, dtype=np.int64))
    return set((located[0] * 10_000 + located[1]).tolist())


@pytest.mark.parametrize("policy", ["carry", "drop", "pad", "uneven"])
def test_resume_at_every_position_with_another_world_and_batch(policy: Any) -> None:
    shards = table([7, 0, 12, 4])
    params = OrderParams("plw", 5, 4, (2, 2), 1, 2, 2)
    for position in range(2 * 23):
        for world_size, global_batch in ((1, 5), (2, 4), (3, 6)):
            cursors = [
                start_cursor(
                    shards,
                    "f",
                    global_batch=global_batch,
                    rank=rank,
                    world_size=world_size,
                    params=params,
                    policy=policy,
                )
                for rank in range(world_size)
            ]
            for cursor in cursors:
                cursor.load_state_dict({**cursor.state_dict(), "position": position})
            end = (position // 23 + 1) * 23
            found = [number for cursor in cursors for part in read_epoch(cursor) for number in part.tolist()]
            assert len({cursor.position for cursor in cursors}) == 1
            assert json.dumps(cursors[0].state_dict()) == json.dumps(cursors[-1].state_dict())
            if policy == "carry":
                assert len(found) == cursors[0].position - position >= end - position
                assert global_stream(params, shards, position, end) <= set(found)
            elif policy != "drop":
                assert cursors[0].position == end
                assert set(found) >= global_stream(params, shards, position, end)


def test_an_interrupted_run_reads_the_batches_of_an_uninterrupted_one() -> None:
    shards = table([50, 31, 20])

    def fresh() -> Cursor:
        return start_cursor(shards, "f", global_batch=8, rank=1, world_size=2, seed=3)

    whole = fresh()
    wanted = [part.tolist() for _ in range(3) for part in read_epoch(whole)]
    for stop in range(len(wanted)):
        first = fresh()
        found: list[list[int]] = []
        while len(found) < stop:
            for part in read_epoch(first):
                found.append(part.tolist())
                if len(found) == stop:
                    break
        second = fresh()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        while len(found) < len(wanted):
            found += [part.tolist() for part in read_epoch(second)]
        assert found[: len(wanted)] == wanted


def test_states_say_when_they_do_not_fit() -> None:
    shards = table([50, 31, 20])
    cursor = start_cursor(shards, "f", global_batch=8, params=OrderParams(seed=1))
    with pytest.raises(PlanMismatch, match="data set g"):
        cursor.load_state_dict({**cursor.state_dict(), "fingerprint": "g"})
    other = start_cursor(shards, "f", global_batch=8, params=OrderParams(seed=2))
    with pytest.warns(UserWarning, match="seed=1"):
        other.load_state_dict(cursor.state_dict())
    assert other.order.params.seed == 1
    with pytest.raises(UsageProblem, match="rank 2"):
        start_cursor(shards, "f", global_batch=8, rank=2, world_size=2)


def test_a_drop_that_leaves_nothing_goes_on_with_the_next_epoch() -> None:
    cursor = start_cursor(table([10]), "f", global_batch=4, policy="drop", position=8)
    assert cursor.turn().start == 10


def test_any_loader_is_watched(tmp_path: Path) -> None:
    now = [0.0]

    def loader() -> Iterator[list[str]]:
        for _ in range(12):
            now[0] += 0.5  # the trainer waits
            yield ["a", "bc", "def"]

    telemetry = Telemetry(str(tmp_path), 1, every_s=10, clock=lambda: now[0])
    batches = telemetry.watch(
        loader(),
        samples=len,
        num_samples=100,
        world_size=4,
        position=90,
        num_bytes=lambda batch: sum(map(len, batch)),
        tokens=lambda batch: 7 * len(batch),
    )
    for at, batch in enumerate(batches):
        assert batch == ["a", "bc", "def"]
        now[0] += 0.75  # the trainer trains
        if at == 9:
            break
    batches.close()  # type: ignore[attr-defined]
    first, last = (json.loads(line) for line in (tmp_path / "rank-00001.jsonl").read_text().splitlines())
    assert (first["batches"], first["samples"], first["bytes"], first["tokens"]) == (9, 27, 54, 189)
    assert (first["position"], first["epoch"], first["seconds"]) == (90 + 27 * 4, 1, 10.5)
    assert (first["wait_s"]["p50"], first["wait_s"]["max"], first["wait_s"]["total"]) == (0.5, 0.5, 4.5)
    assert (last["batches"], last["samples"], last["position"], last["epoch"]) == (1, 3, 210, 2), "and when broken off"


@pytest.mark.parametrize("wrong", [{"num_samples": 0}, {"world_size": 0}, {"position": -1}])
def test_a_loader_is_not_watched_without_anything_to_count_by(tmp_path: Path, wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"num_samples": 10, **wrong}
    with pytest.raises(UsageProblem, match="nothing to count by"):
        Telemetry(str(tmp_path)).watch([], samples=len, **options)


def test_telemetry_writes_waits_and_rates(tmp_path: Path) -> None:
    now = [0.0]
    telemetry = Telemetry(str(tmp_path / "loader"), 3, every_s=10, clock=lambda: now[0])
    for number in range(10):
        telemetry.waited(0.01 * (number + 1))
        telemetry.add(samples=4, num_bytes=400, tokens=100)
        now[0] += 1.0
        telemetry.tick(position=number * 4, epoch=0)
    telemetry.waited(0.5)
    now[0] += 2.0
    telemetry.flush(position=44, epoch=1)
    telemetry.flush(position=44, epoch=1)
    first, last = (json.loads(line) for line in (tmp_path / "loader" / "rank-00003.jsonl").read_text().splitlines())
    assert first["schema"] == "shardtool/telemetry/1"
    assert (first["rank"], first["batches"], first["samples"], first["bytes"], first["tokens"]) == (
        3,
        10,
        40,
        4000,
        1000,
    )
    assert first["samples_per_s"] == 4.0
    assert first["wait_s"]["p50"] == pytest.approx(0.055)
    assert first["wait_s"]["max"] == pytest.approx(0.1)
    assert (last["batches"], last["position"], last["epoch"], last["wait_s"]["p99"]) == (1, 44, 1, 0.5)


def test_sizes_are_those_of_the_index(packed: str) -> None:
    reader = SampleReader(packed)
    numbers = np.array([40, 3, 3, 89], np.int64)
    sizes = reader.sizes(numbers).tolist()
    with Dataset.open(packed) as dataset:
        whole = np.concatenate([dataset.index(shard).num_bytes for shard in range(dataset.num_shards)])
    assert sizes == whole[numbers].tolist()


@pytest.mark.parametrize("name", ["torch", "grain"])
def test_a_missing_extra_is_an_error_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"shardtool.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'shardtool\[{name}\]'"):
        importlib.import_module(f"shardtool.{name}")


def test_few_descriptors_are_enough_for_several_data_sets(tmp_path: Path) -> None:
    """In a process of its own, which may open 64 files: data sets of 60 shards, read in turns, mapped and preloaded."""
    pack(make_tree(tmp_path / "in", {f"{n:03d}.txt": str(n) for n in range(60)}), tmp_path / "out", samples_per_shard=1)
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from shardtool.loading.reader import SampleReader
readers = [SampleReader({str(tmp_path / "out")!r}, io=io) for io in ("pread", "threads:4", "pread", "map", "map")]
for reader in readers * 2:
    assert len(reader.read(range(60))) == 60
    reader.preload()
views = [readers[-1].read([number])[0]["txt"] for number in range(60)]
print(b" ".join(views).decode(), *(len(reader.read(range(60))) for reader in readers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == sorted([*map(str, range(60)), *["60"] * 5])


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_views_keep_few_shards_mapped_and_preloading_refuses_more_than_there_may_be(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.loading.files.MAX_VIEWED", 3)
    monkeypatch.setattr("shardtool.loading.maps.map_limit", lambda: 5)
    reader = SampleReader(packed, io="map")

    def num_mapped() -> int:
        with open("/proc/self/maps", encoding="utf-8") as file:
            return sum(os.path.realpath(packed) in line and ".tar" in line for line in file)

    held = reader.read(range(NUM_SAMPLES))
    assert num_mapped() == 6, "what somebody holds stays mapped"
    wanted = [{name: bytes(part) for name, part in sample.items() if name != "__key__"} for sample in held]
    del held
    assert num_mapped() == 3
    with pytest.raises(UsageProblem, match=r"6 shards to preload take a map each.* 5$") as raised:
        reader.preload()
    assert "vm.max_map_count=24" in raised.value.hint
    reader.preload(np.arange(5))
    found = reader.read(range(NUM_SAMPLES))
    assert [{name: part for name, part in sample.items() if name != "__key__"} for sample in found] == wanted
    reader.close()
    del found
    assert num_mapped() == 0


def test_where_nothing_more_can_be_mapped_the_maps_of_other_data_sets_go(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardtool.loading import files, maps

    other = SampleReader(packed, io="map")
    other.read(range(NUM_SAMPLES))

    def map_file(path: str) -> memoryview:
        if other._files._viewed:
            raise OSError("Memory mapping file failed: Cannot allocate memory")  # as Arrow says it, without an errno
        return maps.map_file(path)

    monkeypatch.setattr(files, "map_file", map_file)
    assert SampleReader(packed, io="map").read(range(NUM_SAMPLES)) == contents(packed)


def waits(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
    raise BlockingIOError(errno.EAGAIN, "it is not in the page cache")


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no such call")
def test_a_range_is_hinted_in_steps_that_linux_does_not_cut_off(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, size, _advice: told.append((offset, size)))
    monkeypatch.setattr(os, "preadv", waits)
    SampleReader(packed)._files.will_need(0, 1000, 300_000)
    assert told == [(1000, 131_072), (132_072, 131_072), (263_144, 37_856)]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="no such reads")
def test_what_is_in_the_page_cache_is_not_hinted(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, told, asked = SampleReader(packed), [], []

    def preadv(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        asked.append((offset, flags))
        return waits(fd, buffers, offset, flags) if offset in missing else 1

    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, size, _advice: told.append((offset, size)))
    monkeypatch.setattr(os, "preadv", preadv)
    missing: set[int] = set()
    reader._files.will_need(0, 1000, 500)
    assert (asked, told) == ([(place, os.RWF_NOWAIT) for place in (1000, 1250, 1499)], [])
    for place in (1000, 1250, 1499):
        missing = {place}
        reader._files.will_need(0, 1000, 500)
    assert told == [(1000, 500)] * 3


def test_a_process_that_is_forked_while_a_thread_reads_does_not_wait_for_it(packed: str) -> None:
    reader, held, done = SampleReader(packed), threading.Event(), threading.Event()

    def hold() -> None:
        with reader._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which trainers do
        pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os._exit(len(reader.read([0, 1])))
    status = os.waitpid(pid, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 2, "two samples"
