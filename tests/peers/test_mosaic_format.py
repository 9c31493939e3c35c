"""MDS shards read by mosaicml-streaming, its hashes checked."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from helpers import pack, shard_paths
from hypothesis import given
from record_data import FEW, TREES, check_damage, made_tree, samples_of, tree_kinds, tree_of

if TYPE_CHECKING:
    from pathlib import Path

OPERATORS = torch.library.Library("torchvision", "DEF")  # a CUDA build of torchvision beside a CPU torch lacks them
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BINARY = ("txt=binary",)


def plain(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def read(out: Path, cache: Path, split: str = "train") -> dict[str, dict[str, bytes]]:
    """All samples, by way of a copy, as from a bucket: sizes and hashes are looked at."""
    clean_stale_shared_memory()
    shutil.rmtree(cache, ignore_errors=True)
    dataset = StreamingDataset(
        remote=str(out / "data" / split), local=str(cache), shuffle=False, batch_size=1, validate_hash="xxh3_128"
    )
    found: dict[str, dict[str, bytes]] = {}
    for number in range(len(dataset)):
        sample = dict(dataset[number])
        missing = sample.pop("__missing__", [])
        key = sample.pop("__key__")
        assert all(plain(sample[name]) == b"" for name in missing)
        assert key not in found
        found[key] = {name: plain(value) for name, value in sample.items() if name not in missing}
    return found


@pytest.mark.parametrize("compress", ["none", "zstd:3"])
@tree_kinds
def test_streaming_reads_what_was_packed(kind: str, compress: str, tmp_path: Path) -> None:
    tree = tree_of(kind, tmp_path)
    schema = BINARY if kind == "real" else ()
    pack(tree, tmp_path / "out", format="mds", shard_size=8 << 20, schema=schema, compress=compress)
    assert read(tmp_path / "out", tmp_path / "cache") == samples_of(tree)


def test_numbers_and_texts_arrive_as_such(tmp_path: Path) -> None:
    parts = {(f"k{n}", "cls"): str(n).encode() for n in range(9)} | {
        (f"k{n}", "txt"): f"grün {n}".encode() for n in range(9)
    }
    pack(made_tree(tmp_path / "in", parts), tmp_path / "out", format="mds")
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(tmp_path / "out" / "data" / "train"), shuffle=False, batch_size=1)
    found = {sample["__key__"]: (sample["cls"], sample["txt"]) for sample in (dataset[n] for n in range(9))}
    assert found == {f"k{n}": (n, f"grün {n}") for n in range(9)}


@FEW
@given(TREES)
def test_any_samples_are_read(tmp_path_factory: pytest.TempPathFactory, parts: dict[tuple[str, str], bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = made_tree(folder / "in", parts)
    pack(tree, folder / "out", format="mds", shard_size=4096, keep_case=True)
    assert read(folder / "out", folder / "cache") == samples_of(tree)
    shutil.rmtree(folder)


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_two_wrong_bytes_are_found(compress: str, tmp_path: Path) -> None:
    tree = made_tree(tmp_path / "in", {(f"k{n}", part): b"d" * n for n in range(40) for part in ("jpg", "bin")})
    pack(tree, tmp_path / "out", format="mds", compress=compress)
    path = shard_paths(tmp_path / "out")[0]
    check_damage(path, lambda: read(tmp_path / "out", tmp_path / "cache"), tmp_path / "out", seed=3)
