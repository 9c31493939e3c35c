"""What the tests beside other libraries share: packed data sets, and what a page of the documentation runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import doc_examples
from doc_examples import ROOT
from helpers import make_tree, pack

if TYPE_CHECKING:
    from pathlib import Path

PETS = ROOT / "fixtures" / "pets"


def packed_pets(folder: Path) -> str:
    """The pets with class numbers, in about six shards."""
    out = folder / "pets-out"
    pack(PETS, out, shard_size=64 << 10, label_from="parent")
    return str(out)


def packed_numbers(folder: Path, count: int, *, per_shard: int = 16) -> str:
    """`count` samples `s0000.txt` ..., each holding its own number, some of them with a `.bin` of their own length."""
    files: dict[str, bytes] = {f"s{number:05d}.txt": str(number).encode() for number in range(count)}
    files |= {f"s{number:05d}.bin": bytes([number % 251]) * number for number in range(0, count, 3)}
    out = folder / f"numbers-{count}-{per_shard}"
    pack(make_tree(folder / f"tree-{count}-{per_shard}", files), out, samples_per_shard=per_shard)
    return str(out)


def key_of(sample: dict[str, object]) -> str:
    """The key of a sample; for `map`."""
    return str(sample["__key__"])


def keys_of(batch: list[dict[str, object]]) -> list[str]:
    """A collate function that keeps the keys."""
    return [str(sample["__key__"]) for sample in batch]


def complaints_about(page: str, reason: str, tmp_path: Path) -> list[str]:
    """What a cookbook page says wrongly, with the blocks that are marked `not run: REASON` run as well."""
    text = (ROOT / "docs" / "cookbook" / page).read_text(encoding="utf-8")
    text = re.sub(rf"^<!-- not run: {re.escape(reason)}.*-->$", "", text, flags=re.MULTILINE)
    folder = tmp_path / "page"
    folder.mkdir()
    return doc_examples.complaints(doc_examples.run_steps(doc_examples.steps_of(text), folder))
