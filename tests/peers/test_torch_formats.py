"""The torch adapter over every format, in a folder and in a bucket: it hands out the bytes that were packed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import make_tree, run_cli
from snapshots import files_below
from store import files_of, tree_of

from shardtool.formats import FORMATS
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket

pytest_plugins = ("s3_servers",)

COUNT = 24
TOKENS = "bin"  # made of text; a sample is a sequence of ids
COMPRESSED = ("tar", "mds", "parquet", "arrow")
KINDS = (*FORMATS, *(f"{name}.zst" for name in COMPRESSED))
END = 256  # of a document, by the tokenizer of bytes
Contents = dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_of(tmp_path_factory.mktemp("tree") / "src", num_samples=COUNT)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [json.dumps({"id": f"d{number}", "text": f"word {number} " * (number + 1)}) for number in range(COUNT)]
    return make_tree(tmp_path_factory.mktemp("texts") / "src", {"docs.jsonl": "\n".join(lines) + "\n"})


@pytest.fixture(scope="module")
def folders(tree: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data set of each kind."""
    found = {}
    for kind in KINDS:
        found[kind] = tmp_path_factory.mktemp(kind) / "out"
        name, _, is_compressed = kind.partition(".")
        options = ["--format", name, "--shards", "3", *(("--compress", "zstd:1") if is_compressed else ())]
        options += ("--tokenizer", "bytes") if name == TOKENS else ()
        done = run_cli("pack", texts if name == TOKENS else tree, found[kind], *options)
        assert done.code == 0, done.err
    return found


def wanted(kind: str, tree: Path, texts: Path) -> Contents | list[bytes]:
    """{key: {part: bytes}} of the tree that was packed; of token data, whose keys are numbers, the ids of each text."""
    if kind == TOKENS:
        lines = (texts / "docs.jsonl").read_text().splitlines()
        return sorted(np.array([*json.loads(line)["text"].encode(), END], np.uint16).tobytes() for line in lines)
    found: Contents = {}
    for path in files_below(tree):
        key, _, part = os.fspath(path.relative_to(tree)).partition(".")
        found.setdefault(key, {})[part] = path.read_bytes()
    return found


def contents(kind: str, samples: list[dict[str, Any]]) -> Contents | list[bytes]:
    """The same of samples."""
    if kind == TOKENS:
        return sorted(sample["tokens"] for sample in samples)
    return {sample["__key__"]: {part: data for part, data in sample.items() if part != "__key__"} for sample in samples}


def loaded(where: str, source: str, num_workers: int) -> list[dict[str, Any]]:
    """All samples of an epoch of two ranks."""
    dataset, samples = ShardDataset(where, check=True), []
    for rank in range(2):
        options: dict[str, Any] = {"global_batch": 6, "rank": rank, "world_size": 2, "seed": 3}
        if source == "stream":
            loader = ResumableLoader(ShardStream(dataset, **options), num_workers=num_workers, collate_fn=list)
        else:
            sampler = ShardBatchSampler(dataset, **options)
            loader = ResumableLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=list)
        samples += [sample for batch in loader for sample in batch]
    return samples


def check(where: str, kind: str, tree: Path, texts: Path) -> None:
    """Every way through the adapter gives the samples, each once."""
    dataset = ShardDataset(where)
    assert len(dataset) == COUNT
    assert contents(kind, [dataset[number] for number in range(COUNT)]) == wanted(kind, tree, texts)
    for source in ("map", "stream"):
        for num_workers in (0, 1):
            samples = loaded(where, source, num_workers)
            assert len(samples) == COUNT
            assert contents(kind, samples) == wanted(kind, tree, texts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_read_from_a_folder(kind: str, folders: dict[str, Path], tree: Path, texts: Path) -> None:
    check(os.fspath(folders[kind]), kind, tree, texts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_read_from_a_bucket(
    kind: str, folders: dict[str, Path], tree: Path, texts: Path, seaweedfs_bucket: Bucket
) -> None:
    seaweedfs_bucket.put({f"out/{path}": data for path, data in files_of(folders[kind]).items()})
    check(seaweedfs_bucket.url("out"), kind, tree, texts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_of_any_format_goes_on_where_it_stopped(kind: str, folders: dict[str, Path]) -> None:
    dataset = ShardDataset(os.fspath(folders[kind]))

    def loader() -> ResumableLoader:
        return ResumableLoader(ShardStream(dataset, global_batch=6, seed=3), collate_fn=list)

    whole, first = list(loader()), loader()
    begun = next(iter(first))
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [begun, *resumed] == whole
