"""What was asked of stage, as plain values that can be handed to another process, and what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from shardtool.assignment.assignment import Wish

SCHEMA = "shardtool/stage/1"
DEFAULT_JOBS = 8
PAGE_CACHE = ("auto", "keep", "drop")


@dataclass(frozen=True)
class StageRequest:
    """Everything that decides what is brought where, and how.

    Args:
        source: folder or URL of the data set.
        targets: folders that get a folder each; several only with a share for each.
        select: `share` (of the node), `all`, or `list`.
        listed: ranges of shards, for `list`.
        node: 0-based.
        epochs: [first, last) of the run, whose shards are brought.
        wish: who reads, in which order; its world_size and num_nodes are those of the run.
        state: of a run to go on with.
        budget: bytes that shards may take at a time; 0 is no limit.
        reserve: bytes to leave free on the target.
        ready_after: shards of each rank after which the caller goes on; 0 waits for all.
        decompress: `drop` puts raw shards in place of compressed ones, `keep` leaves those there, too; "" copies as is.
        launcher: process that a copy in the background works for; with a budget it ends with it.
    """

    source: str
    targets: tuple[str, ...]
    select: str = "share"
    listed: str = ""
    node: int = 0
    epochs: tuple[int, int] = (0, 1)
    wish: Wish = field(default_factory=Wish)
    state: dict[str, Any] | None = None
    jobs: int = DEFAULT_JOBS
    bytes_per_s: int = 0
    budget: int = 0
    reserve: int = 0
    page_cache: str = "auto"
    durable: bool = True
    ready_after: int = 0
    decompress: str = ""
    launcher: int = 0


def encode_request(request: StageRequest) -> str:
    """The request as JSON."""
    return json.dumps(asdict(request))


def decode_request(text: str) -> StageRequest:
    """The inverse of `encode_request`."""
    values = json.loads(text)
    wish = Wish(**_tuples(values.pop("wish")))
    return StageRequest(**_tuples(values), wish=wish)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where we have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass
class StageResult:
    """How a copy ended. Bytes are those of shard files; what was read twice counts twice in `fetched_bytes`."""

    paths: tuple[str, ...]
    dataset_id: str
    num_shards: int = 0
    num_bytes: int = 0
    fetched_bytes: int = 0
    reused_bytes: int = 0
    refetched_blocks: int = 0
    evicted_shards: int = 0
    seconds: float = 0.0
    is_complete: bool = True  # False: a copy in the background, or a later run, brings the rest
    total_shards: int = 0  # of the data set

    def document(self) -> dict[str, Any]:
        """`shardtool/stage/1`."""
        return {
            "schema": SCHEMA,
            "path": self.paths[0],
            "paths": list(self.paths),
            "dataset_id": self.dataset_id,
            "shards": self.num_shards,
            "bytes": self.num_bytes,
            "fetched_bytes": self.fetched_bytes,
            "reused_bytes": self.reused_bytes,
            "refetched_blocks": self.refetched_blocks,
            "evicted_shards": self.evicted_shards,
            "is_complete": self.is_complete,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class StagePlan:
    """What a run would do, from the manifest and what is here."""

    paths: tuple[str, ...]
    dataset_id: str
    num_shards: int
    num_bytes: int
    missing_bytes: int  # to fetch, as they lie at the source
    here_bytes: int
    requests: int
    free_bytes: int
    seconds: float  # estimated, from one block that was read

    def document(self) -> dict[str, Any]:
        """`shardtool/stage-plan/1`."""
        return {
            "schema": "shardtool/stage-plan/1",
            "path": self.paths[0],
            "paths": list(self.paths),
            "dataset_id": self.dataset_id,
            "shards": self.num_shards,
            "bytes": self.num_bytes,
            "missing_bytes": self.missing_bytes,
            "requests": self.requests,
            "free_bytes": self.free_bytes,
            "seconds": round(self.seconds, 3),
        }
