"""`shardtool plan`: the whole decision and what it costs, before a byte is packed; `pack --dry-run` shows the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.choices import is_given, plan_options
from shardtool.cli.command import GroupedOption
from shardtool.cli.options import (
    Command,
    Output,
    grouping_options,
    options,
    output_options,
    shard_options,
    source_options,
)
from shardtool.cli.s3_options import s3_options
from shardtool.cli.token_options import token_options
from shardtool.errors import Incomplete, PlanMismatch, UsageProblem

if TYPE_CHECKING:
    from shardtool.packing.prepare import Prepared
    from shardtool.planning.compress_choice import Choice
    from shardtool.planning.plan import Plan
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.report.plan import PlanReport
    from shardtool.tokens.estimate import Estimate


@click.command(
    cls=Command,
    examples=(
        "shardtool plan photos/ out/ --shard-size 256MiB",
        "shardtool plan photos/ out/ --world-size 16 --loader-workers 4",
        "shardtool plan photos/ out/ --write && shardtool pack out/",
    ),
    exit_codes=(3, 5, 6, 7, 8),
)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("out", metavar="OUT")
@source_options
@grouping_options
@shard_options
@token_options
@click.option(
    "--write",
    is_flag=True,
    cls=GroupedOption,
    section="Running",
    help="Store the plan in OUT; shardtool pack OUT goes on from it.",
)
@options("workers", "on-error", "durability", "world-size", "loader-workers", "compat")
@s3_options
@output_options
def command(
    output: Output, sources: tuple[str, ...], out: str, write: bool, compat: tuple[str, ...], **chosen: Any
) -> None:
    """Show which shards packing SRC into OUT would make, and what they cost; no payload is packed."""
    prepared = show_plan(output, sources, out, chosen, write=write, compat=compat)
    if prepared.ledger.failed:
        raise Incomplete(
            f"{prepared.ledger.failed:,} files would not be packed: they failed, or a policy skips them",
            hint=f"shardtool scan {sources[0]} --list failed names them",
        )


def show_plan(
    output: Output,
    sources: tuple[str, ...],
    out: str,
    chosen: dict[str, Any],
    *,
    write: bool = False,
    compat: tuple[str, ...] = (),
) -> Prepared | Estimate:
    """Plan, say what the plan is and costs, and with `write` store it in `out`.

    With `compat`, say also what these readers would make of the samples.

    Raises:
        UsageProblem: there is no source.
        DestinationExists: `out` holds files that are not ours.
        PlanMismatch: `write`, and `out` holds another plan.
    """
    if not sources:
        raise UsageProblem(
            f"{out} alone: a dry run plans from the source",
            hint=f"shardtool status {out} tells how far a stored plan is",
        )
    if chosen["format"] == "bin":
        from shardtool.cli.token_plan import show_token_plan

        return show_token_plan(output, sources, out, chosen, write=write)
    from shardtool.executors.local import PRELOAD, workers_for
    from shardtool.packing.destination import state_of
    from shardtool.packing.packed_source import refuse_datasets
    from shardtool.packing.prepare import prepare
    from shardtool.planning.plan_file import plan_identity
    from shardtool.report.plan import plan_document, plan_text
    from shardtool.scan import check_overlap
    from shardtool.workers import WorkerPool

    check_overlap(sources, out)
    state = state_of(out)
    decided = plan_options(sources, chosen)
    refuse_datasets(sources, out, decided)
    workers = workers_for(chosen["workers"])
    with WorkerPool(workers, preload=PRELOAD) as pool:
        prepared = prepare(
            sources,
            decided,
            pool,
            on_error=chosen["on_error"],
            null=chosen["null"],
            trust_parts=is_given("group_by"),
            list_cache=chosen.get("list_cache") or "",
        )
    stored = None
    if write:
        stored = _write(output, sources, out, chosen, prepared)
    plan_id = stored.plan_id if stored else plan_identity(prepared.plan)
    report = _report(prepared, plan_id, workers, chosen)
    text = plan_text(report, sources, out, every_shard=output.verbose > 0, ascii_only=not output.unicode)
    document = plan_document(report) | {"is_written": write}
    if compat:
        from shardtool.compat import examine_plan, readers_named
        from shardtool.report.compat import compat_document, compat_text

        verdicts = examine_plan(prepared.plan, readers_named(compat))
        document["compat"] = compat_document(verdicts)
        text += "\n\n" + compat_text(verdicts, len(prepared.plan.order), ascii_only=not output.unicode)
    output.result(document, text, brief=plan_id)
    if write:
        output.hint(f"shardtool pack {out}   goes on from the stored plan")
    else:
        _say_destination(output, out, state, plan_id)
    return prepared


def _report(prepared: Prepared, plan_id: str, workers: int, chosen: dict[str, Any]) -> PlanReport:
    from shardtool.report.plan import PlanReport
    from shardtool.statistics.advice import advise, figures_of
    from shardtool.statistics.probe import peak_bytes, read_some, worker_bytes

    plan = prepared.plan
    figures = figures_of(plan, prepared.scanned.seen)
    advice = advise(plan, figures, world_size=chosen["world_size"] or 0, loader_workers=chosen["loader_workers"] or 0)
    notices = [notice for notice in prepared.notices if notice not in plan.notices]
    return PlanReport(
        plan=plan,
        plan_id=plan_id,
        ledger=prepared.ledger,
        figures=figures,
        advice=(*notices, *advice),
        num_workers=max(min(workers, len(plan.shards)), 1),
        worker_bytes=worker_bytes(plan),
        planning_bytes=peak_bytes(),
        speed=read_some(plan),
        choice=prepared.choice or _estimate(plan),
    )


def _estimate(plan: Plan) -> Choice | None:
    """What the compression that was asked for would give, by a sample."""
    from shardtool.planning.compress_choice import Choice, estimated_ratio

    ratio = estimated_ratio(plan.samples, plan.format)
    return None if ratio is None else Choice(plan.settings.compress, ratio)


def _write(
    output: Output, sources: tuple[str, ...], out: str, chosen: dict[str, Any], prepared: Prepared
) -> StoredPlan:
    from shardtool.packing.build import PackRequest, store_plan
    from shardtool.packing.destination import load_plan, locked
    from shardtool.planning.plan_file import plan_identity

    request = PackRequest(sources, out, prepared.plan.options, durable=chosen["durability"] == "full")
    with locked(out, None):
        stored = load_plan(out)
        if stored is None:
            return store_plan(request, prepared, output)
        plan_id = plan_identity(prepared.plan)
        if stored.plan_id != plan_id:
            raise PlanMismatch(
                f"{out} holds another plan already: {stored.plan_id[:8]}, this one is {plan_id[:8]}",
                hint="write to a new folder; nothing there was touched",
                where={"path": out},
            )
        return stored


def _say_destination(output: Output, out: str, state: str, plan_id: str) -> None:
    """What packing this plan to `out` would meet there."""
    from shardtool.packing.destination import load_plan

    stored = load_plan(out) if state != "new" else None
    if stored is None:
        return
    if stored.plan_id == plan_id:
        output.hint(f"{out} is {state}, with this very plan: pack {'goes on' if state == 'unfinished' else 'is done'}")
    else:
        output.warn(
            f"{out} is {state}, with another plan ({stored.plan_id[:8]}): pack stops there with exit 6."
            " Pack to a new folder, or replace it with --overwrite"
        )
