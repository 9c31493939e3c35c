"""A bare shard that is compressed with zstd, by us or by any tool: its headers in a temporary file, its frames.

A path flows in; a path of a sparse tar flows out, and the table of frames where samples can be reached by it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zstandard

from shardtool.errors import CorruptShard, NoSpace, UnknownFormat
from shardtool.formats.frames import frames_of_file
from shardtool.indexing.bare_shards import read_bare
from shardtool.indexing.headers_only import HeadersOnly
from shardtool.storage.files import local_copy, open_stream
from shardtool.storage.regular import opener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from shardtool.formats.frames import Frames
    from shardtool.indexing.bare_shards import BareShard

PIECE_BYTES = 4096  # given to zstd at once: 4 bytes can be a block of 128 KiB, so that memory stays below 128 MiB
_SKIPPABLE = tuple(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16))


def read_shard(path: str) -> BareShard:
    """As `read_bare`, of a tar that may be compressed with zstd.

    Raises:
        CorruptShard, FormatError: damage, in the compressed form or in the tar.
    """
    with local_copy(path) as copy, raw_copy(copy, path) as raw:
        return read_bare(raw, path)


@contextmanager
def raw_copy(path: str, shown: str) -> Iterator[str]:
    """The path of the plain tar: `path` itself, or of what it decompresses to, which goes at the end.

    The latter holds headers and small parts alone, see `HeadersOnly`: a few KiB of temporary space a member.

    Raises:
        NoSpace: the temporary folder is full.
        CorruptShard: a frame is damaged, the last one is cut short, or the seek table tells of others.
    """
    if not is_zstd(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        raw = os.path.join(folder, "raw.tar")
        with open(path, "rb", opener=opener) as source, open(raw, "wb") as file, _space_errors(folder, shown):
            target = HeadersOnly(file)
            frames = list(_decompress(source, target, shown))
            target.finish()
        table = _table(path)
        if table is not None and not _agrees(table, frames):
            raise CorruptShard(
                f"{shown} is damaged: its seek table is not that of its frames",
                hint="its samples are whole: zstd -d gives them; shardtool convert writes the shard again",
                where={"path": shown, "offset": table.offsets[-1]},
            )
        yield raw


@contextmanager
def _space_errors(folder: str, shown: str) -> Iterator[None]:
    """Say of which place there was too little, and for what."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise NoSpace(
            f"{os.path.dirname(folder)} has no room for the headers of {shown}: {error.strerror}",
            hint="name a folder with more room: TMPDIR=/scratch shardtool ...",
            where={"path": os.path.dirname(folder)},
        ) from error


def frames_of(path: str, shown: str) -> Frames | None:
    """The frames of a compressed tar; None of one that is not compressed.

    Raises:
        UnknownFormat: it has no table by which a sample could be reached.
    """
    if not is_zstd(path):
        return None
    table = _table(path)
    if table is None:
        raise UnknownFormat(
            f"{shown} is compressed with zstd and has no seek table of frames of 1 MiB: no sample in it can be reached"
            " by an offset",
            hint=f"shardtool convert {shown} OUT --compress zstd writes its samples so that they can",
            where={"path": shown},
        )
    return table


def is_zstd(path: str) -> bool:
    """Whether a file begins with a frame of zstd."""
    with open(path, "rb", opener=opener) as file:
        head = file.read(4)
    return head == zstandard.FRAME_HEADER or head in _SKIPPABLE


def _table(path: str) -> Frames | None:
    with open_stream(path) as file:
        return frames_of_file(file.num_bytes, file.pread)


def _decompress(source: BinaryIO, target: HeadersOnly, shown: str) -> Iterator[tuple[int, int]]:
    """(first byte, raw bytes) of each frame that holds any, written to `target` on the way."""
    place, begin, raw_bytes = 0, 0, 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        while piece := source.read(PIECE_BYTES):
            while piece:
                raw = frame.decompress(piece)
                target.write(raw)
                raw_bytes += len(raw)
                place += len(piece) - len(frame.unused_data)
                piece = frame.unused_data
                if frame.eof:
                    if raw_bytes:
                        yield begin, raw_bytes
                    begin, raw_bytes = place, 0
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise _damaged(shown, begin, str(error)) from error
    if place != begin:
        raise _damaged(shown, begin, "it is cut short")


def _damaged(shown: str, begin: int, what: str) -> CorruptShard:
    return CorruptShard(
        f"{shown} is damaged: the frame at byte {begin:,} cannot be decompressed: {what}",
        hint="copy it again from where it came",
        where={"path": shown, "offset": begin},
    )


def _agrees(table: Frames, frames: list[tuple[int, int]]) -> bool:
    wanted = [(table.offsets[number], table.raw_size(number)) for number in range(table.num_frames)]
    return frames == wanted
