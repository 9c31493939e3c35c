"""Token shards are byte for byte what Megatron's own builder writes, and its GPT data sets read them as planned."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from token_data import pack_lines, pairs_of, predicted

from shardtool.formats.bin_index import encode_idx
from shardtool.token_options import TokenOptions

DOCS = [[11, 12, 13, 2], [21, 2], [31, 32, 33, 34, 2], [65_535], [0]]


@pytest.mark.parametrize(("kind", "name"), [(np.uint16, "uint16"), (np.int32, "int32")])
def test_bytes_equal_those_of_its_builder(tmp_path: Path, kind: Any, name: str) -> None:
    builder = IndexedDatasetBuilder(str(tmp_path / "m.bin"), dtype=kind)
    for doc in DOCS:
        builder.add_document(torch.tensor(doc), [len(doc)])
    builder.finalize(str(tmp_path / "m.idx"))
    ours = b"".join(encode_idx(np.array([len(doc) for doc in DOCS]), name))
    assert (tmp_path / "m.idx").read_bytes() == ours
    assert (tmp_path / "m.bin").read_bytes() == b"".join(np.array(doc, kind).tobytes() for doc in DOCS)


@pytest.mark.parametrize("dtype", ["auto", "int32"])
def test_its_reader_gives_our_sequences_and_its_builder_our_files(tmp_path: Path, dtype: str) -> None:
    out = pack_lines(tmp_path, TokenOptions(dtype=dtype), shards=2)
    for prefix, docs in pairs_of(out):
        data = IndexedDataset(str(prefix))
        assert [data[number].tolist() for number in range(len(data))] == docs
        assert data.document_indices.tolist() == list(range(len(docs) + 1))
        copy = IndexedDatasetBuilder(str(tmp_path / "copy.bin"), dtype=np.uint16 if dtype == "auto" else np.int32)
        for doc in docs:
            copy.add_document(torch.tensor(doc), [len(doc)])
        copy.finalize(str(tmp_path / "copy.idx"))
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"copy{suffix}").read_bytes() == Path(f"{prefix}{suffix}").read_bytes()


def test_merged_pairs_equal_its_own_merge(tmp_path: Path) -> None:
    from shardtool.tokens.merge import merge_pairs, open_pairs

    out = pack_lines(tmp_path, TokenOptions(), shards=3)
    found = [prefix for prefix, _ in pairs_of(out)]
    theirs = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for prefix in found:
        theirs.add_index(str(prefix))
    theirs.finalize(str(tmp_path / "theirs.idx"))
    merge_pairs(open_pairs([str(prefix) for prefix in found]), str(tmp_path / "ours"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"theirs{suffix}").read_bytes() == (tmp_path / f"ours{suffix}").read_bytes()


class Tokenizer:
    """As much of a tokenizer as a GPT data set asks for."""

    eod = 256
    pad = 256
    vocab_size = 257
    unique_identifiers = {"class": "bytes"}  # noqa: RUF012


def gpt_datasets(
    cache: Path | None, length: int, prefixes: dict[str, list[str]], samples: int, validation_samples: int = 0
) -> Any:
    """(train, validation) GPT data sets of so many samples, each over the pairs of its split."""
    blends = [(prefixes[name], None) if prefixes.get(name) else None for name in ("train", "validation", "test")]
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=length, blend_per_split=blends, path_to_cache=cache and str(cache),
        tokenizer=Tokenizer(), mid_level_dataset_surplus=0.005,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )  # fmt: skip
    sizes = [samples, validation_samples, 0]
    built = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return built[:2]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("context", [0, 48])
def test_every_sample_of_gpt_data_sets_is_the_slice_that_the_data_set_predicts(tmp_path: Path, context: int) -> None:
    """From the source, manifest, indexes and provenance alone: the pairs are read by Megatron, not by the test."""
    out = pack_lines(tmp_path, TokenOptions(context=context), shards=1, split="train=0.7,validation=0.3")
    wanted = predicted(out)
    prefixes = {name: [str(prefix) for prefix in shards] for name, shards in wanted.items()}
    for name, data in zip(
        ("train", "validation"), gpt_datasets(tmp_path / "cache", 64, prefixes, 150, 40), strict=True
    ):
        ((prefix, sequences),) = wanted[name].items()
        assert data.dataset.path_prefix == str(prefix)
        order = data.document_index.tolist()
        epochs = len(order) // len(sequences)
        assert sorted(order) == sorted(epochs * list(range(len(sequences)))), "every sequence once an epoch"
        stream = [token for number in order for token in sequences[number]]
        places = data.shuffle_index.tolist()
        assert len(data) == len(places) == (len(stream) - 1) // 64
        assert sorted(places) == list(range(len(places)))
        for number, place in enumerate(places):
            sample = data[number]
            assert sample["tokens"].tolist() == stream[64 * place : 64 * place + 64], (name, number)
            assert sample["labels"].tolist() == stream[64 * place + 1 : 64 * place + 65], (name, number)


def test_samples_of_several_shards_are_those_of_each(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(), shards=3)
    wanted = predicted(out)["train"]
    prefixes = [str(prefix) for prefix in wanted]
    data, _ = gpt_datasets(None, 32, {"train": prefixes}, 200)  # with a cache, a blend asks torch for its rank
    streams = {
        member.dataset.path_prefix: [
            token
            for number in member.document_index.tolist()
            for token in wanted[Path(member.dataset.path_prefix)][number]
        ]
        for member in data.datasets
    }
    assert list(streams) == prefixes
    for number in range(len(data)):
        member = data.datasets[int(data.dataset_index[number])]
        at = 32 * int(member.shuffle_index[int(data.dataset_sample_index[number])])
        assert data[number]["tokens"].tolist() == streams[member.dataset.path_prefix][at : at + 32]


def test_sequences_of_a_context_are_the_samples_of_that_length_each_once(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(context=16), shards=1)
    ((prefix, sequences),) = predicted(out)["train"].items()
    data, _ = gpt_datasets(tmp_path / "cache", 16, {"train": [str(prefix)]}, len(sequences) - 1)
    wanted = Counter(map(tuple, sequences))
    found = Counter(tuple(data[number]["tokens"].tolist()) for number in range(len(data)))
    assert not found - wanted, "samples that are no sequence, or come more often than it"
    assert (wanted - found).total() == 1, "the last one lacks a token after it"


def test_the_arguments_we_emit_are_what_its_training_loads(tmp_path: Path) -> None:
    from shardtool.dialects import prepare
    from shardtool.emitted import write_emissions
    from shardtool.reading.reading import Dataset

    out = pack_lines(tmp_path, TokenOptions(), shards=2)
    with Dataset.open(str(out)) as dataset:
        write_emissions(str(out), prepare(dataset, ["megatron"]))
    blend = (out / "megatron" / "data_args.txt").read_text().split()
    sequences = json.loads((out / "megatron" / "sequences.json").read_text())
    for prefix in blend[1::2]:
        data = IndexedDataset(prefix)
        assert sequences[prefix] == [len(data), len(data.document_indices)]
    assert sys.version_info >= (3, 11)
