"""Mixtures of data sets: every source in its own order, in proportion, resumable at any position and world size."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers import make_tree, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import PlanMismatch, UsageProblem
from shardtool.loading.mixed import MixedAhead, MixedCursor, MixedReader, start_mixed_cursor
from shardtool.loading.reader import SampleReader
from shardtool.order.deal import Deal
from shardtool.order.mixed import MixedOrder
from shardtool.order.mixture import Mixture, Phase
from shardtool.order.order import Order
from shardtool.order.params import OrderParams
from shardtool.order.state import load_state

SIZES = (40, 17, 5)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[SampleReader]:
    folder = tmp_path_factory.mktemp("mixed")
    found = []
    for name, size in zip("abc", SIZES, strict=True):
        files = {f"{name}{number:03d}.txt": str(number).encode() for number in range(size)}
        pack(make_tree(folder / name, files), folder / f"{name}-out", samples_per_shard=8)
        found.append(SampleReader(str(folder / f"{name}-out")))
    return found


def cursor_of(readers: list[SampleReader], **options: Any) -> MixedCursor:
    choices: dict[str, Any] = {"weights": (3, 2, 1), "num_samples": sum(SIZES), "global_batch": 12, "elastic": (4, 3)}
    return start_mixed_cursor(MixedReader(readers), **{**choices, **options})


def steps_of(cursor: MixedCursor, count: int) -> list[list[int]]:
    """Sample numbers of the next steps of one rank."""
    found: list[list[int]] = []
    edges = np.concatenate([[0], np.cumsum(np.concatenate([order.counts for order in cursor.order.sources]))])
    for _ in range(count):
        batch = cursor.turn().batch(0)
        found.append((edges[batch.shards] + batch.rows).tolist())
        cursor.advance()
    return found


@st.composite
def mixed_orders(draw: st.DrawFn) -> MixedOrder:
    sources = []
    for _ in range(draw(st.integers(1, 4))):
        counts = np.array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)), np.int64)
        counts[0] += 1
        params = OrderParams(seed=draw(st.integers(0, 9)), lanes=draw(st.integers(1, 3)), piece=2, window=2)
        sources.append(Order(counts, params))
    weights = st.tuples(*[st.integers(0, 4)] * len(sources)).filter(any)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=2)))]
    phases = tuple(Phase(start, draw(weights)) for start in starts)
    return MixedOrder(tuple(sources), Mixture(phases, draw(st.integers(0, 99))), draw(st.integers(1, 70)))


@given(mixed_orders(), st.integers(0, 80), st.integers(1, 80))
def test_each_source_is_read_along_its_own_stream(order: MixedOrder, first: int, count: int) -> None:
    positions = np.arange(first, first + count)
    shards, rows = order.locate(positions)
    sources, own = order.mixture.locate(positions)
    for source in range(len(order.sources)):
        chosen = sources == source
        found = order.sources[source].locate(own[chosen])
        assert (shards[chosen] - order.first_shards[source]).tolist() == found[0].tolist()
        assert rows[chosen].tolist() == found[1].tolist()


@settings(max_examples=50)
@given(mixed_orders(), st.integers(1, 5), st.integers(0, 100), st.integers(0, 30))
def test_ranks_share_a_batch_and_its_contents_do_not_depend_on_them(
    order: MixedOrder, world_size: int, start: int, extra: int
) -> None:
    size = 5 + extra
    wanted = sorted(zip(*(column.tolist() for column in order.locate(np.arange(start, start + size))), strict=True))
    deal = Deal(order.num_samples, world_size, size, 1, "carry", start)
    parts = [order.locate(deal.batch(0, rank).positions) for rank in range(world_size)]
    assert sorted(pair for part in parts for pair in zip(*(c.tolist() for c in part), strict=True)) == wanted
    assert max(len(part[0]) for part in parts) - min(len(part[0]) for part in parts) <= 1


@given(mixed_orders(), st.lists(st.tuples(st.integers(0, 90), st.lists(st.integers(0, 4), min_size=4)), max_size=3))
def test_other_weights_change_nothing_before_their_position(order: MixedOrder, changes: Any) -> None:
    for position, numbers in changes:
        weights = numbers[: len(order.sources)]
        if not any(weights):
            continue
        changed = order.reweighed(position, weights)
        assert changed.weights_at(position) == tuple(weights)
        before = np.arange(position)
        for was, now in zip(order.locate(before), changed.locate(before), strict=True):
            assert was.tolist() == now.tolist()
        counts = changed.mixture.source_positions(position + sum(weights)) - changed.mixture.source_positions(position)
        if changed.mixture.phases[-1].position == position:
            assert counts.tolist() == weights, "a period begins where the weights change"
        order = changed


def test_every_sample_of_a_source_comes_once_before_one_comes_again(readers: list[SampleReader]) -> None:
    cursor = cursor_of(readers)
    numbers = [number for step in steps_of(cursor, 40) for number in step]
    small = [number for number in numbers if number >= sum(SIZES[:2])]
    assert len(small) == 80, "one of six"
    for first in range(0, 80, SIZES[2]):
        assert sorted(small[first : first + SIZES[2]]) == list(range(57, 62))
    assert cursor.source_positions() == [240, 160, 80]


@pytest.mark.filterwarnings("ignore:the state has weights")
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_run_goes_on_with_other_ranks_and_weights_as_if_never_stopped(
    readers: list[SampleReader], data: st.DataObject
) -> None:
    """The global batches of a run whose weights change twice, stopped after every other step, in another world."""
    weights = st.tuples(*[st.integers(0, 5)] * 3).filter(any)
    changes = {data.draw(st.integers(0, 4)): data.draw(weights) for _ in range(2)}
    one = cursor_of(readers)
    wanted = []
    for step in range(5):
        if step in changes:
            one.reweigh(changes[step])
        wanted.append(sorted(steps_of(one, 1)[0]))
    state, found = cursor_of(readers).state_dict(), []
    for step in range(5):
        world_size = data.draw(st.sampled_from((1, 2, 3, 5)))
        ranks = [cursor_of(readers, rank=rank, world_size=world_size, elastic=()) for rank in range(world_size)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
            if step in changes:
                rank.reweigh(changes[step])
        found.append(sorted(number for rank in ranks for number in steps_of(rank, 1)[0]))
        states = [rank.state_dict() for rank in ranks]
        assert all(other == states[0] for other in states), "the state is the same on every rank"
        state = states[0]
    assert found == wanted
    assert state == one.state_dict()


def test_the_state_has_integers_and_strings_and_the_same_keys(readers: list[SampleReader]) -> None:
    cursor = cursor_of(readers)
    before = cursor.state_dict()
    steps_of(cursor, 3)
    cursor.reweigh((1, 0, 1))
    after = cursor.state_dict()
    assert list(before) == list(after)
    assert all(type(value) in (int, str) for value in after.values())
    assert (after["position"], after["phases"]) == (36, "0:3,2,1;36:1,0,1")
    assert cursor.weights == (1, 0, 1)
    cursor.reweigh((1, 0, 1))
    assert cursor.state_dict() == after, "the same weights again are no change"


def test_a_data_set_joins_a_run_with_weight_0(readers: list[SampleReader]) -> None:
    two = cursor_of(readers[:2], weights=(2, 1))
    steps_of(two, 2)
    three = cursor_of(readers, weights=(2, 1, 0))
    three.load_state_dict(two.state_dict())
    assert steps_of(three, 2) == steps_of(two, 2)
    three.reweigh((2, 1, 1))
    assert three.source_positions() == [32, 16, 0]
    assert any(number >= sum(SIZES[:2]) for step in steps_of(three, 1) for number in step)


def test_states_that_do_not_fit_say_which_data_set(readers: list[SampleReader]) -> None:
    cursor = cursor_of(readers)
    with pytest.raises(PlanMismatch, match="data set 0 of the state's mixture is"):
        cursor_of(readers[::-1]).load_state_dict(cursor.state_dict())
    with pytest.raises(PlanMismatch, match=r"data set 2 .* here it is missing"):
        cursor_of(readers[:2], weights=(1, 1)).load_state_dict(cursor.state_dict())
    steps_of(cursor, 1)
    with pytest.raises(PlanMismatch, match="policy"):
        cursor_of(readers, policy="drop").load_state_dict(cursor.state_dict())
    with pytest.warns(UserWarning, match=r"weights \(3, 2, 1\), asked for are \(1, 1, 1\)"):
        cursor_of(readers, weights=(1, 1, 1)).load_state_dict(cursor.state_dict())
    with pytest.raises(UsageProblem, match="not a state"):
        cursor.load_state_dict({**cursor.state_dict(), "phases": "0"})
    with pytest.raises(UsageProblem, match="that of a mixture"):
        load_state(cursor.state_dict(), fingerprint="", num_samples=1)
    single = {"v": 1, "order": "plw1"}
    with pytest.raises(UsageProblem, match="not of a mixture"):
        cursor.load_state_dict(single)


def test_a_state_that_lacks_an_entry_is_a_usage_problem(readers: list[SampleReader]) -> None:
    cursor = cursor_of(readers)
    for name in cursor.state_dict():
        with pytest.raises(UsageProblem, match="not a state"):
            cursor.load_state_dict({k: v for k, v in cursor.state_dict().items() if k != name})


def test_weights_that_are_no_whole_numbers_are_refused_before_they_count(readers: list[SampleReader]) -> None:
    cursor = cursor_of(readers)
    before = cursor.state_dict()
    with pytest.raises(UsageProblem, match="no whole numbers"):
        cursor.reweigh((0.5, 0.25, 0.25))  # type: ignore[arg-type]
    assert cursor.state_dict() == before
    cursor.reweigh(np.array([1, 0, 1]))  # type: ignore[arg-type]
    assert cursor.weights == (1, 0, 1)


def test_mixtures_that_make_no_sense_are_usage_problems(readers: list[SampleReader]) -> None:
    for weights in [(1, 1), (0, 0, 0), (1, -1, 1)]:
        with pytest.raises(UsageProblem, match="weight"):
            cursor_of(readers, weights=weights)
    with pytest.raises(UsageProblem, match="epoch of 0"):
        cursor_of(readers, num_samples=0)
    with pytest.raises(UsageProblem, match="no data set"):
        MixedReader([])


def test_samples_are_counted_through_the_data_sets(readers: list[SampleReader]) -> None:
    mixed = MixedReader(readers)
    assert len(mixed) == sum(SIZES)
    numbers = [61, 0, 40, 3, 56, 39]
    assert [sample["__key__"][0] for sample in mixed.read(numbers)] == ["c", "a", "b", "a", "b", "a"]
    alone = [(2, 4), (0, 0), (1, 0), (0, 3), (1, 16), (0, 39)]
    assert mixed.read(numbers) == [readers[source].read([number])[0] for source, number in alone]
    wanted = np.concatenate([reader.sizes(np.arange(len(reader))) for reader in readers])
    assert mixed.sizes(np.array(numbers)).tolist() == wanted[numbers].tolist()
    with pytest.raises(IndexError, match="62"):
        mixed.read([62])


def test_preloading_counts_what_other_data_sets_fill(readers: list[SampleReader]) -> None:
    mixed = MixedReader([SampleReader(reader._path) for reader in readers])
    total = sum(int(reader.shards.num_bytes.sum()) for reader in readers)
    with pytest.raises(UsageProblem, match="do not fit"):
        MixedReader([SampleReader(reader._path) for reader in readers]).preload(available_bytes=total)
    assert mixed.preload(available_bytes=total * 2) == total
    mixed.close()


def test_pieces_are_told_before_they_are_read(readers: list[SampleReader]) -> None:
    cursor, mixed = cursor_of(readers, elastic=()), MixedReader(readers)
    turn = cursor.turn()
    ahead = MixedAhead(cursor.order, mixed)
    told: set[tuple[int, int]] = set()
    for step in range(turn.num_steps):
        batch = turn.batch(step)
        for shard, row, count in zip(*(column.tolist() for column in ahead.next_pieces(batch.positions)), strict=True):
            told |= {(shard, place) for place in range(row, row + count)}
        mixed.hint(*ahead.next_pieces(batch.positions))
    used = set(zip(*(column.tolist() for column in cursor.order.locate(np.arange(turn.start, 60))), strict=True))
    assert len(used & told) > 0.8 * len(used)
