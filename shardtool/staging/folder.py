"""A data set's folder on a node, and what stage keeps in it.

    DST/<name>-<dataset_id 12>/manifest.json labels.json index/ data/   as in the data set, complete and verified
                               staged.json                              which shards are meant to be here
                               .stage/lock verified.jsonl parts/...     of the copier alone

A file has its final name only when every byte of it was compared with its digest.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import DestinationError, DestinationExists, FormatError, UsageProblem
from shardtool.staging.share import join_ranges, parse_ranges
from shardtool.storage.local import put_file, write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.manifest import Manifest
    from shardtool.model import FileRecord

SCHEMA = "shardtool/staged/1"
STAGED, STATE = "staged.json", ".stage"
RAW = "-raw"  # ends the name of a folder whose shards were decompressed
ID_DIGITS = 12  # of the dataset_id in the folder's name
MAX_SHARDS = 1 << 24  # far above any data set; keeps a damaged staged.json from filling memory
_TAG = "stage"


@dataclass(frozen=True)
class Target:
    """Where the files of one data set go on a node."""

    path: str

    @property
    def state(self) -> str:
        """The folder of stage's own files."""
        return os.path.join(self.path, STATE)

    @property
    def lock(self) -> str:
        """Held by the one process that copies."""
        return os.path.join(self.state, "lock")

    @property
    def table(self) -> str:
        """The table of verified files."""
        return os.path.join(self.state, "verified.jsonl")

    @property
    def parts(self) -> str:
        """Folder of what is not complete yet."""
        return os.path.join(self.state, "parts")

    @property
    def log(self) -> str:
        """What a copy in the background says."""
        return os.path.join(self.state, "background.log")

    def final(self, path: str) -> str:
        """A file of the data set."""
        return os.path.join(self.path, path)

    def part(self, path: str) -> str:
        """The same file while it is copied."""
        return os.path.join(self.parts, path + ".part")

    def journal(self, path: str) -> str:
        """What is there of the part."""
        return os.path.join(self.parts, path + ".blocks")


def target_in(parent: str, name: str, dataset_id: str, *, is_decompressed: bool = False) -> Target:
    """The folder of a data set below `parent`; versions and forms of one name never share one."""
    return Target(os.path.join(parent, f"{name}-{dataset_id[:ID_DIGITS]}{RAW if is_decompressed else ''}"))


def make_folders(target: Target) -> None:
    """Create the folder, or find it to be ours.

    Raises:
        DestinationExists: something else lies there.
        DestinationError: it cannot be made.
    """
    if os.path.isdir(target.path) and not os.path.isdir(target.state) and os.listdir(target.path):
        raise DestinationExists(
            f"{target.path} holds files, but not of a staged data set: there is no {STATE}/ in it",
            hint="name another DST, or move that folder away",
            where={"path": target.path},
        )
    with write_errors(target.path):
        os.makedirs(target.parts, exist_ok=True)


def sweep_journals(target: Target) -> None:
    """Remove journals without a part: a kill came between the two. Only for who holds the lock."""
    for folder, _, names in os.walk(target.parts):
        for name in names:
            journal = os.path.join(folder, name)
            if name.endswith(".blocks") and not os.path.exists(journal.removesuffix(".blocks") + ".part"):
                with write_errors(journal):
                    os.unlink(journal)


def find_targets(place: str) -> list[Target]:
    """Staged data sets at `place`: itself, or the folders right below it."""
    if os.path.isdir(os.path.join(place, STATE)):
        return [Target(place)]
    try:
        names = sorted(os.listdir(place))
    except OSError as error:
        raise DestinationError(
            f"{place} cannot be read: {error.strerror}",
            hint=f"name a DST that was staged to, or stage there first: shardtool stage SRC {place}",
            where={"path": place},
        ) from error
    folders = (os.path.join(place, name) for name in names)
    return [Target(folder) for folder in folders if os.path.isdir(os.path.join(folder, STATE))]


@dataclass(frozen=True)
class Staged:
    """staged.json: the part of a data set that is meant to be here."""

    dataset_id: str
    source: str
    shards: tuple[int, ...]  # by their place in the manifest
    is_window: bool = False  # with a budget, shards come and go
    is_decompressed: bool = False  # compressed shards were made raw; the manifest here names both


def write_staged(target: Target, staged: Staged, *, durable: bool) -> None:
    """Declare the subset."""
    document = {
        "schema": SCHEMA,
        "dataset_id": staged.dataset_id,
        "source": staged.source,
        "shards": join_ranges(staged.shards),
        "is_window": staged.is_window,
        "is_decompressed": staged.is_decompressed,
    }
    data = (json.dumps(document, indent=1) + "\n").encode()
    put_file(target.path, STAGED, data, tag=_TAG, durable=durable)


