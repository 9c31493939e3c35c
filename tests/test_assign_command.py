"""`shardtool assign`: every rank's samples once, the exact order, files that read back, and refusals with a cure."""

from __future__ import annotations

import gc
import json
import os
import time
import tracemalloc
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from helpers import make_tree, pack, run_cli

from shardtool.assignment.assignment import Wish, assign, choose_order, split_shards, usual_nodes
from shardtool.assignment.files import assign_pieces, head_document, write_parquet
from shardtool.assignment.summary import summarize
from shardtool.errors import UsageProblem
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset
from shardtool.report.assign import render_assignment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helpers import Ran

SCHEMA = json.loads((Path(__file__).parent.parent / "docs/reference/schemas/assign.schema.json").read_text())
NUM_SAMPLES = 403  # no multiple of any world size below
Sample = tuple[int, int]


def files(count: int) -> dict[str, bytes]:
    """Samples of several sizes, two parts each."""
    jpgs = {f"{i % 7}/{i:04}.jpg": bytes([i % 251]) * (200 + 37 * (i % 41)) for i in range(count)}
    return {**jpgs, **{f"{i % 7}/{i:04}.txt": f"sample {i}".encode() for i in range(count)}}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """403 samples in 12 uneven shards."""
    root = tmp_path_factory.mktemp("assign")
    pack(make_tree(root / "src", files(NUM_SAMPLES)), root / "out", shard_size=100_000)
    return root / "out"


@pytest.fixture(scope="module")
def split_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("splits")
    shares = "train=0.6,validation=0.4"
    pack(make_tree(root / "src", files(120)), root / "out", samples_per_shard=10, split=shares)
    return root / "out"


def asked(out: Path, *args: str) -> dict[str, Any]:
    """The JSON document, checked against its schema."""
    done = run_cli("assign", out, "--json", *args)
    assert done.code == 0, done.err
    jsonschema.validate(done.json, SCHEMA)
    return done.json


def expanded(segments: Iterable[dict[str, int]]) -> list[Sample]:
    return [(row["shard"], row["first"] + i * row["step"]) for row in segments for i in range(row["count"])]


def everything(out: Path, split: str = "") -> Counter[Sample]:
    shards = load_manifest(str(out)).shards
    return Counter(
        (k, row) for k, shard in enumerate(shards) if split in ("", shard.split) for row in range(shard.num_samples)
    )


def refused(done: Ran, code: int, *words: str) -> None:
    assert done.code == code, done.out + done.err
    assert done.out == ""
    for word in words:
        assert word in done.err, done.err


# --- coverage


