"""A listing kept in a file: an Arrow IPC file with a row an object. `--list-cache FILE` writes it, and reads it again.

Its metadata names root, store and time, never a credential.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.errors import SourceError
from shardtool.storage.local import put_file
from shardtool.storage.s3.pages import Objects, chunks_of

if TYPE_CHECKING:
    from shardtool.model import BinaryArray

SCHEMA = "shardtool/listing/1"
FIELDS = pa.schema(
    [
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("etag", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Known:
    """A listing and when it was made, seconds since 1970."""

    objects: Objects
    time_s: float


def load(path: str, root: str, endpoint: str) -> Known | None:
    """The listing of `root` in the file; None where the file does not exist.

    Raises:
        SourceError: it is no such file, or holds the listing of another root or store.
    """
    if not os.path.exists(path):
        return None
    try:
        with pa.memory_map(os.fsencode(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        about = json.loads((table.schema.metadata or {}).get(b"shardtool", b"{}"))
    except (pa.ArrowInvalid, ValueError, OSError) as error:
        raise _useless(path, f"it is no listing ({error})") from error
    if about.get("schema") != SCHEMA or not table.schema.equals(FIELDS):
        raise _useless(path, "it is no listing")
    if (about["root"], about["endpoint"]) != (root, endpoint):
        raise _useless(path, f"it lists {about['root']} at {about['endpoint']}, not {root} at {endpoint}")
    return Known(_objects(table), float(about["time_s"]))


def store(path: str, root: str, endpoint: str, objects: Objects, time_s: float) -> None:
    """Write the listing, atomically."""
    about = {"schema": SCHEMA, "root": root, "endpoint": endpoint, "time_s": time_s}
    schema = FIELDS.with_metadata({"shardtool": json.dumps(about)})
    etags = pa.chunked_array([columns.unpacked(chunk) for chunk in chunks_of(objects.etags)], pa.binary())
    values = [objects.keys, pa.array(objects.sizes), pa.array(objects.mtimes_ns), etags]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table(values, schema=schema))
    folder, name = os.path.split(os.path.abspath(path))
    put_file(folder, name, memoryview(sink.getvalue()), tag="listing", durable=False)  # type: ignore[arg-type]


def _objects(table: Any) -> Objects:
    def whole(name: str) -> BinaryArray:
        column = table[name].combine_chunks()
        return column if not isinstance(column, pa.ChunkedArray) else pa.array([], column.type)

    numbers = [np.asarray(table[name].to_numpy(), np.int64) for name in ("bytes", "mtime_ns")]
    return Objects(whole("key"), numbers[0], numbers[1], whole("etag"))


def _useless(path: str, why: str) -> SourceError:
    return SourceError(
        f"--list-cache {path}: {why}", hint="name another file, or remove this one", where={"path": path}
    )
