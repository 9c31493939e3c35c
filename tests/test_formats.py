"""What holds for every format: parts come back, bytes follow from the plan, damage is found, every command works.

A format joins by a line in CASES. Its own byte layout is tested in a module of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from crashes import Disk, crashing
from helpers import Said, make_tree, pack, run_cli, shard_paths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snapshots import content, leftovers, small_tree

from shardtool.errors import BadKey, CorruptShard, SampleTooLarge
from shardtool.formats import get_format
from shardtool.hashing import digest_chunks
from shardtool.loading.reader import SampleReader
from shardtool.manifest import load_manifest
from shardtool.packing.pack import _background
from shardtool.reading.reading import Dataset
from shardtool.verification.verify import VerifyResult, verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.packing.build import PackResult

MIB = 1 << 20
ARROW_MAGIC = b"ARROW1\0\0"
FEW = settings(
    max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Case(NamedTuple):
    """A format and how it is packed."""

    format: str
    golden: str  # xxh3_128 over the shards of `golden_tree`; another value is another byte layout
    compress: str = "none"
    has_any_key: bool = True  # keys need not be UTF-8
    is_byte_stable: bool = True  # False: the golden digest holds for the versions in constraints.txt only

    @property
    def options(self) -> dict[str, Any]:
        """As `pack` takes them."""
        return {"format": self.format, "compress": self.compress}

    @property
    def words(self) -> list[str]:
        """As the command line takes them."""
        return ["--format", self.format, *([] if self.compress == "none" else ["--compress", self.compress])]


CASES = (
    Case("tar", golden="065b63d9ab54cb2ac861c17abbd5a6bd"),
    Case("tar", golden="27a47eadf06a7a96bc3ed58517a3ca2d", compress="zstd:3", is_byte_stable=False),
    Case("tfrecord", golden="5fb40bfb8e1941abf1e4641356cbbced"),
    Case("mds", golden="44ea7aa4701a4ccb7ecebbc3bccc1fa0", has_any_key=False),
    Case(
        "mds",
        golden="3e1bebeeba110ae8da60b41ccb117a7b",
        compress="zstd:3",
        has_any_key=False,
        is_byte_stable=False,
    ),
    Case("litdata", golden="c1a2e5862046aed5d0a16a948fa8dca9", has_any_key=False),
    Case("parquet", golden="4053c0913f215a996cbd3c30fc97dec0", has_any_key=False, is_byte_stable=False),
    Case(
        "parquet", golden="f3707d619deef336ee87595ae9891283", compress="zstd:3", has_any_key=False, is_byte_stable=False
    ),
    Case("arrow", golden="bf73279c60c3777a0494fad7099a762b", has_any_key=False, is_byte_stable=False),
    Case(
        "arrow", golden="33edfb9b84a1a301f4d1e3d01dfce84c", compress="zstd:3", has_any_key=False, is_byte_stable=False
    ),
    Case("arrow-stream", golden="cbc75cb3ccdf234013603cf2e3fd7972", has_any_key=False, is_byte_stable=False),
    Case(
        "arrow-stream",
        golden="7d07d605f873d2aa559c5772093ad290",
        compress="zstd:3",
        has_any_key=False,
        is_byte_stable=False,
    ),
)
every_format = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}-{case.compress}")


def odd_tree(root: Path, case: Case) -> Path:
    """Empty parts, parts of one byte, ragged samples, dots in part names, keys of many kinds, one part of many MiB."""
    rng = random.Random(7)
    files: dict[Any, bytes] = {}
    for number in range(60):
        stem = f"{('cats', 'Übung/höher', 'space d')[number % 3]}/{number * 7919 % 1000:03d}".encode()
        files[stem + b".png"] = rng.randbytes(rng.choice((0, 1, 7, 8, 63, 64, 511, 512, 513, 5_000)))
        files[stem + b".txt"] = f"grün {number}".encode() * (number % 4)
        if number % 3 == 0:
            files[stem + b".seg.png"] = rng.randbytes(number)
        if number % 4 == 0:
            files[stem + b".cls"] = str(number - 20).encode()
    files[b"only/text.json"] = b'{"a": 1}'
    files[b"x/" + b"long" * 40 + b".png"] = b""
    files[b"x/large.png"] = rng.randbytes(3 * MIB + 17)
    if case.has_any_key:
        files[b"cats/\xff\xfe.png"] = b"no UTF-8"
    return make_tree(root, files)


def source_of(tree: Path) -> dict[bytes, bytes]:
    """{key.part: bytes} of every file."""
    root = os.fsencode(tree)
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def members_of(out: Path) -> dict[bytes, bytes]:
    """{key.part: bytes} of a data set, checked against its digests; fails where one is there twice."""
    found: dict[bytes, bytes] = {}
    with Dataset.open(os.fspath(out)) as dataset:
        for shard in range(dataset.num_shards):
            for sample in dataset.samples(shard, check=True):
                for name, data in sample.parts.items():
                    member = sample.key + b"." + name.encode()
                    assert member not in found, member
                    found[member] = data
    return found


def packed(tree: Path, out: Path, case: Case, **options: Any) -> PackResult:
    return pack(tree, out, **case.options, **options)


def check(out: Path, **options: Any) -> VerifyResult:
    return verify(os.fspath(out), WorkerPool(0), Said(), **options)


def fault_kinds(result: VerifyResult) -> set[str]:
    return {fault.kind for fault in result.faults}


# Content


@every_format
def test_every_part_comes_back(case: Case, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "src", case)
    packed(tree, tmp_path / "out", case, shard_size=64 << 10)
    assert members_of(tmp_path / "out") == source_of(tree)
    assert check(tmp_path / "out", is_deep=True).faults == ()


@every_format
def test_parts_are_read_in_any_order(case: Case, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "src", case)
    packed(tree, tmp_path / "out", case, shards=2)
    wanted, rng = source_of(tree), random.Random(1)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        places = [(shard, part) for shard in range(2) for part in range(dataset.index(shard).num_parts)]
        rng.shuffle(places)
        for shard, part in places:
            index = dataset.index(shard)
            member = index.key(int(index.owners()[part])) + b"." + index.part_names[part].as_py()
            assert dataset.read_part(shard, part) == wanted[member]


@every_format
@pytest.mark.parametrize("io", ["pread", "map", "threads:3"])
def test_samples_are_read_by_number(case: Case, tmp_path: Path, io: str) -> None:
    packed(odd_tree(tmp_path / "src", case), tmp_path / "out", case, shards=3)
    wanted = []
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        for shard in range(dataset.num_shards):
            wanted += [{"__key__": os.fsdecode(s.key), **s.parts} for s in dataset.samples(shard)]
    reader, numbers = SampleReader(os.fspath(tmp_path / "out"), io=io, check=True), list(range(len(wanted)))
    random.Random(2).shuffle(numbers)
    assert reader.read(numbers) == [wanted[number] for number in numbers]
    assert [set(sample) for sample in SampleReader(os.fspath(tmp_path / "out"), parts=["txt"]).read([5])] == [
        {"__key__", "txt"} & set(wanted[5])
    ]
    sizes = reader.sizes(np.array(numbers))
    payload = [sum(len(data) for name, data in wanted[n].items() if name != "__key__") for n in numbers]
    assert (sizes >= payload).all()


@every_format
@FEW
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 8), st.sampled_from(["a", "b.c", "txt", "json", "D_e"])),
        st.text(max_size=40),
        min_size=1,
        max_size=12,
    )
)
def test_any_samples_come_back(
    case: Case, tmp_path_factory: pytest.TempPathFactory, texts: dict[tuple[int, str], str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = make_tree(folder / "src", {f"{number}.{part}": text for (number, part), text in texts.items()})
    packed(tree, folder / "out", case, shard_size=16 << 10, keep_case=True)
    assert members_of(folder / "out") == source_of(tree)
    shutil.rmtree(folder)


@every_format
def test_labels_and_joined_columns_are_parts_as_well(case: Case, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {f"{name}/{n}.png": name * n for name in ("ant", "bee") for n in range(5)})
    (tmp_path / "t.csv").write_text(
        "key,caption\n" + "".join(f"{c}/{n},{c} № {n}\n" for c in ("ant", "bee") for n in range(5))
    )
    joined = os.fspath(tmp_path / "t.csv")
    packed(tree, tmp_path / "out", case, label_from="parent", join=joined, join_part="txt=caption")
    found = members_of(tmp_path / "out")
    assert found == source_of(tree) | {
        f"{name}/{n}.{part}".encode(): data.encode()
        for code, name in enumerate(("ant", "bee"))
        for n in range(5)
        for part, data in (("cls", str(code)), ("txt", f"{name} № {n}"))
    }


@every_format
def test_one_sample_is_a_data_set(case: Case, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"a.png": b"x"})
    packed(tree, tmp_path / "out", case)
    assert members_of(tmp_path / "out") == {b"a.png": b"x"}


@every_format
def test_keys_that_are_not_utf8_come_back_or_are_refused_before_anything_is_written(case: Case, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {b"a/\xff\xfe.txt": b"1", b"a/b.txt": b"2"})
    if case.has_any_key:
        packed(tree, tmp_path / "out", case)
        assert members_of(tmp_path / "out") == source_of(tree)
        return
    with pytest.raises(BadKey, match=r"a/\\xff\\xfe|\\xff\\xfe") as caught:
        packed(tree, tmp_path / "out", case)
    assert "--escape-names" in caught.value.hint
    assert not (tmp_path / "out").exists()
    packed(tree, tmp_path / "out", case, escape_names=True)
    assert members_of(tmp_path / "out") == {b"a/%FF%FE.txt": b"1", b"a/b.txt": b"2"}


@every_format
def test_a_sample_larger_than_a_shard_gets_its_own(case: Case, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "src", case)
    packed(tree, tmp_path / "out", case, shard_size=MIB)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        shard, _ = dataset.find(b"x/large")
        assert dataset.index(shard).num_samples == 1
    with pytest.raises(SampleTooLarge, match="x/large"):
        packed(tree, tmp_path / "error", case, shard_size=MIB, on_oversize="error")
    result = packed(tree, tmp_path / "skip", case, shard_size=MIB, on_oversize="skip")
    assert result.failed_entries == 1
    left_out = {b"x/large.png"}
    assert members_of(tmp_path / "skip") == {n: d for n, d in source_of(tree).items() if n not in left_out}


# Sizes


@every_format
@pytest.mark.parametrize("choice", [{"shard_size": 64 << 10}, {"shards": 3}, {"samples_per_shard": 7}], ids=str)
def test_shards_are_as_large_as_planned_or_smaller(case: Case, tmp_path: Path, choice: dict[str, int]) -> None:
    result = packed(odd_tree(tmp_path / "src", case), tmp_path / "out", case, **choice)
    is_exact = get_format(case.format, result.stored.settings).is_exact
    manifest = load_manifest(os.fspath(tmp_path / "out"))
    for spec, shard in zip(result.stored.shards, manifest.shards, strict=True):
        assert shard.files[0].num_bytes == (tmp_path / "out" / shard.path).stat().st_size
        raw = shard.raw_bytes + sum(record.num_bytes for record in shard.files[1:]) if shard.raw_bytes else 0
        real = raw or shard.num_bytes
        assert real == spec.num_bytes if is_exact else real <= spec.num_bytes
        if "shard_size" in choice and spec.num_samples > 1:
            assert spec.num_bytes <= choice["shard_size"]


# The same bytes


@every_format
def test_any_number_of_workers_writes_the_same_bytes(case: Case, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "src", case)
    packed(tree, tmp_path / "here", case, shards=5)
    wanted = content(tmp_path / "here")
    environment = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).parent.parent), "TZ": "Asia/Tokyo"}
    for workers in ("1", "2", "5"):
        out = tmp_path / workers
        command = [sys.executable, "-m", "shardtool", "pack", os.fspath(tree), os.fspath(out), *case.words]
        command += ["--shards", "5", "--workers", workers, "--durability", "none", "-q"]
        subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        assert content(out) == wanted
        shutil.rmtree(out)


@every_format
def test_another_folder_and_other_times_write_the_same_bytes(case: Case, tmp_path: Path) -> None:
    tree = odd_tree(tmp_path / "src", case)
    packed(tree, tmp_path / "out", case, shards=2)
    shutil.copytree(tree, tmp_path / "elsewhere" / "copy", copy_function=shutil.copyfile)
    packed(tmp_path / "elsewhere" / "copy", tmp_path / "again", case, shards=2)
    assert content(tmp_path / "again") == content(tmp_path / "out")


def golden_tree(root: Path) -> Path:
    """Nine samples that need all that a format has: large and empty parts, numbers, texts, a part that some lack."""
    files: dict[Any, bytes | str] = {
        f"{'ab'[n % 2]}/{n}.{part}": text
        for n in range(9)
        for part, text in (("jpg", "jpeg" * 100 * n), ("txt", f"Nummer {n} – ü"), ("cls", str(n)), ("npy", "n"))
        if not (part == "npy" and n % 3)
    }
    return make_tree(root, files)


@every_format
def test_shards_have_the_golden_digest(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=2)
    found = digest_chunks([path.read_bytes() for path in shard_paths(tmp_path / "out")])
    assert found == case.golden


@every_format
def test_nothing_of_this_machine_is_in_a_shard(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=1)
    data = shard_paths(tmp_path / "out")[0].read_bytes()
    for word in (os.fspath(tmp_path), os.uname().nodename, os.uname().release):
        assert word.encode() not in data


# Damage


def borders_of(out: Path) -> list[int]:
    """Bytes of shard 0 at which a cut is most likely to go unnoticed: around all that index and file name."""
    path = shard_paths(out)[0]
    size = path.stat().st_size
    with Dataset.open(os.fspath(out)) as dataset:
        index = dataset.index(0)
        ends = index.part_offset + index.part_bytes
        places = np.concatenate([index.part_offset, ends, index.offset, index.offset + index.num_bytes]).tolist()
    places += BORDERS[path.suffix](path) if path.suffix in BORDERS else []
    places += [0, 1, 4, 8, 12, 512, size // 2, size - 1024, size - 512, size - 8, size - 6, size - 4, size - 1]
    return sorted({place for place in places if 0 <= place < size})


def parquet_borders(path: Path) -> list[int]:
    """Where column chunks, footer and its length begin."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(column) for group in groups for column in range(metadata.num_columns)]
    (footer_bytes,) = struct.unpack("<I", path.read_bytes()[-8:-4])
    ends = [chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks]
    return [*(chunk.data_page_offset for chunk in chunks), *ends, path.stat().st_size - 8 - footer_bytes]


