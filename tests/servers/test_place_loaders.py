"""Samples read from a bucket by number, told ahead or not, and out of a staged folder where it has them."""

from __future__ import annotations

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fault_proxy import FaultProxy
from helpers import pack
from store import NUM_SHARDS, files_of, packed, tree_of

from shardtool.errors import PlanMismatch, SourceNotFound, UsageProblem
from shardtool.loading.reader import SampleReader
from shardtool.loading.remote import RemoteShardFiles
from shardtool.reading.reading import Dataset
from shardtool.reading.remote import RemoteDataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket

    from shardtool.model import Int64Array

SHARD_GET = r"GET .*/data/"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return packed(tree_of(tmp_path / "src"), tmp_path / "local")


@pytest.fixture
def url(seaweedfs_bucket: Bucket, local: Path) -> str:
    seaweedfs_bucket.put({f"out/{path}": data for path, data in files_of(local).items()})
    return seaweedfs_bucket.url("out")


@pytest.fixture
def proxy(seaweedfs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """What goes to the bucket is seen."""
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def shuffled(reader: SampleReader) -> Int64Array:
    return np.random.default_rng(1).permutation(len(reader))


def test_samples_are_those_of_the_folder(url: str, local: Path) -> None:
    there, here = SampleReader(url, check=True), SampleReader(os.fspath(local))
    numbers = shuffled(here)
    assert there.read(numbers) == here.read(numbers)
    assert (there.fingerprint, there.sizes(numbers).tolist()) == (here.fingerprint, here.sizes(numbers).tolist())
    there.close()


def test_a_batch_takes_few_requests(url: str, proxy: FaultProxy) -> None:
    reader = SampleReader(url)
    reader.read(range(len(reader)))
    assert proxy.count(SHARD_GET) == NUM_SHARDS  # neighbours together; each object's version is asked for once
    assert proxy.count(r"HEAD .*/data/") == NUM_SHARDS
    reader.close()


def test_ranges_told_ahead_are_fetched_once(url: str, local: Path, proxy: FaultProxy) -> None:
    there, here = SampleReader(url), SampleReader(os.fspath(local))
    counts = np.asarray(there.shards.counts)
    there.hint(np.arange(NUM_SHARDS), np.zeros(NUM_SHARDS, np.int64), counts)
    there.hint(np.arange(NUM_SHARDS), np.zeros(NUM_SHARDS, np.int64), counts)
    numbers = shuffled(here)
    for first in range(0, len(numbers), 7):
        assert there.read(numbers[first : first + 7]) == here.read(numbers[first : first + 7])
    assert proxy.count(SHARD_GET) == NUM_SHARDS
    there.close()


def test_memory_for_what_is_told_ahead_is_bounded(url: str, local: Path) -> None:
    with Dataset.open(url) as dataset:
        assert isinstance(dataset, RemoteDataset)
        files = RemoteShardFiles(dataset, held_bytes=20_000)
        for shard in range(NUM_SHARDS):
            for offset in range(0, 40_000, 5_000):
                files.will_need(shard, offset, 5_000)
                assert files._num_held <= 20_000
        whole = (local / dataset.manifest.shards[2].path).read_bytes()
        assert files.read(2, 3_000, 30_000) == whole[3_000:33_000]
        assert files.read(NUM_SHARDS - 1, 36_000, 3_000)
        files.close()


def test_many_threads_read_at_once(url: str, local: Path) -> None:
    there, here = SampleReader(url, check=True), SampleReader(os.fspath(local))
    numbers = shuffled(here)
    batches = [numbers[first : first + 5] for first in range(0, len(numbers), 5)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there.read, batches)) == [here.read(batch) for batch in batches]
    there.close()


def test_a_reader_travels_to_another_process(url: str) -> None:
    reader = SampleReader(url, parts=["txt"])
    again = pickle.loads(pickle.dumps(reader))
    assert again.read([3]) == reader.read([3])
    for one in (reader, again):
        one.close()


def test_shards_are_read_through_in_order(url: str, local: Path) -> None:
    with Dataset.open(url) as there, Dataset.open(os.fspath(local)) as here:
        for shard in range(NUM_SHARDS):
            assert list(there.samples(shard, check=True)) == list(here.samples(shard))
            assert list(there.samples(shard, 3, 9)) == list(here.samples(shard, 3, 9))


