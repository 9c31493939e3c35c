"""One file on its way: its part and journal, its missing blocks, each compared with its digest on arrival.

    Arrival(route, record, digests) -> missing blocks; fetch(block) for each, in any order and thread; publish()

A block that does not have its digest is read again alone, at most `TRIES` times. A file whose blocks have no digests
(of files with several, only the first of a shard has them, in its index) is compared whole before it gets its name.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, CorruptShard, ShardtoolError, SourceChanged, SourceNotFound
from shardtool.hashing import BLOCK_BYTES
from shardtool.packing.receipts import digest_of
from shardtool.staging.digests import num_blocks, of_blocks, update
from shardtool.staging.disk import allocate, forget, move, open_part, write_at
from shardtool.staging.journal import Journal
from shardtool.storage.local import sync_folder, write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import FileRecord
    from shardtool.staging.digests import Digests
    from shardtool.staging.folder import Target, VerifiedTable
    from shardtool.staging.throttle import Throttle
    from shardtool.storage.base import Place, Stretch

TRIES = 4  # of one block, the first included


@dataclass(frozen=True)
class CopyOptions:
    """How files are copied."""

    jobs: int
    throttle: Throttle
    durable: bool
    keep_cache: bool
    decompress: str = ""  # `drop` or `keep` what is compressed at the source


@dataclass
class CopyTotals:
    """Bytes and blocks of shard files."""

    fetched_bytes: int = 0  # read from the source; what was read twice counts twice
    reused_bytes: int = 0  # were there already
    refetched_blocks: int = 0


@dataclass(frozen=True)
class Route:
    """From where to where, and what happened on the way; shared by all threads of a copy."""

    place: Place
    target: Target
    table: VerifiedTable
    options: CopyOptions
    totals: CopyTotals = field(default_factory=CopyTotals)
    lock: threading.Lock = field(default_factory=threading.Lock)  # of totals and table

    def count(self, *, fetched: int = 0, reused: int = 0, again: int = 0) -> None:
        """Add to the totals."""
        with self.lock:
            self.totals.fetched_bytes += fetched
            self.totals.reused_bytes += reused
            self.totals.refetched_blocks += again

    def vouch(self, record: FileRecord) -> None:
        """Note that a file with its final name was verified."""
        with self.lock:
            if not self.table.holds(record):
                self.table.add(record)


class Arrival:
    """A file being copied into `.stage/parts`.

    Args:
        route: from where to where.
        record: the file.
        digests: of its blocks; None where only the whole has one.
    """

    def __init__(self, route: Route, record: FileRecord, digests: Digests | None) -> None:
        self.route, self.record, self.digests = route, record, digests
        self._kind = digests or of_blocks(())
        self.part, self.final = route.target.part(record.path), route.target.final(record.path)
        self._version = ""  # the first answer tells it
        self._wholes = 1  # tries, where blocks have no digests
        is_damaged = os.path.exists(self.final)
        if is_damaged:  # its sound blocks are kept
            with write_errors(self.part):
                move(self.final, self.part)
        self._fd = open_part(self.part)
        self._journal = Journal(route.target.journal(record.path), record, BLOCK_BYTES, num_blocks(record))
        self.missing = set(range(num_blocks(record)))
        for block in self.missing.copy() if is_damaged else self._journal.marked:
            self._take_over(block)
        if os.fstat(self._fd).st_size != record.num_bytes:
            allocate(self._fd, record.num_bytes, self.part)

    def extent(self, block: int) -> tuple[int, int]:
        """(offset, bytes) of a block."""
        offset = block * BLOCK_BYTES
        return offset, min(BLOCK_BYTES, self.record.num_bytes - offset)

    def _take_over(self, block: int) -> None:
        """A block that was written before counts where it has its digest; what a journal says of it does not."""
        offset, size = self.extent(block)
        data = os.pread(self._fd, size, offset)
        if self.digests is not None and len(data) == size and self.digests.of(data) == self.digests.wanted[block]:
            self._journal.mark(block)
            self.missing.discard(block)
            self.route.count(reused=size)
        else:
            self._journal.clear(block)

    def fetch(self, block: int, buffer: memoryview) -> int:
        """Bring one block; its bytes.

        Raises:
            CorruptShard: it never had its digest, or the file at the source has another size.
            SourceChanged: it is another file by now.
            SourceNotFound: it is not there.
        """
        offset, size = self.extent(block)
        found = ""
        for attempt in range(TRIES):
            self.route.options.throttle.take(size)
            count, digest = self._move(offset, size, buffer)
            self.route.count(fetched=count, again=int(attempt > 0))
            if count == size and (self.digests is None or digest == self.digests.wanted[block]):
                self._journal.mark(block)
                return size
            found = self._kind.text(digest) if count == size else f"only {count:,} bytes"
        raise self._bad_block(block, offset, size, found)

    def _move(self, offset: int, size: int, buffer: memoryview) -> tuple[int, int]:
        """(bytes, digest) of what was read and written; it counts only once it was compared."""
        digest, seen, is_in_order = self._kind.new(), 0, True

        def take(piece: memoryview, start: int) -> None:
            nonlocal seen, is_in_order
            is_in_order = is_in_order and start == seen
            seen = start + len(piece)
            update(digest, piece)
            write_at(self._fd, piece, offset + start, self.part)

        with source_errors(self.route.place, self.record.path):
            found = self.route.place.read_through(self.record.path, offset, size, take, buffer, version=self._version)
        self._pin(found)
        if is_in_order:
            return found.num_bytes, digest.intdigest()
        written = os.pread(self._fd, size, offset)  # some came twice: what was written counts
        return found.num_bytes, self._kind.of(written)

    def _pin(self, found: Stretch) -> None:
        """All blocks are of one version of the file, which has the size that the manifest says.

        Raises:
            CorruptShard, SourceChanged: they are not.
        """
        if found.file_bytes not in (None, self.record.num_bytes):
            raise _wrong_size(self.route.place, self.record, found.file_bytes)
        with self.route.lock:
            self._version = before = self._version or found.version
        if found.version not in ("", before):
            shown = self.route.place.shown(self.record.path)
            raise SourceChanged(
                f"{shown} was replaced while it was copied",
                hint="run the command again when nothing writes there; what is here is kept",
                where={"path": shown},
            )

    def _bad_block(self, block: int, offset: int, size: int, found: str) -> CorruptShard:
        wanted = (
            f"digest {self._kind.text(self.digests.wanted[block])}" if self.digests is not None else f"{size:,} bytes"
        )
        path = self.route.place.shown(self.record.path)
        return CorruptShard(
            f"{path}: block {block} at byte {offset:,} should have {wanted}, found {found}, {TRIES} times",
            hint=f"it is damaged at the source: {_verify_source(self.route.place)}; then repeat this command, "
            "what is here is kept",
            where={"path": path, "block": block, "offset": offset, "expected": wanted, "found": found},
        )

    def publish(self) -> bool:
        """Give the complete file its name; False where its digest was wrong and all of it is missing again.

        Raises:
            CorruptShard: it was wrong too often.
        """
        if self.digests is None and digest_of(self.part) != self.record.xxh3_128:
            self._start_over()
            return False
        give_name(self._fd, self.part, self.final, self.route.options)
        self.route.vouch(self.record)
        self._journal.remove()
        self.close()
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes of what has arrived."""
        return os.pread(self._fd, size, offset)

    def discard(self) -> None:
        """Remove it: it has served its purpose."""
        with write_errors(self.part):
            os.unlink(self.part)
        self._journal.remove()
        self.close()

    def _start_over(self) -> None:
        self._wholes += 1
        if self._wholes > TRIES:
            raise CorruptShard(
                f"{self.route.place.shown(self.record.path)} should have digest {self.record.xxh3_128}, "
                f"and has not, {TRIES} times",
                hint=f"it is damaged at the source: {_verify_source(self.route.place)}",
                where={"path": self.route.place.shown(self.record.path)},
            )
        self.missing = set(range(num_blocks(self.record)))
        for block in self.missing:
            self._journal.clear(block)

    def close(self) -> None:
        """Let go of part and journal, which stay where they are; harmless when repeated."""
        self._journal.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def give_name(fd: int, part: str, final: str, options: CopyOptions) -> None:
    """Put a complete and verified file where readers look for it."""
    with write_errors(final):
        if options.durable or not options.keep_cache:
            os.fdatasync(fd)
        if not options.keep_cache:
            forget(fd)
        move(part, final)
        if options.durable:
            sync_folder(os.path.dirname(final))


