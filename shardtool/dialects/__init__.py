"""Other loaders' own index files, made from the offsets that our indexes hold: no shard is read again.

A dialect is a function `(Dataset, shares) -> Emission` that checks everything and then names files, whose bytes are
made when they are written. It refuses, before a byte is written, what its loader would read wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from shardtool.errors import UsageProblem
from shardtool.plugins import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardtool.reading.reading import Dataset

DIALECTS = {
    "wids": "shardtool.dialects.wids:emit",
    "sizes": "shardtool.dialects.lists:emit_sizes",
    "list": "shardtool.dialects.lists:emit_list",
    "dali": "shardtool.dialects.dali:emit",
    "energon": "shardtool.dialects.energon:emit",
    "hf-card": "shardtool.dialects.hf_card:emit",
    "mds": "shardtool.dialects.mds:emit",
    "ds": "shardtool.dialects.tokens:emit_ds",
    "olmo": "shardtool.dialects.tokens:emit_olmo",
    "nanogpt": "shardtool.dialects.tokens:emit_nanogpt",
    "llmc": "shardtool.dialects.tokens:emit_llmc",
    "npy": "shardtool.dialects.tokens:emit_npy",
    "megatron": "shardtool.dialects.trainers:emit_megatron",
    "nanotron": "shardtool.dialects.trainers:emit_nanotron",
}


@dataclass(frozen=True)
class SideFile:
    """A small file beside the shards."""

    path: str  # below the data set's folder
    content: Callable[[], Iterable[bytes]]  # the same bytes at every call
    shares: str = ""  # a file of the data set with these very bytes: a hard link to it takes no space
    is_template: bool = False  # for users to edit: one that is there is left alone


@dataclass(frozen=True)
class Emission:
    """What one dialect writes, and how its loader is told of it."""

    dialect: str
    files: tuple[SideFile, ...]
    recipe: str  # Python that reads the data set
    needs_card: bool = False  # files beside the shards, which Hugging Face takes for data unless a card says otherwise


def get_dialect(name: str) -> Callable[[Dataset, str], Emission]:
    """The function of the dialect called `name`: it takes the data set and shares for a split of its shards.

    Raises:
        UsageProblem: no such name.
    """
    if name not in DIALECTS:
        raise UsageProblem(f"{name!r} is no dialect", hint=f"one of: {', '.join(DIALECTS)}")
    return cast("Callable[[Dataset, str], Emission]", resolve(DIALECTS[name]))


def prepare(dataset: Dataset, names: Sequence[str], shares: str = "") -> list[Emission]:
    """What the dialects called `names` would write; all of them have checked the data set then.

    Args:
        names: of `DIALECTS`; one that is named twice counts once.
        shares: for loaders that split by shards, such as `train=7,val=2,test=1`; "" keeps the data set's own splits.

    Raises:
        UsageProblem: no such dialect, or one that cannot express this data set.
    """
    return [get_dialect(name)(dataset, shares) for name in dict.fromkeys(names)]