def test_a_large_shard_is_read_in_windows_with_the_next_on_its_way(
    seaweedfs_bucket: Bucket, tmp_path: Path, proxy: FaultProxy
) -> None:
    tree = tree_of(tmp_path / "large", num_samples=40, largest=1_000_000)
    pack(tree, tmp_path / "here", shards=1)
    seaweedfs_bucket.put({f"big/{path}": data for path, data in files_of(tmp_path / "here").items()})
    with Dataset.open(seaweedfs_bucket.url("big")) as there, Dataset.open(os.fspath(tmp_path / "here")) as here:
        samples = there.samples(0)
        first = next(samples)
        assert [first, *samples] == list(here.samples(0))
        num_bytes = there.manifest.shards[0].num_bytes
    assert num_bytes >> 23 <= proxy.count(SHARD_GET) <= (num_bytes >> 23) + 2


def test_neighbouring_frames_of_a_compressed_shard_come_by_one_request(
    seaweedfs_bucket: Bucket, tmp_path: Path, proxy: FaultProxy
) -> None:
    tree = tree_of(tmp_path / "large", num_samples=40, largest=1_000_000)
    for number in range(40):  # a raw shard is far larger than its file
        (tree / f"{number:03d}.pad").write_bytes(bytes(500_000))
    pack(tree, tmp_path / "here", shards=1, compress="zstd")
    seaweedfs_bucket.put({f"zst/{path}": data for path, data in files_of(tmp_path / "here").items()})
    with Dataset.open(seaweedfs_bucket.url("zst")) as there, Dataset.open(os.fspath(tmp_path / "here")) as here:
        assert list(there.samples(0)) == list(here.samples(0))
        record = there.manifest.shards[0]
    assert record.raw_bytes > 1.5 * record.num_bytes
    windows = (record.raw_bytes >> 23) + 1
    assert proxy.count(SHARD_GET) <= 2 * windows  # of its frames, and the one on the border that it shares
    proxy.clear()
    reader = SampleReader(seaweedfs_bucket.url("zst"))
    assert reader.read(range(len(reader))) == SampleReader(os.fspath(tmp_path / "here")).read(range(len(reader)))
    reader.close()
    assert proxy.count(SHARD_GET) <= 2 * windows


def test_what_is_staged_is_read_there(url: str, local: Path, tmp_path: Path, proxy: FaultProxy) -> None:
    here = SampleReader(os.fspath(local))
    staged = tmp_path / "nvme" / f"out-{here.dataset_id[:12]}"
    shutil.copytree(local, staged)
    absent = [shard.path for shard in Dataset.open(os.fspath(local)).manifest.shards[1:2]]
    for path in absent:
        os.unlink(staged / path)
    numbers = shuffled(here)
    for cache in (staged, staged.parent):
        proxy.requests.clear()
        there = SampleReader(url, cache=os.fspath(cache), check=True)
        assert there.read(numbers) == here.read(numbers)
        assert {seen.path.partition("/data/")[2] for seen in proxy.requests if "/data/" in seen.path} == {
            os.path.basename(path) for path in absent
        }
        assert proxy.count(r"GET .*/index/") == 0
        with pytest.raises(UsageProblem, match="1 of 4 shards"):
            there.preload()
        assert there.preload(np.array([0, 2, 3])) > 0
        there.close()


def test_a_reader_in_another_process_asks_for_nothing_that_is_staged(
    url: str, local: Path, tmp_path: Path, proxy: FaultProxy
) -> None:
    staged = tmp_path / "staged"
    shutil.copytree(local, staged)
    there, here = SampleReader(url, cache=os.fspath(staged)), SampleReader(os.fspath(local))
    sent = pickle.loads(pickle.dumps(there))
    proxy.clear()
    assert sent.read(shuffled(here)) == here.read(shuffled(here))
    assert [seen.what for seen in proxy.requests] == []


def test_a_cut_file_in_the_cache_is_not_used(url: str, local: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    shutil.copytree(local, staged)
    for path in staged.glob("data/*.tar"):
        os.truncate(path, 1024)
    there, here = SampleReader(url, cache=os.fspath(staged)), SampleReader(os.fspath(local))
    assert there.read(range(len(here))) == here.read(range(len(here)))
    there.close()


def test_a_cache_of_something_else_is_refused(url: str, tmp_path: Path) -> None:
    other = packed(tree_of(tmp_path / "more", num_samples=33), tmp_path / "other")
    with pytest.raises(PlanMismatch, match="holds data set"):
        SampleReader(url, cache=os.fspath(other))
    with pytest.raises(SourceNotFound, match="nothing staged"):
        SampleReader(url, cache=os.fspath(tmp_path / "src"))
