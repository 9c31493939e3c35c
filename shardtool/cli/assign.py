"""`shardtool assign`: which rank reads what, exactly once, at any world size, from any position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.reading_options import emit_options, load_state_file, reading_options, wish_of
from shardtool.cli.s3_options import s3_options
from shardtool.errors import UsageProblem
from shardtool.units import plural

if TYPE_CHECKING:
    from shardtool.assignment.assignment import Assignment
    from shardtool.assignment.files import Extents
    from shardtool.assignment.summary import Summary
    from shardtool.reading.reading import Dataset

LISTS = ("urls", "rows")  # one list a reader
TABLES = ("parquet", "arrow", "arrow-stream")  # formats whose samples are rows


@click.command(
    cls=Command,
    examples=(
        "shardtool assign out/ --world-size 16 --elastic 8,16,32",
        "shardtool assign out/ --world-size 16 --rank 3 --json --expand 0:1024",
        "shardtool assign out/ --world-size 16 --loader-workers 4 --emit urls -o lists/",
    ),
    exit_codes=(4, 5, 6, 7, 8),
)
@click.argument("out", metavar="OUT")
@reading_options
@emit_options
@s3_options
@output_options
def command(output: Output, out: str, **chosen: Any) -> None:
    """Say which rank reads which samples of OUT, exactly once an epoch, and what that costs."""
    from shardtool.assignment.assignment import assign
    from shardtool.assignment.files import check_empty
    from shardtool.assignment.summary import summarize
    from shardtool.reading.reading import Dataset

    emit, folder = _emit(output, chosen), chosen["folder"]
    if emit == "urls":
        chosen |= _streaming(chosen)
    state = load_state_file(chosen["state"])
    with Dataset.open(out) as dataset:
        found = assign(dataset.manifest, wish_of(chosen, streams_shards=emit == "urls"), state)
        ranks = _ranks(found, chosen)
        _check_emit(dataset, found, emit, ranks, chosen)
        if folder:
            check_empty(folder)
        summary = summarize(found, chosen["disk"])
        if found.shards.others:
            output.step("split", f"{found.shards.name}; the others: {', '.join(found.shards.others)} (--split)")
        _tell(output, dataset, found, summary, ranks, emit, chosen)
    for note in (*found.notes, *summary.advice):
        output.warn(note)


def _emit(output: Output, chosen: dict[str, Any]) -> str:
    """The form of the answer, checked against where it goes."""
    given, folder, expand = chosen["emit"], chosen["folder"], chosen["expand"]
    emit = str(given or ("json" if folder or output.as_json else "table"))
    if emit == "table" and folder:
        raise UsageProblem("a table goes to the terminal", hint="with -o, take --emit json, parquet, rows or urls")
    if emit == "parquet" and not folder:
        raise UsageProblem("Parquet goes to files", hint="add -o DIR")
    if output.as_json and not folder and emit != "json":
        raise UsageProblem(f"--json and --emit {emit} contradict one another", hint="leave one out, or add -o DIR")
    if expand and emit not in ("json", "parquet"):
        raise UsageProblem("--expand lists samples for programs", hint="add --json, or --emit parquet -o DIR")
    return emit


def _streaming(chosen: dict[str, Any]) -> dict[str, Any]:
    """Lists of shards need shards read one after another, and every rank's samples to the end."""
    wanted = {"mode": "shard", "policy": "uneven"}
    for name, value in wanted.items():
        if chosen[name] not in (None, value):
            option = "order" if name == "mode" else name
            raise UsageProblem(
                f"lists of shards need --{option} {value}, not {chosen[name]}",
                hint=f"leave --{option} out, or take --emit parquet: it gives any order",
            )
    return wanted if chosen["state"] is None else {}


def _ranks(found: Assignment, chosen: dict[str, Any]) -> range:
    """The data ranks to tell of."""
    rank, node, world_size = chosen["rank"], chosen["node_rank"], found.deal.world_size
    if rank is not None and node is not None:
        raise UsageProblem(
            "--rank and --node-rank contradict one another", hint="a data rank has one node: leave it out"
        )
    if rank is not None:
        if rank >= world_size:
            raise UsageProblem(
                f"there is no rank {rank} among {world_size}", hint=f"ranks count from 0: --rank 0 to {world_size - 1}"
            )
        return range(rank, rank + 1)
    if node is not None:
        if node >= found.num_nodes:
            raise UsageProblem(
                f"there is no node {node} among {found.num_nodes}",
                hint=f"nodes count from 0: --node-rank 0 to {found.num_nodes - 1}",
            )
        return range(node, world_size, found.num_nodes)
    return range(world_size)


