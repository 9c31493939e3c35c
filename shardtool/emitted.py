"""Files of other loaders beside a data set: written atomically, remembered, and replaced only while they are ours.

`.shardtool/emitted.jsonl` names each with its size and digest. A file that is there and not in it, or altered since, is
someone else's, unless it is what would be written anyway.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtool.errors import DestinationExists
from shardtool.hashing import digest_chunks
from shardtool.model import FileRecord
from shardtool.names import HIDDEN
from shardtool.packing.receipts import digest_of, file_document, file_record
from shardtool.storage import open_place
from shardtool.storage.files import exists
from shardtool.storage.local import temp_name, write_errors
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dialects import Emission, SideFile
    from shardtool.storage.base import Place

EMITTED = f"{HIDDEN}/emitted.jsonl"
TAG = "emit"
MAX_SHOWN = 3


@dataclass(frozen=True)
class Emitted:
    """What one dialect has beside the data set now."""

    emission: Emission
    files: tuple[FileRecord, ...]  # all of them, those that were there before included
    num_new: int  # written by this run
    kept: tuple[str, ...] = ()  # templates of the user's, left alone

    def document(self) -> dict[str, Any]:
        """As in `shardtool/index/1`."""
        return {
            "dialect": self.emission.dialect,
            "files": [record.path for record in self.files],
            "bytes": sum(record.num_bytes for record in self.files),
            "new": self.num_new,
            "kept": list(self.kept),
            "recipe": self.emission.recipe,
        }


def write_emissions(out: str, emissions: Sequence[Emission], *, durable: bool = True) -> list[Emitted]:
    """Write the files of all dialects below `out`; those that are there with the same bytes stay.

    Raises:
        DestinationExists: a file that we did not write is in the way of any of them; nothing was written then.
    """
    known = read_emitted(out)
    _check_targets(out, emissions, known)
    done = []
    for emission in emissions:
        kept = tuple(f.path for f in emission.files if f.is_template and _is_theirs(out, f.path, known))
        todo = [file for file in emission.files if file.path not in kept]
        records = [_put(out, file, durable=durable) for file in todo]
        done.append(
            Emitted(emission, tuple(record for record, _ in records), sum(is_new for _, is_new in records), kept)
        )
        known |= {record.path: record for record, _ in records}
        _remember(out, known, durable=durable)
    return done


def read_emitted(out: str) -> dict[str, FileRecord]:
    """{path: what we wrote there}; lines that say nothing of ours are left out."""
    found: dict[str, FileRecord] = {}
    with suppress(FileNotFoundError):
        for line in open_place(out).read(EMITTED).splitlines():
            with suppress(ValueError, KeyError, TypeError):
                record = file_record(json.loads(line))
                if not record.path.startswith("/") and ".." not in record.path.split("/"):
                    found[record.path] = record
    return found


def our_emitted(out: str) -> list[str]:
    """Paths of the files that still are what we wrote."""
    known = read_emitted(out)
    return [path for path in known if not _is_theirs(out, path, known)]


def _remember(out: str, known: dict[str, FileRecord], *, durable: bool) -> None:
    lines = [json.dumps(file_document(known[path]), separators=(",", ":")) + "\n" for path in sorted(known)]
    open_place(out).put(EMITTED, "".join(lines).encode(), tag=TAG, durable=durable)


def _check_targets(out: str, emissions: Sequence[Emission], known: dict[str, FileRecord]) -> None:
    foreign = [
        file.path
        for emission in emissions
        for file in emission.files
        if _is_theirs(out, file.path, known) and not file.is_template and not _is_same(out, file)
    ]
    if foreign:
        rest = f" and {plural(len(foreign) - MAX_SHOWN, 'more file')}" if len(foreign) > MAX_SHOWN else ""
        raise DestinationExists(
            f"{', '.join(foreign[:MAX_SHOWN])}{rest} in {out}: there already, and not as we would write it",
            hint="move it away and repeat; nothing was written",
            where={"path": open_place(out).shown(foreign[0])},
        )


def _is_theirs(out: str, path: str, known: dict[str, FileRecord]) -> bool:
    """Whether something is at `path` that is not what we wrote."""
    place = open_place(out)
    full, record = place.shown(path), known.get(path)
    if not (os.path.lexists(full) if place.is_local else exists(place, path)):
        return False
    if record is None or (place.is_local and (not os.path.isfile(full) or os.path.islink(full))):
        return True
    return place.stat(path).num_bytes != record.num_bytes or digest_of(full) != record.xxh3_128


def _is_same(out: str, file: SideFile) -> bool:
    return digest_chunks(file.content()) == _digest(out, file.path)


def _digest(out: str, path: str) -> str:
    """Digest of a file; "" where there is none."""
    with suppress(OSError):
        return digest_of(open_place(out).shown(path))
    return ""


def _put(out: str, file: SideFile, *, durable: bool) -> tuple[FileRecord, bool]:
    """(what is at the path now, whether it is new)."""
    place = open_place(out)
    if file.shares and place.is_local and (linked := _linked(place, file)) is not None:
        if durable:
            place.sync([file.path])
        return linked
    target = place.create(file.path, TAG)
    try:
        for piece in _buffered(file.content()):
            target.write(piece)
        record = target.record()
        if _digest(out, file.path) == record.xxh3_128:
            return record, False
        target.publish(durable=durable)
    finally:
        target.abort()
    if durable:
        place.sync([file.path])
    return record, True


def _linked(place: Place, file: SideFile) -> tuple[FileRecord, bool] | None:
    """As `_put`, by a hard link; None where the file system has none."""
    source, target = place.shown(file.shares), place.shown(file.path)
    record = FileRecord(file.path, os.stat(source).st_size, digest_of(source))
    with suppress(FileNotFoundError):
        if os.path.samefile(source, target):
            return record, False
    temp = temp_name(target, TAG)
    with write_errors(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            with suppress(FileNotFoundError):
                os.unlink(temp)
            os.link(source, temp)
        except OSError:
            return None
        os.rename(temp, target)
    return record, True


def _buffered(pieces: Iterable[bytes], size: int = 1 << 20) -> Iterable[bytes]:
    """The same bytes in pieces of at least `size`, the last one aside."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    if held:
        yield b"".join(held)