@pytest.mark.parametrize("mode", ["plw", "shard", "none", "full"])
@pytest.mark.parametrize("world_size", [1, 2, 5, 16, 600])
def test_all_ranks_together_read_every_sample_once(out: Path, world_size: int, mode: str) -> None:
    ranks = asked(out, "--world-size", str(world_size), "--order", mode)["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(world_size))
    found = [expanded(rank["segments"]) for rank in ranks]
    assert [len(samples) for samples in found] == [rank["samples"] for rank in ranks]
    assert Counter(sample for samples in found for sample in samples) == everything(out)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("policy", ["carry", "drop", "pad", "uneven"])
def test_a_policy_decides_about_the_tail(out: Path, policy: str) -> None:
    document = asked(out, "--world-size", "4", "--batch-size", "20", "--policy", policy)
    found = Counter(sample for rank in document["ranks"] for sample in expanded(rank["segments"]))
    left_out = NUM_SAMPLES % 20 if policy == "drop" else 0
    assert found.total() == NUM_SAMPLES - left_out
    assert found <= everything(out)
    assert sum(rank.get("repeated", 0) for rank in document["ranks"]) == (-NUM_SAMPLES % 4 if policy == "pad" else 0)
    assert document["policy"] == policy


def test_loader_workers_share_what_their_rank_reads(out: Path) -> None:
    for rank in asked(out, "--world-size", "2", "--loader-workers", "3", "--batch-size", "8")["ranks"]:
        workers = Counter(sample for worker in rank["workers"] for sample in expanded(worker["segments"]))
        assert workers == Counter(expanded(rank["segments"]))
        assert len(rank["workers"]) == 3


def test_what_is_read_before_and_after_a_position_is_the_epoch(out: Path) -> None:
    before = asked(out, "--world-size", "4", "--expand", "0:160")["ranks"]
    after = asked(out, "--world-size", "3", "--elastic", "4", "--position", "160")["ranks"]
    read = Counter((shard, row) for rank in before for shard, row in rank["sequence"])
    assert read + Counter(sample for rank in after for sample in expanded(rank["segments"])) == everything(out)


def test_segments_carry_the_bytes_that_hold_their_samples(out: Path) -> None:
    with Dataset.open(str(out)) as dataset:
        for row in asked(out, "--world-size", "3", "--order", "shard")["ranks"][1]["segments"]:
            index = dataset.index(row["shard"])
            last = row["first"] + (row["count"] - 1) * row["step"]
            assert row["offset"] == index.offset[row["first"]]
            assert row["offset"] + row["bytes"] == index.offset[last] + index.num_bytes[last]


def test_a_node_is_the_ranks_that_agree_modulo_the_nodes(out: Path) -> None:
    args = ("--world-size", "8", "--num-nodes", "2", "--lanes", "8")
    ranks = asked(out, *args, "--node-rank", "1")["ranks"]
    assert [(rank["rank"], rank["node"]) for rank in ranks] == [(1, 1), (3, 1), (5, 1), (7, 1)]
    share = asked(out, *args)["replication"][0]
    assert len({row["shard"] for rank in ranks for row in rank["segments"]}) <= share["max_shards"]


# --- the order


def test_expand_equals_the_sequence_of_the_library(out: Path) -> None:
    manifest = load_manifest(str(out))
    found = assign(manifest, Wish(world_size=4, batch_size=20, policy="pad"))
    document = asked(out, "--world-size", "4", "--batch-size", "20", "--policy", "pad", "--expand", "300:120")
    for rank in document["ranks"]:
        chunks = list(found.sequence(rank["rank"], 300, 120))
        shards, rows = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("shard", "row"))
        assert rank["sequence"] == np.stack([shards, rows], axis=1).tolist()
        is_valid = np.concatenate([chunk.is_valid for chunk in chunks])
        assert rank.get("repeated_at", []) == np.flatnonzero(~is_valid).tolist()


def test_an_elastic_run_has_one_order_at_every_world_size(out: Path) -> None:
    sizes = ["2", "4", "6"]
    documents = [asked(out, "--world-size", size, "--elastic", "2,4,6", "--expand", "0:48") for size in sizes]
    assert len({json.dumps(document["order"]) for document in documents}) == 1
    batches = [{tuple(s) for rank in document["ranks"] for s in rank["sequence"]} for document in documents]
    assert batches[0] == batches[1] == batches[2]
    assert [row["world_size"] for row in documents[1]["replication"]] == [4, 2, 6]


def test_nodes_never_change_the_order(out: Path) -> None:
    orders = [asked(out, "--world-size", "12", "--num-nodes", nodes)["order"] for nodes in ("1", "3", "12")]
    assert orders[0] == orders[1] == orders[2]


def test_lanes_piece_and_window_can_be_chosen(out: Path) -> None:
    order = asked(out, "--lanes", "6", "--piece", "shard", "--window", "3", "--seed", "18446744073709551615")["order"]
    assert (order["lanes"], order["radices"], order["piece"], order["window"]) == (6, [2, 3], "shard", 3)
    assert order["seed"] == 2**64 - 1


def test_an_epoch_is_a_position(out: Path) -> None:
    document = asked(out, "--epoch", "2")
    assert (document["epoch"], document["position"]) == (2, 2 * NUM_SAMPLES)
    assert asked(out, "--position", str(2 * NUM_SAMPLES + 5))["epoch"] == 2
    refused(run_cli("assign", out, "--epoch", "2", "--position", "5"), 2, "lies in epoch 0")


# --- splits


def test_a_split_is_a_data_set_of_its_own(split_out: Path) -> None:
    for split in ("train", "validation"):
        document = asked(split_out, "--split", split, "--world-size", "4")
        found = Counter(sample for rank in document["ranks"] for sample in expanded(rank["segments"]))
        assert found == everything(split_out, split)
        assert (document["split"], document["samples"]) == (split, found.total())


