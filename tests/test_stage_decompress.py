"""`stage --decompress`: raw shards of a compressed data set, verified, of the same identity, repaired."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from helpers import Said, run_cli
from staged import CountingPlace, Telling, only, run_stage, shard_bytes, small_data_set

from shardtool.assignment.assignment import Wish, assign
from shardtool.errors import CorruptShard, NoSpace
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset
from shardtool.staging.check import check_staged
from shardtool.staging.folder import read_staged
from shardtool.verification.verify import verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("tar", "mds")


@pytest.fixture(scope="module", params=FORMATS)
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(compressed, raw): the same samples packed twice."""
    root = tmp_path_factory.mktemp(request.param)
    options: dict[str, Any] = {"format": request.param, "size": 60_000}
    packed = small_data_set(root / "packed", compress="zstd:1", **options)
    return packed, small_data_set(root / "raw", **options)


def raw_bytes(packed: Path) -> dict[str, bytes]:
    """What libzstd alone makes of the files in `data/`."""
    found = {}
    for name, content in shard_bytes(packed).items():
        stem, suffix = os.path.splitext(name)
        is_packed = suffix in (".zst", ".zstd")
        reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
        found[stem if is_packed else name] = reader.read() if is_packed else content
    return found


def check(folder: Path) -> None:
    for is_deep in (False, True):
        result = verify(os.fspath(folder), WorkerPool(0), Said(), is_deep=is_deep)
        assert result.is_ok, result.faults


def samples_of(folder: Path, shard: int) -> list[Any]:
    with Dataset.open(os.fspath(folder)) as dataset:
        return [(sample.key, sample.parts) for sample in dataset.samples(shard, check=True)]


def test_the_raw_shards_are_what_the_compressed_ones_hold(data: tuple[Path, Path], tmp_path: Path) -> None:
    packed, raw = data
    say = Telling()
    result = run_stage(packed, tmp_path, say=say, decompress="drop")
    folder = only(tmp_path)
    assert shard_bytes(folder) == raw_bytes(packed)
    source, here = load_manifest(os.fspath(packed)), load_manifest(os.fspath(folder))
    assert result.fetched_bytes == source.num_bytes < here.num_bytes == result.num_bytes == say.num_bytes
    if source.format == "tar":
        assert shard_bytes(folder) == shard_bytes(raw)
    assert not list((folder / ".stage" / "parts").rglob("*.*"))
    check(folder)


def test_readers_find_in_it_the_samples_of_the_source(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="drop", select="list", listed="1,3")
    folder = only(tmp_path)
    for shard in (1, 3):
        assert samples_of(folder, shard) == samples_of(data[0], shard)
    with Dataset.open(os.fspath(folder)) as dataset:
        assert "frames" not in dataset.index(1).meta
    check(folder)


def test_it_is_known_as_the_same_data_set_in_another_form(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="drop")
    run_stage(data[0], tmp_path)
    source = load_manifest(os.fspath(data[0]))
    compressed, raw = sorted(tmp_path.iterdir())
    assert raw.name == f"{compressed.name}-raw"
    assert load_manifest(os.fspath(raw)).dataset_id == source.dataset_id
    assert [read_staged(os.fspath(path)).is_decompressed for path in (compressed, raw)] == [False, True]  # type: ignore[union-attr]
    assert shard_bytes(compressed) == shard_bytes(data[0])


def test_the_order_of_reading_does_not_depend_on_the_form(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="drop")
    wish = Wish(world_size=2, seed=3)
    orders = [assign(load_manifest(os.fspath(folder)), wish).order for folder in (data[0], only(tmp_path))]
    assert orders[0].params == orders[1].params


def test_a_second_run_fetches_nothing(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="drop")
    source = CountingPlace(data[0])
    result = run_stage(source, tmp_path, decompress="drop")
    assert result.fetched_bytes == 0
    assert not source.reads
    assert result.reused_bytes == result.num_bytes


def test_compressed_shards_are_kept_where_that_is_asked_for(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="keep")
    folder = only(tmp_path)
    assert shard_bytes(folder) == {**shard_bytes(data[0]), **raw_bytes(data[0])}
    check(folder)


def test_a_raw_shard_that_was_damaged_is_made_again_from_the_one_that_was_kept(
    data: tuple[Path, Path], tmp_path: Path
) -> None:
    run_stage(data[0], tmp_path, decompress="keep")
    folder = only(tmp_path)
    name = load_manifest(os.fspath(folder)).shards[0].path.removeprefix("data/")
    with (folder / "data" / name).open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    result, _ = check_staged(os.fspath(tmp_path), Telling(), 1)
    assert {fault.path for fault in result.faults} == {f"data/{name}"}
    again = run_stage(data[0], tmp_path, decompress="keep")
    assert again.fetched_bytes == 0
    check(folder)


