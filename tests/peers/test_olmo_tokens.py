"""OLMo-core reads the tokens and documents of a token data set from the files we emit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from olmo_core.data import NumpyFSLDataset
    from olmo_core.data.utils import iter_document_indices
from token_data import pack_lines, pairs_of

from shardtool.dialects import prepare
from shardtool.emitted import write_emissions
from shardtool.reading.reading import Dataset
from shardtool.token_options import TokenOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def emitted(out: Path) -> list[Path]:
    with Dataset.open(str(out)) as dataset:
        write_emissions(str(out), prepare(dataset, ["olmo"]))
    return sorted((out / "olmo" / "train").glob("*.npy"))


@pytest.mark.parametrize(("dtype", "kind"), [("auto", np.uint16), ("int32", np.uint32)])
def test_its_reader_gives_our_tokens(tmp_path: Path, dtype: str, kind: Any) -> None:
    out = pack_lines(tmp_path, TokenOptions(dtype=dtype), shards=2)
    paths = emitted(out)
    data = NumpyFSLDataset(*paths, sequence_length=32, pad_token_id=256, eos_token_id=256, vocab_size=257, dtype=kind)
    data.prepare()
    found = [data[number]["input_ids"].tolist() for number in range(len(data))]
    wanted = []
    for _, docs in pairs_of(out):
        stream = [token for doc in docs for token in doc]
        wanted += [stream[at : at + 32] for at in range(0, len(stream) - 31, 32)]
    assert found == wanted


def test_documents_of_the_list_and_of_a_scan_are_ours(tmp_path: Path) -> None:
    out = pack_lines(tmp_path, TokenOptions(), shards=2)
    for path, (_, docs) in zip(emitted(out), pairs_of(out), strict=True):
        ends = np.cumsum(list(map(len, docs))).tolist()
        wanted = list(zip([0, *ends[:-1]], ends, strict=True))
        assert [tuple(map(int, span)) for span in iter_document_indices(path, use_array_if_local=False)] == wanted
        assert [
            tuple(map(int, span)) for span in iter_document_indices(path, eos_token_id=256, dtype=np.uint16)
        ] == wanted
