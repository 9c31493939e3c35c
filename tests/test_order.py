"""The reading order against a slow one, written from docs/formats/order.md in plain integers; its golden vectors."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import PlanMismatch, UsageProblem
from shardtool.order import frames
from shardtool.order.lanes import LaneLayout, grouped, lane_slots
from shardtool.order.mixture import Mixture, Phase
from shardtool.order.order import Order
from shardtool.order.params import OrderParams, choose_params, lane_radices
from shardtool.order.state import dump_state, load_state, move_to_grown

PAGE = Path(__file__).parent.parent / "docs" / "formats" / "order.md"
GOLDEN: dict[str, Any] = json.loads(PAGE.read_text().split("```json\n")[1].split("```")[0])
EXACT = settings(derandomize=True, deadline=None, max_examples=150)
MASK, PHI = 2**64 - 1, 0x9E3779B97F4A7C15


# --- the slow order: sections 2 to 6 of the page, nothing shared with the package


def slow_mix(x: int) -> int:
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def slow_key(seed: int, *parts: int) -> int:
    k = slow_mix(seed + PHI)
    for t in parts:
        k = slow_mix(k ^ slow_mix(t + PHI))
    return k


def slow_perm(n: int, key: int) -> list[int]:
    return sorted(range(n), key=lambda i: slow_mix(i * PHI + key))


def slow_lane(n: int, e: int, lane: int, fragments: list[int], p: OrderParams) -> list[int]:
    """y for each index of a lane of n samples that shards cut into fragments."""
    pieces = slow_perm(len(fragments) if p.piece == "shard" else n // int(p.piece), slow_key(p.seed, 2, e, lane, 0))
    if p.piece == "shard":
        begins = [sum(fragments[:k]) for k in range(len(fragments))]
        ranges = [list(range(begins[k], begins[k] + fragments[k])) for k in pieces]
        windows = [list(chain(*ranges[k : k + p.window])) for k in range(0, len(ranges), p.window)]
    else:
        size, rotation = int(p.piece), slow_key(p.seed, 4, e, lane, 0) % n
        ranges = [[(k * size + i + rotation) % n for i in range(size)] for k in pieces]
        ranges.append([(x + rotation) % n for x in range(n // size * size, n)])
        line = list(chain(*ranges))
        windows = [line[k : k + p.window * size] for k in range(0, n, p.window * size)]
    if p.mode == "shard":
        return list(chain(*windows))
    orders = [slow_perm(len(window), slow_key(p.seed, 3, e, lane, w)) for w, window in enumerate(windows)]
    return [window[i] for window, order in zip(windows, orders, strict=True) for i in order]


def slow_epoch(counts: list[int], p: OrderParams, e: int) -> list[tuple[int, int]]:
    shards = list(range(len(counts)))
    if p.mode in ("plw", "shard"):
        shards = slow_perm(len(counts), slow_key(p.seed, 1, e if p.locality == "redraw" else 0, 0, 0))
    line = [(shard, row) for shard in shards for row in range(counts[shard])]
    if p.mode == "none":
        return line
    if p.mode == "full":
        return [line[o] for o in slow_perm(len(line), slow_key(p.seed, 5, e, 0, 0))]
    lane_of = [place // p.unit % p.lanes for place in range(len(line))]
    sizes = Counter(lane_of)

    def slot(lane: int) -> int:
        v = 0
        for radix in p.radices:
            v, lane = v * radix + lane % radix, lane // radix
        return v

    content, start = {}, 0
    for lane in sorted(range(p.lanes), key=slot):
        part = line[start : start + sizes[lane]]
        start += sizes[lane]
        fragments = list(Counter(shard for shard, _ in part).values())  # in run order
        content[lane] = iter([part[y] for y in slow_lane(len(part), e, lane, fragments, p)] if part else [])
    return [next(content[lane]) for lane in lane_of]


# --- strategies


@st.composite
def params_of(draw: st.DrawFn) -> OrderParams:
    mode: Any = draw(st.sampled_from(["plw", "plw", "plw", "shard", "none", "full"]))
    lanes = 1 if mode in ("none", "full") else draw(st.sampled_from([1, 2, 3, 4, 6, 7, 8, 12, 16]))
    piece: Any = "shard" if mode == "shard" else draw(st.sampled_from([1, 2, 3, 4, 9, 16, "shard"]))
    factors = draw(st.permutations(OrderParams(lanes=lanes).radices))
    return OrderParams(
        mode=mode,
        seed=draw(st.integers(0, 2**64 - 1)),
        lanes=lanes,
        radices=tuple(factors),
        unit=draw(st.sampled_from([1, 1, 2, 3, 5])),
        piece=piece,
        window=draw(st.sampled_from([1, 2, 5])),
        locality=draw(st.sampled_from(["fixed", "redraw"])),
    )


COUNTS = st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 17, 33, 64, 65]), min_size=1, max_size=14).filter(sum)


def epoch_of(order: Order, epoch: int) -> list[tuple[int, int]]:
    places = np.arange(order.num_samples, dtype=np.int64) + epoch * order.num_samples
    shards, rows = order.locate(places)
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


def order_of(counts: list[int], params: OrderParams) -> Order:
    return Order(np.array(counts, np.int64), params)


# --- properties


@pytest.mark.parametrize("max_samples", [frames.MAX_SAMPLES, 0], ids=["many lanes at once", "lane by lane"])
def test_the_order_is_the_specified_one(max_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_SAMPLES", max_samples)

    @EXACT
    @given(COUNTS, params_of(), st.sampled_from([0, 1, 5, 1000]))
    def check(counts: list[int], params: OrderParams, epoch: int) -> None:
        assert epoch_of(order_of(counts, params), epoch) == slow_epoch(counts, params, epoch)

    check()


@EXACT
@given(COUNTS, params_of(), st.integers(0, 3))
def test_every_epoch_reads_every_sample_once(counts: list[int], params: OrderParams, epoch: int) -> None:
    expected = [(shard, row) for shard, count in enumerate(counts) for row in range(count)]
    assert sorted(epoch_of(order_of(counts, params), epoch)) == expected


@EXACT
@given(COUNTS, params_of(), st.integers(0, 3))
def test_where_is_the_inverse(counts: list[int], params: OrderParams, epoch: int) -> None:
    order = order_of(counts, params)
    positions = np.arange(order.num_samples, dtype=np.int64) + epoch * order.num_samples
    assert np.array_equal(order.positions(epoch, *order.locate(positions)), positions)
    position = int(positions[len(positions) // 2])
    assert order.where(epoch, *order.at(position)) == position


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 64, 65, 256, 257, 1024, 1025, 4096, 4097])
@pytest.mark.parametrize("lanes", [1, 8, 12])
def test_powers_of_two_and_four_and_their_neighbours_are_permuted(size: int, lanes: int) -> None:
    order = Order(np.array([size]), OrderParams(lanes=lanes, piece=4, window=4))
    assert len(set(epoch_of(order, 0))) == size


@EXACT
@given(COUNTS, params_of(), st.randoms(use_true_random=False))
def test_positions_may_be_asked_in_any_order_and_over_epochs(counts: list[int], params: OrderParams, rng: Any) -> None:
    order = order_of(counts, params)
    positions = [rng.randrange(4 * order.num_samples) for _ in range(40)]
    shards, rows = order.locate(np.array(positions))
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == [order.at(position) for position in positions]


def test_a_window_above_the_table_limit_is_still_a_permutation() -> None:
    order = Order(np.array([600_000, 700_000]), OrderParams(lanes=1, piece=1, window=2_000_000))
    positions = np.arange(order.num_samples, dtype=np.int64)
    shards, rows = order.locate(positions)
    assert np.array_equal(np.bincount(shards * 600_000 + rows), np.ones(1_300_000))
    assert np.array_equal(order.positions(0, shards, rows), positions)


def test_full_order_above_the_table_limit_is_a_permutation() -> None:
    order = Order(np.full(1025, 1025), OrderParams(mode="full"))
    shards, rows = order.locate(np.arange(order.num_samples, dtype=np.int64))
    assert np.array_equal(np.bincount(shards * 1025 + rows), np.ones(1025 * 1025))


def test_orders_are_the_golden_ones() -> None:
    counts = GOLDEN["order"]["counts"]
    for case in GOLDEN["order"]["epochs"]:
        params = OrderParams(**{**case["params"], "radices": tuple(case["params"]["radices"])})
        expected = [tuple(sample) for sample in case["samples"]]
        assert epoch_of(order_of(counts, params), case["epoch"]) == expected
        assert slow_epoch(counts, params, case["epoch"]) == expected


def test_lanes_are_the_golden_ones() -> None:
    for case in GOLDEN["slots"]:
        assert lane_slots(tuple(case["radices"])).tolist() == case["slots"]
    for case in GOLDEN["lanes"]:
        layout = LaneLayout(case["N"], case["u"], tuple(case["radices"]))
        assert (layout.lengths.tolist(), layout.starts.tolist()) == (case["n"], case["start"])


def test_order_none_is_the_identity_in_every_epoch() -> None:
    order = order_of([2, 0, 3], OrderParams(mode="none", seed=4))
    assert epoch_of(order, 0) == epoch_of(order, 9) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]


def test_order_shard_reads_each_shard_once_through() -> None:
    order = order_of([5] * 12, OrderParams(mode="shard", lanes=2, piece="shard", window=1))
    lane = epoch_of(order, 3)[::2]
    assert [row for _, row in lane] == list(range(5)) * 6


@pytest.mark.parametrize("mode", ["plw", "shard", "full"])
def test_every_epoch_and_every_seed_has_another_order(mode: Any) -> None:
    piece: Any = "shard" if mode == "shard" else 4
    orders = [order_of([10] * 20, OrderParams(mode=mode, seed=seed, piece=piece, window=1)) for seed in (1, 2)]
    seen = {tuple(epoch_of(order, epoch)) for order in orders for epoch in (0, 1, 2)}
    assert len(seen) == 6  # in particular seed 1, epoch 2 is not seed 2, epoch 1


def test_a_pickled_order_is_the_same_and_carries_no_cache() -> None:
    order = order_of([50, 3, 70], OrderParams(lanes=3, piece=4))
    empty = len(pickle.dumps(order))
    expected = epoch_of(order, 1)
    stored = pickle.dumps(order)
    assert len(stored) == empty
    assert epoch_of(pickle.loads(stored), 1) == expected


def test_the_counts_of_an_order_are_its_own() -> None:
    counts = np.array([3, 4], np.int64)
    order = Order(counts, OrderParams())
    counts[0] = 100
    assert order.counts.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        order.counts[0] = 1


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_data_sets_without_samples_have_no_order(counts: list[int]) -> None:
    with pytest.raises(UsageProblem, match="samples"):
        order_of(counts, OrderParams())


@pytest.mark.parametrize(("shard", "row"), [(-1, 0), (3, 0), (0, 2), (1, 0), (2, -1)])
def test_asking_where_a_sample_is_that_does_not_exist_is_an_error(shard: int, row: int) -> None:
    with pytest.raises(UsageProblem, match=f"no sample {row} in shard {shard}"):
        order_of([2, 0, 3], OrderParams()).where(0, shard, row)


def test_grouped_finds_every_key_sorted_or_not() -> None:
    for keys in ([], [1, 1, 2], [2, 1, 2, 70_000, 1], [-1, 5, -1]):
        array = np.array(keys, np.int64)
        found = {key: np.arange(len(keys))[rows].tolist() for key, rows in grouped(array)}
        assert found == {key: [i for i, k in enumerate(keys) if k == key] for key in set(keys)}


# --- parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "random"},
        {"locality": "near"},
        {"seed": -1},
        {"seed": 2**64},
        {"lanes": 0},
        {"unit": 0},
        {"window": 0},
        {"piece": 0},
        {"piece": "file"},
        {"mode": "none", "lanes": 2},
        {"lanes": 6, "radices": (2, 2)},
        {"lanes": 2, "radices": (1, 2)},
    ],
)
def test_parameters_out_of_range_are_usage_problems(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem):
        OrderParams(**wrong)


def test_lanes_divide_by_every_world_size_of_the_run() -> None:
    counts = np.full(10_000, 1000)
    choice = choose_params(counts, counts * 100_000, [64, 96, 128])
    assert choice.undivided == ()
    assert choice.params.lanes == 1152
    assert choice.params.piece == 83  # 8 MiB of 100 kB samples
    assert choice.params.radices[:5] == (2,) * 5  # common to all three


def test_small_data_gets_fewer_lanes_and_smaller_pieces() -> None:
    small = choose_params(np.array([1000]), np.array([10**6]), [1]).params
    tiny = choose_params(np.array([5]), np.array([10]), [8])
    assert (small.lanes, small.piece) == (8, 1)
    assert (tiny.params.lanes, tiny.params.piece, tiny.undivided) == (1, 1, (8,))


def test_world_sizes_without_a_small_common_multiple_are_named() -> None:
    counts = np.full(1000, 10)
    choice = choose_params(counts, counts, [7, 11, 13, 16, 17])
    assert choice.params.lanes % 7 == 0  # the first listed keeps its lanes
    assert 17 in choice.undivided


@EXACT
@given(COUNTS, st.lists(st.integers(1, 40), min_size=1, max_size=3), st.sampled_from(["plw", "shard", "none", "full"]))
def test_chosen_parameters_always_give_an_order(counts: list[int], sizes: list[int], mode: Any) -> None:
    array = np.array(counts, np.int64)
    choice = choose_params(array, array * 1000, sizes, mode=mode, seed=3)
    assert all((choice.params.lanes % size != 0) == (size in choice.undivided) for size in sizes)
    assert len(set(epoch_of(Order(array, choice.params), 1))) == sum(counts)


def test_parameters_do_not_change_with_the_order_of_equal_questions() -> None:
    counts = np.array([500, 700, 90])
    first = choose_params(counts, counts * 7, [4, 4, 8], piece=5, unit=2, node_counts=[2])
    assert first == choose_params(counts, counts * 7, [4, 8], piece=5, unit=2, node_counts=[2])
    assert (first.params.piece, first.params.unit) == (5, 2)


def test_choosing_needs_samples_and_world_sizes() -> None:
    with pytest.raises(UsageProblem, match="no samples"):
        choose_params(np.array([0]), np.array([0]), [1])
    for sizes in ([], [0]):
        with pytest.raises(UsageProblem, match="world sizes"):
            choose_params(np.array([5]), np.array([5]), sizes)


def test_common_factors_of_the_node_counts_come_first() -> None:
    assert lane_radices(384, [8, 16]) == (2, 2, 2, 2, 2, 2, 2, 3)
    assert lane_radices(384, [12, 24]) == (2, 2, 3, 2, 2, 2, 2, 2)
    assert all(math.prod(lane_radices(lanes, [lanes, 6])) == lanes for lanes in range(1, 200))


# --- state

PARAMS = OrderParams(seed=2**64 - 1, lanes=12, radices=(2, 3, 2), unit=2, piece="shard", window=3, locality="redraw")


def state_of(**changes: Any) -> dict[str, Any]:
    given_values = {"fingerprint": "f1", "num_samples": 100, "policy": "carry", "position": 250, **changes}
    return dict(dump_state(given_values.pop("params", PARAMS), **given_values))


def test_the_state_is_the_golden_one() -> None:
    params = OrderParams(seed=7, lanes=384, radices=(2, 2, 3, 2, 2, 2, 2, 2), piece=80)
    fingerprint = "0123456789abcdef0123456789abcdef"
    state = dump_state(params, fingerprint=fingerprint, num_samples=10**6, policy="carry", position=123456789)
    assert state == GOLDEN["state"]


@EXACT
@given(params_of())
def test_a_state_survives_json(params: OrderParams) -> None:
    state = json.loads(json.dumps(state_of(params=params)))
    assert all(isinstance(value, int | str) for value in state.values())
    restored = load_state(state, fingerprint="f1", num_samples=100, params=params, policy="carry", is_strict=True)
    assert (restored.params, restored.policy, restored.position, restored.notes) == (params, "carry", 250, ())


def test_a_state_of_another_data_set_is_an_error() -> None:
    with pytest.raises(PlanMismatch, match="f1"):
        load_state(state_of(), fingerprint="f2", num_samples=100)
    with pytest.raises(PlanMismatch, match="101"):
        load_state(state_of(), fingerprint="f1", num_samples=101, ignores_fingerprint=True)
    restored = load_state(state_of(), fingerprint="f2", num_samples=100, ignores_fingerprint=True)
    assert len(restored.notes) == 1


def test_the_order_of_the_state_wins_with_a_note_or_is_an_error_when_strict() -> None:
    asked = OrderParams(seed=1)
    restored = load_state(state_of(), fingerprint="f1", num_samples=100, params=asked)
    assert restored.params == PARAMS
    assert len(restored.notes) == 1
    with pytest.raises(PlanMismatch):
        load_state(state_of(), fingerprint="f1", num_samples=100, params=asked, is_strict=True)


def test_the_policy_may_change_between_epochs_only() -> None:
    with pytest.raises(PlanMismatch, match="inside an epoch"):
        load_state(state_of(), fingerprint="f1", num_samples=100, policy="drop")
    border = state_of(position=300)
    assert load_state(border, fingerprint="f1", num_samples=100, policy="drop").policy == "drop"


@pytest.mark.parametrize(
    "change", [{"v": 2}, {"order": "plw2"}, {"order": "other1"}, {"radices": "2xx"}, {"seed": None}, {"lanes": 5}]
)
def test_what_is_not_a_state_is_a_usage_problem(change: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem):
        load_state({**state_of(), **change}, fingerprint="f1", num_samples=100)


@pytest.mark.parametrize("name", list(state_of()))
def test_a_state_that_lacks_an_entry_is_a_usage_problem(name: str) -> None:
    state = state_of()
    del state[name]
    with pytest.raises(UsageProblem, match="not a state"):
        load_state(state, fingerprint="f1", num_samples=100)


def test_a_state_may_come_back_with_integers_of_numpy() -> None:
    state = {name: np.int64(value) if isinstance(value, int) else value for name, value in state_of().items()}
    restored = load_state(state, fingerprint="f1", num_samples=100, params=PARAMS, policy="carry", is_strict=True)
    assert (restored.params, restored.position, type(restored.params.lanes)) == (PARAMS, 250, int)


def test_an_empty_state_is_a_usage_problem() -> None:
    with pytest.raises(UsageProblem, match="not a state"):
        load_state({}, fingerprint="f1", num_samples=100)


def test_a_data_set_may_grow_between_epochs() -> None:
    assert move_to_grown(300, 100, 130) == 390
    with pytest.raises(PlanMismatch, match="50 samples inside epoch 2"):
        move_to_grown(250, 100, 130)


# --- mixtures


def test_the_mixture_is_the_golden_one() -> None:
    case = GOLDEN["mixture"]
    mixture = Mixture(tuple(Phase(position, tuple(weights)) for position, weights in case["phases"]), case["seed"])
    sources, own = mixture.locate(np.arange(len(case["stream"]), dtype=np.int64))
    assert [list(pair) for pair in zip(sources.tolist(), own.tolist(), strict=True)] == case["stream"]


@EXACT
@given(st.data())
def test_a_mixture_reads_each_source_in_its_own_order(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 4))
    weights = st.lists(st.integers(0, 5), min_size=number, max_size=number).filter(sum)
    gaps = data.draw(st.lists(st.integers(1, 40), max_size=2))
    starts = [0, *np.cumsum(gaps).tolist()] if gaps else [0]
    mixture = Mixture(tuple(Phase(start, tuple(data.draw(weights))) for start in starts), data.draw(st.integers(0, 99)))
    positions = np.arange(150, dtype=np.int64)
    sources, own = mixture.locate(positions)
    counts = [0] * number
    for position, source, place in zip(positions.tolist(), sources.tolist(), own.tolist(), strict=True):
        assert place == counts[source]
        assert mixture.position(source, place) == position
        assert mixture.source_positions(position).tolist() == counts
        counts[source] += 1


def test_each_period_holds_exactly_its_weights() -> None:
    mixture = Mixture((Phase(0, (7, 1, 2)),), seed=3)
    sources, _ = mixture.locate(np.arange(100, dtype=np.int64))
    periods = sources.reshape(10, 10)
    assert all(np.bincount(period).tolist() == [7, 1, 2] for period in periods)
    assert len({tuple(period) for period in periods.tolist()}) > 5


@pytest.mark.parametrize(
    "phases", [(), ((1, (1,)),), ((0, (1,)), (0, (2,))), ((0, (1, 1)), (5, (1,))), ((0, (0,)),), ((0, (-1, 2)),)]
)
def test_mixtures_that_make_no_sense_are_usage_problems(phases: Any) -> None:
    with pytest.raises(UsageProblem):
        Mixture(tuple(Phase(*phase) for phase in phases))


def test_a_source_that_is_never_read_again_is_named() -> None:
    with pytest.raises(UsageProblem, match="source 1 is never read"):
        Mixture((Phase(0, (1, 1)), Phase(4, (1, 0)))).position(1, 2)


# --- cost


def test_a_million_shards_cost_little() -> None:
    """Measured: 41 MB, and 0.15 s of one core of a small machine."""
    counts = np.full(1_000_000, 1000, np.int64)
    tracemalloc.start()
    order = Order(counts, choose_params(counts, counts * 100_000, [64, 96, 128]).params)
    order.at(0)
    peak = tracemalloc.get_traced_memory()[1]
    order.at(987_654_321_987)
    again = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6
    assert again < 80e6, "a seek far ahead stores nothing a sample"
