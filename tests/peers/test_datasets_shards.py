"""Hugging Face datasets reads Parquet and Arrow shards: keys, bytes, counts and media as in the source."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import datasets
import PIL.Image
import pyarrow as pa
import pyarrow.dataset
import pytest
from corpora import CORPORA, fetch
from helpers import make_tree, pack, run_cli, shard_paths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peer_data import PETS

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIANTS = [(name, compress) for name in ("parquet", "arrow", "arrow-stream") for compress in ("none", "zstd:3")]
every_variant = pytest.mark.parametrize(("shard_format", "compress"), VARIANTS, ids=map("-".join, VARIANTS))
FEW = settings(
    max_examples=15, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
datasets.disable_progress_bars()


def source_of(root: Path) -> dict[str, dict[str, bytes]]:
    """{key: {part: bytes}} of a folder."""
    found: dict[str, dict[str, bytes]] = {}
    for path in root.rglob("*"):
        if path.is_file():
            stem, _, part = path.name.partition(".")
            found.setdefault(str((path.parent / stem).relative_to(root)), {})[part] = path.read_bytes()
    return found


def load(out: Path, *, streaming: bool = False) -> Any:
    return datasets.load_dataset(str(out), streaming=streaming, cache_dir=str(out.parent / "cache"))


def undecoded(data: Any) -> Any:
    """Media as they are stored."""
    for name, feature in data.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio | datasets.Video):
            data = data.cast_column(name, type(feature)(decode=False))
    return data


def contents(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, bytes]]:
    """As `source_of`; fails where a key is there twice."""
    found: dict[str, dict[str, bytes]] = {}
    for row in rows:
        key = row.pop("key")
        assert key not in found
        found[key] = {name: as_bytes(value) for name, value in row.items() if value is not None}
    return found


def as_bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        assert value["path"] is None
        value = value["bytes"]
    return value if isinstance(value, bytes) else str(value).encode()


@every_variant
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streaming"])
def test_pictures_are_those_of_the_source(tmp_path: Path, shard_format: str, compress: str, streaming: bool) -> None:
    pack(
        PETS,
        tmp_path / "out",
        format=shard_format,
        compress=compress,
        shard_size=96 << 10,
        split="train=0.8,validation=0.2",
        label_from="parent",
    )
    found = load(tmp_path / "out", streaming=streaming)
    wanted = source_of(PETS)
    assert set(found) == {"train", "validation"}
    split_contents = [contents(undecoded(data)) for data in found.values()]
    assert not set(split_contents[0]) & set(split_contents[1])
    together = split_contents[0] | split_contents[1]
    assert all(parts.pop("cls").isdigit() for parts in together.values())
    assert together == {key: {n: d for n, d in parts.items() if n != "cls"} for key, parts in wanted.items()}
    sample = next(iter(found["train"]))
    pictures = [name for name, feature in found["train"].features.items() if isinstance(feature, datasets.Image)]
    assert pictures
    for name in pictures:
        with PIL.Image.open(next((PETS / sample["key"]).parent.glob(f"{Path(sample['key']).name}.{name}"))) as picture:
            assert sample[name].size == picture.size
            assert sample[name].tobytes() == picture.tobytes()
    assert isinstance(sample["cls"], int)


@every_variant
def test_real_pictures_are_those_of_the_source(tmp_path: Path, shard_format: str, compress: str) -> None:
    if reason := fetch(CORPORA["tuxpaint"]):
        pytest.skip(reason)
    root = CORPORA["tuxpaint"].roots[0] / "animals"  # some texts are no UTF-8
    pack(root, tmp_path / "out", format=shard_format, compress=compress, shard_size=8 << 20, schema=("txt=binary",))
    found = load(tmp_path / "out")["train"]
    wanted = source_of(root)
    assert contents(undecoded(found)) == wanted
    assert isinstance(found.features["png"], datasets.Image)
    for sample in found.select_columns(["key", "png"]).filter(bool, input_columns="png").select(range(12)):
        with PIL.Image.open(io.BytesIO(wanted[sample["key"]]["png"])) as picture:
            assert sample["png"].tobytes() == picture.tobytes()


@every_variant
def test_real_sounds_are_those_of_the_source(tmp_path: Path, shard_format: str, compress: str) -> None:
    roots = CORPORA["asterisk"].roots
    if not all(root.is_dir() for root in roots):
        pytest.skip("scripts/fetch-corpora --all fetches the sounds, scripts/test-full does")
    pack(roots, tmp_path / "out", format=shard_format, compress=compress, shards=3)
    found = load(tmp_path / "out")["train"]
    assert isinstance(found.features["wav"], datasets.Audio)
    wanted = {key: parts for root in roots for key, parts in source_of(root).items()}
    assert contents(undecoded(found)) == wanted


@every_variant
@FEW
@given(
    samples=st.dictionaries(
        st.integers(0, 99),
        st.dictionaries(st.sampled_from(["txt", "npy", "seg.txt", "x_y"]), st.text(max_size=30), min_size=1),
        min_size=1,
        max_size=12,
    )
)
def test_any_samples_are_those_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, shard_format: str, compress: str, samples: dict[int, dict[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = {f"d/{number}.{part}": text for number, parts in samples.items() for part, text in parts.items()}
    tree = make_tree(folder / "src", files)
    pack(tree, folder / "out", format=shard_format, compress=compress, shards=min(2, len(samples)))
    assert contents(load(folder / "out")["train"]) == source_of(tree)
    assert contents(load(folder / "out", streaming=True)["train"]) == source_of(tree)


@pytest.mark.parametrize("compress", ["none", "zstd:3"])
def test_streams_are_what_load_from_disk_wants(tmp_path: Path, compress: str) -> None:
    options: dict[str, Any] = {"shard_size": 96 << 10, "split": "train=0.8,validation=0.2", "label_from": "parent"}
    pack(PETS, tmp_path / "out", format="arrow-stream", compress=compress, **options)
    found = datasets.load_from_disk(str(tmp_path / "out" / "data"))
    assert list(found) == ["train", "validation"]
    assert sum(len(data) for data in found.values()) == len(source_of(PETS))
    together = {key: parts for data in found.values() for key, parts in contents(undecoded(data)).items()}
    assert all(parts.pop("cls").isdigit() for parts in together.values())
    assert together == source_of(PETS)
    alone = datasets.load_from_disk(str(tmp_path / "out" / "data" / "validation"))
    assert list(alone["key"]) == list(found["validation"]["key"])
    pack(PETS, tmp_path / "again", format="arrow-stream", compress=compress, **options)
    again = datasets.load_from_disk(str(tmp_path / "again" / "data"))
    assert again["train"]._fingerprint == found["train"]._fingerprint != found["validation"]._fingerprint


def test_what_save_to_disk_wrote_is_converted(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "parquet", format="parquet", split="train=0.8,validation=0.2")
    saved = load(tmp_path / "parquet")
    datasets.DatasetDict({split: undecoded(data) for split, data in saved.items()}).save_to_disk(tmp_path / "saved")
    assert run_cli("convert", tmp_path / "saved", tmp_path / "out", "--key-column", "key", "-q").code == 0
    report = run_cli("stats", tmp_path / "out", "--json").json
    assert report["samples"] == len(source_of(PETS))


@pytest.mark.parametrize(("shard_format", "compress"), [v for v in VARIANTS if v[0] != "arrow-stream"])
def test_pyarrow_reads_all_shards_as_one_data_set(tmp_path: Path, shard_format: str, compress: str) -> None:
    pack(PETS, tmp_path / "out", format=shard_format, compress=compress, shards=4)
    table = pa.dataset.dataset(
        tmp_path / "out" / "data", format=shard_format if shard_format == "parquet" else "ipc"
    ).to_table()
    assert contents(table.to_pylist()) == source_of(PETS)


def test_shards_are_read_by_name_too(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", format="arrow", shards=2)
    files = [str(path) for path in shard_paths(tmp_path / "out")]
    found = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(found) == len(source_of(PETS))


def test_columns_can_be_chosen_without_reading_the_pictures(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", format="parquet", shards=2)
    found = datasets.load_dataset(
        "parquet",
        data_files=[str(path) for path in shard_paths(tmp_path / "out")],
        columns=["key"],
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert set(found["key"]) == set(source_of(PETS))
