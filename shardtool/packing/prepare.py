"""From source folders to a plan: scan, group, join, label, require, plan; and the ledger of what is not packed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, SourceError, SourceNotFound, UsageProblem
from shardtool.grouping.group import group
from shardtool.grouping.labels import COLUMN, add_labels
from shardtool.grouping.required import apply_required
from shardtool.grouping.twins import twin_names
from shardtool.keys import parse_rule
from shardtool.model import Tally
from shardtool.packing.packed_source import shards_noticed
from shardtool.planning.compress_choice import FRAMED, choose
from shardtool.planning.plan import format_for, make_plan
from shardtool.planning.plan_file import Ledger
from shardtool.scan import scan
from shardtool.sources.junk import NameRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import Origin, Problem, SampleTable, ScanResult
    from shardtool.planning.compress_choice import Choice
    from shardtool.planning.plan import Plan, PlanOptions
    from shardtool.workers import WorkerPool


NOTABLE_LINKS = 10  # and a tenth of the entries


@dataclass(frozen=True)
class Grouped:
    """Samples ready to be planned, and all that was met on the way to them."""

    scanned: ScanResult
    samples: SampleTable
    ignored: Tally
    failed: Tally
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Prepared:
    """A plan and the ledger that goes with it."""

    plan: Plan
    ledger: Ledger
    ignored: Tally
    failed: Tally
    notices: tuple[str, ...]
    scanned: ScanResult
    scanned_at: float  # time.monotonic() when the scan began
    choice: Choice | None = None  # what `--compress auto` came to


def scan_sources(
    roots: tuple[str, ...],
    options: PlanOptions,
    pool: WorkerPool | None,
    *,
    on_error: str = "error",
    null: bool = False,
    list_cache: str = "",
    spool: str = "",
) -> ScanResult:
    """What the sources hold, as the options select it; problems are returned, not raised.

    Args:
        spool: where sources that must be decoded are unpacked to; "" only measures them.
    """
    if options.source == "shards":
        from shardtool.shard_sources import scan_shards

        if options.files_from:
            raise UsageProblem("--files-from lists files, not samples in shards", hint="--include and --exclude choose")
        rules = NameRules(
            options.hidden, tuple(map(os.fsencode, options.include)), tuple(map(os.fsencode, options.exclude))
        )
        return scan_shards(
            roots,
            rules,
            pool,
            spool=spool,
            key_column=options.key_column,
            on_error=on_error,
            in_order=options.shuffle != "global",
        )
    return scan(
        roots,
        include=options.include,
        exclude=options.exclude,
        files_from=options.files_from or None,
        null_separated=null,
        links=options.links,
        hidden=options.hidden,
        on_error=on_error,
        pool=pool,
        inventory=options.inventory,
        list_cache=list_cache,
    )


def raise_problems(scanned: ScanResult) -> None:
    """All fatal problems of a scan, in one error.

    Raises:
        SourceError: or a kind of it that says more.
    """
    fatal = [problem for problem in scanned.problems if problem.is_fatal]
    if fatal:
        raise problems_error(fatal)


def problems_error(fatal: Sequence[Problem]) -> SourceError:
    """One error that says all of `fatal`: each with its examples, and every hint once."""
    lines = []
    for problem in fatal:
        lines += [problem.message, *(f"  {example}" for example in problem.examples)]
    kinds = {problem.kind for problem in fatal}
    error = SourceError
    if kinds == {"access_denied"}:
        error = AccessDenied
    elif kinds == {"not_found"}:
        error = SourceNotFound
    return error("\n".join(lines), hint="; ".join(dict.fromkeys(problem.hint for problem in fatal if problem.hint)))


def group_scanned(
    scanned: ScanResult, options: PlanOptions, pool: WorkerPool | None = None, *, trust_parts: bool = False
) -> Grouped:
    """Samples with labels and joined parts, as the options ask.

    Raises:
        GroupError: samples that would be lost, merged or cut.
    """
    _check_join_options(options)
    ignored, failed = Tally(), Tally()
    ignored.merge(scanned.ignored)
    failed.merge(scanned.failed)
    entries = scanned.entries
    if options.join:
        from shardtool.grouping.join import join, without_table

        entries, place = without_table(entries, options.join)
        if place is not None:
            ignored.add("joined_table", place, "it is joined to the samples")
    origin = scanned.origin
    has_part_names = origin is not None and origin.has_part_names
    rule = parse_rule(
        options.group_by,
        keep_case=options.keep_case or has_part_names,
        aliases=options.alias,
        no_ext=options.no_ext or None,
        escape_names=options.escape_names,
    )
    grouping = group(
        entries,
        rule,
        seed=options.seed,
        on_duplicate=options.on_duplicate,
        trust_parts=trust_parts or has_part_names,
        pool=pool,
    )
    ignored.merge(grouping.ignored)
    samples = grouping.samples if origin is None else with_origin(grouping.samples, origin)
    twins = twin_names(samples, options.seed)
    problems = [*scanned.problems, *grouping.problems, *([twins] if twins else [])]
    if origin is None and options.group_by != "file":
        problems += shards_noticed(scanned, samples)
    label_column = options.label_from.removeprefix(COLUMN) if options.label_from.startswith(COLUMN) else ""
    if options.join:
        joined = join(
            samples,
            options.join,
            seed=options.seed,
            key=options.join_key,
            columns=options.join_columns,
            part=options.join_part,
            label=label_column,
            on_missing=options.on_missing,
        )
        samples = joined.samples
        failed.merge(joined.dropped)
        problems += joined.problems
    if options.label_from and not label_column:
        samples = add_labels(samples, options.label_from)
    samples, dropped = apply_required(samples, options.require, options.on_missing)
    failed.merge(dropped)
    return Grouped(scanned, samples, ignored, failed, tuple(problems))


def with_origin(samples: SampleTable, origin: Origin) -> SampleTable:
    """`samples` with the splits and labels that their shards knew; labels only where every sample has one."""
    first = samples.part_entry[samples.part_start[:-1]]
    labels, splits = origin.labels[first], origin.splits[first]
    if origin.label_names and (labels >= 0).all():
        samples = replace(samples, labels=labels, label_names=list(origin.label_names))
    if (splits >= 0).any():
        samples = replace(samples, splits=splits, split_names=origin.split_names)
    return samples


def _check_join_options(options: PlanOptions) -> None:
    """Options that say what to take from a table come with a table."""
    if options.join:
        return
    for name, value in (
        ("--join-key", options.join_key),
        ("--join-columns", options.join_columns),
        ("--join-part", options.join_part),
        (f"--label-from {COLUMN}NAME", options.label_from.startswith(COLUMN)),
    ):
        if value:
            raise UsageProblem(f"{name} needs a table", hint="--join metadata.csv")


def prepare(
    roots: tuple[str, ...],
    options: PlanOptions,
    pool: WorkerPool | None = None,
    *,
    on_error: str = "error",
    null: bool = False,
    trust_parts: bool = False,
    list_cache: str = "",
    spool: str = "",
) -> Prepared:
    """The plan for these sources and options. No payload byte is read, save a few samples for `--compress auto`.

    Raises:
        SourceError: the scan met something that a policy forbids.
        GroupError, PlanError: as `group` and `make_plan` say.
    """
    scanned_at = time.monotonic()
    scanned = scan_sources(roots, options, pool, on_error=on_error, null=null, list_cache=list_cache, spool=spool)
    raise_problems(scanned)
    grouped = group_scanned(scanned, options, pool, trust_parts=trust_parts)
    choice = None
    if options.compress == "auto" and options.format in FRAMED:
        choice = choose(grouped.samples, format_for(grouped.samples, options, "none"), options.link)
    plan = make_plan(grouped.samples, options, choice.compress if choice else "")
    failed = Tally()
    failed.merge(grouped.failed)
    failed.merge(plan.failed)
    ledger = Ledger(scanned.seen, dict(grouped.ignored.counts), failed.total())
    notices = [*_links(scanned), *_losses(scanned), *problem_texts(grouped.problems), *plan.notices]
    return Prepared(plan, ledger, grouped.ignored, failed, tuple(notices), scanned, scanned_at, choice)


def _links(scanned: ScanResult) -> list[str]:
    """A notice where links make up much of the source: what they point to is packed under each name."""
    if scanned.num_links < NOTABLE_LINKS or 10 * scanned.num_links < scanned.entries.num_entries:
        return []
    return [
        f"{scanned.num_links:,} links were followed: what they point to is packed under each of its names. "
        "Without them: --links skip"
    ]


def _losses(scanned: ScanResult) -> list[str]:
    """What shards knew and the new ones will not."""
    return [] if scanned.origin is None else [f"not carried over: {loss}" for loss in scanned.origin.losses]


def problem_texts(problems: tuple[Problem, ...]) -> list[str]:
    """What a scan has to say and packing goes on."""
    return [
        (f"{problem.message}: {', '.join(problem.examples)}" if problem.examples else problem.message)
        + (f"; {problem.hint}" if problem.hint else "")
        for problem in problems
        if not problem.is_fatal
    ]
