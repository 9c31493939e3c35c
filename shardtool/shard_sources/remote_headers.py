"""The headers of a tar in a bucket, mapped: what a walk over them needs, and no more.

Where members follow one another, headers can only be found by passing what lies between them: the object is read once,
in windows of 8 MiB with the next ones on their way, and its contents are dropped as they come. Contents above
SKIP_BYTES are not asked for. Temporary space: a few KiB a member.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING

from shardtool.indexing.headers_only import HeadersOnly
from shardtool.storage.files import RemoteStream, place_of

if TYPE_CHECKING:
    from typing import BinaryIO

    from shardtool.storage.base import Stat

SKIP_BYTES = 64 << 20  # three windows of 8 MiB may have been asked for already
_PIECE_BYTES = 1 << 20


def tar_headers(url: str, known: Stat) -> mmap.mmap:
    """A map as long as the object, which must not be empty, in which large contents are zeros.

    Args:
        url: of the object.
        known: its size and version.

    Raises:
        SourceChanged: it is another object by now.
        RemoteError: the store fails, after all retries.
    """
    with tempfile.TemporaryFile(prefix="shardtool-") as file:
        _copy_headers(url, known, file)
        file.truncate(known.num_bytes)
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _copy_headers(url: str, known: Stat, file: BinaryIO) -> None:
    target, buffer = HeadersOnly(file), memoryview(bytearray(_PIECE_BYTES))
    place, name = place_of(url)
    while target.at < known.num_bytes:
        with RemoteStream(place, name, known=known, begin=target.at) as stream:
            while target.hole <= SKIP_BYTES and (count := stream.readinto(buffer)):
                target.write(buffer[:count])
        if target.hole:
            target.skip(min(target.hole, known.num_bytes - target.at))
    target.finish()
