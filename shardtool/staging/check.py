"""Read all that is staged again: `stage --verify`. Damaged shards lose their row, so that the next run repairs them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from shardtool.errors import SourceNotFound, UsageProblem
from shardtool.staging.folder import VerifiedTable, find_targets, read_staged
from shardtool.verification.verify import PRELOAD, verify, workers_needed
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from shardtool.packing.build import Say
    from shardtool.staging.folder import Target
    from shardtool.verification.verify import VerifyResult


def check_staged(place: str, say: Say, workers: int) -> tuple[VerifyResult, str]:
    """(what is wrong, the source) of the data set staged at `place`, a folder of stage or its parent.

    Raises:
        SourceNotFound: nothing is staged there.
        UsageProblem: several data sets are.
    """
    target = _only(place)
    staged = read_staged(target.path)
    count = len(staged.shards) if staged else 0
    with WorkerPool(workers_needed(1 << 62, count, workers, is_deep=True), preload=PRELOAD) as pool:
        result = verify(target.path, pool, say, is_deep=True)
    bad = {fault.path for fault in result.faults if fault.path}
    with closing(VerifiedTable(target)) as table:
        table.drop(sorted(bad))
    return result, staged.source if staged else ""


def _only(place: str) -> Target:
    targets = find_targets(place)
    if not targets:
        raise SourceNotFound(
            f"nothing is staged in {place}", hint=f"shardtool stage SRC {place}", where={"path": place}
        )
    if len(targets) > 1:
        raise UsageProblem(
            f"{len(targets)} data sets are staged in {place}", hint=f"name one: --verify {targets[0].path}"
        )
    return targets[0]
