"""Columns that lie in unnamed files while they are made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from shardtool.errors import NoSpace
from shardtool.storage.pages import Column, let_go

if TYPE_CHECKING:
    from pathlib import Path


def test_a_column_is_the_values_in_their_order_and_leaves_no_file(tmp_path: Path) -> None:
    column = Column(str(tmp_path), "<u8")
    for first in range(0, 3000, 1000):
        column.append(range(first, first + 1000))
    column.append(np.zeros(0))
    assert len(column) == 3000
    found = column.values
    column.close()
    assert found.tolist() == list(range(3000))
    column.forget()
    assert found.tolist() == list(range(3000)), "they are read again"
    assert os.listdir(tmp_path) == []


def test_an_empty_column_has_no_values(tmp_path: Path) -> None:
    column = Column(str(tmp_path), "<i4")
    assert (column.values.tolist(), column.values.dtype) == ([], np.dtype("<i4"))
    column.forget()
    column.close()


def test_values_that_are_taken_as_another_type_are_converted(tmp_path: Path) -> None:
    column = Column(str(tmp_path), "u1")
    column.append(np.array([1, 2, 255], np.int64))
    assert column.values.tobytes() == b"\x01\x02\xff"
    column.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    column = Column(str(tmp_path), "<i8")
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), column._file.fileno())
    with pytest.raises(NoSpace):
        column.append([1])
    column.close()


def test_a_map_that_was_let_go_is_read_again(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "a").write_bytes(data)
    with pa.memory_map(str(tmp_path / "a")) as source:
        buffer = source.read_buffer()
    assert buffer.to_pybytes() == data
    let_go(buffer.address, buffer.size)
    assert buffer.to_pybytes() == data
