"""What users of other loaders complain about, one test a complaint; docs/internals/complaints.md has their sources."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import make_tree, pack, run_cli

from shardtool.assignment.assign import check_feasible, rank_counts, sequence
from shardtool.assignment.placement import measure_mixing, node_shards
from shardtool.loading.cursor import start_cursor
from shardtool.loading.reader import SampleReader
from shardtool.order.deal import Deal
from shardtool.order.order import Order
from shardtool.order.params import OrderParams, choose_params
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from shardtool.index_file import ShardIndex

COUNTS = np.array([40, 3, 0, 75, 28, 61, 40, 9], np.int64)
Sample = tuple[int, int]


def order_of(counts: Any = COUNTS, *sizes: int, **options: Any) -> Order:
    """The order that is chosen for these shards, of 1,000 bytes a sample, and world sizes."""
    counts = np.asarray(counts, np.int64)
    return Order(counts, choose_params(counts, counts * 1000, sizes or (4,), **options).params)


def read(order: Order, deal: Deal, rank: int, first: int, count: int, **worker: int) -> list[Sample]:
    found: list[Sample] = []
    for chunk in sequence(order, deal, rank, first, count, **worker):
        found += zip(chunk.shard.tolist(), chunk.row.tolist(), strict=True)
    return found


def everything(order: Order) -> Counter[Sample]:
    return Counter((shard, row) for shard, count in enumerate(order.counts.tolist()) for row in range(count))


def test_padding_duplicates_corrupt_validation_metrics() -> None:
    order = order_of()
    deal = Deal(order.num_samples, 6, policy="pad")
    chunks = [chunk for rank in range(6) for chunk in sequence(order, deal, rank, 0, order.num_samples)]
    assert {sum(len(chunk.row) for chunk in chunks[rank : rank + 1]) for rank in range(6)} == {
        -(-order.num_samples // 6)
    }
    valid = [
        sample
        for chunk in chunks
        for sample in zip(chunk.shard[chunk.is_valid].tolist(), chunk.row[chunk.is_valid].tolist(), strict=True)
    ]
    assert Counter(valid) == everything(order)  # a metric over what is valid is that of the data set


def test_set_epoch_forgotten_gives_the_same_order_every_epoch() -> None:
    order = order_of()
    deal, size = Deal(order.num_samples, 2), order.num_samples
    epochs = [read(order, deal, 0, epoch * size, size) for epoch in range(3)]  # nothing is set between them
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("policy", ["carry", "drop", "pad"])
def test_ddp_hangs_because_ranks_have_different_batch_counts(policy: Any) -> None:
    for world_size in (2, 3, 7, 16):
        deal = Deal(257, world_size, 2 * world_size, policy=policy)
        steps = [{int(step) for step in deal.positions(rank, 0, 257).steps} for rank in range(world_size)]
        last = min(max(found) for found in steps)
        assert all(set(range(last)) <= found for found in steps)
        for step in range(deal.num_steps(0) - 1):
            assert {len(deal.batch(step, rank).positions) for rank in range(world_size)} == {2}


@pytest.mark.parametrize(("num_shards", "world_size"), [(1, 8), (3, 2), (3, 16)])
def test_fewer_shards_than_ranks_stall_or_deadlock(tmp_path: Path, num_shards: int, world_size: int) -> None:
    src = make_tree(tmp_path / "src", {f"{i:03}.txt": "x" for i in range(48)})
    pack(src, tmp_path / "out", shards=num_shards)
    ranks = run_cli("assign", tmp_path / "out", "--world-size", str(world_size), "--json").json["ranks"]
    assert {rank["samples"] for rank in ranks} == {48 // world_size}


def test_equal_rows_are_a_different_number_of_batches() -> None:
    deal = Deal(240, 4, 16, policy="uneven")
    assert rank_counts(deal, 0).tolist() == [60] * 4
    assert all(len(deal.batch(step, rank).positions) == 4 for step in range(15) for rank in range(4))
    assert deal.num_steps(0) == 15


def test_a_world_size_that_does_not_divide_the_shards_makes_every_rank_read_everything() -> None:
    order = order_of(np.full(16, 400), 8)
    for world_size in (5, 7, 8, 15, 16, 17):
        counts = rank_counts(Deal(order.num_samples, world_size), 0)
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == order.num_samples
    assert max(len(node_shards(order, 8, rank)) for rank in range(8)) <= 3


def test_tail_handling_makes_ranks_drift_apart() -> None:
    deal = Deal(10, 3, 6)  # 10 rows, micro-batches of 2, 3 ranks: elsewhere 2, 1 and 1 batches
    for step in range(30):
        assert [len(deal.batch(step, rank).positions) for rank in range(3)] == [2, 2, 2]
    read_once = Counter(p for step in range(5) for rank in range(3) for p in deal.batch(step, rank).positions.tolist())
    assert read_once == Counter(range(30))


def test_after_a_resume_inside_an_epoch_later_epochs_replay_only_the_tail() -> None:
    order = order_of()
    size = order.num_samples
    deal = Deal(size, 4, 8, start=size - 40)
    for epoch in (1, 2):
        found = [sample for rank in range(4) for sample in read(order, deal, rank, epoch * size, size)]
        assert Counter(found) == everything(order)


def test_skipping_660_000_batches_takes_hours() -> None:
    order = order_of(np.full(1000, 10_000), 8)
    began = time.perf_counter()
    deal = Deal(order.num_samples, 8, 64, start=660_000 * 64)
    positions = deal.batch(0, 3).positions
    order.locate(positions)
    assert positions.tolist() == list(range(660_000 * 64 + 3, 660_001 * 64, 8))
    assert time.perf_counter() - began < 1  # a few ms


def test_a_recovered_rank_is_one_batch_behind() -> None:
    order = order_of()
    ahead = Deal(order.num_samples, 4, 8)
    recovered = Deal(order.num_samples, 4, 8, start=ahead.position_after(16))
    for step in range(20):
        assert recovered.batch(step, 2).positions.tolist() == ahead.batch(17 + step, 2).positions.tolist()


def test_a_tiny_subset_crashes_the_split_over_workers() -> None:
    order = order_of([2, 0, 1], 4)
    deal = Deal(3, 4)
    parts = [read(order, deal, rank, 0, 12, worker=worker, num_workers=5) for rank in range(4) for worker in range(5)]
    assert Counter(sample for part in parts for sample in part) == Counter(dict.fromkeys(everything(order), 4))


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_an_epoch_has_another_length_with_loader_workers(num_workers: int) -> None:
    order = order_of()
    deal = Deal(order.num_samples, 2, 8, policy="uneven")
    parts = [
        read(order, deal, rank, 0, order.num_samples, worker=worker, num_workers=num_workers)
        for rank in range(2)
        for worker in range(num_workers)
    ]
    assert Counter(sample for part in parts for sample in part) == everything(order)
    assert deal.num_steps(0) == 32  # workers are no input of it


def test_the_same_shards_are_downloaded_on_several_nodes(tmp_path: Path) -> None:
    src = make_tree(tmp_path / "src", {f"{i:04}.txt": "x" * 50 for i in range(1024)})
    pack(src, tmp_path / "out", samples_per_shard=16)
    args = ("--world-size", "16", "--num-nodes", "2", "--elastic", "16,32")
    done = run_cli("assign", tmp_path / "out", *args)
    assert "copies over 2 nodes 1.00 (32 ranks: 1.00)" in done.out  # known before the run
    first, second = (
        run_cli("assign", tmp_path / "out", *args, "--node-rank", str(node), "--json").json["ranks"] for node in (0, 1)
    )
    assert not _shards_of(first) & _shards_of(second)


def _shards_of(ranks: list[dict[str, Any]]) -> set[int]:
    return {row["shard"] for rank in ranks for row in rank["segments"]}


def test_shuffle_quality_degrades_at_the_end_of_an_epoch() -> None:
    order = order_of(np.full(128, 512), 8)
    deal = Deal(order.num_samples, 8, 128)
    last = deal.num_steps(0) - 33
    begin, end = (measure_mixing(order, deal, step=step) for step in (0, last))
    assert end.same_shard < 1.3 * begin.same_shard
    assert end.met_again < 1.5 * max(1.0, begin.met_again)
    assert end.live_shards > 0.7 * begin.live_shards


def test_model_parallel_peers_read_different_samples() -> None:
    peers = [order_of() for _ in range(2)]  # two processes of one data rank
    deal = Deal(peers[0].num_samples, 4)
    assert read(peers[0], deal, 1, 0, 100) == read(peers[1], deal, 1, 0, 100)


def test_samples_of_a_chunk_stay_together_in_batches() -> None:
    order = order_of(np.full(128, 512), 8)
    mixing = measure_mixing(order, Deal(order.num_samples, 8, 256))
    assert mixing.same_shard < 0.1  # 1.0 where chunks are read one after another, 0.008 at random
    assert mixing.met_again < 2


def test_tarred_data_is_dropped_where_shards_do_not_divide_by_ranks() -> None:
    order = order_of(np.full(7, 20), 4, mode="shard")
    deal = Deal(order.num_samples, 4, policy="uneven")
    found = [sample for rank in range(4) for sample in read(order, deal, rank, 0, order.num_samples)]
    assert Counter(found) == everything(order)


def test_seeds_are_the_same_on_every_worker_or_seed_plus_epoch_collides() -> None:
    firsts = {}
    for seed in range(4):
        order = Order(COUNTS, OrderParams(seed=seed, lanes=2, piece=8))
        for epoch in range(4):
            base = epoch * order.num_samples
            firsts[seed, epoch] = tuple(order.run_offsets(epoch, np.arange(order.num_samples)).tolist())
            assert order.locate(np.arange(base, base + 1))[0].size == 1
    assert len(set(firsts.values())) == 16


def test_a_restart_from_the_first_shard_looks_like_convergence(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {f"{i:03}.txt": str(i) for i in range(64)}), tmp_path / "out")
    state = run_cli("assign", tmp_path / "out", "--world-size", "4", "--position", "40", "--json").json["state"]
    assert state["position"] == 40  # a state cannot be without it
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps({name: value for name, value in state.items() if name != "position"}))
    assert run_cli("assign", tmp_path / "out", "--state", saved).code == 2
    pack(make_tree(tmp_path / "other", {f"{i:03}.txt": str(-i) for i in range(64)}), tmp_path / "out2")
    saved.write_text(json.dumps(state))
    assert run_cli("assign", tmp_path / "out2", "--state", saved).code == 6


def test_a_configuration_that_starves_ranks_starts_and_hangs() -> None:
    order = order_of([3], 4)
    with pytest.raises(Exception, match="1 of 4 ranks get no sample"):
        check_feasible(order, Deal(3, 4, policy="uneven"))


def test_a_count_of_kept_samples_used_as_position_skips_and_repeats(tmp_path: Path) -> None:
    """Complaint 40. A trainer that leaves samples out goes on, after each batch, with the first one not tried."""
    pack(make_tree(tmp_path / "src", {f"{i:03}.txt": str(i) for i in range(64)}), tmp_path / "out", shards=3)
    reader = SampleReader(
        str(tmp_path / "out"), decode=["txt"], transform=lambda sample: None if "7" in sample["txt"] else sample["txt"]
    )
    state, kept, batches = None, [], 0
    while batches < 16:
        cursor = start_cursor(reader.shards, reader.fingerprint, global_batch=8)
        if state is not None:
            cursor.load_state_dict(state)
        batch = cursor.turn().batch(0)
        kept += [text for text in reader.read(reader.numbers(batch.shards, batch.rows)) if text is not None]
        cursor.advance()
        batches += 1
        state = cursor.state_dict()
        assert state["position"] == 8 * batches
    assert Counter(kept) == Counter({str(i): 2 for i in range(64) if "7" not in str(i)}), "two epochs"


def test_a_changed_sequence_length_reads_documents_in_another_order(tmp_path: Path) -> None:
    """Complaint 43. Documents are put in order before they are cut into sequences."""
    lines = "".join(json.dumps({"text": f"{i:03} " + "x" * (7 * i % 50)}) + "\n" for i in range(80))
    source, streams = make_tree(tmp_path / "src", {"a.jsonl": lines}), []
    for length in ("16", "64"):
        out = tmp_path / length
        assert run_cli("pack", source, out, "--format", "bin", "--context", length, "-q").code == 0
        reader = SampleReader(str(out), decode=True)
        streams.append(np.concatenate([sample["tokens"] for sample in reader.read(range(len(reader)))]))
    shorter = min(map(len, streams))
    assert shorter > 2000
    assert (streams[0][:shorter] == streams[1][:shorter]).all()


def test_a_long_delay_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complaint 44. Before a batch the indexes of its own shards are opened, wherever in the run it lies."""
    files = {f"{i:03}.txt": str(i) for i in range(120)}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", samples_per_shard=1)
    opened: list[int] = []
    real = Dataset._open_index

    def counted(dataset: Dataset, shard: int) -> ShardIndex:
        opened.append(shard)
        return real(dataset, shard)

    monkeypatch.setattr(Dataset, "_open_index", counted)
    reader = SampleReader(str(tmp_path / "out"))
    batch = start_cursor(reader.shards, reader.fingerprint, global_batch=8, position=10**15).turn().batch(0)
    assert not opened
    assert len(reader.read(reader.numbers(batch.shards, batch.rows))) == 8
    assert sorted(opened) == sorted(set(batch.shards.tolist()))


def test_the_table_of_complaints_names_tests_that_exist() -> None:
    folder = Path(__file__).parent
    page = (folder.parent / "docs" / "internals" / "complaints.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (?:`((?:peers/)?test_\w+\.py)`: )?`(test_\w+)` \|$", page, re.MULTILINE)
    heads = 2 * len(
        re.findall(r"^\|---", page, re.MULTILINE)
    )  # of each table, the names of its columns and the line below
    assert len(rows) == len(re.findall(r"^\|", page, re.MULTILINE)) - heads > 50, "a row without a test"
    missing = [
        name
        for file, name in rows
        if f"def {name}(" not in (folder / (file or "test_complaints.py")).read_text("utf-8")
    ]
    assert not missing
