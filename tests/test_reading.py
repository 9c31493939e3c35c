"""A finished data set read back: by key, by part, in order, and never wrongly in silence."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
from helpers import make_tree, pack, read_members, run_cli, shard_paths

from shardtool.errors import CorruptShard, FormatError, ShardtoolError, SourceNotFound
from shardtool.reading import reading
from shardtool.reading.reading import Dataset
from shardtool.reading.windows import WINDOW_BYTES, Sample, windows


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 samples in two splits and several shards; one part is larger than a window."""
    top = tmp_path_factory.mktemp("reading")
    drawn = random.Random(3)
    files = {f"{'ab'[n % 2]}/{n:03d}.{part}": drawn.randbytes(n * 7) for n in range(90) for part in ("bin", "txt")}
    files["a/big.bin"] = drawn.randbytes(3 * WINDOW_BYTES + 17)
    source = make_tree(top / "src", files)
    pack(source, top / "out", samples_per_shard=20, split="train=0.8,validation=0.2", label_from="parent")
    return top / "out"


def everything(dataset: Dataset, *, check: bool = False) -> list[Sample]:
    return [sample for shard in range(dataset.num_shards) for sample in dataset.samples(shard, check=check)]


def test_samples_come_in_the_order_of_the_shards_with_every_part(packed: Path) -> None:
    with Dataset.open(os.fspath(packed)) as dataset:
        samples = everything(dataset, check=True)
        keys = [
            dataset.index(shard).key(n)
            for shard in range(dataset.num_shards)
            for n in range(dataset.index(shard).num_samples)
        ]
    assert [sample.key for sample in samples] == keys
    read = {sample.key + b"." + name.encode(): data for sample in samples for name, data in sample.parts.items()}
    assert read == read_members(packed)
    assert {sample.label for sample in samples} == {0, 1}


