"""The rules of `--compat hf` against Hugging Face datasets itself."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import datasets
import pyarrow as pa
import pytest
from babel import SAMPLES, Babel, packed
from datasets.packaged_modules.webdataset.webdataset import WebDataset
from datasets.utils.file_utils import ArchiveIterable
from emitted import is_as_packed, verdict_of
from hypothesis import given, settings

from shardtool.compat import EVEN, UNSEEN

if TYPE_CHECKING:
    from pathlib import Path

OWN = {"__key__", "__url__"}


def read(samples: Babel) -> list[tuple[str, set[str]]] | None:
    members = ArchiveIterable._iter_tar(io.BytesIO(packed(samples)))
    try:
        found = [(s["__key__"], set(s) - OWN) for s in WebDataset._get_pipeline_from_tar("a.tar", members)]
        pa.array([text for key, parts in found for text in (key, *parts)], pa.string())
    except ValueError:  # UnicodeEncodeError is one
        return None
    return found


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_samples_come_as_packed_where_and_only_where_nothing_is_found(samples: Babel) -> None:
    findings = {at for at in verdict_of("hf", samples).findings if at[1] not in (EVEN, UNSEEN)}
    assert is_as_packed(samples, read(samples)) == (not findings)


def streamed(folder: Path, samples: Babel) -> list[set[str]]:
    """The parts of each sample that have a value."""
    (folder / "data").mkdir()
    (folder / "data" / "train-00000-of-00001.tar").write_bytes(packed(samples))
    rows = datasets.load_dataset(str(folder), split="train", streaming=True)
    return [{name for name, value in row.items() if value is not None} - OWN for row in rows]


def test_uneven_first_samples_stop_it(tmp_path: Path) -> None:
    samples = [(b"1", [b"txt"]), (b"2", [b"dat", b"txt"])]
    assert ("rejected", EVEN) in verdict_of("hf", samples).findings
    with pytest.raises(ValueError, match="same types"):
        streamed(tmp_path, samples)


def test_parts_that_the_first_samples_lack_vanish(tmp_path: Path) -> None:
    samples = [(b"%d" % i, [b"txt"]) for i in range(5)] + [(b"5", [b"bin", b"txt"])]
    assert verdict_of("hf", samples).findings["dropped", UNSEEN].count == 1
    assert streamed(tmp_path, samples) == [{"txt"}] * 6
