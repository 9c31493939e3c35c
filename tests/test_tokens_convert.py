"""`convert` of token shards: packed anew as token shards, or as shards of bytes, with what is lost said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Said, make_tree, pack, run_cli
from pairs import read_pair, write_pair
from test_schemas import check
from test_tokens_merge import DOCS, damage
from test_tokens_pack import TEXTS, digests, documents, jsonl, keyed, pack_tokens, prefixes

from shardtool.errors import CorruptShard, PlanMismatch, UsageProblem
from shardtool.executors.local import LocalExecutor
from shardtool.formats import FORMATS
from shardtool.packing.build import PackRequest, PackResult, build
from shardtool.planning.plan import PlanOptions
from shardtool.reading.reading import Dataset
from shardtool.token_options import TokenOptions
from shardtool.workers import WorkerPool

KEPT = TokenOptions(tokenizer="none", eod="none", empty="keep")


def convert(*sources: Path | str, out: Path, workers: int = 0, said: Said | None = None, **options: Any) -> PackResult:
    """What `convert SRC... OUT --format bin` does."""
    plan = PlanOptions(format="bin", source="shards", tokens=KEPT, **options)
    request = PackRequest(tuple(map(str, sources)), str(out), plan, durable=False)
    with WorkerPool(workers) as pool:
        return build(request, pool, LocalExecutor(pool), said or Said())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS[:60]), "sub/b.jsonl": jsonl(TEXTS[60:])})
    pack_tokens(tmp_path / "in", tmp_path / "source", shards=3)
    return tmp_path / "source"


@pytest.mark.parametrize(
    "options",
    [{"shards": 2}, {"shard_size": 3000}, {"seed": 7, "samples_per_shard": 30}, {"split": "train=0.8,test=0.2"}],
)
def test_the_shards_are_those_that_packing_the_text_gives(
    source: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    wanted = tmp_path / "wanted"
    pack_tokens(tmp_path / "in", wanted, **options)
    convert(source, out=tmp_path / "out", **options)
    one, other = (
        {name: data for name, data in digests(out).items() if name.startswith(("data/", "index/"))}
        for out in (wanted, tmp_path / "out")
    )
    assert one == other
    facts = [json.loads((out / "manifest.json").read_text())["membership"] for out in (wanted, tmp_path / "out")]
    assert facts[0] == facts[1], "tokenizer, end of documents and counts are told as before"


def test_without_shuffle_sequences_stay_in_the_order_of_the_shards(source: Path, tmp_path: Path) -> None:
    convert(source, out=tmp_path / "out", shuffle="none", shards=5)
    assert documents(tmp_path / "out") == documents(source)
    assert len(prefixes(tmp_path / "out")) == 5


def test_splits_stay_unless_new_ones_are_asked_for(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(tmp_path / "in", tmp_path / "source", split="train=0.7,validation=0.2,test=0.1", shards=2)
    convert(tmp_path / "source", out=tmp_path / "out", seed=3, shards=1)
    for split, count in (("train", 70), ("validation", 20), ("test", 10)):
        found = documents(tmp_path / "out", split)
        assert len(found) == count
        assert sorted(found) == sorted(documents(tmp_path / "source", split))
        assert found != documents(tmp_path / "source", split), "another seed, another order"
    convert(tmp_path / "source", out=tmp_path / "again", split="train=0.5,test=0.5")
    assert [len(documents(tmp_path / "again", split)) for split in ("train", "test")] == [50, 50]


def test_sequences_of_a_context_keep_their_keys_and_lengths(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(tmp_path / "in", tmp_path / "source", tokens={"context": 64})
    convert(tmp_path / "source", out=tmp_path / "out", shards=2)
    assert {len(ids) for ids in documents(tmp_path / "out")} == {64}
    keys = []
    for folder in ("source", "out"):
        with Dataset.open(str(tmp_path / folder)) as dataset:
            keys.append(sorted(sample.key for shard in range(dataset.num_shards) for sample in dataset.samples(shard)))
    assert keys[0] == keys[1]
    assert keys[0][0] == b"train/000000000"


def test_the_type_of_the_ids_stays_though_a_narrower_one_would_do(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["one", "two"])})
    pack_tokens(tmp_path / "in", tmp_path / "source", tokens={"dtype": "int32"})
    convert(tmp_path / "source", out=tmp_path / "out")
    with Dataset.open(str(tmp_path / "out")) as dataset:
        assert dataset.index(0).meta["dtype"] == "int32"
    assert sorted(documents(tmp_path / "out")) == sorted(documents(tmp_path / "source"))


def test_empty_sequences_stay(tmp_path: Path) -> None:
    write_pair(tmp_path / "a", [[1, 2], [], [3]])
    convert(tmp_path / "a", out=tmp_path / "out", shuffle="none")
    assert documents(tmp_path / "out") == [[1, 2], [], [3]]


def test_pairs_of_other_tools_are_shuffled_indexed_and_numbered(tmp_path: Path) -> None:
    write_pair(tmp_path / "in" / "a", DOCS)
    write_pair(tmp_path / "in" / "b", [[7, 8]])
    said = Said()
    convert(tmp_path / "in", out=tmp_path / "out", shards=2, said=said)
    with Dataset.open(str(tmp_path / "out")) as dataset:
        found = {
            sample.key: np.frombuffer(sample.parts["tokens"], "<u2").tolist()
            for shard in range(dataset.num_shards)
            for sample in dataset.samples(shard, check=True)
        }
    assert found == {b"a.bin#0": DOCS[0], b"a.bin#1": DOCS[1], b"a.bin#2": DOCS[2], b"b.bin#0": [7, 8]}
    assert not said.warnings, "nothing is lost of one sequence a document"


def test_documents_of_several_sequences_are_told_to_fall_apart(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    data = Path(f"{pair}.idx").read_bytes()
    entries = np.array([0, 2, 3], "<i8").tobytes()
    Path(f"{pair}.idx").write_bytes(data[:26] + (3).to_bytes(8, "little") + data[34 : 34 + 36] + entries)
    said = Said()
    convert(pair, out=tmp_path / "out", said=said)
    assert said.warnings == ["not carried over: documents of several sequences: each sequence becomes one"]
    assert sorted(documents(tmp_path / "out")) == sorted(DOCS)


def test_the_workers_change_no_byte(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.inputs.LEAST_SLICE_BYTES", 700)
    convert(source, out=tmp_path / "here", shards=2)
    convert(source, out=tmp_path / "there", shards=2, workers=2)
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    monkeypatch.setattr("shardtool.tokens.runs.PIECE_BYTES", 100)
    monkeypatch.setattr("shardtool.tokens.inputs.SLICES", 1)
    monkeypatch.setattr("shardtool.tokens.inputs.LEAST_SLICE_BYTES", 1 << 20)
    convert(source, out=tmp_path / "whole", shards=2)
    assert digests(tmp_path / "here") == digests(tmp_path / "whole")


def test_a_second_run_finds_nothing_to_do_and_another_source_is_refused(source: Path, tmp_path: Path) -> None:
    convert(source, out=tmp_path / "out", shards=2)
    assert convert(source, out=tmp_path / "out", shards=2).num_packed == 0
    pack_tokens(tmp_path / "in", source, shards=4, overwrite=True)
    with pytest.raises(PlanMismatch):
        convert(source, out=tmp_path / "out", shards=2)


def test_a_lost_shard_is_made_again_from_the_shards_of_the_source(source: Path, tmp_path: Path) -> None:
    convert(source, out=tmp_path / "out", shards=2)
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "data" / "train-00001-of-00002.bin").unlink()
    assert run_cli("pack", tmp_path / "out", "--durability", "none").code == 0
    assert digests(tmp_path / "out") == before


def test_damage_of_the_source_is_not_carried_over(source: Path, tmp_path: Path) -> None:
    shard = Path(f"{prefixes(source)[1]}.bin")
    data = bytearray(shard.read_bytes())
    data[40] ^= 1
    shard.write_bytes(data)
    ran = run_cli("convert", source, tmp_path / "out", "--format", "bin", "--durability", "none")
    assert ran.code == 4
    assert "is not what its index says" in ran.err
    assert not (tmp_path / "out" / "manifest.json").exists()
    pair = write_pair(tmp_path / "pair", DOCS)
    damage(pair, "truncated")
    with pytest.raises(CorruptShard, match="pair is damaged"):
        convert(pair, out=tmp_path / "out2")


def test_what_cannot_become_one_data_set_of_token_shards_is_refused(source: Path, tmp_path: Path) -> None:
    wide = write_pair(tmp_path / "wide", DOCS, "<i4")
    narrow = write_pair(tmp_path / "narrow", DOCS)
    with pytest.raises(UsageProblem, match="different types"):
        convert(wide, narrow, out=tmp_path / "out")
    pack_tokens(tmp_path / "in", tmp_path / "other", tokens={"eod": "none"})
    with pytest.raises(UsageProblem, match="different tokenizers or contexts"):
        convert(source, tmp_path / "other", out=tmp_path / "out")
    pack(make_tree(tmp_path / "files", {"a.txt": "x"}), tmp_path / "tar")
    with pytest.raises(UsageProblem, match="token shards of token shards alone") as caught:
        convert(tmp_path / "tar", out=tmp_path / "out")
    assert f"shardtool pack {tmp_path / 'tar' / 'data'} OUT --format bin" in caught.value.hint
    with pytest.raises(UsageProblem, match="no data set of token shards"):
        convert(tmp_path / "in", out=tmp_path / "out")
    with pytest.raises(UsageProblem, match="from a disk") as caught:
        convert("s3://bucket/tokens", out=tmp_path / "out")
    assert caught.value.hint == "shardtool stage s3://bucket/tokens DIR brings them here"
    with pytest.raises(UsageProblem, match="--include"):
        convert(source, out=tmp_path / "out", include=("*.bin",))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_pack_of_pairs_names_convert(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="hold no text") as caught:
        pack_tokens(source / "data", tmp_path / "out")
    assert "shardtool convert SRC OUT --format bin" in caught.value.hint


def test_the_command_says_what_is_not_carried_over(source: Path, tmp_path: Path) -> None:
    ran = run_cli("convert", source, tmp_path / "out", "--format", "bin", "--shards", "2", "--json")
    check("pack", ran.json)
    assert (ran.code, ran.json["samples"], ran.json["shards"]) == (0, 100, 2)
    assert "not carried over: provenance" in ran.err
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0
    assert keyed(tmp_path / "out") == keyed(source)


def test_a_dry_run_of_large_pairs_reads_their_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.estimate.SAMPLE_BYTES", 4000)
    monkeypatch.setattr("shardtool.tokens.estimate.HEAD_BYTES", 1000)
    monkeypatch.setattr("shardtool.tokens.runs.PIECE_BYTES", 1000)
    for name in "ab":
        write_pair(tmp_path / "in" / name, [[number % 500] * 40 for number in range(100)])
    ran = run_cli("convert", tmp_path / "in", tmp_path / "out", "--format", "bin", "--dry-run")
    assert ran.code == 0, ran.err
    assert "estimate" in ran.out + ran.err
    assert "8,000" in ran.out, ran.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shard_format", [name for name in FORMATS if name != "bin"])
def test_a_sequence_becomes_a_sample_of_raw_ids_in_any_other_format(
    source: Path, tmp_path: Path, shard_format: str
) -> None:
    ran = run_cli("convert", source, tmp_path / "out", "--format", shard_format, "--durability", "none")
    assert ran.code == 0, ran.err
    assert "not carried over: token ids become parts of raw bytes (uint16, little-endian)" in ran.err
    found = {}
    with Dataset.open(str(tmp_path / "out")) as dataset:
        for shard in range(dataset.num_shards):
            for sample in dataset.samples(shard, check=True):
                assert list(sample.parts) == ["tokens"]
                found[sample.key.decode()] = np.frombuffer(sample.parts["tokens"], "<u2").tolist()
    assert sorted(found.values()) == sorted(documents(source))
    assert "a_jsonl#0" in found, "a dot would end the key"


def test_the_pairs_of_a_converted_data_set_are_read_as_any(source: Path, tmp_path: Path) -> None:
    convert(source, out=tmp_path / "out", shards=2)
    assert sorted(ids for prefix in prefixes(tmp_path / "out") for ids in read_pair(prefix)) == sorted(
        documents(source)
    )
