"""Files whose parts must be decoded, unpacked once: payloads joined in one spool file each, with their places.

A spool file has its final name only when it is whole, and then the time of its source, so that a later look finds what
an interrupted run unpacked, and the same guards. Memory: what one stream holds of its file, and the columns.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from shardtool.errors import CorruptShard, ShardtoolError, SourceError
from shardtool.model import Tally
from shardtool.shard_sources.look import split_in_name
from shardtool.shard_sources.members import Members
from shardtool.shard_sources.ranges import PREFIX
from shardtool.shard_sources.streams import DECODE_ERRORS, NO_MEMORY, open_stream
from shardtool.storage.local import LocalFile

if TYPE_CHECKING:
    from shardtool.shard_sources.find import SourceFile
    from shardtool.shard_sources.streams import Stream


@dataclass(frozen=True)
class SpoolJob:
    """All that a worker needs."""

    folder: str  # "": nothing is written
    key_column: str


class _Places:
    """Columns of the members while they grow."""

    def __init__(self) -> None:
        self.names, self.ends = bytearray(), array("q", [0])
        self.offsets, self.sizes, self.digests = array("q"), array("q"), array("Q")
        self.labels = array("i")
        self.position = 0

    def add(self, path: bytes, data: bytes, label: int) -> None:
        """Take the next part."""
        self.names += path
        self.ends.append(len(self.names))
        self.offsets.append(self.position)
        self.sizes.append(len(data))
        self.digests.append(xxhash.xxh3_64_intdigest(data))
        self.labels.append(label)
        self.position += len(data)

    def paths(self) -> object:
        """binary[num_parts]."""
        buffers = [None, pa.py_buffer(np.array(self.ends, np.int64)), pa.py_buffer(bytes(self.names))]
        return pa.Array.from_buffers(pa.large_binary(), len(self.sizes), buffers).cast(pa.binary())


def unpack(job: SpoolJob, task: tuple[int, SourceFile]) -> Members | ShardtoolError:
    """Unpack source file k; an error comes back as a value, so that all of them can be shown together."""
    number, file = task
    try:
        return _unpack(job, number, file)
    except ShardtoolError as error:
        return error
    except DECODE_ERRORS as error:
        return _damaged(file, error)
    except MemoryError:
        return _damaged(file, NO_MEMORY)
    except OSError as error:
        if error.errno is None:  # of a decoder, bz2 or Arrow: the system always gives a number
            return _damaged(file, error)
        return SourceError(f"{file.path} cannot be read: {error.strerror or error}", where={"path": file.path})


def _damaged(file: SourceFile, error: Exception | str) -> CorruptShard:
    return CorruptShard(
        f"{file.path} is damaged: {error}",
        hint="copy it again from where it came; --on-error skip leaves the whole file out",
        where={"path": file.path},
    )


def _unpack(job: SpoolJob, number: int, file: SourceFile) -> Members:
    stream = open_stream(file, job.key_column)
    places = _Places()
    out = LocalFile(job.folder, f"{number:05d}.bin", "spool") if job.folder else None
    try:
        for path, data, label in stream.parts:
            places.add(path, data, label)
            if out is not None and data:
                out.write(data)
        if out is not None:
            out.publish(durable=False)
            os.utime(out.final, ns=(stream.mtime_ns, stream.mtime_ns))
    finally:
        if out is not None:
            out.abort()
    return _members(out.final if out else file.path, places, stream, file)


def _members(path: str, places: _Places, stream: Stream, file: SourceFile) -> Members:
    return Members(
        root=PREFIX + path,
        file=file.path,
        paths=places.paths(),
        offsets=np.array(places.offsets, np.int64),
        sizes=np.array(places.sizes, np.int64),
        mtime_ns=stream.mtime_ns,
        digests=np.array(places.digests, np.uint64),
        split=stream.split or split_in_name(file.path),
        labels=np.array(places.labels, np.int32) if stream.label_names else None,
        label_names=stream.label_names,
        ignored=stream.ignored or Tally(),
        is_dataset=stream.is_dataset,
    )
