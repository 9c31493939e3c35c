"""`shardtool stage`: a node's share of a data set on its own disk, every block verified."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, CountType, DidYouMeanChoice, Output, SizeType, options, output_options
from shardtool.cli.reading_options import READING, load_state_file, wish_of
from shardtool.cli.s3_options import s3_options
from shardtool.cli.usage import BadValue
from shardtool.errors import DamageFound, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.staging.request import StageRequest
    from shardtool.storage.base import Place

    Param = click.Parameter | None
    Ctx = click.Context | None

F = TypeVar("F", bound="Callable[..., Any]")

NOT_HERE = ("--epoch", "--loader-workers", "--num-nodes")  # told by --epochs; of no matter; with other words below
MAX_EPOCHS = 10_000  # each is looked at: a millisecond and more
MODES = ("status", "verify", "gc")


class EpochsType(click.ParamType[tuple[int, int]]):
    """`FIRST:END`, the end left out."""

    name = "epochs"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[int, int]:
        """(first, end)."""
        if isinstance(value, tuple):
            return value
        first, colon, end = str(value).partition(":")
        if not colon:
            first, end = "0", first
        if not (first.isdecimal() and end.isdecimal()) or int(first) >= int(end):
            raise BadValue(
                f"{value!r} is not FIRST:END", hint="write it like 0:3, for epochs 0, 1 and 2", param=param, ctx=ctx
            )
        if int(end) - int(first) > MAX_EPOCHS:
            raise BadValue(
                f"{value!r} are more than {MAX_EPOCHS:,} epochs",
                hint="--all brings every shard, whatever the epochs",
                param=param,
                ctx=ctx,
            )
        return int(first), int(end)


def _option(section: str, *names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, {"section": section, **settings}


def _count(section: str, *names: str, text: str, minimum: int = 1) -> tuple[tuple[str, ...], dict[str, Any]]:
    return _option(section, *names, type=CountType(minimum=minimum), metavar="N", help=text)


def _flag(section: str, *names: str, text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    return _option(section, *names, is_flag=True, help=text)


WHAT = (
    _flag("Source", "--all", "takes_all", text="Every shard, or every one of --split, instead of the node's share."),
    _option("Source", "--shards", metavar="LIST", help="These shards, by their place in the manifest: 0-99,120."),
    _option(
        "Order",
        "--epochs",
        type=EpochsType(),
        default="0:1",
        show_default=True,
        metavar="FIRST:END",
        help="Bring what these epochs read; the end is left out.",
    ),
    _count("Running", "--num-nodes", text="Nodes of the run. [default: what the launcher says, else 1]"),
    _count("Running", "--node-rank", text="This node, from 0. [default: what the launcher says]", minimum=0),
    _count("Running", "--local-world-size", text="Data ranks on each node. [default: what the launcher says]"),
)
HOW = (
    _flag("Running", "--numa", text="Several DST, one a socket: a shard goes to the socket of the rank that reads it."),
    _count(
        "Running", "--ready-after", text="Return when N shards of each rank are there; the rest comes in background."
    ),
    _option(
        "Running",
        "--budget",
        type=SizeType(),
        metavar="SIZE",
        help="Room for shards; what is read latest goes first, as training says how far it is.",
    ),
    _option("Running", "--reserve", type=SizeType(), metavar="SIZE", help="Room to leave free on DST. [default: none]"),
    _flag("Running", "--decompress", text="Decompress shards on arrival: DST gets raw ones, read without that work."),
    _flag("Running", "--keep-compressed", text="With --decompress: leave the compressed shards in DST, too."),
    _option(
        "Running",
        "-j",
        "--jobs",
        type=CountType(),
        default=8,
        show_default=True,
        metavar="N",
        help="Blocks of 16 MiB on their way at a time.",
    ),
    _option("Running", "--bwlimit", type=SizeType(), metavar="SIZE", help="Bytes a second, at most."),
    _option(
        "Running",
        "--page-cache",
        type=DidYouMeanChoice(("auto", "keep", "drop")),
        default="auto",
        show_default=True,
        help="Whether staged bytes stay in memory; auto keeps what fits half of it.",
    ),
)
LOOK = (
    _flag("Output", "--status", text="Say what is staged in DST and how far a copy is."),
    _flag("Output", "--verify", text="Read all that is staged in DST again and compare digests."),
    _flag("Output", "--gc", text="Remove from DST what copies that ended left unfinished."),
    _option(
        "Output", "--drop", multiple=True, metavar="NAME", help="With --gc: remove this version, too; may be repeated."
    ),
)


def _with(table: tuple[Any, ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for names, settings in reversed(table):
            function = click.option(*names, cls=GroupedOption, **settings)(function)
        return function

    return decorate


@click.command(
    cls=Command,
    examples=(
        "shardtool stage s3://lab/out /nvme --num-nodes 8 --node-rank 3",
        "shardtool stage out/ /nvme --ready-after 2 && torchrun train.py",
        "shardtool stage --status /nvme",
    ),
    exit_codes=(3, 4, 5, 6, 7, 8),
)
@click.argument("places", nargs=-1, required=True, metavar="SRC DST")
@_with(tuple(entry for entry in READING if entry[0][0] not in NOT_HERE))
@_with(WHAT)
@_with(HOW)
@options("durability", "dry-run")
@_with(LOOK)
@s3_options
@output_options
def command(output: Output, places: tuple[str, ...], **chosen: Any) -> None:
    """Bring a node's share of SRC to DST on its own disk, every block verified."""
    modes = [mode for mode in MODES if chosen[mode]]
    if len(modes) > 1:
        raise UsageProblem(f"--{modes[0]} and --{modes[1]} contradict one another", hint="take one of them")
    if chosen["drop"] and not chosen["gc"]:
        raise UsageProblem("--drop removes a version", hint="add --gc, if that is meant")
    if modes:
        LOOKS[modes[0]](output, _last(places, modes[0]), chosen)
        return
    from shardtool.storage import open_place

    request = _request(output, places, chosen)
    _stage(output, open_place(request.source), request, chosen)