def test_train_is_taken_where_no_split_is_named_and_it_is_said(split_out: Path) -> None:
    done = run_cli("assign", split_out)
    assert "split  train; the others: validation (--split)" in done.err
    assert "data   train  " in done.out


def test_a_split_that_does_not_exist_is_refused_with_those_that_do(split_out: Path) -> None:
    refused(run_cli("assign", split_out, "--split", "tset"), 2, "no split 'tset'", "train, validation")


# --- state


def test_a_state_brings_order_policy_and_position(out: Path, tmp_path: Path) -> None:
    first = asked(out, "--world-size", "8", "--seed", "5", "--policy", "uneven", "--position", "120")
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(first["state"]))
    later = asked(out, "--world-size", "3", "--state", str(saved), "--expand", "120:60")
    assert later["order"] == first["order"]
    assert (later["policy"], later["position"]) == ("uneven", 120)
    saved.write_text(json.dumps(first))  # a whole document will do
    assert asked(out, "--world-size", "3", "--state", str(saved), "--expand", "120:60") == later


def test_another_order_beside_a_state_is_named_and_not_used(out: Path, tmp_path: Path) -> None:
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(asked(out, "--seed", "5")["state"]))
    done = run_cli("assign", out, "--state", saved, "--seed", "6")
    assert "made with seed 5, and that is used, not 6" in done.err
    assert "seed 5" in done.out


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("{", 2, "not JSON"),
        ("[]", 2, "no JSON object"),
        ('{"v": 1}', 2, "not a state of shardtool"),
        (None, 5, "No such file"),
    ],
)
def test_what_is_no_state_is_refused(out: Path, tmp_path: Path, text: str | None, code: int, words: str) -> None:
    saved = tmp_path / "state.json"
    if text is not None:
        saved.write_text(text)
    refused(run_cli("assign", out, "--state", saved), code, words)


def test_a_state_of_another_data_set_exits_6(out: Path, split_out: Path, tmp_path: Path) -> None:
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(asked(split_out)["state"]))
    refused(run_cli("assign", out, "--state", saved), 6, "belongs to data set", "start at position 0")


# --- files


def test_json_files_are_the_document_rank_by_rank(out: Path, tmp_path: Path) -> None:
    done = run_cli("assign", out, "--world-size", "3", "-o", tmp_path / "ranks")
    assert done.code == 0
    names = sorted(path.name for path in (tmp_path / "ranks").iterdir())
    assert names == [f"rank-{rank:05}.json" for rank in range(3)]
    ranks = [json.loads((tmp_path / "ranks" / name).read_text()) for name in names]
    for document in ranks:
        jsonschema.validate(document, SCHEMA)
    assert [rank for document in ranks for rank in document["ranks"]] == asked(out, "--world-size", "3")["ranks"]


def test_json_beside_files_names_them(out: Path, tmp_path: Path) -> None:
    document = asked(out, "--world-size", "2", "--emit", "parquet", "-o", str(tmp_path / "ranks"))
    assert document["files"] == ["rank-00000.parquet", "rank-00001.parquet"]
    assert [rank["samples"] for rank in document["ranks"]] == [202, 201]


def test_parquet_holds_the_exact_order_with_bytes(out: Path, tmp_path: Path) -> None:
    args = ("--world-size", "4", "--batch-size", "20", "--policy", "pad", "--loader-workers", "2", "--rank", "2")
    assert run_cli("assign", out, *args, "--emit", "parquet", "-o", tmp_path / "ranks").code == 0
    table = pq.read_table(tmp_path / "ranks" / "rank-00002.parquet")
    rank = asked(out, *args, "--expand", f"0:{NUM_SAMPLES}")["ranks"][0]
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    pairs = zip(columns["shard"], columns["sample"], strict=True)
    assert [list(pair) for pair in pairs] == rank["sequence"]
    assert columns["worker"] == [step % 2 for step in columns["step"]]
    assert columns["is_valid"].count(False) == rank.get("repeated", 0)
    with Dataset.open(str(out)) as dataset:
        for shard, sample, offset, size in zip(
            *(columns[n] for n in ("shard", "sample", "offset", "bytes")), strict=True
        ):
            index = dataset.index(shard)
            assert (offset, size) == (index.offset[sample], index.num_bytes[sample])


