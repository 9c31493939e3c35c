"""`.nv-meta/index.sqlite`: where each sample and part lies, for energon's access by key.

Built in a file of its own, beside the final place where that is a folder, and handed on in pieces: memory stays at
SQLite's page cache. The bytes are the same for the same data set and version of SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from shardtool.columns import to_list
from shardtool.storage import is_remote
from shardtool.storage.local import sweep_temps, temp_name, write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.reading.reading import Dataset

TAG, PIECE_BYTES = "energon-build", 1 << 20
TABLES = (
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,"
    " sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)",
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,"
    " content_byte_offset INTEGER, content_byte_size INTEGER)",
)
INDEXES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON"
    " sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)


def database(dataset: Dataset, shards: list[int]) -> Iterator[bytes]:
    """The bytes of the database over these shards; tar_file_id is the place in the list."""
    if is_remote(dataset.path):
        with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
            yield from _built(os.path.join(folder, "index.sqlite"), dataset, shards)
        return
    final = os.path.join(dataset.path, ".nv-meta", "index.sqlite")
    with write_errors(final):
        os.makedirs(os.path.dirname(final), exist_ok=True)
    sweep_temps(os.path.dirname(final), TAG)
    yield from _built(temp_name(final, TAG), dataset, shards)


def _built(path: str, dataset: Dataset, shards: list[int]) -> Iterator[bytes]:
    """The database made at `path`, which is free again afterwards."""
    try:
        _build(path, dataset, shards)
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    finally:
        for suffix in ("", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)


def _build(path: str, dataset: Dataset, shards: list[int]) -> None:
    with write_errors(path), closing(sqlite3.connect(path)) as db:
        try:
            db.execute("PRAGMA journal_mode=OFF")  # a build that dies is thrown away
            db.execute("PRAGMA synchronous=OFF")
            with db:
                for statement in TABLES:
                    db.execute(statement)
                for number, shard in enumerate(shards):
                    index = dataset.index(shard)
                    db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", _samples(number, index))
                    db.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", _parts(number, index))
                for statement in INDEXES:
                    db.execute(statement)
        except sqlite3.OperationalError as error:
            raise OSError(f"SQLite: {error}") from error


def _samples(number: int, index: ShardIndex) -> Iterator[tuple[int, str, int, int, int]]:
    """A sample reaches up to the next one, as energon reads it."""
    ends = [*index.offset[1:].tolist(), int(index.offset[-1] + index.num_bytes[-1])]
    for sample, (key, start, end) in enumerate(zip(to_list(index.keys), index.offset.tolist(), ends, strict=True)):
        yield number, key.decode(), sample, start, end - start


def _parts(number: int, index: ShardIndex) -> Iterator[tuple[int, int, str, int, int]]:
    names = [name.decode() for name in to_list(index.part_names)]
    columns = (index.owners().tolist(), names, index.part_offset.tolist(), index.part_bytes.tolist())
    for owner, name, offset, size in zip(*columns, strict=True):
        yield number, owner, name, offset, size
