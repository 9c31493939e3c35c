"""Samples in a bucket that are so small that reading them by range costs much more than copying their shards. No IO.

In a shuffled order every sample is a request, unless so many of one batch lie in an object that near ones come together
with what is between them. Measured against Ceph: 0.2 ms of CPU a request, 2 ns a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.model import Problem
from shardtool.shard_sources.objects import Object
from shardtool.shard_sources.runs import BATCH_BYTES, MAX_GAP, RUN_BYTES
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.shard_sources.members import Members

REQUEST_S, BYTE_S = 0.2e-3, 2e-9
MUCH = 3  # times the CPU of bringing every byte once
LITTLE_S = 5.0  # of CPU are nothing to speak of


def small_samples(found: Sequence[Members]) -> tuple[Problem, ...]:
    """A notice where the shards among `found` that are objects are quicker to copy than to read sample by sample."""
    remote = [members for members in found if Object.of(members.root) is not None]
    payload = sum(int(members.sizes.sum()) for members in remote)
    samples = sum(members.num_samples for members in remote)
    if not samples or not payload:
        return ()
    requests, num_bytes = requests_of(samples, payload)
    once_s, ranges_s = payload * BYTE_S, requests * REQUEST_S + num_bytes * BYTE_S
    if ranges_s <= max(MUCH * once_s, once_s + LITTLE_S):
        return ()
    message = (
        f"samples of {format_bytes(payload // samples)} on average lie in a bucket: in a new order they take about "
        f"{requests:,} requests for {format_bytes(num_bytes)}"
    )
    hint = (
        f"where a local disk has room for {format_bytes(payload)}, shardtool stage SRC FOLDER and convert from there "
        "is quicker"
    )
    return (Problem("small_samples", samples, (), message, hint, is_fatal=False),)


def requests_of(samples: int, payload: int) -> tuple[int, int]:
    """(requests, bytes) that reading `samples` of `payload` bytes in all takes, in batches spread over the objects."""
    batches = max(payload / BATCH_BYTES, 1.0)
    if payload / samples * batches > MAX_GAP:  # the usual way from one sample of a batch to the next
        return samples, payload
    num_bytes = round(payload * batches)
    return -(-num_bytes // RUN_BYTES), num_bytes
