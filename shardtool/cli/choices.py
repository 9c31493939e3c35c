"""From the values of options to what the library takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from shardtool.planning.plan import PlanOptions

if TYPE_CHECKING:
    from shardtool.packing.build import PackRequest
    from shardtool.token_options import TokenOptions

_SAME_NAME = (
    "format",
    "compress",
    "shuffle",
    "group_by",
    "keep_case",
    "on_oversize",
    "on_missing",
    "on_duplicate",
    "links",
    "hidden",
    "seed",
    "include",
    "exclude",
)
_NONE_IS_EMPTY = ("stratify", "split", "split_by", "split_group", "no_ext", "label_from", "join_key", "join_part")
_NONE_IS_ZERO = ("link", "shard_size", "shards", "samples_per_shard")


def plan_options(sources: tuple[str, ...], chosen: dict[str, Any]) -> PlanOptions:
    """The options that decide the plan."""
    values: dict[str, Any] = {
        **{name: chosen[name] for name in _SAME_NAME},
        **{name: chosen[name] or "" for name in _NONE_IS_EMPTY},
        **{name: chosen[name] or 0 for name in _NONE_IS_ZERO},
    }
    return PlanOptions(
        **values,
        shards_multiple_of=chosen["shards_multiple_of"] or 1,
        alias=tuple(f"{part}={extension}" for part, extension in chosen["alias"]),
        schema=tuple(f"{part}={kind}" for part, kind in chosen["schema"]),
        escape_names=chosen["escape_names"],
        require=tuple(chosen["require"] or ()),
        join=os.path.abspath(chosen["join"]) if chosen["join"] else "",
        join_columns=tuple(chosen["join_columns"] or ()),
        files_from=_list_place(chosen["files_from"]),
        inventory=_inventory_place(chosen.get("inventory")),
        source=chosen.get("source", "files"),
        key_column=chosen.get("key_column") or "",
        tokens=_tokens(chosen),
    )


def _tokens(chosen: dict[str, Any]) -> TokenOptions | None:
    from shardtool.cli.token_options import chosen_tokens

    return chosen_tokens(chosen)


def _list_place(place: str | None) -> str:
    return os.path.abspath(place) if place and place != "-" else place or ""


def _inventory_place(place: str | None) -> str:
    return os.path.abspath(place) if place and "://" not in place else place or ""


def pack_request(sources: tuple[str, ...], out: str, options: PlanOptions, chosen: dict[str, Any]) -> PackRequest:
    """The run that the options ask for."""
    from shardtool.packing.build import PackRequest

    return PackRequest(
        sources=sources,
        out=out,
        options=options,
        null=chosen["null"],
        list_cache=chosen.get("list_cache") or "",
        trust_parts=is_given("group_by"),
        on_changed=chosen["on_changed"],
        on_error=chosen["on_error"],
        max_errors=chosen["max_errors"] or 0,
        durable=chosen["durability"] == "full",
        overwrite=chosen["overwrite"],
        rescan=chosen["rescan"],
        update=chosen["update"],
        deep=chosen["deep"],
        part=chosen["part"],
    )


def is_given(name: str) -> bool:
    """Whether the user chose this option, anywhere, rather than leaving its default."""
    context = click.get_current_context()
    source = context.get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT)
