"""`shardtool pack`: folders of small files become shuffled, exactly sized, indexed shards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.choices import pack_request, plan_options
from shardtool.cli.options import (
    Command,
    Output,
    grouping_options,
    options,
    output_options,
    running_options,
    shard_options,
    source_options,
)
from shardtool.cli.s3_options import s3_options
from shardtool.cli.token_options import token_options
from shardtool.errors import Incomplete, UsageProblem
from shardtool.units import plural

DECIDED = ("Source", "Grouping", "Shards", "Tokens", "Order")  # sections of options that a stored plan has settled


if TYPE_CHECKING:
    from shardtool.manifest import Manifest
    from shardtool.packing.build import PackResult


@click.command(
    cls=Command,
    examples=(
        "shardtool pack photos/ out/ --label-from parent",
        "shardtool pack photos/ out/ --shard-size 256MiB --split train=0.9,validation=0.1",
        "shardtool pack photos/ out/ --dry-run",
    ),
    exit_codes=(3, 5, 6, 7, 8),
)
@click.argument("sources", nargs=-1, metavar="[SRC...]")
@click.argument("out", metavar="OUT")
@source_options
@grouping_options
@shard_options
@token_options
@running_options
@options("dry-run", "world-size", "loader-workers")
@s3_options
@output_options
def command(output: Output, sources: tuple[str, ...], out: str, **chosen: Any) -> None:
    """Pack the files of SRC into shards in OUT; the same command again goes on, or says that all is done."""
    run_pack(output, sources, out, chosen)


def run_pack(output: Output, sources: tuple[str, ...], out: str, chosen: dict[str, Any]) -> None:
    """Pack, or with --dry-run say what packing would do; `convert` is this with another kind of source."""
    if chosen["dry_run"]:
        from shardtool.cli.plan import show_plan

        show_plan(output, sources, out, chosen)
        return
    if not sources:
        _check_needs_no_source(out)
    from shardtool.executors.local import PRELOAD, LocalExecutor, workers_for
    from shardtool.workers import WorkerPool

    with WorkerPool(workers_for(chosen["workers"]), preload=PRELOAD) as pool:
        pool.warm()
        from shardtool.packing.build import build
        from shardtool.report.pack import next_steps, pack_text

        request = pack_request(sources, out, plan_options(sources, chosen), chosen)
        result = build(request, pool, LocalExecutor(pool, may_grow=not chosen["workers"]), output)
    if chosen.get("emit") and result.manifest is not None:
        _emit(output, out, result.manifest, chosen["emit"])
    output.result(result.document(out), pack_text(result, out), brief=out)
    for line in next_steps(result, out):
        output.hint(line)
    failed = result.failed_entries
    if failed:
        raise Incomplete(
            f"{plural(failed, 'file')} not packed: failed, or skipped by a policy",
            hint=f"listed in {os.path.join(out, '.shardtool', 'failed.jsonl')}; {_again(result)}",
            where={"path": out},
        )


def _check_needs_no_source(out: str) -> None:
    """Refuse options that a plan has settled, or that look at the source, where only OUT is named.

    Raises:
        UsageProblem: naming them.
    """
    context = click.get_current_context()
    typed = [
        max(param.opts, key=len)
        for param in context.command.params
        if isinstance(param, click.Option)
        and context.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        and (getattr(param, "section", "") in DECIDED or param.name in ("rescan", "update"))
    ]
    if typed:
        raise UsageProblem(
            f"{', '.join(typed)}: {out} alone goes on from its stored plan, which this cannot change",
            hint=f"leave it out, or name the source: shardtool pack SRC {out} {typed[0]} ...",
            where={"option": typed[0]},
        )


def _emit(output: Output, out: str, manifest: Manifest, names: tuple[str, ...]) -> None:
    """Offer the data set in the layouts of other trainers, too."""
    from shardtool.dialects import prepare
    from shardtool.emitted import write_emissions
    from shardtool.reading.reading import Dataset

    with Dataset(out, manifest) as dataset:
        for one in write_emissions(out, prepare(dataset, names)):
            output.step("emit", f"{one.emission.dialect}: {plural(len(one.files), 'file')}")


def _again(result: PackResult) -> str:
    """What a rerun does about what failed: shards are tried again, the plan is not made again."""
    if result.failed:
        return "the same command tries again"
    return "mend the source, then --overwrite packs it anew"
