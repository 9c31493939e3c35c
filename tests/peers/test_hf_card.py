"""Hugging Face datasets reads what the card names: the same keys and bytes in every split, and nothing else."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import datasets
import pytest
from emitted import emit, packed_with, real_corpus, samples_of, some_tree
from helpers import make_tree, pack
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

ALL = ["wids", "sizes", "list", "dali", "energon", "hf-card"]
SPLITS = "train=0.7,validation=0.3"


def streamed(out: str, split: str) -> datasets.IterableDataset:
    return datasets.load_dataset(out, split=split, streaming=True)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def test_each_split_has_its_samples_beside_all_other_index_files(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ALL, some_tree(tmp_path / "in"), samples_per_shard=1, split=SPLITS)
    for split in ("train", "validation"):
        found = {row["__key__"]: {part: as_bytes(row[part]) for part in ("txt", "bin")} for row in streamed(out, split)}
        assert found == samples_of(out, split)


def test_without_the_card_the_indexes_of_energon_are_taken_for_data(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["energon"], some_tree(tmp_path / "in"))
    with pytest.raises(Exception, match=r"truncated|ReadError|invalid header"):
        list(streamed(out, "train"))
    emit(out, ["hf-card"])
    assert len(list(streamed(out, "train"))) == 5


def test_images_are_images(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["hf-card"], split=SPLITS, shard_size=60_000)
    rows = streamed(out, "validation")
    assert isinstance(rows.features["png"], datasets.Image)
    wanted = samples_of(out, "validation")
    for row in rows:
        assert row["png"].size == Image.open(io.BytesIO(wanted[row["__key__"]]["png"])).size


def test_shards_in_folders_are_found_by_the_card_of_the_packing_run(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{i}.txt": str(i) for i in range(30)})
    with (
        patch("shardtool.names.FAN_OUT_ABOVE", 10),
        patch("shardtool.manifest.FAN_OUT_ABOVE", 10),
        patch("shardtool.names.FAN_OUT", 4),
    ):
        pack(tree, tmp_path / "out", samples_per_shard=1, split="train=0.8,test=0.2")
    for split in ("train", "test"):
        found = {row["__key__"] for row in streamed(str(tmp_path / "out"), split)}
        assert found == set(samples_of(str(tmp_path / "out"), split))


def test_a_real_corpus_streams_whole(tmp_path: Path) -> None:
    out = real_corpus(tmp_path / "out", ["hf-card"], include=("*.png",), group_by="last-dot")
    rows = datasets.load_dataset(out, split="train", streaming=True).cast_column("png", datasets.Image(decode=False))
    assert {row["__key__"]: {"png": row["png"]["bytes"]} for row in rows} == samples_of(out)
