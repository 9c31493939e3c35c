"""Options of `pack --format bin`: how documents become tokens and tokens sequences."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardtool.cli.choices import is_given
from shardtool.cli.command import GroupedOption
from shardtool.cli.options import CountType, DidYouMeanChoice
from shardtool.cli.types import DialectsType
from shardtool.errors import UsageProblem
from shardtool.token_options import TokenOptions

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

SECTION = "Tokens"


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    return click.option(name, cls=GroupedOption, section=SECTION, **settings)


def _choice(name: str, choices: str, text: str, param: str = "") -> Callable[[F], F]:
    words = choices.split("|")
    names = (name, param) if param else (name,)
    return click.option(
        *names, cls=GroupedOption, section=SECTION, type=DidYouMeanChoice(words), default=words[0], show_default=True,
        help=text,
    )  # fmt: skip


_OPTIONS = (
    _option(
        "--tokenizer",
        metavar="FILE",
        default="bytes",
        show_default=True,
        help="With --format bin: a tokenizer.json or its folder, bytes (built in, 257 ids), or none for ids.",
    ),
    _option("--text-field", metavar="NAME", default="text", show_default=True, help="Field or column with the text."),
    _option(
        "--ids-field",
        metavar="NAME",
        default="input_ids",
        show_default=True,
        help="Field or column of --tokenizer none.",
    ),
    _option(
        "--eod",
        metavar="ID",
        default="auto",
        show_default=True,
        help="What ends a document: auto, none, an id, a token.",
    ),
    _choice("--eod-pos", "append|prepend", "On which side of a document it stands."),
    _option("--bos", metavar="ID", default="none", show_default=True, help="What begins a document: an id or a token."),
    _option("--special-tokens", is_flag=True, help="Let text such as <|endoftext|> become special ids."),
    _choice("--dtype", "auto|uint8|uint16|int32|megatron", "Of the ids; megatron is uint16 below 65,500 ids only."),
    _option("--shard-tokens", metavar="N", type=CountType(), help="No shard has more tokens; documents stay whole."),
    _option("--context", metavar="S", type=CountType(), help="Make every sequence exactly S tokens long."),
    _choice(
        "--pack",
        "concat|best-fit",
        "With --context: documents one after the other, or cut as rarely as possible.",
        "packing",
    ),
    _option(
        "--pad",
        metavar="ID",
        default="auto",
        show_default=True,
        help="What fills sequences up; auto is the end of document.",
    ),
    _choice("--empty", "drop|keep|error", "What to do with documents that have no token."),
    _option("--max-doc-tokens", metavar="N", type=CountType(), help="Longer documents follow --on-long."),
    _choice("--on-long", "split|error", "Cut long documents into sequences of --max-doc-tokens, or stop."),
    _choice("--dedup", "none|exact", "Pack documents with equal content once, the first in the source."),
    _option(
        "--emit",
        metavar="LAYOUTS",
        type=DialectsType(),
        default=(),
        help="Offer the data set as ds,olmo,nanogpt,llmc,npy,megatron,nanotron too.",
    ),
)
NAMES = (
    "tokenizer", "text_field", "ids_field", "eod", "eod_pos", "bos", "special_tokens", "dtype", "shard_tokens",
    "context", "packing", "pad", "empty", "max_doc_tokens", "on_long", "dedup", "emit",
)  # fmt: skip


def token_options(function: F) -> F:
    """Tokenizer, end of documents, sequences, and layouts of other trainers."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen_tokens(chosen: dict[str, Any]) -> TokenOptions | None:
    """The token options of a command; None where another format is asked for.

    Raises:
        UsageProblem: token options without --format bin.
    """
    if "tokenizer" not in chosen:  # convert: ids stay as they are
        return TokenOptions(tokenizer="none", eod="none", empty="keep") if chosen["format"] == "bin" else None
    if chosen["format"] != "bin":
        given = [f"--{name.replace('_', '-').replace('packing', 'pack')}" for name in NAMES if is_given(name)]
        if given:
            raise UsageProblem(
                f"{', '.join(given)} needs --format bin", hint=f"add --format bin, not {chosen['format']}"
            )
        return None
    values = {name: chosen[name] for name in NAMES if name != "emit"}
    for name in ("shard_tokens", "context", "max_doc_tokens"):
        values[name] = values[name] or 0
    if values["tokenizer"] not in ("bytes", "none"):
        values["tokenizer"] = os.path.abspath(values["tokenizer"])
    return TokenOptions(**values)
