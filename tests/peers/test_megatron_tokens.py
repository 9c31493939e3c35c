"""Token shards are byte for byte what Megatron's own builder writes, and its GPT data sets read them as planned."""

from __future__ import annotations

import json
import sys
import warnings
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
from token_data import pack_lines, pairs_of

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


def gpt_dataset(prefix: Path, tmp_path: Path, length: int, samples: int) -> Any:
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=length, blend=([str(prefix)], None), split="1,0,0",
        path_to_cache=str(tmp_path / "cache"), tokenizer=Tokenizer(), reset_position_ids=False,
        reset_attention_mask=False, eod_mask_loss=False, mid_level_dataset_surplus=0.005,
    )  # fmt: skip
    built = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()
    return built[0]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_samples_of_a_gpt_data_set_are_the_slices_that_follow_from_the_pair(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(), shards=1)
    ((prefix, docs),) = pairs_of(out)
    data = gpt_dataset(prefix, tmp_path, 64, 20)
    stream = [token for number in data.document_index.tolist() for token in docs[number]]
    for number in range(20):
        at = 64 * int(data.shuffle_index[number])
        sample = data[number]
        assert sample["tokens"].tolist() == stream[at : at + 64]
        assert sample["labels"].tolist() == stream[at + 1 : at + 65]


def test_sequences_of_a_context_are_the_samples_of_that_length(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(context=16), shards=1)
    ((prefix, sequences),) = pairs_of(out)
    data = gpt_dataset(prefix, tmp_path, 16, len(sequences) - 1)
    wanted = sorted(map(tuple, sequences))
    found = [tuple(data[number]["tokens"].tolist()) for number in range(len(sequences) - 1)]
    assert all(sample in wanted for sample in found)
    assert len(found) == len(sequences) - 1


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