def message_borders(path: Path, first: int = 0) -> list[int]:
    """Where the messages of Arrow's IPC begin, their bodies, and where the last one ends."""
    found = [first]
    with pa.OSFile(os.fspath(path)) as file:
        file.seek(first)
        reader = pa.ipc.MessageReader.open_stream(file)
        for message in reader:
            found += [file.tell() - message.body.size if message.body else file.tell(), file.tell()]
    return found


def arrow_borders(path: Path) -> list[int]:
    """The same of a file, whose messages begin behind its magic, or of a stream."""
    is_file = path.read_bytes().startswith(ARROW_MAGIC)
    return message_borders(path, len(ARROW_MAGIC) if is_file else 0)


def frame_borders(path: Path) -> list[int]:
    """Where zstd frames begin, the seek table behind them, and its end (RFC 8878: a skippable frame tells its size)."""
    data, found = path.read_bytes(), [0]
    while (magic := struct.unpack_from("<I", data, found[-1])[0]) == zstandard.MAGIC_NUMBER:
        frame = zstandard.ZstdDecompressor().decompressobj()
        frame.decompress(data[found[-1] :])
        found.append(len(data) - len(frame.unused_data))
    assert magic & ~0xF == 0x184D2A50
    return [*found, found[-1] + 8]


BORDERS: dict[str, Callable[[Path], list[int]]] = {
    ".parquet": parquet_borders,
    ".arrow": arrow_borders,
    ".zst": frame_borders,
    ".zstd": frame_borders,
}