def test_samples_of_any_range_are_the_same_in_blocks_of_any_size(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Dataset.open(os.fspath(packed)) as dataset:
        wanted = everything(dataset)
        monkeypatch.setattr("shardtool.reading.windows.BLOCK_SAMPLES", 7)
        assert everything(dataset, check=True) == wanted
        whole = list(dataset.samples(1))
        for start, stop in ((0, 7), (3, 15), (6, 8), (5, 5), (19, 25)):
            assert list(dataset.samples(1, start, stop)) == whole[start:stop]


@pytest.mark.parametrize("shard_format", ["tar", "parquet"])
@pytest.mark.parametrize("window_bytes", [1, 3000, 1 << 20])
def test_windows_cover_a_range_in_order_and_stay_below_their_size(
    tmp_path: Path, shard_format: str, window_bytes: int
) -> None:
    drawn = random.Random(5)
    source = make_tree(tmp_path / "src", {f"{n:02d}.bin": drawn.randbytes(n * 40) for n in range(50)})
    pack(source, tmp_path / "out", shards=1, format=shard_format)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        index = dataset.index(0)
        sizes = index.num_bytes if shard_format == "tar" else index.part_bytes
        for start, stop in ((0, 50), (13, 41), (49, 50), (7, 7)):
            found = list(windows(index, start, stop, window_bytes))
            assert [row for first, last in found for row in range(first, last)] == list(range(start, stop))
            assert all(last - first == 1 or sizes[first:last].sum() <= window_bytes for first, last in found)
            for (first, last), (_, after) in pairwise(found):
                assert sizes[first : last + 1].sum() > window_bytes, (first, last, after)


def test_every_key_is_found_at_its_place_by_bisection(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dataset, "_scan", lambda *_: None)
    with Dataset.open(os.fspath(packed)) as dataset:
        for shard in range(dataset.num_shards):
            for number in range(dataset.index(shard).num_samples):
                assert dataset.find(dataset.index(shard).key(number)) == (shard, number)


def test_keys_are_found_where_the_order_is_that_of_the_source(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "src", {f"{n}.txt": b"x" for n in range(30)})
    pack(source, tmp_path / "out", shuffle="none", samples_per_shard=7)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        for shard in range(dataset.num_shards):
            for number in range(dataset.index(shard).num_samples):
                assert dataset.find(dataset.index(shard).key(number)) == (shard, number)


def test_a_key_that_is_not_there_is_an_input_problem(packed: Path) -> None:
    with Dataset.open(os.fspath(packed)) as dataset, pytest.raises(SourceNotFound, match="no sample 'a/none'"):
        dataset.find(b"a/none")


def test_a_key_is_looked_for_in_one_split_alone(packed: Path) -> None:
    with Dataset.open(os.fspath(packed)) as dataset:
        shard = next(k for k, entry in enumerate(dataset.manifest.shards) if entry.split == "validation")
        key = dataset.index(shard).key(0)
        assert dataset.find(key, "validation") == (shard, 0)
        with pytest.raises(SourceNotFound, match="in train"):
            dataset.find(key, "train")


def test_a_part_is_read_by_name_and_its_absence_named(packed: Path) -> None:
    with Dataset.open(os.fspath(packed)) as dataset:
        shard, sample = dataset.find(b"a/big")
        data = dataset.read_part(shard, dataset.part_row(shard, sample, b"bin"))
        assert len(data) == 3 * WINDOW_BYTES + 17
        with pytest.raises(SourceNotFound) as caught:
            dataset.part_row(shard, sample, b"txt")
        assert "bin" in caught.value.hint


def test_a_range_of_samples_is_read_alone(packed: Path) -> None:
    with Dataset.open(os.fspath(packed)) as dataset:
        whole = list(dataset.samples(0))
        assert list(dataset.samples(0, 3, 7)) == whole[3:7]
        assert list(dataset.samples(0, 15, 1000)) == whole[15:]
        assert list(dataset.samples(0, 7, 7)) == []


def test_the_manifest_itself_may_be_named(packed: Path) -> None:
    with Dataset.open(os.fspath(packed / "manifest.json")) as dataset:
        assert dataset.num_shards > 2


def test_a_shard_cut_short_is_an_error_with_its_place(packed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(packed, tmp_path / "out")
    os.truncate(shard_paths(out)[1], 2000)
    with Dataset.open(os.fspath(out)) as dataset, pytest.raises(CorruptShard) as caught:
        list(dataset.samples(1))
    assert caught.value.where["shard"] == 1
    assert "ends at byte 2,000" in caught.value.message


def test_an_altered_part_is_an_error_with_its_key(packed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(packed, tmp_path / "out")
    with Dataset.open(os.fspath(out)) as dataset:
        shard, sample = dataset.find(b"b/089")
        part = dataset.part_row(shard, sample, b"txt")
        with shard_paths(out)[shard].open("r+b") as file:
            file.seek(int(dataset.index(shard).part_offset[part]))
            file.write(b"\0\0\0\0")
        with pytest.raises(CorruptShard) as caught:
            dataset.read_part(shard, part)
        assert caught.value.where["key"] == "b/089"
        with pytest.raises(CorruptShard, match=r"'b/089\.txt'"):
            list(dataset.samples(shard, check=True))
        assert dataset.read_part(shard, part, check=False)[:4] == b"\0\0\0\0"


def test_an_index_of_another_shard_is_refused(packed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(packed, tmp_path / "out")
    shutil.copy(out / "index/00001.arrow", out / "index/00000.arrow")
    with Dataset.open(os.fspath(out)) as dataset, pytest.raises(CorruptShard, match="not the index of"):
        dataset.index(0)


def test_a_damaged_index_raises_our_errors_alone(packed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(packed, tmp_path / "out")
    path = out / "index/00000.arrow"
    whole = path.read_bytes()
    drawn = random.Random(11)
    for number in range(150):
        offset = drawn.randrange(len(whole))
        path.write_bytes(whole[:offset] + bytes([drawn.randrange(256)]) + whole[offset + 1 :])
        if number % 5 == 0:
            path.write_bytes(whole[:offset])
        with Dataset.open(os.fspath(out)) as dataset:
            try:
                for _ in dataset.samples(0, check=True):
                    pass
            except ShardtoolError:
                continue


def test_unfinished_missing_and_damaged_data_sets_are_told_apart(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="does not exist"):
        Dataset.open(os.fspath(tmp_path / "absent"))
    with pytest.raises(SourceNotFound, match="holds no data set"):
        Dataset.open(os.fspath(tmp_path))
    out = shutil.copytree(packed, tmp_path / "out")
    (out / "manifest.json").write_text("[]")
    with pytest.raises(FormatError):
        Dataset.open(os.fspath(out))
    (out / "manifest.json").unlink()
    with pytest.raises(SourceNotFound, match="unfinished"):
        Dataset.open(os.fspath(out))


def test_few_files_and_indexes_are_kept_open(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_FILES", 1)
    monkeypatch.setattr(reading, "MAX_INDEXES", 1)
    with Dataset.open(os.fspath(packed)) as dataset:
        before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        samples = everything(dataset)
        assert samples == everything(dataset)
        if before:
            assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_links_in_shards_of_other_tools_read_as_what_they_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for number in range(40):
            info = tarfile.TarInfo(f"a{number:02d}.bin")
            info.size = 50_000
            archive.addfile(info, BytesIO(bytes([number]) * 50_000))
        link = tarfile.TarInfo("b.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "a03.bin"
        archive.addfile(link)
    assert run_cli("index", tmp_path).code == 0
    with Dataset.open(os.fspath(tmp_path)) as dataset:
        samples = everything(dataset, check=True)
        assert len(samples) == 41
        assert samples[-1] == (b"b", None, {"bin": bytes([3]) * 50_000})
        assert dataset.find(b"b") == (0, 40)
