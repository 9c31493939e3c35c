"""Options of the commands that say who reads what: one table, two families, and the `Wish` they make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import CountType, DidYouMeanChoice, SizeType
from shardtool.cli.usage import BadValue
from shardtool.errors import AccessDenied, SourceNotFound, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.assignment.assignment import Wish

    Param = click.Parameter | None
    Ctx = click.Context | None

__all__ = ["emit_options", "load_state_file", "reading_options", "wish_of"]

F = TypeVar("F", bound="Callable[..., Any]")

ORDERS = ("plw", "shard", "none", "full")
ORDER_SLIPS = {"window": "plw", "random": "full", "sequential": "none", "shuffled": "plw", "shards": "shard"}
POLICIES = ("carry", "drop", "pad", "uneven")
POLICY_SLIPS = {
    "wrap": "carry",
    "drop_last": "drop",
    "drop-last": "drop",
    "mask": "pad",
    "repeat": "pad",
    "keep": "uneven",
}
EMITS = ("table", "json", "parquet", "urls", "rows")


class SizesType(click.ParamType[tuple[int, ...]]):
    """Whole numbers above 0, separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[int, ...]:
        """The numbers that `value` spells."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise BadValue(f"{value!r} are no world sizes", hint="write them like 64,96,128", param=param, ctx=ctx)
        return tuple(map(int, words))


class PieceType(click.ParamType[Any]):
    """A number of samples, or `shard`."""

    name = "piece"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> Any:
        """The number, or the word."""
        return "shard" if value == "shard" else CountType().convert(value, param, ctx)


class SpanType(click.ParamType[tuple[int, int]]):
    """`FROM:COUNT`, positions of the stream."""

    name = "span"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[int, int]:
        """(from, count)."""
        if isinstance(value, tuple):
            return value
        first, _, count = str(value).replace(",", "").replace("_", "").partition(":")
        if not (first.isdecimal() and count.isdecimal()) or int(count) < 1:
            raise BadValue(f"{value!r} is not FROM:COUNT", hint="write it like 0:1024", param=param, ctx=ctx)
        return int(first), int(count)


def _count(section: str, *names: str, text: str, minimum: int = 1) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, {"section": section, "type": CountType(minimum=minimum), "metavar": "N", "help": text}


READING = (
    (
        ("--split",),
        {"section": "Source", "metavar": "NAME", "help": "The split to read. [default: the only one, or train]"},
    ),
    _count(
        "Order", "--world-size", text="Data-parallel ranks that read; model-parallel peers count once. [default: 1]"
    ),
    (
        ("--elastic",),
        {
            "section": "Order",
            "type": SizesType(),
            "metavar": "N,N,...",
            "help": "Every world size the run may ever have: the order follows from these, so that it suits them all.",
        },
    ),
    (
        ("--order", "mode"),
        {
            "section": "Order",
            "type": DidYouMeanChoice(ORDERS, ORDER_SLIPS),
            "help": "plw mixes pieces of shards inside windows, shard reads shard after shard, none as packed, full at "
            "random. [default: plw]",
        },
    ),
    _count("Order", "--seed", text="Another seed, another reading order. [default: 0]", minimum=0),
    (
        ("--policy",),
        {
            "section": "Order",
            "type": DidYouMeanChoice(POLICIES, POLICY_SLIPS),
            "help": "The tail of an epoch: carry it into the next, drop it, pad it with marked repeats, or leave it "
            "uneven. [default: carry]",
        },
    ),
    _count("Order", "--batch-size", text="Samples of a step over all ranks. [default: one a rank]"),
    _count("Order", "--epoch", text="Epoch to look at, counted from 0.", minimum=0),
    _count(
        "Order", "--position", text="Samples of the whole run read before; where it goes on. [default: 0]", minimum=0
    ),
    (
        ("--state",),
        {
            "section": "Order",
            "type": click.Path(dir_okay=False),
            "metavar": "FILE",
            "help": "State of a run, as JSON: its order, policy and position.",
        },
    ),
    _count("Order", "--lanes", text="Lanes of the order, instead of the chosen ones."),
    (
        ("--piece",),
        {"section": "Order", "type": PieceType(), "metavar": "N|shard", "help": "Samples read in a row, or a shard's."},
    ),
    _count("Order", "--window", text="Pieces that are mixed with one another."),
    _count("Running", "--num-nodes", text="Nodes the ranks run on. [default: 8 ranks a node]"),
    _count(
        "Running", "--loader-workers", text="Loader processes of a rank; step t is read by worker t % N.", minimum=0
    ),
)
EMIT = (
    _count("Running", "--rank", text="Only this data rank: local_rank * num_nodes + node_rank.", minimum=0),
    _count("Running", "--node-rank", text="Only the ranks of this node.", minimum=0),
    (
        ("--disk",),
        {"section": "Running", "type": SizeType(), "metavar": "SIZE", "help": "Say whether a node's share fits it."},
    ),
    (
        ("--expand",),
        {
            "section": "Output",
            "type": SpanType(),
            "metavar": "FROM:COUNT",
            "help": "List the samples at these positions of the stream, in reading order.",
        },
    ),
    (
        ("--emit",),
        {
            "section": "Output",
            "type": DidYouMeanChoice(EMITS),
            "help": "table for people, json segments, parquet the exact order, urls shard lists for webdataset, "
            "rows of Parquet and Arrow files for Hugging Face datasets.",
        },
    ),
    (
        ("-o", "--output", "folder"),
        {
            "section": "Output",
            "type": click.Path(file_okay=False),
            "metavar": "DIR",
            "help": "Write one file a rank into this new folder.",
        },
    ),
)


def reading_options(function: F) -> F:
    """Which ranks read, in which order, from where on."""
    return _with(READING, function)


def emit_options(function: F) -> F:
    """Of whom to tell, and in which form."""
    return _with(EMIT, function)


def _with(table: tuple[tuple[tuple[str, ...], dict[str, Any]], ...], function: F) -> F:
    for names, settings in reversed(table):
        function = click.option(*names, cls=GroupedOption, **settings)(function)
    return function


def wish_of(chosen: dict[str, Any], *, streams_shards: bool = False) -> Wish:
    """What the options of `reading_options` ask for."""
    from shardtool.assignment.assignment import Wish

    names = ("policy", "mode", "seed", "lanes", "piece", "window", "epoch", "position")
    elastic = chosen["elastic"] or ()
    return Wish(
        split=chosen["split"] or "",
        world_size=chosen["world_size"] or (elastic[0] if elastic else 1),
        elastic=elastic,
        num_nodes=chosen["num_nodes"] or 0,
        loader_workers=chosen["loader_workers"] or 0,
        batch_size=chosen["batch_size"] or 0,
        streams_shards=streams_shards,
        **{name: chosen[name] for name in names},
    )


def load_state_file(path: str | None) -> dict[str, Any] | None:
    """The JSON object in a file of `--state`; one that holds it as `state` will do, too.

    Raises:
        SourceNotFound: there is no such file.
        AccessDenied: it may not be read.
        UsageProblem: it holds no JSON object.
    """
    if path is None:
        return None
    where = {"path": path}
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
    except PermissionError as error:
        raise AccessDenied(f"--state {path}: {error.strerror}", where=where) from error
    except OSError as error:
        raise SourceNotFound(
            f"--state {path}: {error.strerror}", hint="give the file that the run's state was saved in", where=where
        ) from error
    except ValueError as error:
        raise UsageProblem(f"--state {path} is not JSON: {error}", hint="give a state as JSON", where=where) from None
    if isinstance(document, dict) and isinstance(document.get("state"), dict):
        document = document["state"]
    if not isinstance(document, dict):
        raise UsageProblem(f"--state {path} is no JSON object", hint="give a state as JSON", where=where)
    return document
