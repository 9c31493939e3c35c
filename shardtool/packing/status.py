"""How far a data set is: the stored plan beside the receipts, temp files and the manifest. Reads only; also mid-run.

Speed comes from the times of the receipt files of the latest run, so it is gone once they are folded.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shardtool.errors import SourceNotFound
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.names import DATA, HIDDEN, INDEX
from shardtool.packing.destination import FAILED, LOCK, lock_root
from shardtool.packing.receipts import read_receipts, receipt_path, valid_receipts
from shardtool.planning.plan_file import load_plan
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import Sizes, exists
from shardtool.storage.local import TEMP_PREFIX

if TYPE_CHECKING:
    from shardtool.manifest import Manifest
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.storage.base import Place

SCHEMA = "shardtool/status/1"
MIN_GAP_S = 60.0  # a longer pause than this and ten usual ones lies between two runs


@dataclass(frozen=True)
class Extent:
    """Shards, samples and bytes of shard files."""

    shards: int = 0
    samples: int = 0
    num_bytes: int = 0

    def document(self) -> dict[str, int]:
        """As JSON."""
        return {"shards": self.shards, "samples": self.samples, "bytes": self.num_bytes}


@dataclass(frozen=True)
class Rate:
    """How fast the latest run is, or was."""

    shards: int  # that the rate is taken from
    seconds: float
    shards_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Status:
    """How far a data set is."""

    out: str
    state: str  # planning, unfinished, finished
    is_running: bool | None  # None where the system does not tell
    done: Extent
    planned: Extent
    plan_id: str = ""
    dataset_id: str = ""
    sources: tuple[str, ...] = ()
    ledger: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)  # entries and samples by reason
    failed_shards: int = 0  # that a rerun tries again
    temps: Extent = field(default_factory=Extent)  # `shards`: files
    rate: Rate | None = None
    missing_files: tuple[str, ...] = ()  # of a finished data set

    @property
    def left_s(self) -> float | None:
        """Seconds that a running pack still takes; None where nothing runs or no rate is known."""
        if not self.rate or not self.is_running:
            return None
        return (self.planned.num_bytes - self.done.num_bytes) / max(self.rate.bytes_per_s, 1e-9)

    @property
    def next(self) -> str:
        """What to type next; empty while a run goes on."""
        folder = self.out.rstrip("/") or "/"
        if self.is_running:
            return ""
        if self.state == "planning":
            return f"shardtool pack SRC {folder}"
        if self.state == "unfinished" or self.failed_shards:
            return f"shardtool pack {folder}"
        return f"shardtool verify {folder}"

    def document(self) -> dict[str, Any]:
        """The JSON document `shardtool/status/1`."""
        rate = self.rate
        return {
            "schema": SCHEMA,
            "output": self.out,
            "state": self.state,
            "is_running": self.is_running,
            "plan_id": self.plan_id or None,
            "dataset_id": self.dataset_id or None,
            "sources": list(self.sources),
            "done": self.done.document(),
            "planned": self.planned.document(),
            "ledger": self.ledger or None,
            "failed": self.failed,
            "failed_shards": self.failed_shards,
            "temp_files": self.temps.shards,
            "temp_bytes": self.temps.num_bytes,
            "shards_per_s": round(rate.shards_per_s, 3) if rate else None,
            "bytes_per_s": round(rate.bytes_per_s) if rate else None,
            "left_s": None if self.left_s is None else round(self.left_s, 1),
            "missing_files": list(self.missing_files),
            "next": self.next,
        }


def read_status(out: str, now_s: float) -> Status:
    """How far the data set in the folder `out` is.

    Args:
        now_s: seconds since the epoch.

    Raises:
        SourceNotFound: there is none.
        FormatError: its manifest or plan is damaged.
    """
    place = open_place(out)
    if exists(place, MANIFEST):
        return _finished(out, load_manifest(out), load_plan(out))
    stored = load_plan(out)
    if stored is not None:
        return _unfinished(out, stored, now_s)
    if _has_folder(place, HIDDEN):
        return Status(out, "planning", is_locked(out), Extent(), Extent(), temps=find_temps(out))
    is_there = _has_folder(place, "")
    is_new = not is_there or (place.is_local and not os.listdir(out))
    raise SourceNotFound(
        f"{out} holds no data set of ours" if is_there else f"{out} does not exist",
        hint=f"shardtool pack SRC {out} makes one" if is_new else "name the folder that shardtool pack wrote",
        where={"path": out},
    )


def _has_folder(place: Place, path: str) -> bool:
    """Whether there is such a folder, or anything below such a prefix."""
    if place.is_local:
        return os.path.isdir(place.shown(path))
    return next(iter(place.list(path and f"{path}/")), None) is not None


def _finished(out: str, manifest: Manifest, stored: StoredPlan | None) -> Status:
    extent = Extent(len(manifest.shards), manifest.num_samples, manifest.num_bytes)
    receipts = read_receipts(out)
    records = [record for shard in manifest.shards for record in (*shard.files, *filter(None, [shard.index]))]
    sizes = Sizes(open_place(out))
    return Status(
        out=out,
        state="finished",
        is_running=is_locked(out),
        done=extent,
        planned=extent if stored is None else _planned(stored),
        plan_id=manifest.plan_id,
        dataset_id=manifest.dataset_id,
        sources=stored.roots if stored else (),
        ledger=manifest.ledger,
        failed=_failures(out, {}),
        failed_shards=sum(bool(receipt.failed) for receipt in receipts.values()),
        temps=find_temps(out),
        missing_files=tuple(r.path for r in records if sizes.of(r.path) is None),
    )


def _planned(stored: StoredPlan) -> Extent:
    return Extent(len(stored.shards), stored.num_samples, sum(spec.num_bytes for spec in stored.shards))


def _unfinished(out: str, stored: StoredPlan, now_s: float) -> Status:
    receipts = valid_receipts(out, read_receipts(out), stored.plan_id, len(stored.shards))
    sizes = {shard: receipt.files[0].num_bytes for shard, receipt in receipts.items()}
    running = is_locked(out)
    return Status(
        out=out,
        state="unfinished",
        is_running=running,
        done=Extent(len(sizes), sum(receipt.num_samples for receipt in receipts.values()), sum(sizes.values())),
        planned=_planned(stored),
        plan_id=stored.plan_id,
        sources=stored.roots,
        ledger=stored.ledger.document(),
        failed=_failures(out, Counter(reason for receipt in receipts.values() for _, reason in receipt.failed)),
        failed_shards=sum(bool(receipt.failed) for receipt in receipts.values()),
        temps=find_temps(out),
        rate=_rate(_times(out, sizes, len(stored.shards)), now_s if running else None),
    )


def _failures(out: str, messages: dict[str, int]) -> dict[str, int]:
    """{reason: count} of failed.jsonl, which the scan wrote, and of what packing left out so far."""
    found: Counter[str] = Counter()
    with suppress(FileNotFoundError):
        for line in open_place(out).read(FAILED).splitlines():
            with suppress(ValueError, KeyError, TypeError):
                found[_kind(str(json.loads(line)["reason"]))] += 1
    for message, count in messages.items():
        found[_kind(message)] += count
    return dict(sorted(found.items()))


def _kind(reason: str) -> str:
    """The reason without the path that it names: a receipt holds whole messages."""
    if " changed while " in reason:
        return "changed"
    return reason if " " not in reason else reason.rpartition(": ")[2] if ": " in reason else "unreadable"


def _times(out: str, sizes: dict[int, int], total: int) -> list[tuple[float, int]]:
    """(seconds, bytes) of the receipts that are files of their own, in order; a store's clock is not asked."""
    times = []
    if is_remote(out):
        return []
    for shard, num_bytes in sizes.items():
        with suppress(OSError):
            times.append((os.stat(os.path.join(out, receipt_path(shard, total))).st_mtime, num_bytes))
    return sorted(times)