def read_staged(folder: str) -> Staged | None:
    """What is declared to be in a folder; None for a data set that was not staged.

    Raises:
        FormatError: staged.json is damaged.
    """
    path = os.path.join(folder, STAGED)
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r}")
        text = document["shards"]
        shards = parse_ranges(text, MAX_SHARDS) if text else ()
        flags = bool(document["is_window"]), bool(document.get("is_decompressed"))
        return Staged(document["dataset_id"], document["source"], shards, *flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (AttributeError, KeyError, TypeError, ValueError, UsageProblem) as error:
        raise FormatError(
            f"{path} is damaged: {error}",
            hint="shardtool stage SRC DST writes it again",
            where={"path": path},
        ) from error


def staged_shards(folder: str, manifest: Manifest) -> Sequence[int]:
    """The shards that are meant to be in a folder, ascending: all, unless it was staged and says otherwise.

    Raises:
        FormatError: staged.json is damaged, or of another data set.
    """
    staged = read_staged(folder)
    if staged is None:
        return range(len(manifest.shards))
    if staged.dataset_id != manifest.dataset_id or any(shard >= len(manifest.shards) for shard in staged.shards):
        path = os.path.join(folder, STAGED)
        raise FormatError(
            f"{path} is of another data set than {manifest.dataset_id}",
            hint="shardtool stage SRC DST writes it again",
            where={"path": path},
        )
    if not staged.is_window:
        return staged.shards
    return [shard for shard in staged.shards if os.path.exists(os.path.join(folder, manifest.shards[shard].path))]


@dataclass(frozen=True)
class _Row:
    """A file as it was when it was verified."""

    num_bytes: int
    mtime_ns: int
    inode: int
    xxh3_128: str


class VerifiedTable:
    """Files that were compared with their digests, so that a rerun need not read them again. Rows are only appended.

    Args:
        target: whose table.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._rows, self._offset = target, dict[str, _Row](), 0
        self._fd = -1  # of the file, once a row was appended
        self.refresh()

    def refresh(self) -> None:
        """Take what other processes appended; a line cut short by a crash is left out."""
        for line in self._new_lines():
            try:
                row = json.loads(line)
                found = _Row(row["bytes"], row["mtime_ns"], row["inode"], row["xxh3_128"])
                self._rows[row["path"]] = found
            except (KeyError, TypeError, ValueError):
                continue

    def _new_lines(self) -> Iterator[bytes]:
        try:
            with open(self._target.table, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from whole.split(b"\n")

    def holds(self, record: FileRecord) -> bool:
        """Whether the file is there, and still the one that was verified."""
        row = self._rows.get(record.path)
        is_its = row is not None and (row.xxh3_128, row.num_bytes) == (record.xxh3_128, record.num_bytes)
        return row is not None and is_its and self._is_as(record.path, row)

    def _is_as(self, path: str, row: _Row) -> bool:
        try:
            found = os.stat(self._target.final(path))
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns, found.st_ino) == (row.num_bytes, row.mtime_ns, row.inode)

    def vouched(self) -> list[str]:
        """Paths of files that are as they were verified."""
        return [path for path, row in self._rows.items() if self._is_as(path, row)]

    def add(self, record: FileRecord) -> None:
        """Vouch for a file that has its final name."""
        found = os.stat(self._target.final(record.path))
        self._append(record.path, _Row(found.st_size, found.st_mtime_ns, found.st_ino, record.xxh3_128))

    def drop(self, paths: Iterable[str]) -> None:
        """No longer vouch for files."""
        for path in paths:
            self._append(path, _Row(-1, 0, 0, ""))

    def _append(self, path: str, row: _Row) -> None:
        document = {"path": path, "bytes": row.num_bytes, "mtime_ns": row.mtime_ns, "inode": row.inode}
        line = json.dumps({**document, "xxh3_128": row.xxh3_128}).encode()
        with write_errors(self._target.table):
            torn = b"" if self._fd >= 0 else self._open()
            os.write(self._fd, torn + line + b"\n")
        self._rows[path] = row

    def _open(self) -> bytes:
        """Open the file, for nobody else appends meanwhile; the end of the last line, where a crash cut it short."""
        self._fd = os.open(self._target.table, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        end = os.fstat(self._fd).st_size
        return b"\n" if end > 0 and os.pread(self._fd, 1, end - 1) != b"\n" else b""

    def close(self) -> None:
        """Let go of the file; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
