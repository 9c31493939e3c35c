"""The reader that fits the sources of a plan: a table of kinds, resolved when one is used.

All roots of a plan are of one kind. A kind is known from the root as it is stored: `s3://...`, `range:PATH` or
`range:ETAG:s3://...` (parts inside a file or object), or a local path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from shardtool.plugins import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.model import ShardRows
    from shardtool.sources.reader import PartReader

READERS = {
    "file": "shardtool.sources.reader:LocalReader",
    "range": "shardtool.shard_sources.objects:open_ranges",
    "s3": "shardtool.sources.s3_reader:S3Reader",
}


def open_reader(roots: tuple[str, ...], rows: ShardRows, members: list[bytes], fresh_until: float = 0.0) -> PartReader:
    """Reads the parts of one shard.

    Args:
        roots: source roots, as the plan stores them.
        rows: the shard.
        members: key + b"." + part name, list[num_parts].
        fresh_until: time.monotonic() up to which the guards of `rows` count as just seen.

    Raises:
        SourceError: a root cannot be opened.
    """
    make = cast("Callable[..., PartReader]", resolve(READERS[kind_of(roots)]))
    return make(roots, rows, members, fresh_until)


def kind_of(roots: tuple[str, ...]) -> str:
    """Row of READERS."""
    scheme, separator, _ = roots[0].partition(":") if roots else ("", "", "")
    return scheme if separator and scheme in READERS else "file"
