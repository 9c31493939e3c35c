"""Shard formats: a table of names, resolved when one is used, and what each has to offer.

Adding one = a module with a `Format`, a line in `FORMATS`, a conformance class, a page in docs/formats.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from shardtool.errors import UnknownFormat

if TYPE_CHECKING:
    from shardtool.model import Int64Array, SampleTable, ShardRows, UInt64Array
    from shardtool.sources.reader import PartReader
    from shardtool.storage.local import ShardFile

FORMATS = {"tar": "shardtool.formats.tar:TarFormat"}


class Format(Protocol):
    """How samples become the bytes of a shard."""

    name: str
    suffix: str
    layout: str  # version of the byte layout; enters plan_id

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: encoded bytes of each sample, exact."""

    def shard_overhead(self, num_samples: int) -> int:
        """Header and trailer bytes of a shard with that many samples."""

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenParts:
        """Write the shard and say where each part lies."""


class WrittenParts(Protocol):
    """Where the parts of a written shard lie."""

    @property
    def sample_offset(self) -> Int64Array:
        """First byte of each sample, int64[num_samples]."""

    @property
    def sample_bytes(self) -> Int64Array:
        """Whole extent of each sample, int64[num_samples]."""

    @property
    def part_offset(self) -> Int64Array:
        """First payload byte of each part, int64[num_parts]."""

    @property
    def part_xxh3_64(self) -> UInt64Array:
        """Digest of each part, uint64[num_parts]."""


def get_format(name: str) -> Format:
    """The format called `name`.

    Raises:
        UnknownFormat: no such name.
    """
    if name not in FORMATS:
        raise UnknownFormat(f"{name!r} is no format", hint=f"one of: {', '.join(FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    return cast("Format", getattr(import_module(module), attribute)())
