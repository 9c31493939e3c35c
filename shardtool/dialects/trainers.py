"""Small files that point trainers at token shards: arguments for Megatron and NeMo, a configuration for nanotron."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dialects import Emission, SideFile
from shardtool.dialects.tokens import emit_ds, main_split, refuse_splits, stem, token_facts
from shardtool.errors import UsageProblem
from shardtool.formats.bin_index import MEGATRON_SMALL_VOCAB, read_header
from shardtool.storage.files import absolute, local_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import ManifestShard
    from shardtool.reading.reading import Dataset

MAX_PREFIXES = 32_767  # Megatron numbers the members of a blend with int16
SMALL_VOCAB = 65_536  # up to which its fast start assumes uint16 (megatron/core/datasets/indexed_dataset.py)
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}


def _one(data: bytes) -> Iterator[bytes]:
    yield data


def emit_megatron(dataset: Dataset, _shares: str) -> Emission:
    """`megatron/`: --data-args-path, --per-split-data-args-path and, where its guess is right, the sequence counts.

    Paths are absolute: Megatron hashes them into the names of its cache, so a data set has to keep its place.
    """
    facts = token_facts(dataset, "megatron")
    shards = dataset.manifest.shards
    if len(shards) > MAX_PREFIXES:
        raise UsageProblem(
            f"--emit megatron: {len(shards):,} prefixes, it can number {MAX_PREFIXES:,}", hint="--shard-size 10GB"
        )
    refuse_splits(dataset, "megatron", _SPLITS)
    train = [shard for shard in shards if shard.split == "train"] or list(shards)
    lines = "".join(f"{shard.payload_bytes} {_prefix(dataset, shard)}\n" for shard in train)
    splits: dict[str, list[str]] = {}
    for shard in shards:
        splits.setdefault(_SPLITS[shard.split], []).extend([str(shard.payload_bytes), _prefix(dataset, shard)])
    files = [
        SideFile("megatron/data_args.txt", partial(_one, lines.encode())),
        SideFile("megatron/per_split.json", partial(_one, _json(splits))),
    ]
    flags = "--per-split-data-args-path {0}/per_split.json --data-cache-path CACHE"
    if is_guess_right(str(facts["dtype"]), facts["vocab_size"]):
        files.append(SideFile("megatron/sequences.json", partial(_sequences, dataset)))
        flags += " --per-dataset-sequences-path {0}/sequences.json"
    if facts["context"]:
        flags += f" --seq-length {facts['context']}"
    folder = os.path.join(absolute(dataset.path), "megatron")
    return Emission("megatron", tuple(files), flags.format(folder))


def is_guess_right(dtype: str, vocab_size: int | None) -> bool:
    """Whether Megatron's fast start, which guesses the type by the vocabulary, reads the right one.

    It takes uint16 for up to 65,536 ids though its own writer stops at 65,500, and reads garbage in silence else.
    """
    if vocab_size is None:
        return False
    return dtype == ("uint16" if vocab_size <= SMALL_VOCAB else "int32")


def _prefix(dataset: Dataset, shard: ManifestShard) -> str:
    return os.path.join(absolute(dataset.path), os.path.dirname(shard.path), stem(shard))


def _sequences(dataset: Dataset) -> Iterator[bytes]:
    """{prefix: [sequences, document entries]}."""
    found = {}
    for shard in dataset.manifest.shards:
        with local_copy(os.path.join(dataset.path, os.path.splitext(shard.path)[0] + ".idx")) as path:
            header = read_header(path)
        found[_prefix(dataset, shard)] = [header.num_sequences, header.num_entries]
    yield _json(found)


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def emit_nanotron(dataset: Dataset, shares: str) -> Emission:
    """The `ds` layout, and `nanotron.yaml` with the data stage that reads it."""
    facts = token_facts(dataset, "nanotron")
    layout = emit_ds(dataset, shares)
    itemsize = int(np.dtype(facts["dtype"]).itemsize)
    folder = os.path.join(absolute(dataset.path), "ds", main_split(dataset))
    vocab = facts["vocab_size"] or MEGATRON_SMALL_VOCAB
    text = (
        "data_stages:\n"
        "- name: training\n"
        "  start_training_step: 1\n"
        "  data:\n"
        "    dataset:\n"
        "      dataset_folder:\n"
        f"      - {folder}\n"
        f"      token_size_in_bytes: {itemsize}\n"
        f"      vocab_size: {vocab}\n"
        "      return_positions: true\n"
        "    num_loading_workers: 1\n"
        "    seed: 0\n"
    )
    if facts["context"]:
        text += f"# tokens.sequence_length: {facts['context'] - 1}: its windows are one token longer\n"
    files = (*layout.files, SideFile("ds/nanotron.yaml", partial(_one, text.encode())))
    return Emission("nanotron", files, f"data_stages: see {os.path.dirname(folder)}/nanotron.yaml")
