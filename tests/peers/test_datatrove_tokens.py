"""Token shards are byte for byte what datatrove's writers write, and its folder reader gives their tokens back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    from datatrove.utils.dataset import DatatroveFolderDataset
from token_data import pack_lines, pairs_of

from shardtool.dialects import prepare
from shardtool.emitted import write_emissions
from shardtool.formats.bin_dialects import ds_metadata
from shardtool.reading.reading import Dataset
from shardtool.token_options import TokenOptions


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def emitted(out: Path, name: str) -> None:
    with Dataset.open(str(out)) as dataset:
        write_emissions(str(out), prepare(dataset, [name]))


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("int32", 4)])
def test_bytes_equal_those_of_its_megatron_writer(tmp_path: Path, dtype: str, size: int) -> None:
    out = pack_lines(tmp_path, TokenOptions(dtype=dtype), shards=2)
    for prefix, docs in pairs_of(out):
        theirs = MegatronTokenizedFile(str(tmp_path / "theirs"), "x", token_size=size)
        for doc in docs:
            theirs.write(doc)
        theirs.close()
        for suffix in (".bin", ".idx"):
            assert (tmp_path / "theirs" / f"x{suffix}").read_bytes() == Path(f"{prefix}{suffix}").read_bytes()


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("int32", 4)])
def test_bytes_equal_those_of_its_own_writer(tmp_path: Path, dtype: str, size: int) -> None:
    out = pack_lines(tmp_path, TokenOptions(dtype=dtype))
    emitted(out, "ds")
    ((prefix, docs),) = pairs_of(out)
    theirs = TokenizedFile(
        str(tmp_path / "theirs"), "x.ds", tokenizer_name_or_path="tok", save_final_metadata=True, token_size=size
    )
    for doc in docs:
        theirs.write(doc, None)
    theirs.close()
    ours = out / "ds" / "train" / f"{prefix.name}.ds"
    assert (tmp_path / "theirs" / "x.ds").read_bytes() == ours.read_bytes()
    assert (tmp_path / "theirs" / "x.ds.index").read_bytes() == Path(f"{ours}.index").read_bytes()
    count = sum(map(len, docs))
    assert (tmp_path / "theirs" / "x.ds.metadata").read_bytes() == ds_metadata("tok", size, count)


def test_its_folder_reader_gives_windows_and_positions(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(), shards=2)
    emitted(out, "ds")
    data = DatatroveFolderDataset(
        str(out / "ds" / "train"), seq_len=32, filename_pattern="*.ds", token_size=2, shuffle=False,
        return_positions=True, positions_from_eos_token_id=None,
    )  # fmt: skip
    streams = {prefix.name: [token for doc in docs for token in doc] for prefix, docs in pairs_of(out)}
    windows = [stream[at : at + 33] for stream in streams.values() for at in range(0, len(stream) - 32, 33)]
    assert len(data) == len(windows)
    starts = {
        name: set(np.cumsum([0, *map(len, docs)]).tolist())
        for (prefix, docs) in pairs_of(out)
        for name in [prefix.name]
    }
    number = 0
    for name, stream in streams.items():
        for at in range(0, len(stream) - 32, 33):
            item = data[number]
            assert item["input_ids"].tolist() == stream[at : at + 33]
            positions = item["positions"].tolist()
            for place in range(1, 33):
                assert (positions[place] == 0) == (at + place in starts[name]), (name, at, place)
            number += 1


def test_a_context_one_longer_than_its_windows_gives_whole_sequences(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(context=33))
    emitted(out, "ds")
    data = DatatroveFolderDataset(str(out / "ds" / "train"), seq_len=32, token_size=2, shuffle=False)
    ((_, sequences),) = pairs_of(out)
    assert [data[number]["input_ids"].tolist() for number in range(len(data))] == sequences
