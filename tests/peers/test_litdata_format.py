"""litData chunks read by litdata's StreamingDataset."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from helpers import pack, shard_paths
from hypothesis import given
from litdata import StreamingDataset
from record_data import FEW, TREES, check_damage, made_tree, samples_of, tree_kinds, tree_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BINARY = ("txt=binary",)


def plain(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def read(out: Path, split: str = "train") -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    dataset = StreamingDataset(str(out / "data" / split))
    for number in range(len(dataset)):
        sample = dict(dataset[number])
        missing = json.loads(sample.pop("__missing__", "[]"))
        key = sample.pop("__key__")
        assert all(plain(sample[name]) == b"" for name in missing)
        assert key not in found
        found[key] = {name: plain(value) for name, value in sample.items() if name not in missing}
    return found


@tree_kinds
def test_litdata_reads_what_was_packed(kind: str, tmp_path: Path) -> None:
    tree = tree_of(kind, tmp_path)
    schema = BINARY if kind == "real" else ()
    pack(tree, tmp_path / "out", format="litdata", shard_size=8 << 20, schema=schema)
    assert read(tmp_path / "out") == samples_of(tree)


def test_it_iterates_over_all_of_them_in_order(tmp_path: Path) -> None:
    tree = made_tree(tmp_path / "in", {(f"k{n}", "bin"): b"d" * n for n in range(100)})
    pack(tree, tmp_path / "out", format="litdata", samples_per_shard=13, shuffle="none")
    found = [sample["__key__"] for sample in StreamingDataset(str(tmp_path / "out" / "data" / "train"))]
    assert found == sorted(samples_of(tree))


@FEW
@given(TREES)
def test_any_samples_are_read(tmp_path_factory: pytest.TempPathFactory, parts: dict[tuple[str, str], bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = made_tree(folder / "in", parts)
    pack(tree, folder / "out", format="litdata", shard_size=4096, keep_case=True)
    assert read(folder / "out") == samples_of(tree)
    shutil.rmtree(folder)


def test_splits_are_data_sets_of_their_own(tmp_path: Path) -> None:
    tree = made_tree(tmp_path / "in", {(f"k{n}", "bin"): b"d" * n for n in range(50)})
    pack(tree, tmp_path / "out", format="litdata", split="train=0.8,validation=0.2", samples_per_shard=7)
    both = [read(tmp_path / "out", split) for split in ("train", "validation")]
    assert [len(samples) for samples in both] == [40, 10]
    assert both[0] | both[1] == samples_of(tree)


def test_two_wrong_bytes_are_found(tmp_path: Path) -> None:
    tree = made_tree(tmp_path / "in", {(f"k{n}", part): b"d" * n for n in range(40) for part in ("jpg", "bin")})
    pack(tree, tmp_path / "out", format="litdata")
    check_damage(shard_paths(tmp_path / "out")[0], lambda: read(tmp_path / "out"), tmp_path / "out", seed=2)
