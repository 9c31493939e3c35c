"""Places that entries come from: a table of names, resolved when one is used, and what each has to offer.

Adding one = a module with a `Source` and a line in `SOURCES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shardtool.errors import UsageProblem
from shardtool.plugins import resolve

if TYPE_CHECKING:
    from shardtool.model import ScanResult

SOURCES = {
    "tree": "shardtool.sources.tree:TreeSource",
    "listing": "shardtool.sources.listing:ListingSource",
    "s3": "shardtool.sources.s3:S3Source",
}


class Source(Protocol):
    """A place whose entries can be listed with their sizes; the rows come back sorted, as columns."""

    def scan(self) -> ScanResult:
        """Every entry met: rows, ignored and failed ones, and the problems that stand in the way."""


def source_class(name: str) -> Any:
    """The class behind a name of `SOURCES`.

    Raises:
        UsageProblem: there is no such source.
    """
    if name not in SOURCES:
        raise UsageProblem(f"unknown source {name!r}", hint=f"one of: {', '.join(SOURCES)}")
    return resolve(SOURCES[name])
