"""Container bytes that are not payload, by cause. Arithmetic on sizes; exact for tar, one sum for other formats.

bytes = payload + headers + padding + pax + trailers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.formats.tar_header import BLOCK, TRAILER_BYTES, padded

if TYPE_CHECKING:
    from shardtool.model import Int64Array

CAUSES = ("headers", "padding", "pax", "trailers")  # of tar; pax: headers of names and sizes that ustar cannot hold


def overhead_by_cause(shard_format: str, part_bytes: Int64Array, num_bytes: int, num_shards: int) -> dict[str, int]:
    """{cause: bytes}; adds up to `num_bytes` - sum(`part_bytes`).

    Args:
        part_bytes: payload of each part, int64[num_parts].
        num_bytes: of all shard files.
    """
    payload = int(part_bytes.sum())
    if shard_format != "tar":
        return {"container": num_bytes - payload}
    headers = BLOCK * len(part_bytes)
    padding = int(padded(part_bytes).sum()) - payload
    trailers = TRAILER_BYTES * num_shards
    pax = num_bytes - payload - headers - padding - trailers
    return dict(zip(CAUSES, (headers, padding, pax, trailers), strict=True))


def add_causes(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Both added up, in the order of `left`."""
    return {cause: left.get(cause, 0) + right.get(cause, 0) for cause in (*left, *(c for c in right if c not in left))}