def read_urls(urls: list[str]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves files open
        keys = [sample["__key__"] for sample in wds.WebDataset(urls, shardshuffle=False, empty_check=False)]
        gc.collect()
    return keys


def keys_of(out: Path, samples: Iterable[Sample]) -> list[str]:
    with Dataset.open(str(out)) as dataset:
        return [dataset.index(shard).key(row).decode() for shard, row in samples]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (3, 0), (4, 2)])
def test_webdataset_reads_exactly_a_ranks_samples_from_its_urls(
    out: Path, tmp_path: Path, world_size: int, workers: int
) -> None:
    args = ("--world-size", str(world_size), "--loader-workers", str(workers), "--order", "shard")
    folder = tmp_path / "lists"
    done = run_cli("assign", out, *args, "--emit", "urls", "-o", folder)
    assert done.code == 0, done.err
    everyone: list[str] = []
    for rank in range(world_size):
        names = sorted(path.name for path in folder.glob(f"rank-{rank:05}*"))
        assert len(names) == max(1, workers)
        found = [key for name in names for key in read_urls((folder / name).read_text().splitlines())]
        assert len(found) in (NUM_SAMPLES // world_size, NUM_SAMPLES // world_size + 1)
        everyone += found
    assert Counter(everyone) == Counter(keys_of(out, everything(out)))


def test_urls_of_a_rank_are_its_coverage_in_order_from_any_position(out: Path) -> None:
    args = ("--world-size", "3", "--rank", "1", "--position", "107", "--order", "shard", "--policy", "uneven")
    done = run_cli("assign", out, *args, "--emit", "urls")
    segments = asked(out, *args)["ranks"][0]["segments"]
    assert read_urls(done.out.splitlines()) == keys_of(out, expanded(segments))


def test_urls_name_whole_shards_plainly(out: Path) -> None:
    done = run_cli("assign", out, "--emit", "urls")
    shards = load_manifest(str(out)).shards
    assert sorted(done.out.splitlines()) == [str(out / shard.path) for shard in shards]


def test_files_go_to_an_empty_folder_only(out: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    refused(run_cli("assign", out, "-o", tmp_path), 6, "not an empty folder", "new folder")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("args", "cure"),
    [
        (("--emit", "table", "-o", "x"), "--emit json"),
        (("--emit", "parquet"), "add -o DIR"),
        (("--emit", "parquet", "--json"), "add -o DIR"),
        (("--emit", "urls", "--json"), "leave one out"),
        (("--expand", "0:8"), "add --json"),
        (("--json", "--expand", "8"), "0:1024"),
        (("--emit", "urls", "--order", "plw"), "leave --order out"),
        (("--emit", "urls", "--policy", "carry"), "leave --policy out"),
        (("--emit", "urls", "--world-size", "2"), "add -o DIR"),
        (("--emit", "urls", "--lanes", "3", "--world-size", "2", "--rank", "0"), "--lanes 2"),
        (("--json", "--expand", "0:8", "--position", "9"), "--position 0"),
    ],
)
def test_forms_that_contradict_one_another_are_refused_with_a_cure(out: Path, args: tuple[str, ...], cure: str) -> None:
    done = run_cli("assign", out, *args)
    assert done.code == 2, done.out + done.err
    assert cure in done.err
    assert not done.out, "nothing is said before all is known to be right"


# --- refusals


@pytest.mark.parametrize(
    ("args", "cure"),
    [
        (("--world-size", "500", "--policy", "uneven"), "use at most 403 ranks"),
        (("--world-size", "4", "--batch-size", "404", "--policy", "drop"), "at most 403"),
        (("--world-size", "8", "--batch-size", "4"), "global batch of 8 or more"),
        (("--world-size", "8", "--batch-size", "12", "--policy", "pad"), "multiple of 8"),
        (("--world-size", "8", "--num-nodes", "3"), "--num-nodes 2"),
        (("--world-size", "8", "--rank", "8"), "ranks count from 0"),
        (("--world-size", "16", "--node-rank", "2"), "nodes count from 0"),
        (("--rank", "0", "--node-rank", "0"), "leave it out"),
        (("--elastic", "64,x"), "64,96,128"),
        (("--order", "random"), "did you mean full?"),
        (("--policy", "wrap"), "did you mean carry?"),
        (("--world-size", "300", "--loader-workers", "2", "--emit", "urls", "-o", "x"), "--lanes 600"),
        (("--position", str(2**63)), "beyond 2^62"),
        (("--epoch", str(2**60)), "beyond 2^62"),
        (("--batch-size", str(2**63)), "beyond 2^62"),
        (("--lanes", str(10**12)), "leave lanes out"),
        (("--json", "--expand", f"{2**63 - 1}:5"), "go beyond 2^62"),
        (("--json", "--expand", "7:1,073,741,825"), "--expand 7:1024"),
        (("--json", "--expand", f"0:{2**62}"), "at most 1,073,741,824"),
        (("--world-size", str(2**20 + 1)), "at most 1,048,576"),
        (("--elastic", f"8,{10**12}"), "data-parallel ranks"),
        (("--world-size", "8", "--num-nodes", str(10**12)), "--num-nodes 8"),
        (("--loader-workers", "1025"), "at most 1,024"),
    ],
)
def test_configurations_that_starve_a_rank_or_make_no_sense_exit_2_with_the_cure(
    out: Path, args: tuple[str, ...], cure: str
) -> None:
    refused(run_cli("assign", out, *args), 2, cure)


def test_what_is_no_data_set_exits_5(tmp_path: Path) -> None:
    refused(run_cli("assign", tmp_path), 5, "holds no data set")


def test_a_lost_index_is_named_where_bytes_are_asked_for(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", files(20)), tmp_path / "out")
    (tmp_path / "out/index/00000.arrow").unlink()
    assert run_cli("assign", tmp_path / "out").code == 0
    assert run_cli("assign", tmp_path / "out", "--json").code == 4


# --- what people see


def test_the_answer_fits_80_columns_and_says_what_it_costs(out: Path) -> None:
    done = run_cli("assign", out, "--world-size", "16", "--elastic", "8,16,32", "--disk", "1GB", "--epoch", "7")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("order  plw/1  lanes ")
    assert "position 2,821 (epoch 7)" in done.out
    assert any(line.startswith("0 .. 15  25 .. 26  ") for line in lines)
    assert "copies over 2 nodes " in done.out
    assert "(8 ranks: 1.00, 32: " in done.out
    assert "fits its disk" in done.out
    assert "shuffled when packed" in done.out


def test_a_rank_of_its_own_gets_a_line_and_verbose_gives_all(out: Path) -> None:
    one = run_cli("assign", out, "--world-size", "4", "--rank", "3").out.splitlines()
    assert one[2].split()[0] == "rank"
    assert one[3].split()[0] == "3"
    assert len(run_cli("assign", out, "--world-size", "4", "-v").out.splitlines()) == len(one) + 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--world-size", "16"), "12 shards are few for 16 ranks"),
        (("--world-size", "8", "--loader-workers", "4"), "--shards-multiple-of 32"),
        (("--world-size", "7", "--lanes", "6"), "--lanes 42"),
        (("--world-size", "6", "--elastic", "4"), "--elastic 4,6"),
        (("--world-size", "4", "--batch-size", "10"), "--batch-size 8"),
        (("--world-size", "4", "--batch-size", "800"), "--batch-size 400"),
        (("--batch-size", "300", "--loader-workers", "4"), "--loader-workers 1"),
        (("--disk", "100000"), "does not fit a disk"),
        (("--world-size", "16", "--order", "full"), "--order plw"),
    ],
)
def test_a_warning_says_what_it_costs_and_what_to_type(out: Path, args: tuple[str, ...], words: str) -> None:
    done = run_cli("assign", out, *args)
    assert done.code == 0, done.err
    warnings = [line for line in done.err.splitlines() if line.startswith("! ")]
    assert any(words in line for line in warnings), done.err
    assert all("--" in line for line in warnings)


