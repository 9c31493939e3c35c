"""What is there of a file that is being copied: a header line, then one byte a block, `x` where it was written.

A mark is a hint: whoever resumes reads each marked block back and compares its digest, so that neither a power loss
nor a journal that reached the disk before its data can vouch for bytes that are not there. One byte a block lets
threads mark blocks without reading first. Layout: docs/formats/staged.md.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from shardtool.storage.local import write_errors

if TYPE_CHECKING:
    from shardtool.model import FileRecord

SCHEMA = "shardtool/stage-journal/1"
MARK, EMPTY = b"x", b"."


class Journal:
    """The journal of one file, open for marking. A file of one block needs none: all or nothing of it is there.

    Args:
        path: of the journal; made, or made anew, where it is not of this very file.
        record: the file that is copied.
        block_bytes: size of a block.
        num_blocks: blocks of the file.
    """

    def __init__(self, path: str, record: FileRecord, block_bytes: int, num_blocks: int) -> None:
        self.path, self.marked, self._fd = path, list[int](), -1
        self._head = _head(record, block_bytes, num_blocks)
        if num_blocks > 1:
            self._open(num_blocks)

    def _open(self, num_blocks: int) -> None:
        path = self.path
        with write_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            found = os.pread(self._fd, len(self._head) + num_blocks + 1, 0)
            wanted = len(self._head) + num_blocks
            if not found.startswith(self._head) or len(found) != wanted:
                found = self._head + EMPTY * num_blocks
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, found, 0)
        self.marked = [block for block in range(num_blocks) if found[len(self._head) + block :][:1] == MARK]

    def mark(self, block: int) -> None:
        """Note that a block was written."""
        self._put(block, MARK)

    def clear(self, block: int) -> None:
        """Note that a block is not there after all."""
        self._put(block, EMPTY)

    def _put(self, block: int, mark: bytes) -> None:
        if self._fd < 0:
            return
        with write_errors(self.path):
            os.pwrite(self._fd, mark, len(self._head) + block)

    def remove(self) -> None:
        """Remove it: its file is complete."""
        if self._fd >= 0:
            os.unlink(self.path)

    def close(self) -> None:
        """Let go of the file; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _head(record: FileRecord, block_bytes: int, num_blocks: int) -> bytes:
    document = {
        "schema": SCHEMA,
        "path": record.path,
        "bytes": record.num_bytes,
        "xxh3_128": record.xxh3_128,
        "block_bytes": block_bytes,
        "blocks": num_blocks,
    }
    return json.dumps(document).encode() + b"\n"


def count_marks(path: str) -> int:
    """Blocks that a journal says were written; 0 where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.readline()
            return file.read().count(MARK)
    except OSError:
        return 0
