"""What the tests beside other loaders share: data sets with side files, and what is in them by the standard library."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from babel import names_in
from corpora import CORPORA, fetch
from doc_examples import ROOT
from helpers import make_tree, pack, read_tar, shard_paths

from shardtool import columns
from shardtool.compat import ShardNames, Verdict, examine
from shardtool.dialects import prepare
from shardtool.dialects.rules import READERS
from shardtool.emitted import write_emissions
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from babel import Babel

PETS = ROOT / "fixtures" / "pets"


def packed_with(out: Path, dialects: list[str], source: Path = PETS, **options: Any) -> str:
    """`source` packed to `out`, with the files of these dialects."""
    pack(source, out, **options)
    emit(str(out), dialects)
    return str(out)


def emit(out: str, dialects: list[str]) -> None:
    """The files of these dialects beside the data set in `out`."""
    with Dataset.open(out) as dataset:
        write_emissions(out, prepare(dataset, dialects), durable=False)


def real_corpus(out: Path, dialects: list[str], **options: Any) -> str:
    """A real corpus of 5,500 icons packed to `out`; skips where it cannot be had."""
    corpus = CORPORA["adwaita"]
    if reason := fetch(corpus):
        pytest.skip(reason)
    return packed_with(out, dialects, corpus.roots[0], **{"no_ext": corpus.no_ext, "shard_size": 1 << 20, **options})


def some_tree(folder: Path) -> Path:
    """Ordinary, odd and empty names and parts, all of them such as every loader reads."""
    names = ["1", "a/2", "a/b.c/3", "a-b_c/4+5", "z/" + "n" * 80]
    files: dict[Any, bytes] = {f"{name}.txt": name.encode() * 9 for name in names}
    files |= {f"{name}.bin": bytes(range(256)) * (len(name) % 5) for name in names}
    return make_tree(folder, files)


def samples_of(out: str, split: str = "") -> dict[str, dict[str, bytes]]:
    """{key: {part: bytes}} of a tar data set, by the standard library."""
    found: dict[str, dict[str, bytes]] = defaultdict(dict)
    records = load_manifest(out).shards
    for path, record in zip(shard_paths_of(out), records, strict=True):
        if split in ("", record.split):
            for name, content in read_tar(path):
                folder, slash, base = name.decode().rpartition("/")
                stem, _, part = base.partition(".")
                found[folder + slash + stem][part] = content
    return dict(found)


def shard_paths_of(out: str) -> list[Path]:
    """The shard files, in the order of the manifest."""
    return shard_paths(Path(out))


def verdict_of(reader: str, samples: Babel) -> Verdict:
    """What the pre-flight says of one shard with these samples."""
    starts = np.cumsum([0, *(len(parts) for _, parts in samples)]).astype(np.int64)
    names = columns.binary([name for _, parts in samples for name in parts])
    shard = ShardNames("train", columns.binary([key for key, _ in samples]), starts, names)
    return examine([shard], [READERS[reader]], last_split="train")[0]


def is_as_packed(samples: Babel, found: list[tuple[str, set[str]]] | None) -> bool:
    """Whether a reader gave back what was packed; None stands for a reader that stopped."""
    return found == names_in(samples)
