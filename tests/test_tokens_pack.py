"""Text to pairs: what comes out is what went in, in a seeded order, whatever the workers and crashes."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from helpers import Said, make_tree, pack
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import read_pair

from shardtool.errors import DuplicateKey, PlanMismatch, SampleTooLarge, SourceError, UsageProblem
from shardtool.executors.local import LocalExecutor
from shardtool.manifest import load_manifest
from shardtool.packing.build import PackRequest, build
from shardtool.planning.plan import PlanOptions
from shardtool.reading.reading import Dataset
from shardtool.token_options import TokenOptions
from shardtool.tokens import files, inputs
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.packing.build import PackResult
    from shardtool.tokens.files import InputFile


def pack_tokens(source: Path, out: Path, *, tokens: dict[str, Any] | None = None, **options: Any) -> PackResult:
    return pack(source, out, format="bin", tokens=TokenOptions(**(tokens or {})), **options)


def tar_of(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A tar archive, its members as listed."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def prefixes(out: Path, split: str = "") -> list[Path]:
    """Pairs of a data set, in the order of the manifest."""
    shards = load_manifest(str(out)).shards
    return [out / shard.path.removesuffix(".bin") for shard in shards if split in ("", shard.split)]


def documents(out: Path, split: str = "") -> list[list[int]]:
    return [doc for prefix in prefixes(out, split) for doc in read_pair(prefix)]


def keyed(out: Path) -> dict[str, bytes]:
    """{key: text} by the bytes tokenizer."""
    with Dataset.open(str(out)) as dataset:
        return {
            sample.key.decode(): np.frombuffer(sample.parts["tokens"], "<u2")[:-1].astype(np.uint8).tobytes()
            for shard in range(dataset.num_shards)
            for sample in dataset.samples(shard, check=True)
        }


def jsonl(texts: Sequence[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


TEXTS = [f"document {number} " + "x" * (number * 7 % 50) for number in range(100)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS[:60]), "sub/b.jsonl": jsonl(TEXTS[60:])})
    return tmp_path / "in"


def test_texts_come_back(lines: Path, tmp_path: Path) -> None:
    result = pack_tokens(lines, tmp_path / "out", shards=3)
    assert result.manifest is not None
    assert sorted(keyed(tmp_path / "out").values()) == sorted(text.encode() for text in TEXTS)
    docs = documents(tmp_path / "out")
    assert all(doc[-1] == 256 for doc in docs)
    assert [len(p) for p in map(read_pair, prefixes(tmp_path / "out"))] == [
        shard.num_samples for shard in result.manifest.shards
    ]
    assert result.manifest.ledger == {"seen": 100, "packed": 100, "ignored": {}, "failed": 0}
    for spec, shard in zip(result.stored.shards, result.manifest.shards, strict=True):
        assert spec.num_bytes == shard.num_bytes, "planned bytes are those of both files"
    assert not (tmp_path / "out" / ".shardtool" / "parts").exists()


def digests(out: Path) -> dict[str, bytes]:
    """Every file of a data set but what names sources or times."""
    names = ("data/*", "index/*", "manifest.json", ".shardtool/provenance/*")
    return {str(path.relative_to(out)): path.read_bytes() for name in names for path in sorted(out.glob(name))}


@pytest.mark.parametrize("tokens", [{}, {"context": 64}, {"context": 64, "packing": "best-fit"}, {"dedup": "exact"}])
def test_bytes_do_not_depend_on_workers_or_the_size_of_runs(
    lines: Path, tmp_path: Path, tokens: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_tokens(lines, tmp_path / "one", tokens=tokens, shards=2, split="train=0.8,validation=0.2")
    for workers in (0, 2, 5):
        monkeypatch.setattr("shardtool.tokens.stage.MOST_RUN_BYTES", 100 * workers + 1)
        monkeypatch.setattr("shardtool.tokens.slabs.SLAB_BYTES", 90 * workers + 70)
        monkeypatch.setattr("shardtool.tokens.slabs.SLAB_DOCUMENTS", 3 * workers + 9)
        monkeypatch.setattr("shardtool.tokens.inputs.SLICE_BYTES", 350 * workers + 200)
        monkeypatch.setattr("shardtool.tokens.documents.BATCH_TEXT_BYTES", 80 * workers + 1)
        monkeypatch.setattr("shardtool.tokens.plan.BUCKET_DOCUMENTS", 9 * workers + 5)
        out = tmp_path / f"w{workers}"
        with WorkerPool(workers) as pool:
            request = PackRequest(
                (str(lines),),
                str(out),
                PlanOptions(format="bin", tokens=TokenOptions(**tokens), shards=2, split="train=0.8,validation=0.2"),
                durable=False,
            )
            build(request, pool, LocalExecutor(pool), Said())
        assert digests(tmp_path / "one") == digests(out)


@pytest.mark.parametrize("tokens", [{}, {"context": 64}])
def test_in_this_process_and_with_1_2_and_5_workers_every_file_is_the_same(
    lines: Path, tmp_path: Path, tokens: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.tokens.inputs.LEAST_SLICE_BYTES", 500)  # so that there is something for all of them
    options = PlanOptions(format="bin", tokens=TokenOptions(**tokens), shards=7, split="train=0.8,validation=0.2")
    found = {}
    for workers in (0, 1, 2, 5):
        out = tmp_path / f"w{workers}"
        with WorkerPool(workers) as pool:
            result = build(
                PackRequest((str(lines),), str(out), options, durable=False), pool, LocalExecutor(pool), Said()
            )
        assert result.num_packed == 14, "as many a split"
        found[workers] = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    names = set(map(str, found[0]))
    assert {".shardtool/plan.json", ".shardtool/plan/000.arrow", ".shardtool/provenance/00013.parquet"} <= names
    for workers in (1, 2, 5):
        assert found[workers] == found[0], f"{workers} workers"


def test_provenance_does_not_follow_from_how_its_rows_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardtool import columns
    from shardtool.tokens.provenance import ProvenanceWriter

    monkeypatch.setattr("shardtool.tokens.provenance.GROUP_ROWS", 5000)
    count = 12_345
    numbers = np.arange(count)
    keys = columns.binary([b"document %d" % number for number in range(count)])
    written = []
    for step in (1, 777, 5000, 6000, count):
        writer = ProvenanceWriter(str(tmp_path / str(step)), 0, 1, "x")
        for first in range(0, count, step):
            rows = numbers[first : first + step]
            writer.add(keys.slice(first, len(rows)), rows, rows * 0, rows * 0, rows + 3, rows * 2)
        writer.finish()
        writer.file.publish(durable=False)
        written.append((tmp_path / str(step) / writer.file.record().path).read_bytes())
    assert len(set(written)) == 1
    table = pq.ParquetFile(tmp_path / "1" / ".shardtool" / "provenance" / "00000.parquet")
    assert [table.metadata.row_group(number).num_rows for number in range(3)] == [5000, 5000, 2345]
    assert table.read()["text_bytes"].to_pylist() == (numbers * 2).tolist()


def test_the_order_is_that_of_hashed_keys_and_the_seed_changes_it(lines: Path, tmp_path: Path) -> None:
    import xxhash

    for seed in (0, 7):
        pack_tokens(lines, tmp_path / str(seed), seed=seed, shards=2)
        found = list(keyed(tmp_path / str(seed)))
        assert found == sorted(found, key=lambda key: xxhash.xxh3_64_intdigest(key.encode(), seed))
    assert documents(tmp_path / "0") != documents(tmp_path / "7")


def test_without_shuffle_the_source_order_stays(lines: Path, tmp_path: Path) -> None:
    pack_tokens(lines, tmp_path / "out", shuffle="none", shards=3)
    assert list(keyed(tmp_path / "out").values()) == [text.encode() for text in TEXTS]


def test_a_grown_source_keeps_the_order_of_what_was_there(lines: Path, tmp_path: Path) -> None:
    pack_tokens(lines, tmp_path / "small", split="train=0.5,validation=0.5")
    (lines / "a.jsonl").write_bytes((lines / "a.jsonl").read_bytes() + jsonl(["new"]))
    pack_tokens(lines, tmp_path / "large", split="train=0.5,validation=0.5")
    small, large = list(keyed(tmp_path / "small")), list(keyed(tmp_path / "large"))
    for split in ("train", "validation"):
        assert documents(tmp_path / "small", split), split
    assert [key for key in sorted(large) if key in small] == sorted(small)


def test_splits_have_their_shares_by_the_hash_of_keys(lines: Path, tmp_path: Path) -> None:
    result = pack_tokens(lines, tmp_path / "out", split="train=0.9,validation=0.07,test=0.03")
    assert result.manifest is not None
    found = {name: entry["samples"] for name, entry in result.manifest.splits().items()}
    assert found == {"train": 90, "validation": 7, "test": 3}
    assert [path.name for path in prefixes(tmp_path / "out")] == [
        "train-00000-of-00001",
        "validation-00000-of-00001",
        "test-00000-of-00001",
    ]


def test_no_shard_is_larger_than_asked_and_documents_stay_whole(lines: Path, tmp_path: Path) -> None:
    result = pack_tokens(lines, tmp_path / "out", shard_size=3000)
    assert result.manifest is not None
    assert len(result.manifest.shards) > 3
    assert max(shard.num_bytes for shard in result.manifest.shards) <= 3000
    by_tokens = pack_tokens(lines, tmp_path / "tokens", tokens={"shard_tokens": 500})
    assert by_tokens.manifest is not None
    assert max(shard.payload_bytes // 2 for shard in by_tokens.manifest.shards) <= 500
    assert sorted(keyed(tmp_path / "out").values()) == sorted(keyed(tmp_path / "tokens").values())


def test_a_document_larger_than_a_shard_gets_its_own_with_a_notice(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["x" * 4000, "y", "z"])})
    said = Said()
    result = pack_tokens(tmp_path / "in", tmp_path / "out", say=said, tokens={"shard_tokens": 100})
    assert result.manifest is not None
    assert max(shard.payload_bytes // 2 for shard in result.manifest.shards if shard.num_samples > 1) <= 100
    assert [shard.num_samples for shard in result.manifest.shards if shard.payload_bytes > 200] == [1]
    assert [warning for warning in said.warnings if "4,001 tokens" in warning]
    with pytest.raises(SampleTooLarge):
        pack_tokens(tmp_path / "in", tmp_path / "no", tokens={"shard_tokens": 100}, on_oversize="error")


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.text(max_size=12), min_size=1, max_size=12),
    st.sampled_from([1, 2, 3, 7, 16]),
    st.sampled_from(["concat", "best-fit"]),
)
def test_contexts_hold_every_token_once_and_have_exactly_their_length(
    texts: list[str], context: int, packing: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_tree(root / "in", {"a.jsonl": jsonl(texts)})
        full = [text for text in texts if text]
        if not full:
            return
        tokens = {"context": context, "packing": packing}
        limit = 42 + (20 + 2 * context) * -(-49 // context)  # a text of 12 characters has at most 49 tokens
        result = pack_tokens(root / "in", root / "out", tokens=tokens, shard_size=limit)
        assert result.manifest is not None
        sequences = documents(root / "out")
        assert {len(sequence) for sequence in sequences} == {context}
        assert max(shard.num_bytes for shard in result.manifest.shards) <= limit
        ends = sum(token == 256 for sequence in sequences for token in sequence)
        assert ends == len(sequences) * context - sum(len(text.encode()) for text in full), "ends of documents, padding"
        check_provenance(root, full, sequences)


def check_provenance(root: Path, texts: list[str], sequences: list[list[int]]) -> None:
    """Documents put together again from what provenance says, and every key that of a document."""
    rows = []
    base = 0
    for path in sorted((root / "out" / ".shardtool" / "provenance").glob("*.parquet")):
        table = pq.read_table(path).to_pylist()
        rows += [{**row, "sequence": row["sequence"] + base} for row in table]
        base += max(row["sequence"] for row in table) + 1
    found: dict[bytes, list[tuple[int, list[int]]]] = {}
    for row in rows:
        piece = sequences[row["sequence"]][row["at"] : row["at"] + row["tokens"]]
        assert len(piece) == row["tokens"]
        found.setdefault(row["document"], []).append((row["start"], piece))
    put_together = [
        bytes(token for _, piece in sorted(pieces) for token in piece if token < 256) for pieces in found.values()
    ]
    assert sorted(put_together) == sorted(text.encode() for text in texts)


def test_concat_is_the_shuffled_documents_one_after_the_other(lines: Path, tmp_path: Path) -> None:
    pack_tokens(lines, tmp_path / "docs")
    pack_tokens(lines, tmp_path / "packed", tokens={"context": 128}, shards=3)
    stream = [token for doc in documents(tmp_path / "docs") for token in doc]
    packed = [token for sequence in documents(tmp_path / "packed") for token in sequence]
    assert packed[: len(stream)] == stream
    assert set(packed[len(stream) :]) <= {256}
    assert len(packed) - len(stream) < 128


def test_best_fit_cuts_no_document_that_fits(lines: Path, tmp_path: Path) -> None:
    pack_tokens(lines, tmp_path / "out", tokens={"context": 128, "packing": "best-fit"})
    rows = pq.read_table(next((tmp_path / "out" / ".shardtool" / "provenance").iterdir())).to_pylist()
    assert len({row["document"] for row in rows}) == len(rows) == len(TEXTS)
    fill = sum(row["tokens"] for row in rows) / (128 * len(documents(tmp_path / "out")))
    assert fill > 0.9


def test_duplicates_are_packed_once_the_first_of_the_source(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["one", "two", "one"]), "b.jsonl": jsonl(["two", "three"])})
    result = pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"dedup": "exact"})
    assert keyed(tmp_path / "out") == {"a.jsonl#0": b"one", "a.jsonl#16": b"two", "b.jsonl#16": b"three"}
    assert result.manifest is not None
    assert result.manifest.ledger == {"seen": 5, "packed": 3, "ignored": {"duplicate": 2}, "failed": 0}


def test_a_long_duplicate_counts_once(tmp_path: Path) -> None:
    text = "0123456789abcdef" * 2
    make_tree(tmp_path / "in", {"a.jsonl": jsonl([text, text, "other"])})
    result = pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"dedup": "exact", "max_doc_tokens": 10})
    assert result.manifest is not None
    assert result.manifest.ledger == {"seen": 3, "packed": 2, "ignored": {"duplicate": 1}, "failed": 0}
    assert len(documents(tmp_path / "out")) == 4 + 1


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_empty_documents_follow_the_policy(tmp_path: Path, policy: str) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["one", "", "two"])})
    result = pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"empty": policy}, shuffle="none")
    lengths = [len(doc) for doc in documents(tmp_path / "out")]
    assert lengths == ([4, 4] if policy == "drop" else [4, 0, 4])
    assert result.manifest is not None
    assert result.manifest.ledger["ignored"] == ({"empty": 1} if policy == "drop" else {})
    with pytest.raises(SourceError, match="is empty"):
        pack_tokens(tmp_path / "in", tmp_path / "no", tokens={"empty": "error"})


def test_long_documents_are_cut_into_sequences(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["abcdefg", "xy"])})
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"max_doc_tokens": 3}, shuffle="none")
    with Dataset.open(str(tmp_path / "out")) as dataset:
        keys = [sample.key for sample in dataset.samples(0)]
    assert keys == [b"a.jsonl#0", b"a.jsonl#0+1", b"a.jsonl#0+2", b"a.jsonl#20"]
    assert documents(tmp_path / "out") == [[97, 98, 99], [100, 101, 102], [103, 256], [120, 121, 256]]
    with pytest.raises(SampleTooLarge, match="8 tokens"):
        pack_tokens(tmp_path / "in", tmp_path / "no", tokens={"max_doc_tokens": 3, "on_long": "error"})


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ({"eod": "none"}, [97, 98]),
        ({"eod_pos": "prepend"}, [256, 97, 98]),
        ({"bos": "5"}, [5, 97, 98, 256]),
        ({"bos": "5", "eod": "9", "eod_pos": "prepend"}, [5, 9, 97, 98]),
        ({"dtype": "int32"}, [97, 98, 256]),
        ({"dtype": "uint8", "eod": "0"}, [97, 98, 0]),
    ],
)
def test_what_frames_a_document(tmp_path: Path, tokens: dict[str, Any], wanted: list[int]) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["ab"])})
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens=tokens)
    assert documents(tmp_path / "out") == [wanted]


def test_a_type_that_does_not_hold_the_end_of_documents_is_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["ab"])})
    with pytest.raises(UsageProblem, match="256 does not fit uint8"):
        pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"dtype": "uint8"})


IDS = [[1, 2, 3], [70_000], [], [5] * 40]


def ids_source(root: Path, kind: str, ids: list[list[int]] = IDS) -> Path:
    root.mkdir()
    table = pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32())), "other": pa.array(range(len(ids)))})
    if kind == "parquet":
        pq.write_table(table, root / "a.parquet", row_group_size=2)
    elif kind == "large":
        pq.write_table(pa.table({"input_ids": pa.array(ids, pa.large_list(pa.int64()))}), root / "a.parquet")
    elif kind == "arrow":
        with pa.ipc.new_file(root / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    elif kind == "stream":
        with pa.ipc.new_stream(root / "a.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    elif kind == "jsonl":
        (root / "a.jsonl").write_text("".join(json.dumps({"input_ids": doc}) + "\n" for doc in ids))
    return root


@pytest.mark.parametrize("kind", ["parquet", "large", "arrow", "stream", "jsonl"])
def test_ids_are_taken_as_they_are_and_the_type_follows_the_largest(tmp_path: Path, kind: str) -> None:
    source = ids_source(tmp_path / "in", kind)
    result = pack_tokens(source, tmp_path / "out", tokens={"tokenizer": "none", "empty": "keep"}, shuffle="none")
    assert documents(tmp_path / "out") == IDS
    assert result.manifest is not None
    assert result.manifest.membership["tokens"]["dtype"] == "int32"
    small = ids_source(tmp_path / "small", kind, [[1, 65_535], [2]])
    result = pack_tokens(small, tmp_path / "narrow", tokens={"tokenizer": "none", "eod": "0"}, shuffle="none")
    assert documents(tmp_path / "narrow") == [[1, 65_535, 0], [2, 0]]
    assert result.manifest is not None
    assert result.manifest.membership["tokens"]["dtype"] == "uint16"


def test_lists_of_a_fixed_size_are_documents_and_a_row_without_one_is_listed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    column = pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.int32(), 3))
    with pa.ipc.new_file(tmp_path / "in" / "a.arrow", pa.schema([("input_ids", column.type)])) as writer:
        writer.write_table(pa.table({"input_ids": column}))
    result = pack_tokens(
        tmp_path / "in", tmp_path / "out", tokens={"tokenizer": "none"}, shuffle="none", on_error="skip"
    )
    assert documents(tmp_path / "out") == [[1, 2, 3], [4, 5, 6]]
    assert result.manifest is not None
    assert result.manifest.ledger["failed"] == 1


def test_the_type_holds_the_padding(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": b'{"input_ids": [1, 2, 3]}\n'})
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": "none", "context": 4, "pad": "70000"})
    assert documents(tmp_path / "out") == [[1, 2, 3, 70000]]


def test_an_id_that_does_not_fit_names_its_document(tmp_path: Path) -> None:
    source = ids_source(tmp_path / "in", "parquet")
    with pytest.raises(SourceError, match=r"a\.parquet#1: token id 70,000 does not fit uint16"):
        pack_tokens(source, tmp_path / "out", tokens={"tokenizer": "none", "dtype": "uint16"})
    negative = ids_source(tmp_path / "neg", "parquet", [[1], [3, -1]])
    with pytest.raises(SourceError, match=r"a\.parquet#1: token id -1"):
        pack_tokens(negative, tmp_path / "out2", tokens={"tokenizer": "none"})


@pytest.mark.parametrize("shape", [(5, 7), (35,)])
def test_arrays_of_numpy_are_documents_by_row(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(35, dtype=np.int64).reshape(shape)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", array)
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": "none"}, shuffle="none")
    assert documents(tmp_path / "out") == (array if array.ndim == 2 else array[None]).tolist()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_are_read_compressed_or_not(tmp_path: Path, suffix: str) -> None:
    data = jsonl(TEXTS)
    packed = {
        "": data,
        ".gz": gzip.compress(data),
        ".zst": zstandard.compress(data[:500]) + zstandard.compress(data[500:]),
    }
    make_tree(tmp_path / "in", {f"a.jsonl{suffix}": packed[suffix]})
    pack_tokens(tmp_path / "in", tmp_path / "out", shuffle="none")
    assert list(keyed(tmp_path / "out").values()) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_short_is_named(tmp_path: Path, suffix: str) -> None:
    data = jsonl(TEXTS)
    packed = gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
    make_tree(tmp_path / "in", {f"a.jsonl{suffix}": packed[: len(packed) // 2]})
    with pytest.raises(SourceError, match="is damaged"):
        pack_tokens(tmp_path / "in", tmp_path / "out")


def test_folders_of_texts_and_tar_shards_are_sources(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.txt": "one", "b/c.md": "zwei ä", "b/d.py": "print()"})
    pack_tokens(tmp_path / "in", tmp_path / "out")
    assert keyed(tmp_path / "out") == {"a.txt": b"one", "b/c.md": "zwei ä".encode(), "b/d.py": b"print()"}
    pack(tmp_path / "in", tmp_path / "tar", include=("*.txt",))
    pack_tokens(tmp_path / "tar" / "data", tmp_path / "again")
    assert keyed(tmp_path / "again") == {"train-00000-of-00001.tar#a": b"one"}


def test_one_file_is_a_source(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["one"])})
    pack_tokens(tmp_path / "in" / "a.jsonl", tmp_path / "out")
    assert keyed(tmp_path / "out") == {"a.jsonl#0": b"one"}


def test_equal_paths_of_two_sources_have_different_keys(tmp_path: Path) -> None:
    for name in ("x", "y"):
        make_tree(tmp_path / name, {"a.jsonl": jsonl([name])})
    pack([tmp_path / "x", tmp_path / "y"], tmp_path / "out", format="bin", tokens=TokenOptions())
    assert keyed(tmp_path / "out") == {"x/a.jsonl#0": b"x", "y/a.jsonl#0": b"y"}


def test_equal_paths_in_folders_of_one_name_have_different_keys(tmp_path: Path) -> None:
    for name in ("x", "y"):
        make_tree(tmp_path / name / "data", {"a.jsonl": jsonl([name])})
    pack([tmp_path / name / "data" for name in ("x", "y")], tmp_path / "out", format="bin", tokens=TokenOptions())
    assert keyed(tmp_path / "out") == {"x/data/a.jsonl#0": b"x", "y/data/a.jsonl#0": b"y"}


@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_a_key_that_comes_twice_is_an_error(tmp_path: Path, shuffle: str) -> None:
    make_tree(tmp_path / "in", {"a.tar": tar_of([("k.txt", b"one"), ("other.txt", b"x"), ("k.txt", b"two")])})
    with pytest.raises(DuplicateKey, match=r"1 keys stand for more than one document: a\.tar#k"):
        pack_tokens(tmp_path / "in", tmp_path / "out", shuffle=shuffle)


def test_a_sample_of_a_tar_is_one_document(tmp_path: Path) -> None:
    members = [("a.txt", b"second"), ("a.text", b"first"), ("a.json", b"{}"), ("b.txt", b"b"), ("c.jpg", b"no")]
    make_tree(tmp_path / "in", {"x.tar": tar_of(members)})
    pack_tokens(tmp_path / "in", tmp_path / "out")
    assert keyed(tmp_path / "out") == {"x.tar#a": b"first", "x.tar#b": b"b"}


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    tar = tar_of([("a.txt", b"one")])
    files = {"a.tar.gz": gzip.compress(tar), "b.tar.zst": zstandard.compress(tar), "c.tgz": gzip.compress(tar)}
    make_tree(tmp_path / "in", {**files, "d.txt.gz": gzip.compress(b"good"), "e.gz": gzip.compress(b"good, too")})
    with pytest.raises(UsageProblem, match="3 files are compressed archives"):
        pack_tokens(tmp_path / "in", tmp_path / "out")


def test_a_source_that_is_no_folder_of_documents_is_refused_with_the_cure(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "in", {"a.txt": b"one", "b.txt": b"two"}), tmp_path / "tar")
    with pytest.raises(UsageProblem, match="is a data set") as caught:
        pack_tokens(tmp_path / "tar", tmp_path / "out")
    assert f"shardtool pack {tmp_path / 'tar' / 'data'} OUT" in caught.value.hint
    pack_tokens(tmp_path / "tar" / "data", tmp_path / "out")
    assert sorted(keyed(tmp_path / "out").values()) == [b"one", b"two"]


def test_pictures_are_refused_with_another_format(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.txt": "x", "b.jpg": b"\xff\xd8", "c": b"\0\1"})
    with pytest.raises(UsageProblem, match="2 files hold no text") as caught:
        pack_tokens(tmp_path / "in", tmp_path / "out")
    assert "tar or parquet" in caught.value.hint
    assert not (tmp_path / "out" / ".shardtool" / "parts").exists()


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_a_few_files_of_each_suffix_are_looked_at_and_the_others_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    texts = {f"{number:03d}{suffix}": "words" for number in range(200) for suffix in (".log", ".py", "")}
    make_tree(tmp_path / "in", {**texts, "127.log": b"more\0", "z.txt": b"as\0it is"})
    looks: list[bytes] = []

    def first_bytes(file: InputFile, size: int) -> bytes:
        looks.append(file.path)
        return files.first_bytes(file, size)

    monkeypatch.setattr(inputs, "first_bytes", first_bytes)
    if on_error == "error":
        with pytest.raises(SourceError, match=r"document 127\.log: no text: it has a zero byte"):
            pack_tokens(tmp_path / "in", tmp_path / "out")
    else:
        result = pack_tokens(tmp_path / "in", tmp_path / "out", on_error="skip")
        assert result.manifest is not None
        assert result.manifest.ledger == {"seen": 601, "packed": 600, "ignored": {}, "failed": 1}
        assert keyed(tmp_path / "out")["z.txt"] == b"as\0it is"
    assert len(looks) == 3 * 50  # every fourth
    monkeypatch.setattr(inputs, "LOOKS", 10)
    looks.clear()
    make_tree(tmp_path / "in", {"000": b"\0"})
    with pytest.raises(UsageProblem, match="at least 1 files hold no text"):
        pack_tokens(tmp_path / "in", tmp_path / "other")
    assert len(looks) == 10


BAD_LINES = b'{"text": "ok"}\nnot json\n{"other": 1}\n{"text": 3}\n\n{"text": "\\ud800"}\n[1]\n{"text": "last"}'


def test_documents_that_cannot_be_read_stop_the_run_or_are_listed(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": BAD_LINES, "b.txt": b"\xff\xfe"})
    with pytest.raises(SourceError, match=r"a\.jsonl#15: no JSON"):
        pack_tokens(tmp_path / "in", tmp_path / "out")
    result = pack_tokens(tmp_path / "in", tmp_path / "out2", on_error="skip")
    assert result.manifest is not None
    assert result.manifest.ledger == {"seen": 8, "packed": 2, "ignored": {}, "failed": 6}
    failed = [json.loads(line) for line in (tmp_path / "out2" / ".shardtool" / "failed.jsonl").read_text().splitlines()]
    assert [entry["path"] for entry in failed] == [f"a.jsonl#{n}" for n in (15, 24, 37, 50, 69)] + ["b.txt"]


def test_texts_of_categories_and_views_are_texts(tmp_path: Path) -> None:
    texts = ["one", "two", "one"]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), tmp_path / "in" / "a.parquet")
    table = pa.table({"text": pa.array(texts, pa.string_view())})
    with pa.ipc.new_file(tmp_path / "in" / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    pack_tokens(tmp_path / "in", tmp_path / "out")
    found = {f"{name}#{row}": text.encode() for name in ("a.parquet", "b.arrow") for row, text in enumerate(texts)}
    assert keyed(tmp_path / "out") == found


def test_columns_that_are_no_text_are_named(tmp_path: Path) -> None:
    source = ids_source(tmp_path / "in", "parquet")
    with pytest.raises(SourceError, match="no column 'text'; it has: input_ids, other"):
        pack_tokens(source, tmp_path / "out")
    with pytest.raises(SourceError, match=r"a\.parquet: column 'other' is int64, expected text"):
        pack_tokens(source, tmp_path / "out", tokens={"text_field": "other"})
    with pytest.raises(SourceError, match="expected lists"):
        pack_tokens(source, tmp_path / "out", tokens={"tokenizer": "none", "ids_field": "other"})


def test_a_second_run_finds_nothing_to_do_and_a_changed_source_is_counted(lines: Path, tmp_path: Path) -> None:
    first = pack_tokens(lines, tmp_path / "out", shards=2)
    again = pack_tokens(lines, tmp_path / "out", shards=2)
    assert (again.num_packed, again.num_resumed) == (0, 2)
    os.utime(lines / "a.jsonl", (1, 1))
    assert pack_tokens(lines, tmp_path / "out", shards=2).num_packed == 0, "another time, the same documents"
    with pytest.raises(PlanMismatch, match="eod auto, now none"):
        pack_tokens(lines, tmp_path / "out", shards=2, tokens={"eod": "none"})
    pack(lines, tmp_path / "tar", group_by="file")
    with pytest.raises(PlanMismatch, match="format tar, now bin"):
        pack_tokens(lines, tmp_path / "tar")
    (lines / "c.jsonl").write_bytes(jsonl(["more"]))
    with pytest.raises(PlanMismatch, match="1 added"):
        pack_tokens(lines, tmp_path / "out", shards=2)
    replaced = pack_tokens(lines, tmp_path / "out", shards=2, overwrite=True)
    assert replaced.stored.plan_id != first.stored.plan_id
    assert len(keyed(tmp_path / "out")) == 101


def test_a_lost_shard_is_made_again_from_the_source(lines: Path, tmp_path: Path) -> None:
    pack_tokens(lines, tmp_path / "out", shards=2)
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "data" / "train-00001-of-00002.idx").unlink()
    said = Said()
    again = pack_tokens(lines, tmp_path / "out", shards=2, say=said)
    assert again.num_packed == 1
    assert digests(tmp_path / "out") == before
    assert any("part files are gone" in step for step in said.steps)


def test_the_same_content_elsewhere_gives_the_same_plan(lines: Path, tmp_path: Path) -> None:
    one = pack_tokens(lines, tmp_path / "out", shards=2)
    shutil.copytree(lines, tmp_path / "copy")
    two = pack_tokens(tmp_path / "copy", tmp_path / "out2", shards=2)
    assert one.stored.plan_id == two.stored.plan_id
    assert one.manifest is not None
    assert two.manifest is not None
    assert one.manifest.dataset_id == two.manifest.dataset_id


def test_parts_share_the_work(lines: Path, tmp_path: Path) -> None:
    whole = pack_tokens(lines, tmp_path / "whole", shards=3)
    for number in range(2):
        result = pack_tokens(lines, tmp_path / "parts", shards=3, part=(number, 2))
    assert result.manifest is not None
    assert whole.manifest is not None
    assert result.manifest.dataset_id == whole.manifest.dataset_id


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stratify": "label"}, "--stratify"),
        ({"compress": "zstd:3"}, "--compress"),
        ({"tokens": {"context": 8, "eod": "none"}}, "needs an id to pad"),
        ({"tokens": {"context": 8, "empty": "keep"}}, "--empty keep"),
        ({"tokens": {"shard_tokens": 8}, "shard_size": 5000}, "exclude one another"),
        ({"tokens": {"eod": "<nope>"}}, "no token"),
        ({"tokens": {"eod": "257"}}, "beyond the vocabulary"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(
    lines: Path, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageProblem, match=says):
        pack_tokens(lines, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_index_written_from_files_is_the_one_written_from_memory(lines: Path, tmp_path: Path) -> None:
    from shardtool.index_file import encode_columns

    pack_tokens(lines, tmp_path / "out")
    with Dataset.open(str(tmp_path / "out")) as dataset:
        index = dataset.index(0)
        encoded = encode_columns(
            keys=index.keys,
            offset=index.offset.astype(np.int64),
            num_bytes=index.num_bytes.astype(np.int64),
            labels=None,
            part_start=index.part_start,
            names=index.part_names,
            part_offset=index.part_offset.astype(np.int64),
            part_bytes=index.part_bytes.astype(np.int64),
            part_xxh3_64=index.part_xxh3_64,
            source=index.part_source,
            meta=index.meta,
        )
    assert encoded == (tmp_path / "out" / "index" / "00000.arrow").read_bytes()


def test_the_simple_writer_gives_the_bytes_of_the_fast_one(lines: Path, tmp_path: Path) -> None:
    """BinFormat.write, a sequence at a time, is the oracle of the merge of runs."""
    from shardtool.formats.bin import BinFormat
    from shardtool.storage.shard_file import ShardFile
    from shardtool.verification.shard import rows_of

    pack_tokens(lines, tmp_path / "out")
    with Dataset.open(str(tmp_path / "out")) as dataset:
        index = dataset.index(0)
        payloads = [sample.parts["tokens"] for sample in dataset.samples(0)]

        class Parts:
            def stream(self, part: int, buffer: memoryview) -> Iterator[bytes]:
                yield payloads[part]

        file = ShardFile(str(tmp_path), "simple.bin", "x")
        written = BinFormat().write(rows_of(index), [], cast("Any", Parts()), file)
        file.publish(durable=False)
        assert written.part_xxh3_64.tolist() == index.part_xxh3_64.tolist()
        assert written.sample_offset.tolist() == index.offset.tolist()
    fast = prefixes(tmp_path / "out")[0]
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"simple{suffix}").read_bytes() == Path(f"{fast}{suffix}").read_bytes()