def test_samples_in_source_order_are_warned_about(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", files(60)), tmp_path / "out", samples_per_shard=20, shuffle="none")
    assert "--shuffle global" in run_cli("assign", tmp_path / "out", "--order", "shard").err
    assert "--shuffle global" in run_cli("assign", tmp_path / "out", "--order", "none").err
    assert "--shuffle global" not in run_cli("assign", tmp_path / "out", "--order", "full").err


def test_a_terminal_without_unicode_gets_ascii(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.cli.output.can_encode", lambda text, stream: text.isascii())
    assert run_cli("assign", out).out.isascii()


# --- the library


def test_usual_nodes_have_eight_ranks_or_as_many_as_divide() -> None:
    assert [usual_nodes(size) for size in (1, 8, 16, 12, 100, 11)] == [1, 1, 2, 3, 25, 11]


def test_choosing_an_order_for_no_ranks_is_a_usage_problem(out: Path) -> None:
    shards = split_shards(load_manifest(str(out)))
    with pytest.raises(UsageProblem, match="world sizes"):
        choose_order(shards, [0])


def test_the_document_is_streamed_in_bounded_memory(out: Path) -> None:
    manifest = load_manifest(str(out))
    shards = tuple(replace(shard, num_samples=100_000) for shard in manifest.shards)
    found = assign(replace(manifest, shards=shards), Wish(world_size=1))
    head, expand = head_document(found, summarize(found)), (0, 1_200_000)
    tracemalloc.start()
    size = sum(len(piece) for piece in assign_pieces(head, found, [0], None, expand))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 12_000_000
    assert peak < 32_000_000  # 65,536 rows as text and as Python integers, whatever the count


def test_parquet_is_streamed_in_bounded_memory(out: Path, tmp_path: Path) -> None:
    """Four times the rows take as much memory: a group of them, in Python and in Arrow's pool."""
    manifest = load_manifest(str(out))
    extents = np.arange(50_000) * 1024, np.full(50_000, 1024)

    def peaks(num_samples: int) -> list[int]:
        shards = tuple(replace(shard, num_samples=num_samples) for shard in manifest.shards)
        found = assign(replace(manifest, shards=shards), Wish(world_size=1))
        chunks = found.sequence(0, 0, found.num_left)
        pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            write_parquet(str(tmp_path), f"{num_samples}.parquet", found, chunks, lambda _: extents)
            return [tracemalloc.get_traced_memory()[1], int(pool.max_memory())]
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(before)

    few, many = peaks(12_500), peaks(50_000)
    assert max(many) < 32_000_000  # 65,536 rows of 57 bytes, and the order's tables
    assert [more < 1.5 * less for less, more in zip(few, many, strict=True)] == [True, True]
    with pq.ParquetFile(tmp_path / "50000.parquet") as file:
        groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        assert sum(groups) == 50_000 * len(manifest.shards)
        assert max(groups) <= 1 << 16
        counted = np.bincount(file.read(["shard"])["shard"].to_numpy()).tolist()
    assert counted == [50_000] * len(manifest.shards)
    assert os.path.getsize(tmp_path / "50000.parquet") > 4_000_000


def test_a_run_with_json_says_nothing_else(out: Path) -> None:
    done = run_cli("assign", out, "--json")
    assert done.err == ""
    assert json.loads(done.out)["schema"] == "shardtool/assign/1"


def test_a_large_run_is_judged_in_a_moment_and_not_on_too_few_pairs(out: Path) -> None:
    manifest = load_manifest(str(out))
    (first, *_) = manifest.shards
    shards = (replace(first, num_samples=10_000),) * 20_000
    found = assign(replace(manifest, shards=shards), Wish(world_size=1024, elastic=(512, 1024), batch_size=4096))
    began = time.perf_counter()
    summary = summarize(found)
    assert time.perf_counter() - began < 5  # 0.2 s where nothing else runs
    assert not summary.is_met_judged
    assert head_document(found, summary)["mixing"]["met_again"] is None
    assert "met again" not in render_assignment(found, summary)
    assert [round(copies.byte_copies, 1) for copies in (summary.node, *summary.elastic)] == [1.0, 1.0]


def test_a_state_of_one_split_is_no_state_of_another(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {f"{n:02d}.txt": str(n) for n in range(20)})
    assert run_cli("pack", tree, tmp_path / "out", "--split", "train=1,test=1", "--durability", "none").code == 0
    said = run_cli("assign", tmp_path / "out", "--split", "train", "--world-size", "2", "--json")
    (tmp_path / "state.json").write_text(said.out)
    same = run_cli(
        "assign", tmp_path / "out", "--split", "train", "--world-size", "1", "--state", tmp_path / "state.json"
    )
    assert same.code == 0
    other = run_cli(
        "assign", tmp_path / "out", "--split", "test", "--world-size", "2", "--state", tmp_path / "state.json"
    )
    assert other.code == 6
