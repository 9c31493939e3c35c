"""`plan` and `pack --dry-run` with --format bin: tokens, sequences and shards, estimated where the source is large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardtool.cli.choices import plan_options
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.cli.options import Output
    from shardtool.tokens.estimate import Estimate


def show_token_plan(
    output: Output, sources: tuple[str, ...], out: str, chosen: dict[str, Any], *, write: bool = False
) -> Estimate:
    """Say what packing would give; nothing is written.

    Raises:
        UsageProblem: `write`: token shards can be planned only once everything is tokenized.
    """
    if write:
        raise UsageProblem(
            "--write: the plan of a token data set follows from its tokens, so pack makes it",
            hint=f"shardtool pack {' '.join(sources)} {out} --format bin",
        )
    from shardtool.executors.local import PRELOAD, workers_for
    from shardtool.packing.build import PackRequest
    from shardtool.packing.destination import state_of
    from shardtool.report.token_plan import plan_document, plan_text
    from shardtool.scan import check_overlap
    from shardtool.tokens.estimate import estimate
    from shardtool.workers import WorkerPool

    check_overlap(sources, out)
    state_of(out)
    request = PackRequest(
        sources,
        out,
        plan_options(sources, chosen),
        null=chosen["null"],
        list_cache=chosen.get("list_cache") or "",
        on_error=chosen["on_error"],
    )
    workers = workers_for(chosen["workers"])
    with WorkerPool(workers, preload=PRELOAD) as pool:
        found = estimate(request, pool, workers, output)
    document = plan_document(found)
    output.result(document, plan_text(document, sources, out), brief=found.plan.plan_id)
    return found
