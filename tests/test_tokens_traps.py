"""Traps of token tools that no other test holds; docs/internals/traps.md says which report led here."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import Said, make_tree
from pairs import read_pair, write_pair
from test_tokens_pack import documents, jsonl, keyed, pack_tokens

from shardtool.errors import PlanError, SampleTooLarge
from shardtool.formats import bin_index
from shardtool.formats.bin_index import encode_idx
from shardtool.planning.plan import PlanOptions
from shardtool.token_options import TokenOptions
from shardtool.tokens import merge, stage
from shardtool.tokens.files import InputFile
from shardtool.tokens.inputs import LEAST_SLICE_BYTES, LINES, NPY, SLICE_BYTES, cut_tasks
from shardtool.tokens.merge import merge_pairs, open_pairs
from shardtool.tokens.plan import make_token_plan
from shardtool.tokens.tokenizer import TokenizerSpec, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    """What is allocated in the body stays below `num_bytes` at every moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < num_bytes, f"{peak:,} bytes at the peak"


def test_a_merge_needs_no_memory_for_its_sequences(tmp_path: Path) -> None:
    count = 1_500_000  # an .idx of 30 MB
    lengths = np.ones(count, np.int32)
    for name in "ab":
        (tmp_path / f"{name}.idx").write_bytes(b"".join(encode_idx(lengths, "uint8")))
        (tmp_path / f"{name}.bin").write_bytes(bytes(count))
    size = (tmp_path / "a.idx").stat().st_size
    with at_most(8 * MIB):
        merged = merge_pairs(open_pairs([str(tmp_path / "a"), str(tmp_path / "b")]), str(tmp_path / "m"), durable=False)
    assert merged.num_documents == 2 * count
    assert (tmp_path / "m.idx").stat().st_size > 2 * size - 100 > 7 * 8 * MIB


def test_a_worker_needs_memory_for_one_run_whatever_the_source(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["x" * 2000] * 6000)})
    job = stage.StageJob(
        work=str(tmp_path), options=TokenOptions(), spec=TokenizerSpec("bytes", vocab_size=257, eod=256),
        dtype="uint16", seed=0, sort=True, splits=False, on_error="error", durable=False, run_bytes=MIB,
    )  # fmt: skip
    path = tmp_path / "in" / "a.jsonl"
    file = InputFile(str(path.parent), b"a.jsonl", path.stat().st_size, path.stat().st_mtime_ns, LINES)
    stage._id_buffer()  # set apart once a process
    with at_most(12 * MIB):  # of 24 MB of ids
        receipt = stage.run_task(job, cut_tasks([file])[0])
    assert len(receipt.runs) > 1
    assert sum(run.num_bytes for run in receipt.runs) > 5 * MIB


@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_planning_needs_20_bytes_a_document_duplicates_looked_for_or_not(
    tmp_path: Path, shuffle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.tokens.plan.BUCKET_DOCUMENTS", 1 << 13)  # tables of so many documents at a time
    count = 400_000
    ids = np.arange(count, dtype=np.int32)
    ids[: count // 100] = count - 1 - ids[: count // 100]  # one in a hundred comes twice
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", ids[:, None])
    options = TokenOptions(tokenizer="none", eod="none", dedup="exact")
    spec = TokenizerSpec("none")
    job = stage.StageJob(
        work=str(tmp_path), options=options, spec=spec, dtype="int32", seed=0, sort=shuffle == "global", splits=True,
        on_error="error", durable=False,
    )  # fmt: skip
    path = tmp_path / "in" / "a.npy"
    file = InputFile(str(path.parent), b"a.npy", path.stat().st_size, path.stat().st_mtime_ns, NPY)
    receipts = [stage.run_task(job, task) for task in cut_tasks([file])]
    plan_options = PlanOptions(format="bin", shuffle=shuffle, tokens=options, shards=3)
    runs = [run for one in receipts for run in one.runs]
    make_token_plan(str(tmp_path), runs, plan_options, spec)  # imports what it needs
    with at_most(20 * count + 5 * MIB):  # 79 bytes a document would be 31 MB
        plan = make_token_plan(str(tmp_path), runs, plan_options, spec)
    assert (plan.documents, plan.duplicates) == (count - count // 100, count // 100)


@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_duplicates_are_found_across_runs(tmp_path: Path, shuffle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.stage.LEAST_RUN_BYTES", 40)
    monkeypatch.setattr("shardtool.tokens.stage.MOST_RUN_BYTES", 40)
    monkeypatch.setattr("shardtool.tokens.repeats._ROWS", 3)
    monkeypatch.setattr("shardtool.tokens.documents.BATCH_TEXT_BYTES", 30)
    texts = [f"text {number * number % 23}" for number in range(200)]
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(texts[:90]), "b.jsonl": jsonl(texts[90:])})
    result = pack_tokens(
        tmp_path / "in", tmp_path / "out", tokens={"dedup": "exact"}, shuffle=shuffle, split="train=0.5,test=0.5"
    )
    first = list(dict.fromkeys(texts))
    found = [bytes(ids[:-1]).decode() for ids in documents(tmp_path / "out")]
    assert sorted(found) == sorted(first)
    assert result.manifest is not None
    assert result.manifest.ledger["ignored"] == {"duplicate": 200 - len(first)}
    assert all(key.startswith("a.jsonl#") for key in keyed(tmp_path / "out")), "the first of the source stays"


def test_an_empty_first_document_is_like_any_other(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["", "", "one"])})
    pack_tokens(tmp_path / "in", tmp_path / "out", shuffle="none")
    assert documents(tmp_path / "out") == [[*b"one", 256]]
    make_tree(tmp_path / "none", {"a.jsonl": jsonl(["", "x"])})
    pack_tokens(tmp_path / "none", tmp_path / "kept", tokens={"empty": "keep"}, shuffle="none")
    assert documents(tmp_path / "kept") == [[], [120, 256]]


