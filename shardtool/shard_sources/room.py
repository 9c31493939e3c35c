"""Whether what must be decoded can fit into the spool, told before any of it is fetched.

What a file unpacks to is exact where something tells it: the manifest of a data set, the directory of a zip. Of other
files that are compressed or in columns the payload counts as no less than the file. Text (JSON lines, CSV) holds more
than its payload, and counts for nothing.
"""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import NoSpace, ShardtoolError
from shardtool.storage.files import file_size
from shardtool.storage.local import destination_error, free_space
from shardtool.storage.stream import open_binary
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.shard_sources.find import SourceFile

_TEXT = (".jsonl", ".csv", ".tsv")


def check_room(folder: str, files: Sequence[SourceFile]) -> None:
    """Refuse to unpack into `folder` what cannot fit there; what an earlier run left there is written over.

    Raises:
        NoSpace: fewer bytes are free than the files unpack to.
    """
    wanted = sum(map(unpacked_bytes, files))
    try:
        free = free_space(folder)[0] + _there(folder)
    except OSError as error:
        raise destination_error(error, folder) from error
    if wanted > free:
        are_known = all(file.payload_bytes >= 0 for file in files)
        raise NoSpace(
            f"{plural(len(files), 'source file')} must be decoded: {'' if are_known else 'at least '}"
            f"{format_bytes(wanted)} are needed in {folder}, {format_bytes(free)} are free",
            hint="free some space, or name an output on a larger disk; nothing was fetched",
            where={"path": folder},
        )


def unpacked_bytes(file: SourceFile) -> int:
    """Bytes that the parts of a file take at least, as far as they can be told without decoding it."""
    if file.payload_bytes >= 0:
        return file.payload_bytes
    if file.path.lower().endswith(_TEXT):
        return 0
    with suppress(OSError, ShardtoolError, zipfile.BadZipFile):  # told when it is unpacked
        if file.kind == "zip":
            with open_binary(file.path) as data, zipfile.ZipFile(data) as archive:
                return sum(member.file_size for member in archive.infolist())
        return file.stat.num_bytes if file.stat else file_size(file.path)
    return 0


def _there(folder: str) -> int:
    """Bytes of what is in the folder."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries)
    return 0
