"""Arrays of numpy that lie in a bucket: what is held of them, and what is not."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pytest
from test_tokens_traps import at_most

from shardtool.storage import open_place
from shardtool.tokens import arrays, files
from shardtool.tokens.arrays import array_head, array_rows
from shardtool.tokens.files import InputFile
from shardtool.tokens.inputs import NPY

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

COUNT = 1 << 21  # 8 MiB
MIB = 1 << 20


def an_object(folder: Path, array: Any, monkeypatch: pytest.MonkeyPatch) -> InputFile:
    """The array as an object, of a store that is a folder."""
    np.save(folder / "a.npy", array)
    monkeypatch.setattr(InputFile, "place", lambda _: (open_place(os.fspath(folder)), "a.npy"))
    return InputFile("s3://bucket", b"a.npy", (folder / "a.npy").stat().st_size, 0, NPY)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[InputFile]:
    """The objects that were copied to a disk."""
    made: list[InputFile] = []

    def on_disk(file: InputFile) -> AbstractContextManager[IO[bytes]]:
        made.append(file)
        return files.on_disk(file)

    monkeypatch.setattr(arrays, "on_disk", on_disk)
    return made


@pytest.mark.parametrize("shape", [(COUNT,), (COUNT // 8, 8)])
@pytest.mark.parametrize("kind", ["<i4", ">u4"])
def test_an_array_in_a_bucket_is_held_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[InputFile], shape: tuple[int, ...], kind: str
) -> None:
    wanted = np.arange(COUNT).astype(kind).reshape(shape)
    file = an_object(tmp_path, wanted, monkeypatch)
    head = array_head(file)
    with at_most(wanted.nbytes + MIB):
        found = array_rows(file, head, 0, shape[0])
    assert found.dtype == np.dtype(kind)
    assert np.array_equal(found, wanted)
    assert np.array_equal(array_rows(file, head, 3, 7), wanted[3:7])
    assert not copies


def test_a_document_that_is_a_large_array_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[InputFile]
) -> None:
    monkeypatch.setattr(arrays, "HELD_BYTES", MIB)
    wanted = np.arange(COUNT, dtype=np.int32)
    file = an_object(tmp_path, wanted, monkeypatch)
    head = array_head(file)
    found = array_rows(file, head, 0, COUNT)
    assert len(copies) == 1
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, wanted)
    assert len(array_rows(file, head, 0, MIB // 4)) == MIB // 4
    assert len(copies) == 1, "what is small is read"
