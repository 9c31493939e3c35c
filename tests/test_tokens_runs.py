"""A run of part files holds what a loop over its documents would put there, whatever its pieces and batches are."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats.bin_index import DTYPES
from shardtool.planning.splits import SPLIT_TAG
from shardtool.tokens import runs
from shardtool.tokens.runs import IdBuffer, RunBuilder, open_run, run_paths
from shardtool.tokens.stage import _extremes

if TYPE_CHECKING:
    from pathlib import Path

IDS = st.one_of(st.integers(0, 300), st.integers(0, 0xFFFF), st.integers(0, (1 << 31) - 1))
DOCUMENTS = st.lists(st.lists(IDS, max_size=12), min_size=1, max_size=25)


@settings(max_examples=60)
@given(
    batches=st.lists(DOCUMENTS, min_size=1, max_size=4),
    piece=st.sampled_from([1, 7, 64, 4 << 20]),
    most=st.sampled_from([1, 3, 4096]),
    capacity=st.sampled_from([0, 10, 1000]),
    sort=st.booleans(),
    splits=st.booleans(),
)
def test_a_run_is_its_documents_in_the_order_of_their_hashes(
    batches: list[list[list[int]]], piece: int, most: int, capacity: int, sort: bool, splits: bool
) -> None:
    buffer, documents = IdBuffer(capacity), list[tuple[bytes, list[int]]]()
    buffer.add(np.array([1 << 20, 5]), "int32")  # of a run before, in a wider type
    builder = RunBuilder("auto", 3, sort=sort, splits=splits, ids=buffer)
    for batch in batches:
        keys = [b"f#%d" % (len(documents) + number) for number in range(len(batch))]
        ids = np.array([token for document in batch for token in document], np.int64)
        builder.note_range(0, int(ids.max(initial=0)))
        lengths = np.array([len(document) for document in batch], np.int64)
        builder.add(keys, ids, lengths, lengths * 4, [])
        documents += zip(keys, batch, strict=True)
    if sort:
        documents.sort(key=lambda document: (xxhash.xxh3_64_intdigest(document[0], 3), document[0]))
    largest = max((token for _, tokens in documents for token in tokens), default=0)
    dtype = "uint16" if largest <= 0xFFFF else "int32"
    payloads = [np.array(tokens, DTYPES[dtype]).tobytes() for _, tokens in documents]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(runs, "PIECE_BYTES", piece),
        patch.object(runs, "PIECE_DOCUMENTS", most),
    ):
        info = builder.write(folder, "000000-000", "tag", durable=False)
        with open(os.path.join(folder, run_paths(info.name)[0]), "rb") as file:
            assert file.read() == b"".join(payloads)
        run = open_run(folder, info)
        assert (info.dtype, info.tokens, info.num_bytes) == (dtype, sum(run.tokens), len(b"".join(payloads)))
        assert run.keys.to_pylist() == [key for key, _ in documents]
        assert run.xxh3_64.tolist() == [xxhash.xxh3_64_intdigest(payload) for payload in payloads]
        tagged = [xxhash.xxh3_64_intdigest(SPLIT_TAG + key, 3) if splits else 0 for key, _ in documents]
        assert run.split.tolist() == tagged
        first = len(documents) // 2
        rest = bytearray(run.start_of(len(documents)) - run.start_of(first))
        run.read(run.start_of(first), memoryview(rest))
        assert rest == b"".join(payloads[first:])
        rows = run.rows(first // 2, len(documents)).sliced(first - first // 2, len(documents) - first // 2)
        assert rows.keys.to_pylist() == [key for key, _ in documents[first:]]
        assert rows.tokens.tolist() == [len(tokens) for _, tokens in documents[first:]]
        assert rows.xxh3_64.tolist() == run.xxh3_64[first:].tolist()
        assert rows.offset.tolist() == [run.start_of(row) for row in range(first, len(documents))]


def test_a_document_may_have_more_than_4_gib_of_text(tmp_path: Path) -> None:
    builder = RunBuilder("uint16", 0, sort=True, splits=False, ids=IdBuffer())
    sizes = np.array([(5 << 30) + 1, 0, 1 << 33], np.int64)
    builder.add([b"a", b"a+1", b"b"], np.zeros(3, np.int64), np.ones(3, np.int64), sizes, [])
    run = open_run(os.fspath(tmp_path), builder.write(os.fspath(tmp_path), "000000-000", "tag", durable=False))
    found = dict(zip(run.keys.to_pylist(), run.text_bytes.tolist(), strict=True))
    assert found == {b"a": (5 << 30) + 1, b"a+1": 0, b"b": 1 << 33}


@pytest.mark.parametrize("kind", ["<i4", ">i4", "<i8", "|u1", "<u2", "|i1"])
@pytest.mark.parametrize("values", [[0], [5, 3, 9], [127, 0, 126], [3, -1, 7], [-128], [5, -2, -3]])
def test_the_extremes_of_ids_are_found_whatever_their_type(kind: str, values: list[int]) -> None:
    if min(values) < 0 and "u" in kind:
        values = [abs(value) for value in values]
    low, high = _extremes(np.array(values, kind))
    assert high == max(values)
    assert low == min(values) or low == 0 <= min(values), "a smallest id above 0 need not be told"
