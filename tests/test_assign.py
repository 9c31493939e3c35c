"""Who reads what: dealing to ranks, coverage, exact sequences, shares of nodes; against brute force."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardtool.assignment.assign
from shardtool.assignment.assign import byte_ranges, check_feasible, coverage, rank_counts, sequence
from shardtool.assignment.placement import data_rank, measure_mixing, node_shards, replication, stray_shards
from shardtool.errors import UsageProblem
from shardtool.loading.cursor import Cursor
from shardtool.order.deal import Deal, Place
from shardtool.order.order import Order
from shardtool.order.params import OrderParams, choose_params, lane_radices

PAGE = Path(__file__).parent.parent / "docs" / "formats" / "order.md"
GOLDEN: dict[str, Any] = json.loads(PAGE.read_text().split("```json\n")[1].split("```")[0])
EXACT = settings(derandomize=True, deadline=None, max_examples=150)
Sample = tuple[int, int]

# --- brute force


@st.composite
def runs(draw: st.DrawFn) -> tuple[Order, Deal, int]:
    """An order, a deal, and a position at or after its start."""
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 5, 17, 33, 100]), min_size=1, max_size=14).filter(sum))
    mode: Any = draw(st.sampled_from(["plw", "plw", "plw", "shard", "none", "full"]))
    params = OrderParams(
        mode=mode,
        seed=draw(st.integers(0, 2**64 - 1)),
        lanes=1 if mode in ("none", "full") else draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
        unit=draw(st.sampled_from([1, 1, 2, 3])),
        piece="shard" if mode == "shard" else draw(st.sampled_from([1, 2, 4, 9, "shard"])),
        window=draw(st.sampled_from([1, 2, 5])),
        locality=draw(st.sampled_from(["fixed", "redraw"])),
    )
    order = Order(np.array(counts, np.int64), params)
    policy: Any = draw(st.sampled_from(["carry", "drop", "pad", "uneven"]))
    world_size = draw(st.sampled_from([1, 2, 3, 4, 6, 12, 13]))
    extra = 0 if policy == "pad" else draw(st.sampled_from([0, 0, 1]))
    batch = world_size * params.unit * draw(st.sampled_from([1, 2, 5])) + extra
    start = draw(st.one_of(st.just(0), st.integers(0, 3 * order.num_samples)))
    deal = Deal(order.num_samples, world_size, batch, params.unit, policy, start)
    return order, deal, start + draw(st.integers(0, 2 * order.num_samples))


def slow_steps(deal: Deal, num_steps: int) -> list[list[list[tuple[int, bool]]]]:
    """(position, is_valid) by step, rank and slot: section 7 of the page, step by step."""
    steps: list[list[list[tuple[int, bool]]]] = []
    position, size = deal.start, deal.num_samples
    rest = list(range(position % size, size))  # places of this epoch still to read
    while len(steps) < num_steps:
        epoch = position // size
        if deal.policy == "carry":
            batch = [(place % size, True) for place in range(position, position + deal.batch_size)]
            positions = list(range(position, position + deal.batch_size))
            is_straddling = positions[0] // size != positions[-1] // size
            numbers = list(range(deal.batch_size)) if is_straddling else [place for place, _ in batch]
        else:
            if deal.policy == "pad":
                rest += range(size, size + -len(rest) % (deal.world_size * deal.unit))
            if deal.policy == "drop":
                rest = rest[: len(rest) // deal.batch_size * deal.batch_size]
            numbers = rest[: deal.batch_size]
            positions = [epoch * size + place % size for place in numbers]
        ranks: list[list[tuple[int, bool]]] = [[] for _ in range(deal.world_size)]
        for number, where in zip(numbers, positions, strict=True):
            is_valid = deal.policy == "carry" or number < size
            ranks[number // deal.unit % deal.world_size].append((where, is_valid))
        if numbers:
            steps.append(ranks)
        position += deal.batch_size
        rest = rest[deal.batch_size :]
        if deal.policy != "carry" and not rest:
            position, rest = (epoch + 1) * size, list(range(size))
            if deal.policy == "drop" and size < deal.batch_size:
                break
    return steps


def samples_of(order: Order, deal: Deal, rank: int, position: int, **worker: int) -> list[Sample]:
    """All that a rank's coverage names, row by row."""
    found: list[Sample] = []
    for part in coverage(order, deal, rank, position, **worker):
        columns = (part.shard.tolist(), part.first.tolist(), part.count.tolist(), part.step.tolist())
        for shard, first, count, step in zip(*columns, strict=True):
            assert count > 0
            found += [(shard, first + step * i) for i in range(count)]
    return found


