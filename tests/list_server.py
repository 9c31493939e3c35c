"""ListObjectsV2 over a list of keys, as several kinds of stores answer it: for tests of the listing alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

TIME = "2026-01-31T12:00:00.500Z"
TIME_NS = 1_769_860_800_500_000_000


@dataclass
class KeyServer:
    """Answers queries for a bucket that holds an object of `len(key)` bytes under each key.

    Args:
        keys: of the bucket.
        page: entries of a page, at most; the query's max-keys when that is smaller.
        folders_first: list a folder's name where the folder's own name belongs, not its slash (SeaweedFS).
        is_encoded: obey encoding-type=url.
        denies_delimiter: such queries are refused.
        ignores_start_after: such queries are answered from the beginning.
    """

    keys: Sequence[bytes]
    page: int = 1000
    folders_first: bool = False
    is_encoded: bool = True
    denies_delimiter: bool = False
    ignores_start_after: bool = False
    queries: list[dict[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.keys = sorted(set(self.keys), key=self._place)

    def _place(self, key: bytes) -> bytes:
        return key.replace(b"/", b"\0") if self.folders_first else key

    def ask(self, query: tuple[tuple[str, str], ...]) -> bytes:
        """One page."""
        asked = dict(query)
        with self._lock:
            self.queries.append(asked)
        if self.denies_delimiter and "delimiter" in asked:
            raise PermissionError("a delimiter is not allowed")
        entries = self._entries(asked["prefix"].encode("utf-8", "surrogateescape"), asked.get("delimiter", "").encode())
        after = b"" if self.ignores_start_after else asked.get("start-after", "").encode()
        after = bytes.fromhex(asked.get("continuation-token", "")) or after
        entries = [entry for entry in entries if not after or self._place(entry[0]) > self._place(after)]
        stop = min(self.page, int(asked["max-keys"]))
        more = stop < len(entries)
        token = f"<NextContinuationToken>{entries[stop - 1][0].hex()}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        body = "".join(self._element(key, is_folder) for key, is_folder in entries[:stop])
        encoding = "<EncodingType>url</EncodingType>" if self.is_encoded else ""
        return f"<ListBucketResult>{truncated}{token}{encoding}{body}</ListBucketResult>".encode(
            "utf-8", "surrogateescape"
        )

    def _entries(self, prefix: bytes, delimiter: bytes) -> list[tuple[bytes, bool]]:
        found: dict[tuple[bytes, bool], None] = {}
        for key in self.keys:
            if key.startswith(prefix):
                at = key.find(delimiter, len(prefix)) if delimiter else -1
                found[key if at < 0 else key[: at + 1], at >= 0] = None
        return list(found)

    def _element(self, key: bytes, is_folder: bool) -> str:
        name = quote_from_bytes(key) if self.is_encoded else escape(key.decode("utf-8", "surrogateescape"))
        if is_folder:
            return f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
        rest = f"<LastModified>{TIME}</LastModified><ETag>&quot;e{len(key)}&quot;</ETag><Size>{len(key)}</Size>"
        return f"<Contents><Key>{name}</Key>{rest}<StorageClass>STANDARD</StorageClass></Contents>"