def _check_emit(dataset: Dataset, found: Assignment, emit: str, ranks: range, chosen: dict[str, Any]) -> None:
    if emit not in LISTS:
        return
    if emit == "rows" and dataset.manifest.format not in TABLES:
        raise UsageProblem(
            f"rows are those of Parquet and Arrow files, and {dataset.path} is {dataset.manifest.format}",
            hint="take --emit json or parquet: they list samples of any format",
        )
    if emit == "urls":
        _check_urls(dataset, found)
    if not chosen["folder"] and len(ranks) * (max(1, found.wish.loader_workers) if emit == "urls" else 1) > 1:
        raise UsageProblem(
            "several lists cannot share one output", hint="add -o DIR, or --rank without --loader-workers"
        )


def _check_urls(dataset: Dataset, found: Assignment) -> None:
    if dataset.manifest.format != "tar" or dataset.manifest.compression != "none":
        found_format = dataset.manifest.format
        if dataset.manifest.compression != "none":
            found_format += f" compressed with {dataset.manifest.compression}"
        raise UsageProblem(
            f"webdataset reads plain tar, and {dataset.path} is {found_format}", hint="take --emit json or parquet"
        )
    found.stream(0, 0)  # says what is wrong before anything is written


def _tell(
    output: Output,
    dataset: Dataset,
    found: Assignment,
    summary: Summary,
    ranks: range,
    emit: str,
    chosen: dict[str, Any],
) -> None:
    from shardtool.assignment.files import assign_pieces, extents_of, head_document, reader_rows, reader_urls

    folder = chosen["folder"]
    if chosen["expand"]:
        found.sequence(0, *chosen["expand"])  # says what is wrong before anything is written
    extents = extents_of(dataset) if emit in ("json", "parquet", "urls") else None  # what asks for an index
    head = head_document(found, summary)
    if folder:
        names = _write(folder, dataset, found, head, ranks, emit, extents, chosen["expand"])
        counted = [
            {"rank": rank, "node": found.node_of(rank), "samples": int(found.rank_samples[rank])} for rank in ranks
        ]
        document = {**head, "ranks": counted, "folder": folder, "files": names}
        output.result(document, _text(output, found, summary, ranks), brief=folder)
        output.step("wrote", f"{folder}   {plural(len(names), 'file')}, {names[0]}{' ..' if len(names) > 1 else ''}")
    elif emit == "json":
        for piece in assign_pieces(head, found, ranks, extents, chosen["expand"]):
            output.raw(piece.encode())
    elif emit == "urls":
        assert extents is not None
        for url in reader_urls(found, ranks[0], 0, extents, dataset):
            output.raw(f"{url}\n".encode("utf-8", "surrogateescape"))
    elif emit == "rows":
        for line in reader_rows(found, ranks[0], dataset):
            output.raw(f"{line}\n".encode())
    else:
        output.result({}, _text(output, found, summary, ranks))


def _text(output: Output, found: Assignment, summary: Summary, ranks: range) -> str:
    from shardtool.assignment.summary import share_of
    from shardtool.report.assign import render_assignment

    is_listed = output.verbose or len(ranks) < found.deal.world_size
    shares = [(rank, share_of(found, [rank])) for rank in ranks] if is_listed else []
    return render_assignment(found, summary, shares, ascii_only=not output.unicode)


def _write(
    folder: str,
    dataset: Dataset,
    found: Assignment,
    head: dict[str, Any],
    ranks: range,
    emit: str,
    extents: Extents | None,
    expand: tuple[int, int] | None,
) -> list[str]:
    """Write one file a rank, for `urls` one a loader worker; gives their names."""
    from shardtool.assignment.files import (
        assign_pieces,
        rank_file,
        reader_rows,
        reader_urls,
        write_parquet,
        write_text,
    )

    names: list[str] = []
    size, workers = found.deal.world_size, max(1, found.wish.loader_workers)
    for rank in ranks:
        if emit == "json":
            names.append(rank_file(rank, size, ".json"))
            write_text(folder, names[-1], assign_pieces(head, found, [rank], extents, expand))
        elif emit == "parquet":
            names.append(rank_file(rank, size, ".parquet"))
            first, count = expand or (found.position, found.num_left)
            write_parquet(folder, names[-1], found, found.sequence(rank, first, count), extents)
        elif emit == "rows":
            names.append(rank_file(rank, size, ".jsonl"))
            write_text(folder, names[-1], (f"{line}\n" for line in reader_rows(found, rank, dataset)))
        else:
            assert extents is not None
            for worker in range(workers):
                names.append(rank_file(rank, size, ".urls", worker if workers > 1 else None))
                urls = reader_urls(found, rank, worker, extents, dataset)
                write_text(folder, names[-1], (f"{url}\n" for url in urls))
    return names