def num_rows(order: Order, deal: Deal, rank: int, position: int) -> int:
    return sum(len(part) for part in coverage(order, deal, rank, position))


# --- dealing


def test_deals_are_the_golden_ones() -> None:
    for case in GOLDEN["deal"]:
        deal = Deal(case["N"], case["W"], case["B"], case["u"], case["policy"], case["start"])
        for step, expected in enumerate(case["steps"]):
            for rank, listed in enumerate(expected):
                dealt = deal.batch(step, rank)
                found: list[Any] = []
                for position, is_valid in zip(dealt.positions.tolist(), dealt.is_valid.tolist(), strict=True):
                    found += [position] if is_valid else [position, "r"]
                assert found == listed
        assert [deal.position_after(step) for step in range(len(case["steps"]))] == case["position_after"]


@EXACT
@given(runs())
def test_batches_are_the_specified_ones(run: tuple[Order, Deal, int]) -> None:
    _, deal, _ = run
    for step, ranks in enumerate(slow_steps(deal, 12)):
        for rank, expected in enumerate(ranks):
            dealt = deal.batch(step, rank)
            assert list(zip(dealt.positions.tolist(), dealt.is_valid.tolist(), strict=True)) == expected
            assert dealt.steps.tolist() == [step] * len(expected)
            for slot, (position, is_valid) in enumerate(expected):
                if is_valid:
                    assert deal.place(position) == Place(step, rank, slot)


@EXACT
@given(runs())
def test_parts_of_a_step_differ_by_at_most_a_unit(run: tuple[Order, Deal, int]) -> None:
    _, deal, _ = run
    for ranks in slow_steps(deal, 12):
        sizes = [len(part) for part in ranks]
        assert max(sizes) - min(sizes) <= deal.unit
        if deal.batch_size % deal.round_size == 0 and deal.policy != "uneven":
            assert max(sizes) == min(sizes)


@pytest.mark.parametrize("policy", ["uneven", "pad", "drop", "carry"])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 65, 1000])
def test_ranks_of_an_epoch_differ_by_at_most_one_sample(policy: Any, size: int) -> None:
    for world_size in range(1, 17):
        counts = rank_counts(Deal(size, world_size, policy=policy), 0, with_padding=True)
        assert counts.max() - counts.min() <= (1 if policy in ("uneven", "carry") else 0)
        expected = {"drop": size - size % world_size, "pad": size + -size % world_size}
        assert counts.sum() == expected.get(policy, size)


def torch_list(num_samples: int, num_replicas: int, rank: int, *, drop_last: bool) -> list[int]:
    """torch.utils.data.DistributedSampler(shuffle=False), its arithmetic word for word (torch 2.x)."""
    if drop_last and num_samples % num_replicas != 0:
        size = math.ceil((num_samples - num_replicas) / num_replicas)
    else:
        size = math.ceil(num_samples / num_replicas)
    total_size, indices = size * num_replicas, list(range(num_samples))
    if not drop_last:
        padding_size = total_size - len(indices)
        if padding_size <= len(indices):
            indices += indices[:padding_size]
        else:
            indices += (indices * math.ceil(padding_size / len(indices)))[:padding_size]
    else:
        indices = indices[:total_size]
    return indices[rank:total_size:num_replicas]


