"""What the blocks of a file should have: the digests of its index; of a file of one block, its own in the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from shardtool.hashing import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.model import FileRecord

HASHED_BYTES = 64 << 10  # at once: for more, xxhash lets go of the interpreter, and waits until the others give it back


@dataclass(frozen=True)
class Digests:
    """One a block.

    Args:
        wanted: of each block.
        new: makes a running digest of this kind.
        digits: of one in hex.
    """

    wanted: tuple[int, ...]
    new: Callable[[], xxhash.xxh3_64 | xxhash.xxh3_128]
    digits: int

    def of(self, data: bytes | memoryview) -> int:
        """The digest of `data`."""
        running = self.new()
        running.update(data)
        return running.intdigest()

    def text(self, digest: int) -> str:
        """As it is shown."""
        return f"{digest:0{self.digits}x}"


def num_blocks(record: FileRecord) -> int:
    """Blocks of a file."""
    return -(-record.num_bytes // BLOCK_BYTES)


def of_blocks(wanted: Sequence[int]) -> Digests:
    """xxh3_64 of each block, as an index has them."""
    return Digests(tuple(wanted), xxhash.xxh3_64, 16)


def of_whole(record: FileRecord) -> Digests | None:
    """xxh3_128 of the only block of a file; None where it has more, or none."""
    return Digests((int(record.xxh3_128, 16),), xxhash.xxh3_128, 32) if num_blocks(record) == 1 else None


def update(running: xxhash.xxh3_64 | xxhash.xxh3_128, piece: memoryview) -> None:
    """Add `piece`, which lies in the CPU's cache, without letting go of the interpreter."""
    for start in range(0, len(piece), HASHED_BYTES):
        running.update(piece[start : start + HASHED_BYTES])