def _last(places: tuple[str, ...], mode: str) -> str:
    if len(places) > 2:
        raise UsageProblem(f"--{mode} looks at one DST", hint=f"shardtool stage --{mode} {places[-1]}")
    return places[-1]


def _stage(output: Output, place: Place, request: StageRequest, chosen: dict[str, Any]) -> None:
    from shardtool.report.stage import plan_text, stage_text, staged_next

    if chosen["dry_run"]:
        from shardtool.staging.estimate import estimate

        plan = estimate(place, request)
        output.result(plan.document(), plan_text(plan))
        return
    if request.ready_after:
        from shardtool.staging.background import stage_ahead as run
    else:
        from shardtool.staging.stage import stage as run
    result = run(place, request, output)
    output.result(result.document(), stage_text(result), brief="\n".join(result.paths))
    for line in staged_next(result):
        output.hint(line)


def _request(output: Output, places: tuple[str, ...], chosen: dict[str, Any]) -> StageRequest:
    from dataclasses import replace

    from shardtool.staging.nodes import find_node
    from shardtool.staging.request import StageRequest

    source, *targets = places
    if not targets:
        raise UsageProblem(f"DST is missing: where to bring {source}", hint=f"shardtool stage {source} /nvme")
    if len(targets) > 1 and not chosen["numa"]:
        raise UsageProblem(
            f"{len(targets)} DST were given", hint="with --numa each is the disk of one socket; else give one"
        )
    if chosen["takes_all"] and chosen["shards"]:
        raise UsageProblem("--all and --shards contradict one another", hint="leave one out")
    if chosen["keep_compressed"] and (not chosen["decompress"] or chosen["budget"]):
        raise UsageProblem(
            "--keep-compressed goes with --decompress, and not with --budget", hint="leave --keep-compressed out"
        )
    select = "all" if chosen["takes_all"] else "list" if chosen["shards"] else "share"
    node = find_node(
        os.environ,
        node=chosen["node_rank"],
        num_nodes=chosen["num_nodes"],
        local_ranks=chosen["local_world_size"],
        world_size=chosen["world_size"],
    )
    if select == "share" and node.found_by:
        output.detail(f"{node.found_by}: node {node.node} of {node.num_nodes}, ranks on each: {node.local_ranks}")
    wish = wish_of({**chosen, "loader_workers": None, "epoch": None, "num_nodes": node.num_nodes})
    elastic = chosen["elastic"] or ()
    return StageRequest(
        source=source,
        targets=tuple(targets),
        select=select,
        listed=chosen["shards"] or "",
        node=node.node,
        epochs=chosen["epochs"],
        wish=replace(wish, world_size=node.world_size, elastic=elastic),
        state=load_state_file(chosen["state"]),
        jobs=chosen["jobs"],
        bytes_per_s=chosen["bwlimit"] or 0,
        budget=chosen["budget"] or 0,
        reserve=chosen["reserve"] or 0,
        page_cache=chosen["page_cache"],
        durable=chosen["durability"] == "full",
        ready_after=chosen["ready_after"] or 0,
        decompress="keep" if chosen["keep_compressed"] else "drop" if chosen["decompress"] else "",
        launcher=os.getppid(),
    )


def _status(output: Output, place: str, chosen: dict[str, Any]) -> None:
    from shardtool.report.stage import status_text
    from shardtool.staging.upkeep import look, status_document

    folders = look(place)
    output.result(status_document(folders), status_text(folders, place))


def _clean(output: Output, place: str, chosen: dict[str, Any]) -> None:
    from shardtool.report.stage import removed_text
    from shardtool.staging.upkeep import clean, look, status_document

    removed = clean(place, chosen["drop"])
    folders = look(place) if os.path.isdir(place) else []
    output.result(status_document(folders, removed), removed_text(folders, place, removed))


def _verify(output: Output, place: str, chosen: dict[str, Any]) -> None:
    from shardtool.report.stage import repair_command
    from shardtool.report.verify import summary, verify_text
    from shardtool.staging.check import check_staged

    result, source = check_staged(place, output, chosen["jobs"])
    output.result(result.document(), verify_text(result))
    if not result.is_ok:
        fault = result.faults[0]
        raise DamageFound(
            summary(result), hint=repair_command(result.path, source), where={"path": fault.path, "shard": fault.shard}
        )


LOOKS: dict[str, Callable[[Output, str, dict[str, Any]], None]] = {"status": _status, "verify": _verify, "gc": _clean}