def _rate(times: list[tuple[float, int]], now_s: float | None) -> Rate | None:
    """The speed since the last long pause, up to `now_s` while a run goes on; None below two shards."""
    gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(times))
    if not gaps:
        return None
    pause = max(MIN_GAP_S, 10 * gaps[len(gaps) // 2])
    start = max((n + 1 for n in range(len(times) - 1) if times[n + 1][0] - times[n][0] > pause), default=0)
    run = times[start:]
    seconds = (now_s if now_s is not None else run[-1][0]) - run[0][0]
    if len(run) < 2 or seconds <= 0:
        return None
    num_bytes = sum(size for _, size in run[1:])  # the first one began before the clock
    return Rate(len(run) - 1, seconds, (len(run) - 1) / seconds, num_bytes / seconds)


def find_temps(out: str) -> Extent:
    """Files that are being written, or were when a run was killed; of uploads to a store their number only."""
    count = num_bytes = 0
    if is_remote(out):
        return Extent(open_place(out).num_unfinished())
    for top in (DATA, INDEX, HIDDEN):
        for folder, _, names in os.walk(os.path.join(out, top)):
            for name in names:
                if name.startswith(TEMP_PREFIX):
                    with suppress(OSError):
                        num_bytes += os.stat(os.path.join(folder, name)).st_size
                        count += 1
    return Extent(count, 0, num_bytes)


def is_locked(out: str) -> bool | None:
    """Whether a pack holds the output on this machine, as /proc/locks tells; None where there is no such list.

    Looking does not take the lock, so that a run that begins just now is not refused.
    """
    wanted = set()
    folder = os.path.join(lock_root(out), HIDDEN)
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(os.path.basename(LOCK)):
                wanted.add(os.stat(os.path.join(folder, name)).st_ino)
    try:
        with open("/proc/locks", encoding="ascii") as file:
            held = {int(line.split()[5].rpartition(":")[2]) for line in file if " FLOCK " in line and "->" not in line}
    except (OSError, ValueError, IndexError):
        return None
    return bool(wanted & held)
