"""Hugging Face datasets reads what the card names: the same keys and bytes in every split, and nothing else."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import datasets
import pytest
from emitted import emit, packed_with, real_corpus, samples_of, some_tree
from helpers import make_tree, pack
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from record_data import FEW
from record_data import samples_of as samples_of_tree

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


def is_seen(key: str) -> bool:
    """Whether `datasets` reads files of such a name; `--emit hf-card` refuses the others."""
    return bool(key) and not key.startswith("__")


@FEW
@given(
    st.dictionaries(
        st.text("abcüß_ ", min_size=1, max_size=30).map(str.strip).filter(is_seen),
        st.tuples(st.binary(max_size=300), st.binary(max_size=300), st.text(max_size=60)),
        min_size=1,
        max_size=25,
    )
)
def test_any_samples_are_read(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, tuple[bytes | str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = ("seg.png", "bin", "txt")  # it wants the same parts in the first samples
    files: dict[str, bytes | str] = {}
    for key, parts in samples.items():
        files |= {f"{key}.{name}": data for name, data in zip(names, parts, strict=True)}
    tree = make_tree(folder / "in", files)
    out = packed_with(folder / "out", ["hf-card"], tree, shard_size=16 << 10)
    rows = streamed(out, "train").cast_column("seg.png", datasets.Image(decode=False))
    found = {
        row["__key__"]: {"seg.png": row["seg.png"]["bytes"], "bin": row["bin"], "txt": row["txt"].encode()}
        for row in rows
    }
    assert found == samples_of_tree(tree)
    shutil.rmtree(folder)


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