@every_format
def test_a_cut_at_any_border_is_found_and_never_read_as_data(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.formats.frames.FRAME_BYTES", 1000)
    tree = golden_tree(tmp_path / "src")
    packed(tree, tmp_path / "out", case, shards=2)
    wanted, path = source_of(tree), shard_paths(tmp_path / "out")[0]
    whole = path.read_bytes()
    for place in borders_of(tmp_path / "out"):
        path.write_bytes(whole[:place])
        result = check(tmp_path / "out")
        assert fault_kinds(result) == {"truncated"}, place
        assert result.faults[0].offset == place
        check_reads(tmp_path / "out", wanted)


def check_reads(out: Path, wanted: dict[bytes, bytes]) -> None:
    """Every part of shard 0 is what was packed, or an error says that it is damaged."""
    with Dataset.open(os.fspath(out)) as dataset:
        index = dataset.index(0)
        for part, owner in enumerate(index.owners().tolist()):
            member = index.key(owner) + b"." + index.part_names[part].as_py()
            try:
                data = dataset.read_part(0, part)
            except CorruptShard:
                continue
            assert data == wanted[member]


@every_format
def test_two_wrong_bytes_anywhere_are_found_and_never_read_as_data(case: Case, tmp_path: Path) -> None:
    tree = golden_tree(tmp_path / "src")
    packed(tree, tmp_path / "out", case, shards=2)
    wanted, path = source_of(tree), shard_paths(tmp_path / "out")[0]
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.sample(range(len(whole)), 2):
            damaged[place] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        assert check(tmp_path / "out", is_deep=True).faults
        check_reads(tmp_path / "out", wanted)
    path.write_bytes(whole)
    assert check(tmp_path / "out", is_deep=True).faults == ()


@every_format
def test_a_shard_of_other_content_is_found(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=2)
    path = shard_paths(tmp_path / "out")[0]
    path.write_bytes(bytes(path.stat().st_size))
    assert fault_kinds(check(tmp_path / "out", is_deep=True)) & {"altered", "structure"}


# Runs that go wrong


@every_format
def test_a_run_that_dies_anywhere_is_made_good_by_the_same_command(case: Case, tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "src")
    count = Disk()
    with crashing(count):
        packed(tree, tmp_path / "whole", case, shards=3)
    wanted = content(tmp_path / "whole")
    for last in range(0, count.changes, 3):
        out = tmp_path / f"out-{last}"
        with crashing(Disk(last)):
            packed(tree, out, case, shards=3)
        _background.cache_clear()
        packed(tree, out, case, shards=3)
        assert content(out) == wanted, f"crash at change {last}"
        assert leftovers(out) == []
        shutil.rmtree(out)


@every_format
def test_a_file_that_is_gone_costs_its_sample_alone(case: Case, tmp_path: Path) -> None:
    tree, out = small_tree(tmp_path / "src"), tmp_path / "out"
    packed(tree, out, case, shards=2, part=(0, 2))
    wanted = source_of(tree)
    present = {member for member in wanted if not member.startswith(b"a/")}
    for path in (tree / "a").glob("*.bin"):
        path.unlink()
    result = pack([], out, on_error="skip", on_changed="skip")
    assert result.failed
    found = members_of(out)
    assert all(found[member] == wanted[member] for member in found)
    assert present <= set(found)
    assert len(found) == len(wanted) - 2 * len(result.failed)
    assert check(out, is_deep=True).faults == ()


@every_format
def test_a_lost_index_comes_back_bit_for_bit(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=2)
    wanted = content(tmp_path / "out")
    (tmp_path / "out" / "index" / "00001.arrow").unlink()
    ran = run_cli("index", tmp_path / "out")
    assert (ran.code, ran.err if ran.code else "") == (0, "")
    assert content(tmp_path / "out") == wanted


@every_format
def test_a_lost_index_of_a_damaged_shard_does_not_come_back(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=2)
    (tmp_path / "out" / "index" / "00001.arrow").unlink()
    path = shard_paths(tmp_path / "out")[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run_cli("index", tmp_path / "out").code == 4
    assert not (tmp_path / "out" / "index" / "00001.arrow").exists()


# Commands


def commands(out: Path, tmp_path: Path) -> Iterator[list[str]]:
    """A line for every command that reads a data set."""
    place = os.fspath(out)
    yield ["verify", place]
    yield ["verify", place, "--deep"]
    yield ["status", place]
    yield ["stats", place]
    yield ["ls", place]
    yield ["ls", place, "--braces"]
    yield ["ls", place, "--samples"]
    yield ["inspect", place]
    yield ["inspect", os.fspath(shard_paths(out)[0])]
    yield ["inspect", place, "a/0"]
    yield ["cat", place, "a/0.txt"]
    yield ["where", place, "a/0", "--world-size", "2"]
    yield ["assign", place, "--world-size", "2"]
    yield ["diff", place, place]
    yield ["extract", place, os.fspath(tmp_path / "extracted")]
    yield ["index", place]


@every_format
@pytest.mark.parametrize("json", [False, True], ids=["text", "json"])
def test_every_command_works(case: Case, tmp_path: Path, json: bool) -> None:
    tree = golden_tree(tmp_path / "src")
    packed(tree, tmp_path / "out", case, shards=2)
    for line in commands(tmp_path / "out", tmp_path):
        if json and line[0] == "cat":
            continue
        ran = run_cli(*line, *(["--json"] if json and "--braces" not in line else []))
        assert (ran.code, ran.err if ran.code else "") == (0, ""), line
        assert ran.out or line[0] == "diff", line
    assert source_of(tmp_path / "extracted") == source_of(tree)


@every_format
def test_webdataset_is_asked_only_what_it_reads(case: Case, tmp_path: Path) -> None:
    packed(golden_tree(tmp_path / "src"), tmp_path / "out", case, shards=2)
    ran = run_cli("verify", tmp_path / "out", "--reader", "webdataset")
    assert ran.code == (
        0 if case.format == "tar" and case.compress == "none" else 2 if case.format != "tar" else ran.code
    )


@every_format
def test_the_command_line_packs_it(case: Case, tmp_path: Path) -> None:
    tree = golden_tree(tmp_path / "src")
    ran = run_cli("pack", tree, tmp_path / "out", *case.words, "--json")
    assert (ran.code, ran.json["format"]) == (0, case.format)
    assert members_of(tmp_path / "out") == source_of(tree)
    planned = run_cli("plan", tree, tmp_path / "other", *case.words)
    assert planned.code == 0, planned.err
