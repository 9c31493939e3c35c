"""Every option, once: its names, type, default and text. Commands pick them by name or by family.

    @click.command(cls=Command, examples=(...), exit_codes=(3, 5, 6, 7))
    @click.argument("sources", nargs=-1, required=True)
    @source_options
    @options("deep")
    @output_options
    def command(output: Output, **chosen: Any) -> None: ...

A value comes from the flag, else SHARDTOOL_<COMMAND>_<OPTION>, else --config FILE, else the default here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardtool.cli.command import SECTIONS, Command, GroupedOption, read_config, remember
from shardtool.cli.output import Output
from shardtool.cli.progress import MODES
from shardtool.cli.types import (
    CompressType,
    CountType,
    DidYouMeanChoice,
    PairType,
    PartType,
    RateType,
    ReadersType,
    RegexType,
    RuleType,
    SizeType,
    WordsType,
    WorkersType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "OPTIONS",
    "Command",
    "CountType",
    "DidYouMeanChoice",
    "Output",
    "SizeType",
    "grouping_options",
    "options",
    "output_options",
    "running_options",
    "shard_options",
    "source_options",
]

F = TypeVar("F", bound="Callable[..., Any]")

SHARD_SIZE_BYTES = 256 << 20  # default of --shard-size for tar
FORMAT_SLIPS = {
    **dict.fromkeys(("webdataset", "wds", "webdatset"), "tar"),
    **dict.fromkeys(("tar.zst", "tzst", "tar.gz", "tgz"), "tar --compress zstd"),
    **dict.fromkeys(("save_to_disk", "arrow_stream", "ipc-stream"), "arrow-stream"),
    **dict.fromkeys(("megatron", "idx", "tokens"), "bin"),
    **dict.fromkeys(("tfrecords", "tensorflow", "tf"), "tfrecord"),
    **dict.fromkeys(("mosaic", "mosaicml", "streaming"), "mds"),
    **dict.fromkeys(("lit", "lightning"), "litdata"),
}

OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}


def _define(section: str, *names: str, **settings: Any) -> str:
    """Enter an option in the table under its long name; gives that name."""
    name = max(names, key=len).removeprefix("--")
    OPTIONS[name] = (names, {"cls": GroupedOption, "section": section, **settings})
    return name


def _policy(section: str, name: str, choices: str, text: str) -> str:
    """An option whose first choice is its default."""
    words = choices.split("|")
    return _define(section, name, type=DidYouMeanChoice(words), default=words[0], show_default=True, help=text)


def _flag(section: str, *names: str, text: str) -> str:
    return _define(section, *names, is_flag=True, help=text)


def options(*names: str) -> Callable[[F], F]:
    """Decorator that gives a command the options of these long names, in this order."""

    def decorate(function: F) -> F:
        for name in reversed(names):
            declared, settings = OPTIONS[name]
            function = click.option(*declared, **settings)(function)
        return function

    return decorate


SOURCE = (
    _define(
        "Source",
        "--include",
        multiple=True,
        metavar="GLOB",
        help="Take only paths that match; may be repeated. Without a slash it matches the name, with one the path.",
    ),
    _define("Source", "--exclude", multiple=True, metavar="GLOB", help="Leave out paths that match; may be repeated."),
    _define(
        "Source",
        "--files-from",
        metavar="FILE",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="Read the list of files from FILE, one a line; - is stdin.",
    ),
    _flag("Source", "-0", "--null", text="The list of --files-from is separated by NUL, not by newlines."),
    _policy("Source", "--links", "follow|skip|error", "What to do with symbolic links; loops are never followed."),
    _flag("Source", "--hidden", text="Take names that begin with a dot, too."),
    _define(
        "Source",
        "--inventory",
        metavar="URL",
        help="Take the list of objects from the manifest.json of an S3 Inventory instead of asking the store.",
    ),
    _define(
        "Source",
        "--list-cache",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Keep the list of objects in FILE; where it exists, take it instead of asking the store.",
    ),
)

_define(
    "Source",
    "--key-column",
    metavar="COLUMN",
    help="Column of tables that holds the key. [default: key or __key__, else rows are numbered]",
)

GROUPING = (
    _define(
        "Grouping",
        "--group-by",
        type=RuleType(("first-dot", "last-dot", "file", "dir")),
        default="first-dot",
        show_default=True,
        help="Which files are one sample: same name up to the first or last dot, each file, each folder, or a match.",
    ),
    _define("Grouping", "--no-ext", metavar="PART", help="Part name for files that have no extension."),
    _define(
        "Grouping",
        "--alias",
        multiple=True,
        type=PairType(),
        metavar="PART=EXT",
        help="Call files with extension EXT part PART: jpg=jpeg; may be repeated.",
    ),
    _flag("Grouping", "--keep-case", text="Keep JPG and jpg apart; by default extensions are lowered."),
    _flag("Grouping", "--escape-names", text="Write bytes of names that are not UTF-8 as %XX."),
    _define(
        "Grouping", "--require", type=WordsType(), metavar="PARTS", help="Parts that every sample must have: jpg,txt."
    ),
    _define(
        "Grouping",
        "--label-from",
        type=RuleType(("parent",), {"column": "NAME"}),
        help="Add a cls part: the number of the class that the parent folder, a column of --join, or a match names.",
    ),
    _define(
        "Grouping",
        "--join",
        metavar="TABLE",
        type=click.Path(dir_okay=False),
        help="Add columns of a CSV, TSV, JSONL or Parquet table to the samples.",
    ),
    _define(
        "Grouping",
        "--join-key",
        metavar="COLUMN",
        help="Column of TABLE with the key or file of each sample. [default: the first of key, file_name, filename, "
        "file, path, image, id]",
    ),
    _define(
        "Grouping",
        "--join-columns",
        type=WordsType(),
        metavar="COLUMNS",
        help="Columns to take; by default all but the key, the label and those with a part of their own.",
    ),
    _define(
        "Grouping",
        "--join-part",
        metavar="PARTS",
        help="Parts to make, as in txt=caption,json: a txt part of column caption, the other columns as JSON; or none. "
        "[default: json]",
    ),
    _policy(
        "Grouping", "--on-duplicate", "error|first|skip", "Two samples of one key: stop, keep the first, or skip both."
    ),
    _policy(
        "Grouping",
        "--on-missing",
        "error|skip|empty",
        "A sample without a required part or table row: stop, skip it, or pack an empty part.",
    ),
)

SHARDS = (
    _define(
        "Shards",
        "--format",
        type=DidYouMeanChoice(
            ("tar", "parquet", "arrow", "arrow-stream", "bin", "tfrecord", "mds", "litdata"), FORMAT_SLIPS
        ),
        default="tar",
        show_default=True,
        help="Container of the shards.",
    ),
    _define(
        "Shards",
        "--schema",
        multiple=True,
        type=PairType(),
        metavar="PART=KIND",
        help="Make the column of PART binary, string, int64, image, audio or video; may be repeated. By default names"
        " tell: cls is int64, txt and json are string, jpg is image.",
    ),
    _define(
        "Shards",
        "--compress",
        type=CompressType(),
        default="none",
        show_default=True,
        help="Compress tar and mds shards in frames, parquet and arrow in columns that are no media; auto looks at a"
        " sample.",
    ),
    _define(
        "Shards",
        "--link",
        type=RateType(),
        metavar="RATE",
        help="Speed of the way from shards to readers, for --compress auto; 1GB/s is assumed.",
    ),
    _define(
        "Shards",
        "--shard-size",
        type=SizeType(),
        metavar="SIZE",
        help="No shard is larger, headers and padding counted. [default: 256MiB, bin 10GB]",
    ),
    _define(
        "Shards",
        "--shards",
        type=CountType(slip="--shard-size"),
        metavar="N",
        help="Make exactly N shards, of each split.",
    ),
    _define(
        "Shards",
        "--samples-per-shard",
        type=CountType(slip="--shard-size"),
        metavar="N",
        help="N samples in every shard but the last.",
    ),
    _define(
        "Shards",
        "--shards-multiple-of",
        type=CountType(slip="--shard-size"),
        metavar="N",
        help="Round the number of shards up, so that N ranks get equally many.",
    ),
    _policy(
        "Shards",
        "--on-oversize",
        "own-shard|error|skip",
        "One sample alone larger than a shard: give it its own, stop, or skip it.",
    ),
    _policy("Order", "--shuffle", "global|none", "Spread samples over all shards, or keep the order of the source."),
    _define(
        "Order",
        "--seed",
        type=CountType(minimum=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Another seed, another order; the same seed, the same bytes.",
    ),
    _define("Order", "--stratify", type=DidYouMeanChoice(("label",)), help="Give every shard the class mix of all."),
    _define(
        "Order",
        "--split",
        metavar="SHARES",
        help="Cut into splits by chance: train=0.9,validation=0.1.",
    ),
    _define(
        "Order",
        "--split-by",
        type=RuleType(("dir",)),
        help="Take the split from the first folder of the path, or from a match.",
    ),
    _define(
        "Order", "--split-group", type=RegexType(), metavar="REGEX", help="Keep keys with the same match in one split."
    ),
)

RUNNING = (
    _define(
        "Running",
        "-j",
        "--workers",
        type=WorkersType(),
        default="auto",
        show_default=True,
        help="Processes to use; auto looks at CPUs and memory.",
    ),
    _policy("Running", "--executor", "local", "Where shards are packed."),
    _define("Running", "--part", type=PartType(), metavar="i/n", help="Pack part i of n only, counted from 0."),
    _policy("Running", "--durability", "full|none", "Whether finished shards are forced to disk before they count."),
    _flag("Running", "--overwrite", text="Replace a data set in OUT; removes only files that shardtool wrote."),
    _flag("Running", "--rescan", text="Look at the source again before going on with an unfinished OUT."),
    _flag("Running", "--update", text="Pack shards again whose files changed, when no size did."),
    _flag("Running", "--deep", text="Read every byte and compare digests, not only sizes."),
    _policy("Running", "--on-changed", "error|skip", "A file that changed since the scan: stop, or skip its sample."),
    _policy("Running", "--on-error", "error|skip", "A file that cannot be read: stop, or skip its sample."),
    _define(
        "Running", "--max-errors", type=CountType(), metavar="N", help="With skip policies: stop after N failures."
    ),
)

# Picked by name; in no family.
_flag("Running", "-n", "--dry-run", text="Print the plan and write nothing.")
_define(
    "Output",
    "--compat",
    type=ReadersType(),
    default=(),
    help="Say which of these readers drop, merge, split or refuse samples by their names: all, or "
    "webdataset, hf, energon, dali, wids, litdata, tarp, ray.",
)
_define("Running", "--world-size", type=CountType(), metavar="N", help="Ranks that will read, for advice.")
_define("Running", "--loader-workers", type=CountType(), metavar="N", help="Loader processes a rank, for advice.")

OUTPUT = (
    _define(
        "Running",
        "--config",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=read_config,
        help="Take options from a TOML or JSON file.",
    ),
    _define(
        "Output",
        "--json",
        is_flag=True,
        is_eager=True,
        callback=remember,
        help="Print one JSON document; an error is a JSON line on stderr.",
    ),
    _flag("Output", "-q", "--quiet", text="Only results, warnings and errors."),
    _define("Output", "-v", "--verbose", count=True, help="Say more; twice, still more."),
    _define(
        "Output",
        "--debug",
        is_flag=True,
        is_eager=True,
        callback=remember,
        help="Print a traceback with errors.",
    ),
    _define(
        "Output",
        "--progress",
        type=DidYouMeanChoice(MODES),
        default="auto",
        show_default=True,
        help="auto is a bar on a terminal, else a line every 30 s.",
    ),
)


def source_options(function: F) -> F:
    """What to take from the sources."""
    return options(*SOURCE)(function)


def grouping_options(function: F) -> F:
    """Which files make a sample, and what is added to it."""
    return options(*GROUPING)(function)


def shard_options(function: F) -> F:
    """Format, size and number of shards; order, splits and seed."""
    return options(*SHARDS)(function)


def running_options(function: F) -> F:
    """Workers, resuming, durability, and what to do when a file fails."""
    return options(*RUNNING)(function)


def output_options(function: F) -> F:
    """--json, -q, -v, --debug, --progress, --config; the command gets them as one `output: Output`."""

    @functools.wraps(function)
    def command(*args: Any, json: bool, quiet: bool, verbose: int, debug: bool, progress: str, **chosen: Any) -> Any:
        return function(*args, output=Output(json, quiet, verbose, debug, progress), **chosen)

    return options(*OUTPUT)(command)  # type: ignore[return-value]


assert {settings["section"] for _, settings in OPTIONS.values()} <= set(SECTIONS)
