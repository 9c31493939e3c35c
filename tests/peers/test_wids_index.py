"""wids reads every sample by number from the list that we write; and the rules of `--compat wids` against it."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import pytest
from babel import SAMPLES, Babel, packed
from emitted import is_as_packed, packed_with, real_corpus, samples_of, some_tree, verdict_of
from hypothesis import given, settings
from record_data import FEW, TREES, made_tree
from record_data import samples_of as samples_of_tree
from wids import ShardListDataset
from wids.wids import IndexedTarSamples


def read_by_number(place: str) -> dict[str, dict[str, bytes]]:
    dataset = ShardListDataset(place, localname=str, transformations=[])
    rows = [dataset[number] for number in range(len(dataset))]
    return {
        row["__key__"]: {name[1:]: _bytes(value) for name, value in row.items() if name.startswith(".")} for row in rows
    }


def _bytes(value: object) -> bytes:
    assert isinstance(value, io.BytesIO)
    return value.read()


def test_each_split_has_its_samples(tmp_path: Path) -> None:
    splits = "train=0.7,validation=0.3"
    out = packed_with(tmp_path / "out", ["wids"], some_tree(tmp_path / "in"), samples_per_shard=1, split=splits)
    for split in ("train", "validation"):
        assert read_by_number(f"{out}/wids/{split}.json") == samples_of(out, split)


def test_the_shards_stay_and_nothing_lies_beside_them(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["wids"], shard_size=60_000)
    before = sorted(Path(out, "data").iterdir())
    read_by_number(f"{out}/wids/train.json")
    assert sorted(Path(out, "data").iterdir()) == before


def test_a_real_corpus_reads_whole(tmp_path: Path) -> None:
    out = real_corpus(tmp_path / "out", ["wids"])
    assert read_by_number(f"{out}/wids/train.json") == samples_of(out)


@FEW
@given(TREES)
def test_any_samples_are_read(tmp_path_factory: pytest.TempPathFactory, parts: dict[tuple[str, str], bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = made_tree(folder / "in", parts)
    out = packed_with(folder / "out", ["wids"], tree, shard_size=16 << 10, keep_case=True)
    assert read_by_number(f"{out}/wids/train.json") == samples_of_tree(tree)
    shutil.rmtree(folder)


def read(samples: Babel) -> list[tuple[str, set[str]]] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        path.write_bytes(packed(samples))
        with path.open("rb") as stream:  # wids leaves its own open where it stops
            try:
                tar = IndexedTarSamples(path=str(path), stream=stream)
                rows = [tar[number] for number in range(len(tar))]
            except (UnicodeDecodeError, AttributeError, AssertionError):
                return None
            sizes = sum(len(value.read()) for row in rows for name, value in row.items() if name != "__key__")
    is_whole = sizes == sum(len(key) + 1 + len(part) for key, parts in samples for part in parts)
    return [(row["__key__"], {name[1:] for name in row if name != "__key__"}) for row in rows] if is_whole else None


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_samples_come_as_packed_where_and_only_where_nothing_is_found(samples: Babel) -> None:
    assert is_as_packed(samples, read(samples)) == verdict_of("wids", samples).is_clean


@pytest.mark.parametrize("length", [100, 101])
def test_names_longer_than_the_field_are_lost(length: int) -> None:
    samples = [(b"d" * 50 + b"/" + b"n" * (length - 55), [b"txt"])]
    assert (read(samples) is not None and is_as_packed(samples, read(samples))) == (length == 100)
