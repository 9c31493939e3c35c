"""`shardtool scan`: what a source holds, what would be left out, and all that stands in the way of packing it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import (
    Command,
    DidYouMeanChoice,
    Output,
    grouping_options,
    options,
    output_options,
    source_options,
)
from shardtool.cli.s3_options import s3_options
from shardtool.cli.usage import did_you_mean
from shardtool.errors import GroupError, UsageProblem
from shardtool.report.topics import TOPICS

if TYPE_CHECKING:
    from shardtool.model import ScanResult
    from shardtool.packing.prepare import Grouped
    from shardtool.planning.plan import PlanOptions
    from shardtool.statistics.survey import Survey

_KINDS = ("ignored", "failed", "all")


@click.command(
    cls=Command,
    examples=(
        "shardtool scan photos/",
        "shardtool scan photos/ --list no_extension",
        "shardtool scan --explain ragged",
    ),
    exit_codes=(5, 8),
)
@click.argument("sources", nargs=-1, metavar="SRC...")
@source_options
@grouping_options
@options("workers", "on-error")
@click.option(
    "--list",
    "list_reason",
    metavar="REASON",
    cls=GroupedOption,
    section="Output",
    help="List what is left out for this reason: junk, no_extension, ...; or ignored, failed, all.",
)
@click.option(
    "--duplicates",
    is_flag=True,
    cls=GroupedOption,
    section="Output",
    help="List every part or key that more than one file claims.",
)
@click.option(
    "--explain",
    type=DidYouMeanChoice(tuple(TOPICS)),
    cls=GroupedOption,
    section="Output",
    help="Explain a word of the output.",
)
@s3_options
@output_options
def command(
    output: Output,
    sources: tuple[str, ...],
    list_reason: str | None,
    duplicates: bool,
    explain: str | None,
    **chosen: Any,
) -> None:
    """Show what SRC holds: files, samples, parts, sizes, what would be left out, and problems; reads no payload."""
    if explain:
        output.result({"schema": "shardtool/explain/1", "topic": explain, "text": TOPICS[explain]}, TOPICS[explain])
        return
    if not sources:
        raise UsageProblem("SRC... is missing", hint="shardtool scan --help shows examples and all options")
    from shardtool.keys import parse_rule
    from shardtool.statistics.survey import survey

    began = time.monotonic()
    decided = _options_of(sources, chosen)
    rule = parse_rule(
        decided.group_by,
        keep_case=decided.keep_case,
        aliases=decided.alias,
        no_ext=decided.no_ext or None,
        escape_names=decided.escape_names,
    )
    scanned = _scan(sources, decided, chosen)
    grouped, error = _group(scanned, decided)
    found = survey(scanned, grouped, rule, error)
    seconds = time.monotonic() - began
    if list_reason:
        _show_left_out(output, found, sources, list_reason, seconds)
        return
    if duplicates:
        _show_duplicates(output, found, sources, scanned, rule, seconds)
        return
    _show(output, found, sources, seconds)
    _raise_problems(found, error)
    output.hint(f"shardtool plan {' '.join(sources)} OUT   shows the shards that packing would make")


def _options_of(sources: tuple[str, ...], chosen: dict[str, Any]) -> PlanOptions:
    from shardtool.cli.choices import plan_options
    from shardtool.planning.plan import PlanOptions

    return plan_options(sources, {**asdict(PlanOptions()), **chosen})


def _scan(sources: tuple[str, ...], decided: PlanOptions, chosen: dict[str, Any]) -> ScanResult:
    from shardtool.executors.local import PRELOAD, workers_for
    from shardtool.packing.prepare import scan_sources
    from shardtool.workers import WorkerPool

    with WorkerPool(workers_for(chosen["workers"]), preload=PRELOAD) as pool:
        return scan_sources(
            sources,
            decided,
            pool,
            on_error=chosen["on_error"],
            null=chosen["null"],
            list_cache=chosen["list_cache"] or "",
        )


def _group(scanned: ScanResult, decided: PlanOptions) -> tuple[Grouped | None, GroupError | None]:
    from shardtool.cli.choices import is_given
    from shardtool.packing.prepare import group_scanned

    try:
        return group_scanned(scanned, decided, trust_parts=is_given("group_by")), None
    except GroupError as error:
        return None, error


def _show(output: Output, found: Survey, sources: tuple[str, ...], seconds: float) -> None:
    from shardtool.report.scan import scan_document, scan_text

    text = scan_text(found, sources, seconds, ascii_only=not output.unicode)
    brief = f"{found.entries} files  {found.samples} samples  {found.num_bytes} bytes"
    output.result(scan_document(found, sources, seconds), text, brief=brief)


def _raise_problems(found: Survey, error: GroupError | None) -> None:
    """All that stands in the way of packing, in one error: troubles of the scan first, then those of grouping.

    Raises:
        SourceError: or the kind of it that the only trouble is.
    """
    from shardtool.packing.prepare import problems_error

    fatal = [problem for problem in found.problems if problem.is_fatal]
    if error is not None and len(fatal) == 1:
        raise error
    if fatal:
        raise problems_error(fatal)


def _show_left_out(output: Output, found: Survey, sources: tuple[str, ...], reason: str, seconds: float) -> None:
    from shardtool.report.scan import left_out_document, left_out_text, scan_document

    tallies = {"ignored": [found.ignored], "failed": [found.failed], "all": [found.ignored, found.failed]}
    entries = [entry for tally in tallies.get(reason, tallies["all"]) for entry in tally.entries]
    if reason not in _KINDS:
        known = sorted({*found.ignored.counts, *found.failed.counts})
        entries = [entry for entry in entries if entry[0] == reason]
        if not entries:
            raise UsageProblem(
                f"--list: nothing is left out as {reason!r}"
                + (f"; the reasons met are {', '.join(known)}" if known else "; nothing is left out at all"),
                hint=did_you_mean(reason, [*known, *_KINDS]) or "--list all lists everything",
                where={"option": "--list"},
            )
    document = {**scan_document(found, sources, seconds), "listed": left_out_document(entries)}
    output.result(document, left_out_text(entries, with_reason=reason in _KINDS))


def _show_duplicates(
    output: Output, found: Survey, sources: tuple[str, ...], scanned: ScanResult, rule: Any, seconds: float
) -> None:
    from shardtool.report.scan import duplicates_document, duplicates_text, scan_document
    from shardtool.statistics.survey import find_duplicates

    pairs = find_duplicates(scanned.entries, rule)
    document = {**scan_document(found, sources, seconds), "duplicates": duplicates_document(pairs)}
    output.result(document, duplicates_text(pairs))
    if not pairs:
        output.step("done", "no part and no key is claimed twice")