def test_more_sequences_than_readers_can_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bin_index, "MAX_SEQUENCES", 3)
    monkeypatch.setattr(merge, "MAX_SEQUENCES", 3)
    with pytest.raises(SampleTooLarge, match="4 sequences is more than an"):
        b"".join(encode_idx(np.ones(4, np.int32), "uint16"))
    pairs = [str(write_pair(tmp_path / name, [[1], [2]])) for name in "ab"]
    with pytest.raises(PlanError, match="4 sequences are more than readers can number"):
        merge_pairs(open_pairs(pairs), str(tmp_path / "m"), durable=False)
    assert not list(tmp_path.glob("m*"))


def test_a_merged_document_index_ends_with_the_number_of_sequences(tmp_path: Path) -> None:
    pairs = [str(write_pair(tmp_path / name, [[1, 2], [3]])) for name in "ab"]
    merge_pairs(open_pairs(pairs), str(tmp_path / "m"), durable=False)
    index = bin_index.read_idx(str(tmp_path / "m.idx"))
    assert index.documents.tolist() == [0, 1, 2, 3, 4]
    assert read_pair(tmp_path / "m") == [[1, 2], [3], [1, 2], [3]]


def test_a_tokenizer_has_no_threads_that_a_fork_would_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    from bpe import tokenizer_file

    from shardtool.tokens.tokenizer import resolve_tokenizer

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    spec = resolve_tokenizer(TokenOptions(tokenizer=str(tokenizer_file())))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert len(encode(spec, [b"text"] * 3, "uint16")[1]) == 3


@pytest.mark.parametrize(
    ("sizes", "slices", "largest"),
    [
        ([1000], 1, 1000),
        ([20 * MIB], 5, LEAST_SLICE_BYTES),
        ([7 * MIB, 7 * MIB], 4, LEAST_SLICE_BYTES),
        ([1 << 30], 64, 16 * MIB),
        ([100 << 30], 1600, SLICE_BYTES),
    ],
)
def test_a_small_source_is_cut_so_that_all_workers_have_something_to_do(
    sizes: list[int], slices: int, largest: int
) -> None:
    files = [InputFile("/in", b"%d.jsonl" % number, size, 0, LINES) for number, size in enumerate(sizes)]
    tasks = cut_tasks(files)
    assert len(tasks) == slices
    assert max(stop - start for start, stop in (task.span for task in tasks)) == largest
    for file in files:
        spans = [task.span for task in tasks if task.files == (file,)]
        assert [0, *(stop for _, stop in spans)] == [*(start for start, _ in spans), file.size]


def test_hundreds_of_pairs_get_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.plan.MANY_SHARDS", 3)
    make_tree(tmp_path / "in", {"a.jsonl": jsonl([f"document {number}" for number in range(40)])})
    said = Said()
    pack_tokens(tmp_path / "in", tmp_path / "out", shards=4, say=said)
    assert [text for text in said.warnings if text.startswith("4 pairs: trainers open each of them")]