def is_sound(path: str, record: FileRecord, digests: Digests | None) -> bool:
    """Whether a file that nobody vouches for has every byte: a crash may lie between its name and its row."""
    try:
        if os.stat(path).st_size != record.num_bytes:
            return False
        if digests is None:
            return digest_of(path) == record.xxh3_128
        with open(path, "rb", buffering=0) as file:
            return all(digests.of(file.read(BLOCK_BYTES)) == digest for digest in digests.wanted)
    except OSError:
        return False


@contextmanager
def source_errors(place: Place, path: str) -> Iterator[None]:
    """Say of the source what the system says of a path."""
    shown = place.shown(path)
    try:
        yield
    except ShardtoolError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(
            f"{shown} is in the manifest, but it is not there", hint=_verify_source(place), where={"path": shown}
        ) from error
    except PermissionError as error:
        raise AccessDenied(f"{shown} may not be read: {error.strerror or error}", where={"path": shown}) from error


def _wrong_size(place: Place, record: FileRecord, found: int | None) -> CorruptShard:
    return CorruptShard(
        f"{place.shown(record.path)} has {found:,} bytes, the manifest says {record.num_bytes:,}",
        hint=_verify_source(place),
        where={"path": place.shown(record.path)},
    )


def _verify_source(place: Place) -> str:
    return f"shardtool verify {place.url} --deep tells what is damaged there and how to repair it"