def test_a_raw_shard_that_was_damaged_is_fetched_again(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path, decompress="drop")
    folder = only(tmp_path)
    name = load_manifest(os.fspath(folder)).shards[0].path.removeprefix("data/")
    (folder / "data" / name).write_bytes(bytes(10))
    result = run_stage(data[0], tmp_path, decompress="drop")
    manifest = load_manifest(os.fspath(data[0]))
    assert result.fetched_bytes == manifest.shards[0].num_bytes
    check(folder)


def test_a_digest_of_other_raw_bytes_is_an_error_and_nothing_gets_a_name(
    data: tuple[Path, Path], tmp_path: Path
) -> None:
    document = json.loads((data[0] / "manifest.json").read_text())
    for shard in document["shards"]:
        shard["raw_xxh3_128"] = "0" * 32
    text = json.dumps(document).encode()

    class Lying(CountingPlace):
        def read(self, path: str) -> bytes:
            return text if path == "manifest.json" else super().read(path)

    with pytest.raises(CorruptShard, match="should decompress to bytes of digest 0000"):
        run_stage(Lying(data[0]), tmp_path, decompress="drop")
    assert not [path for path in (only(tmp_path) / "data").rglob("*.*") if path.name != "index.json"]


def test_a_copy_of_the_raw_form_is_verified_too(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path / "first", decompress="drop")
    run_stage(only(tmp_path / "first"), tmp_path / "second")
    assert shard_bytes(only(tmp_path / "second")) == raw_bytes(data[0])
    check(only(tmp_path / "second"))


def test_room_is_needed_for_raw_shards_and_those_on_their_way(data: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        run_stage(data[0], tmp_path, decompress="drop", reserve=1 << 60)


def test_a_budget_counts_raw_bytes(data: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = load_manifest(os.fspath(data[1]))
    budget = 5 * max(shard.num_bytes for shard in manifest.shards) // 2
    wish = Wish(world_size=1, num_nodes=1, mode="shard")
    run_stage(data[0], tmp_path, decompress="drop", select="share", wish=wish, budget=budget)
    found = shard_bytes(only(tmp_path))
    assert 0 < sum(map(len, found.values())) <= budget
    assert all(raw_bytes(data[0])[name] == content for name, content in found.items())
    assert len(found) < len(raw_bytes(data[0]))


def test_what_is_not_compressed_comes_as_it_is_with_a_warning(data: tuple[Path, Path], tmp_path: Path) -> None:
    say = Telling()
    run_stage(data[1], tmp_path, say=say, decompress="drop")
    assert any("changes nothing" in text for text in say.warnings)
    assert shard_bytes(only(tmp_path)) == shard_bytes(data[1])
    assert not only(tmp_path).name.endswith("-raw")


def test_the_command_decompresses(data: tuple[Path, Path], tmp_path: Path) -> None:
    plan = run_cli("stage", data[0], tmp_path, "--all", "--decompress", "--dry-run", "--json")
    assert plan.code == 0, plan.err
    source = load_manifest(os.fspath(data[0]))
    document = json.loads(plan.out)
    assert (document["bytes"], document["missing_bytes"]) == (sum(s.raw_bytes for s in source.shards), source.num_bytes)
    done = run_cli("stage", data[0], tmp_path, "--all", "--decompress", "-q")
    assert done.code == 0, done.err
    assert done.out.strip().endswith("-raw")
    assert run_cli("verify", done.out.strip(), "--deep").code == 0
    assert run_cli("stage", "--verify", tmp_path).code == 0
    status = json.loads(run_cli("stage", "--status", tmp_path, "--json").out)
    assert status["folders"][0]["is_complete"]


def test_keep_compressed_alone_is_refused(tmp_path: Path) -> None:
    done = run_cli("stage", tmp_path, tmp_path / "x", "--keep-compressed")
    assert done.code == 2
    assert "--decompress" in done.err


def test_a_reader_takes_raw_shards_from_the_cache(data: tuple[Path, Path], tmp_path: Path) -> None:
    run_stage(data[0], tmp_path / "cache", decompress="drop", select="list", listed="1")
    source = tmp_path / "source"
    shutil.copytree(data[0], source)
    manifest = load_manifest(os.fspath(source))
    (source / manifest.shards[1].path).unlink()
    with Dataset.open(os.fspath(source), cache=os.fspath(tmp_path / "cache")) as dataset:
        for shard in (0, 1):
            index = dataset.index(shard)
            found = dataset.read_parts(shard, 0, index.num_parts)
            with Dataset.open(os.fspath(data[0])) as whole:
                assert found == whole.read_parts(shard, 0, index.num_parts)