@pytest.mark.parametrize("policy", ["pad", "drop"])
def test_order_none_equals_distributed_sampler_without_shuffle(policy: Any) -> None:
    for size in (1, 2, 3, 5, 8, 16, 17, 30):
        order = Order(np.array([size // 2, 0, size - size // 2]), OrderParams(mode="none"))
        flat = [(shard, row) for shard, count in enumerate(order.counts.tolist()) for row in range(count)]
        for world_size in range(1, 20):
            deal = Deal(size, world_size, policy=policy)
            for rank in range(world_size):
                chunks = list(sequence(order, deal, rank, 0, size))
                shards = [value for chunk in chunks for value in chunk.shard.tolist()]
                rows = [value for chunk in chunks for value in chunk.row.tolist()]
                expected = torch_list(size, world_size, rank, drop_last=policy == "drop")
                assert list(zip(shards, rows, strict=True)) == [flat[i] for i in expected]
                marked = sum(int((~chunk.is_valid).sum()) for chunk in chunks)
                assert marked == max(0, len(expected) - len(range(rank, size, world_size)))


MIXED = Order(np.array([40, 0, 7, 55, 23]), OrderParams(lanes=4, piece=4, window=2, seed=3))
BATCH, EPOCHS = 48, 3  # 125 samples: two or three batches an epoch, the last one straddles the border or is short


def loaded(deal: Deal, rank: int, num_workers: int) -> list[list[tuple[int, bool, Sample]]]:
    """(position, is_valid, sample) by step and slot of three epochs, read as loaders do: batch k by worker k mod M."""
    cursor, readers = Cursor(MIXED, deal, rank, ""), max(1, num_workers)
    found: list[list[tuple[int, bool, Sample]]] = []
    for _ in range(EPOCHS):
        turn = cursor.turn()
        workers = [turn.batches(range(worker, turn.num_steps, readers)) for worker in range(readers)]
        for step in range(turn.num_steps):
            batch = next(workers[step % readers])
            samples = zip(batch.shards.tolist(), batch.rows.tolist(), strict=True)
            found.append(list(zip(batch.positions.tolist(), batch.is_valid.tolist(), samples, strict=True)))
        assert not [batch for worker in workers for batch in worker], "a worker has more batches than the pass has"
        cursor.advance(turn.num_steps)
    return found


@pytest.mark.parametrize("num_workers", range(6))
@pytest.mark.parametrize("world_size", range(1, 17))
def test_batches_are_the_same_for_any_number_of_ranks_and_of_loader_workers(world_size: int, num_workers: int) -> None:
    """Each rank gets what the specification deals to it, and all of them together the batch of a single rank."""
    stream = MIXED.locate(np.arange((EPOCHS + 1) * MIXED.num_samples))
    samples = list(zip(*(column.tolist() for column in stream), strict=True))
    policies: list[Any] = ["carry", "drop", "uneven", "pad"]
    for policy in policies:
        batch = BATCH if policy != "pad" else world_size * 3
        deal = Deal(MIXED.num_samples, world_size, batch, policy=policy)
        ranks = [loaded(deal, rank, num_workers) for rank in range(world_size)]
        steps = slow_steps(deal, len(ranks[0]))
        for rank, found in enumerate(ranks):
            assert found == [[(at, mark, samples[at]) for at, mark in step[rank]] for step in steps]
        together = [sorted(part for step in parts for part in step) for parts in zip(*ranks, strict=True)]
        if policy != "pad":  # which repeats more where there are more ranks
            alone = loaded(Deal(MIXED.num_samples, 1, batch, policy=policy), 0, 0)
            assert together == alone
        read = [at for step in together for at, mark, _ in step if mark]
        assert read == sorted(set(read))
        assert policy == "drop" or set(range(EPOCHS * MIXED.num_samples)) <= set(read)


@pytest.mark.parametrize("num_workers", range(6))
@pytest.mark.parametrize("world_size", range(1, 17))
def test_loader_workers_split_the_sequence_of_a_rank_by_steps(world_size: int, num_workers: int) -> None:
    deal, workers = Deal(MIXED.num_samples, world_size, BATCH), range(max(1, num_workers))
    for rank in range(world_size):
        by_step: dict[int, list[Sample]] = {}
        for worker in workers:
            for chunk in sequence(MIXED, deal, rank, 0, 5 * BATCH, worker=worker, num_workers=len(workers)):
                for step, shard, row in zip(chunk.step.tolist(), chunk.shard.tolist(), chunk.row.tolist(), strict=True):
                    assert step % len(workers) == worker
                    by_step.setdefault(step, []).append((shard, row))
        parts = [MIXED.locate(deal.batch(step, rank).positions) for step in range(5)]
        expected = [list(zip(shards.tolist(), rows.tolist(), strict=True)) for shards, rows in parts]
        assert [by_step[step] for step in range(5)] == expected


def test_carry_reads_three_epochs_exactly_once_with_even_batches() -> None:
    size, batch = 1455, 24
    for world_size in (1, 2, 3, 4, 6, 12):
        deal = Deal(size, world_size, batch)
        parts = [
            deal.batch(step, rank).positions for step in range(3 * size // batch + 1) for rank in range(world_size)
        ]
        assert {part.size for part in parts} == {batch // world_size}
        seen = np.sort(np.concatenate(parts))
        assert np.array_equal(seen[: 3 * size], np.arange(3 * size))


@pytest.mark.parametrize("policy", ["carry", "drop", "pad", "uneven"])
def test_resume_at_every_position_with_another_world_and_batch(policy: Any) -> None:
    size = 23
    for start in range(2 * size):
        for world_size, batch in ((1, 5), (3, 6), (4, 4)):
            deal = Deal(size, world_size, batch, policy=policy, start=start)
            seen: list[int] = []
            for step in range(8):
                for rank in range(world_size):
                    dealt = deal.batch(step, rank)
                    seen += dealt.positions[dealt.is_valid].tolist()
                assert deal.position_after(step) > max(seen)
            if policy == "drop":
                assert len(set(seen)) == len(seen)
                assert min(seen) >= start
            else:
                assert sorted(seen) == list(range(start, start + len(seen)))


def test_resuming_twice_goes_on_where_the_first_resume_stopped() -> None:
    first = Deal(100, 8, 16)
    second = Deal(100, 3, 6, start=first.position_after(4))
    third = Deal(100, 2, 10, start=second.position_after(9))
    seen = [np.concatenate([first.batch(step, rank).positions for rank in range(8)]) for step in range(5)]
    seen += [np.concatenate([second.batch(step, rank).positions for rank in range(3)]) for step in range(10)]
    seen += [np.concatenate([third.batch(step, rank).positions for rank in range(2)]) for step in range(7)]
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(80 + 60 + 70))


@pytest.mark.parametrize("policy", ["carry", "drop", "pad", "uneven"])
def test_a_run_saved_at_an_epoch_border_reads_the_next_epoch_whole(policy: Any) -> None:
    deal = Deal(24, 4, 8, policy=policy)
    assert deal.position_after(2) == 24
    resumed = Deal(24, 2, 8, policy=policy, start=24)
    seen = np.concatenate([resumed.batch(step, rank).positions for step in range(3) for rank in range(2)])
    assert np.array_equal(np.sort(seen), np.arange(24, 48))


def test_positions_before_the_start_or_dropped_have_no_place() -> None:
    assert Deal(10, 2, 4, policy="drop").place(9) is None
    assert Deal(10, 2, 4, start=5).place(4) is None
    assert Deal(10, 2, 4, start=25).place(4) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "loop"},
        {"world_size": 0},
        {"unit": 0},
        {"start": -1},
        {"batch_size": 3},
        {"batch_size": 4, "unit": 2},
        {"batch_size": 6, "policy": "pad"},
    ],
)
def test_deals_that_would_starve_a_rank_are_usage_problems(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem):
        Deal(**{"num_samples": 100, "world_size": 4, **wrong})


# --- coverage and sequence


@EXACT
@given(runs(), st.sampled_from([4, 64, 1 << 16]), st.sampled_from([1, 1, 2, 3]))
def test_coverage_is_exactly_what_the_rank_reads(run: tuple[Order, Deal, int], chunk: int, num_workers: int) -> None:
    order, deal, position = run
    end = (position // order.num_samples + 1) * order.num_samples
    everything: list[Sample] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardtool.assignment.assign, "_CHUNK", chunk)
        for rank in range(deal.world_size):
            read: list[Sample] = []
            for part in sequence(order, deal, rank, position, end - position):
                read += zip(part.shard[part.is_valid].tolist(), part.row[part.is_valid].tolist(), strict=True)
            covered: list[Sample] = []
            for worker in range(num_workers):
                covered += samples_of(order, deal, rank, position, worker=worker, num_workers=num_workers)
            assert sorted(covered) == sorted(read)
            epoch, place = divmod(position, order.num_samples)
            assert len(read) == deal.count(rank, epoch, place)
            everything += covered
    assert len(set(everything)) == len(everything)
    if deal.policy != "drop":
        assert len(everything) == end - position


@EXACT
@given(runs())
def test_a_sequence_is_the_batches_in_a_row(run: tuple[Order, Deal, int]) -> None:
    order, deal, _ = run
    steps = slow_steps(deal, 8)
    if not steps:
        return
    positions = [where for ranks in steps for part in ranks for where, is_valid in part if is_valid]
    size = max(positions) + 1 - deal.start
    for rank in range(deal.world_size):
        chunks = list(sequence(order, deal, rank, deal.start, size))
        found = [pair for c in chunks for pair in zip(c.position.tolist(), c.is_valid.tolist(), strict=True)]
        expected = [pair for ranks in steps for pair in ranks[rank]]
        # Repeats close an epoch: the range ends with a valid sample, so repeats of a last, cut epoch may be missing.
        assert found == expected[: len(found)]
        assert all(not is_valid for _, is_valid in expected[len(found) :])


@EXACT
@given(runs())
def test_rows_stay_within_their_bound(run: tuple[Order, Deal, int]) -> None:
    order, deal, position = run
    params = order.params
    if deal.policy == "carry":  # a straddling batch adds its own samples
        deal = Deal(deal.num_samples, deal.world_size, deal.batch_size, deal.unit, "uneven", deal.start)
    base = position // order.num_samples * order.num_samples
    shards, lanes = int((order.counts > 0).sum()), params.lanes
    rows = [num_rows(order, deal, rank, max(base, deal.start)) for rank in range(deal.world_size)]
    if params.mode in ("none", "shard"):
        assert max(rows) <= (shards + lanes) * (1 if lanes % deal.world_size == 0 else params.unit)
    elif params.mode == "plw" and lanes % deal.world_size == 0 and deal.start <= base and deal.policy != "drop":
        pieces = 0 if params.piece == "shard" else order.num_samples / params.piece
        assert sum(rows) <= pieces + shards + 2 * lanes
        if deal.world_size > 1:
            assert max(rows) <= pieces + shards + lanes
    assert max(rows) <= order.num_samples


def test_order_none_gives_one_strided_row_a_shard() -> None:
    order = Order(np.array([10, 0, 9]), OrderParams(mode="none"))
    (part,) = coverage(order, Deal(19, 4), 1, 0)
    assert (part.shard.tolist(), part.first.tolist()) == ([0, 2], [1, 3])
    assert (part.count.tolist(), part.step.tolist()) == ([3, 2], [4, 4])


def test_rows_come_by_the_window_that_reads_them_first() -> None:
    order = Order(np.array([300, 500, 224]), OrderParams(lanes=4, piece=8, window=4, seed=5))
    deal = Deal(1024, 2)
    (part,) = coverage(order, deal, 1, 0)
    places = order.positions(0, part.shard, part.first)
    windows = places // order.params.lanes // 32
    assert (np.diff(windows) >= 0).all()


def test_byte_ranges_of_all_ranks_tile_every_shard() -> None:
    rng = np.random.default_rng(0)
    counts = np.array([30, 0, 45, 25])
    sizes = {shard: rng.integers(1, 1000, count) for shard, count in enumerate(counts.tolist())}
    order = Order(counts, OrderParams(lanes=4, piece=4, window=2))
    asked: list[int] = []

    def extents(shard: int) -> tuple[Any, Any]:
        asked.append(shard)
        return 512 + np.cumsum(sizes[shard]) - sizes[shard], sizes[shard]

    ranges: list[tuple[int, int, int]] = []
    for rank in range(2):
        for part in coverage(order, Deal(100, 2), rank, 0):
            offsets, lengths = byte_ranges(part, extents)
            ranges += zip(part.shard.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
    ranges.sort()
    for shard in (0, 2, 3):
        mine = [(offset, length) for s, offset, length in ranges if s == shard]
        assert [offset for offset, _ in mine] == [512, *(offset + length for offset, length in mine[:-1])]
        assert sum(length for _, length in mine) == sizes[shard].sum()
    assert len(asked) <= 6  # once a shard and part


def test_strided_byte_ranges_span_from_the_first_to_the_last_sample() -> None:
    order = Order(np.array([6]), OrderParams(mode="none"))
    (part,) = coverage(order, Deal(6, 2), 1, 0)
    offsets, lengths = byte_ranges(part, lambda _: (np.arange(6) * 10, np.full(6, 7)))
    assert (offsets.tolist(), lengths.tolist()) == ([10], [47])


def test_an_order_and_a_deal_that_differ_are_refused() -> None:
    order = Order(np.array([6]), OrderParams())
    for deal in (Deal(7, 2), Deal(6, 2, unit=2)):
        with pytest.raises(UsageProblem, match="the deal"):
            list(coverage(order, deal, 0, 0))
    for rank in (-1, 2):
        with pytest.raises(UsageProblem, match=f"no rank {rank}"):
            list(sequence(order, Deal(6, 2), rank, 0, 6))


# --- early failures


def test_a_batch_that_no_epoch_fills_is_refused_under_drop() -> None:
    order = Order(np.array([6]), OrderParams())
    with pytest.raises(UsageProblem, match="dropped whole") as caught:
        check_feasible(order, Deal(6, 2, 8, policy="drop"))
    assert "at most 6" in caught.value.hint
    with pytest.raises(UsageProblem, match="dropped whole"):
        Deal(6, 2, 8, policy="drop").batch(0, 0)


def test_more_ranks_than_samples_are_refused_under_uneven() -> None:
    order = Order(np.array([3]), OrderParams())
    with pytest.raises(UsageProblem, match="5 of 8 ranks get no sample") as caught:
        check_feasible(order, Deal(3, 8, policy="uneven"))
    assert "at most 3 ranks" in caught.value.hint


@pytest.mark.parametrize("policy", ["carry", "pad"])
def test_fewer_samples_and_shards_than_ranks_work(policy: Any) -> None:
    order = Order(np.array([3]), OrderParams())
    deal = Deal(3, 8, policy=policy)
    check_feasible(order, deal)
    sizes = [deal.batch(step, rank).positions.size for step in range(4) for rank in range(8)]
    assert set(sizes) == {1}


def test_costly_configurations_are_named() -> None:
    order = Order(np.array([30]), OrderParams(lanes=4, piece=2))
    notes = check_feasible(order, Deal(30, 3, 40), num_workers=9)
    assert [
        word in " ".join(notes) for word in ("do not divide 4 lanes", "differ by up to 1", "more than once", "idle")
    ]
    assert len(notes) == 4
    assert check_feasible(order, Deal(30, 2, 4), num_workers=2) == ()


# --- shares of nodes


def brute_share(order: Order, num_nodes: int, node: int, epoch: int) -> set[int]:
    places = np.arange(order.num_samples, dtype=np.int64)
    mine = places[places // order.params.unit % num_nodes == node]
    return set(order.locate(epoch * order.num_samples + mine)[0].tolist())


@EXACT
@given(runs(), st.sampled_from([1, 2, 3, 4, 5, 6]), st.integers(0, 2))
def test_a_node_has_the_shards_it_reads_in_every_epoch(
    run: tuple[Order, Deal, int], num_nodes: int, epoch: int
) -> None:
    order, _, _ = run
    for node in range(num_nodes):
        share = set(node_shards(order, num_nodes, node, epoch).tolist())
        read = brute_share(order, num_nodes, node, epoch)
        assert read <= share
        if order.params.lanes % num_nodes == 0:
            assert read == share


@EXACT
@given(runs(), st.integers(0, 2))
def test_what_a_node_reads_beside_its_share_is_known(run: tuple[Order, Deal, int], epoch: int) -> None:
    order, deal, _ = run
    base, end = epoch * order.num_samples, (epoch + 1) * order.num_samples
    num_nodes = 2 if deal.world_size % 2 == 0 else 1
    for node in range(num_nodes):
        read: set[int] = set()
        for rank in range(node, deal.world_size, num_nodes):
            for chunk in sequence(order, deal, rank, base, end - base):
                read |= set(chunk.shard.tolist())
        strays = set(stray_shards(order, deal, num_nodes, node, epoch).tolist())
        share = set(node_shards(order, num_nodes, node, epoch).tolist())
        assert read - share == strays


@pytest.mark.parametrize(
    ("node_counts", "expected"), [([8, 16, 32], [1.005, 1.010, 1.020]), ([12, 24], [1.007, 1.015])]
)
def test_digit_reversed_lanes_hardly_copy_uneven_shards(node_counts: list[int], expected: list[float]) -> None:
    counts = np.random.default_rng(1).integers(20, 110, 1536)
    order = Order(counts, OrderParams(lanes=384, radices=lane_radices(384, node_counts), piece=16, window=4))
    rows = replication(order, counts * 1000, node_counts)
    assert [row.shard_copies for row in rows] == pytest.approx(expected, abs=0.003)
    assert all(row.is_exact for row in rows)


def test_equal_shards_that_lanes_divide_are_never_copied() -> None:
    order = Order(np.full(384, 64), OrderParams(lanes=384, piece=8, window=2))
    for row in replication(order, np.full(384, 1000), [64, 96, 128], ranks_per_node=8):
        assert (row.shard_copies, row.byte_copies) == (1.0, 1.0)
        assert row.max_bytes == 384 // row.num_nodes * 1000
        assert row.fits(row.max_bytes)
        assert not row.fits(row.max_bytes - 1)


def test_nodes_that_do_not_divide_the_lanes_are_reported() -> None:
    order = Order(np.full(384, 64), OrderParams(lanes=384, piece=8, window=2))
    (row,) = replication(order, np.full(384, 1000), [7])
    assert (row.shard_copies, row.is_exact, row.max_shards) == (7.0, False, 384)
    with pytest.raises(UsageProblem, match="do not fill nodes of 8"):
        replication(order, np.full(384, 1000), [12], ranks_per_node=8)
    with pytest.raises(UsageProblem, match="no node 7"):
        node_shards(order, 7, 7)


def test_redraw_gives_nodes_other_shards_each_epoch_and_fixed_does_not() -> None:
    for locality, is_same in (("fixed", True), ("redraw", False)):
        order = Order(np.full(64, 32), OrderParams(lanes=8, piece=4, locality=locality))  # type: ignore[arg-type]
        assert np.array_equal(node_shards(order, 4, 1, 0), node_shards(order, 4, 1, 1)) == is_same


def test_ranks_of_one_node_share_its_lanes() -> None:
    assert [data_rank(local, 2, 4) for local in range(3)] == [2, 6, 10]
    assert {data_rank(local, node, 4) for local in range(3) for node in range(4)} == set(range(12))


# --- mixing


def test_mixing_tells_a_sequential_order_from_a_shuffled_one() -> None:
    counts = np.full(64, 256)
    measured = {}
    modes: list[Any] = ["none", "plw", "full"]
    for mode in modes:
        order = Order(counts, choose_params(counts, counts * 1000, [4], mode=mode).params)
        measured[mode] = measure_mixing(order, Deal(order.num_samples, 4, 64), num_steps=250)
    assert measured["none"].same_shard > 0.9
    assert measured["none"].met_again > 100
    assert measured["plw"].same_shard < 0.2
    assert measured["plw"].met_again < 3
    assert measured["full"].same_shard == pytest.approx(measured["full"].same_shard_ideal, rel=0.3)
    assert measured["full"].met_again == pytest.approx(1.0, abs=0.3)


def test_mixing_counts_the_shards_in_use() -> None:
    counts = np.full(64, 256)
    live = []
    modes: list[Any] = ["none", "plw", "full"]
    for mode in modes:
        order = Order(counts, choose_params(counts, counts * 1000, [4], mode=mode).params)
        live.append(measure_mixing(order, Deal(order.num_samples, 4, 64)).live_shards)
    assert live == sorted(live)
    assert live[0] == 8  # 32 steps of 64 samples
    assert live[2] == 64


def test_mixing_of_parts_of_one_sample_has_no_pairs() -> None:
    order = Order(np.array([40, 3]), OrderParams(mode="full"))
    mixing = measure_mixing(order, Deal(43, 4), num_steps=3)
    assert (mixing.same_shard, mixing.met_again) == (0.0, 0.0)
