"""Digests: xxh3 everywhere, streamed, written as lower-case hex in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_BYTES = 16 << 20  # a block digest covers this many bytes of a shard file; the unit of staging


class FileDigest:
    """Running digests of one file: xxh3_128 of the whole and xxh3_64 of every 16 MiB block."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._whole = xxhash.xxh3_128()
        self._block = xxhash.xxh3_64()
        self._blocks: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the file, in order."""
        self._whole.update(data)
        room = BLOCK_BYTES - self.num_bytes % BLOCK_BYTES
        self.num_bytes += len(data)
        if len(data) < room:
            self._block.update(data)
            return
        view = memoryview(data)
        while len(view) >= room:
            self._block.update(view[:room])
            self._blocks.append(self._block.intdigest())
            self._block.reset()
            view, room = view[room:], BLOCK_BYTES
        self._block.update(view)

    def hexdigest(self) -> str:
        """xxh3_128 of all bytes so far, 32 hex digits."""
        return self._whole.hexdigest()

    def blocks(self) -> list[int]:
        """xxh3_64 of each 16 MiB block, the last one shorter; empty for an empty file."""
        partial = [self._block.intdigest()] if self.num_bytes % BLOCK_BYTES else []
        return self._blocks + partial


def digest_chunks(chunks: Iterable[bytes | memoryview]) -> str:
    """xxh3_128 over `chunks` joined, 32 hex digits."""
    state = xxhash.xxh3_128()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()
