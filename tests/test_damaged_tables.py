"""Arrow tables of others with an offset that leads out of its buffer: an error of ours, not the end of the process."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zstandard
from helpers import run_cli

if TYPE_CHECKING:
    from pathlib import Path

COUNT, ROW = 50, 20
COLUMNS: dict[str, Any] = {
    "text": pa.array([f"word {n}" for n in range(COUNT)]),
    "view": pa.array([f"a word that is long {n}" for n in range(COUNT)], pa.string_view()),
    "categories": pa.array([f"word {n % 7}" for n in range(COUNT)]).dictionary_encode(),
    "ids": pa.array([list(range(n % 7 + 1)) for n in range(COUNT)], pa.list_(pa.int32())),
}
PLACES = {"text": 4 * ROW, "view": 16 * ROW + 12, "categories": 4 * ROW, "ids": 4 * ROW}  # an offset or index of a row
every_container = pytest.mark.parametrize("container", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])


def damaged(path: Path, container: Any, kind: str) -> Path:
    """A table of one column; a row in the middle points far behind its values."""
    column = COLUMNS[kind]
    batch = pa.record_batch([column], names=["text"])
    with container(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    data, offsets = bytearray(path.read_bytes()), column.buffers()[1].to_pybytes()[: PLACES[kind] * 2]
    assert data.count(offsets) == 1
    struct.pack_into("<i", data, data.index(offsets) + PLACES[kind], 0x7FFFFF00)
    path.write_bytes(data)
    return path


@every_container
@pytest.mark.parametrize("kind", COLUMNS)
def test_convert_tells_that_a_table_is_damaged(tmp_path: Path, container: Any, kind: str) -> None:
    table = damaged(tmp_path / "t.arrow", container, kind)
    ran = run_cli("convert", table, tmp_path / "out")
    assert (ran.code, f"{table} is damaged" in ran.err) == (4, True), ran.err


@every_container
@pytest.mark.parametrize("kind", COLUMNS)
def test_ids_are_not_made_of_a_damaged_table(tmp_path: Path, container: Any, kind: str) -> None:
    table = damaged(tmp_path / "t.arrow", container, kind)
    how = ("none", "--ids-field", "text") if kind == "ids" else ("bytes", "--text-field", "text")
    ran = run_cli("pack", table, tmp_path / "out", "--format", "bin", "--tokenizer", *how)
    assert (ran.code, f"{table} is damaged" in ran.err) == (5, True), ran.err
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("options", [("convert",), ("pack", "--format", "bin", "--tokenizer", "bytes")])
@every_container
def test_a_length_beyond_all_memory_is_damage(tmp_path: Path, container: Any, options: tuple[str, ...]) -> None:
    batch, table = pa.record_batch([COLUMNS["text"]], names=["text"]), tmp_path / "t.arrow"
    with container(str(table), batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    length, magic = struct.pack("<q", 4 * (COUNT + 1)), struct.pack("<I", zstandard.MAGIC_NUMBER)
    data = table.read_bytes()
    assert data.count(length + magic) == 1  # a compressed buffer begins with its length
    table.write_bytes(data.replace(length + magic, struct.pack("<q", 1 << 60) + magic))
    ran = run_cli(options[0], table, tmp_path / "out", *options[1:])
    assert (ran.code in (4, 5), f"{table} is damaged" in ran.err) == (True, True), ran.err


def test_a_batch_beyond_all_memory_is_damage(tmp_path: Path) -> None:
    batch, table = pa.record_batch([COLUMNS["text"]], names=["text"]), tmp_path / "t.arrow"
    with pa.ipc.new_stream(str(table), batch.schema) as writer:
        writer.write_batch(batch)
    body = struct.pack("<q", pa.ipc.read_message(batch.serialize()).body.size)
    data = table.read_bytes()
    assert data.count(body) == 1  # in the head of the message
    table.write_bytes(data.replace(body, struct.pack("<q", (1 << 63) - 4096)))
    ran = run_cli("convert", table, tmp_path / "out")
    assert (ran.code, f"{table} is damaged: a value or batch in it asks for more memory" in ran.err) == (4, True), (
        ran.err
    )


def test_a_text_that_is_no_utf8_is_no_damage(tmp_path: Path) -> None:
    texts = pa.array([b"good", b"caf\xe9", b"too"], pa.binary()).view(pa.string())
    batch = pa.record_batch([texts], names=["text"])
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    ran = run_cli("pack", tmp_path / "t.arrow", tmp_path / "out", "--format", "bin", "--tokenizer", "bytes", "--json")
    assert (ran.code, ran.json["ledger"]["packed"]) == (0, 3), ran.err
