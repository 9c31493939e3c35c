"""Windows of many lanes at once: the same offsets as lane by lane, in bounded memory, from several threads."""

from __future__ import annotations

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardtool.order import frames
from shardtool.order.frames import fits_frame
from shardtool.order.order import Order
from shardtool.order.params import OrderParams
from shardtool.order.permute import Permutation, Purpose, derive_key, derive_keys, hash_orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array

COUNTS = np.array([40, 0, 7, 55, 23, 300, 1, 74])
PARAMS = OrderParams(lanes=12, radices=(3, 2, 2), unit=2, piece=4, window=2, seed=3)


def lane_by_lane(positions: Int64Array, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    with monkeypatch.context() as patch:
        patch.setattr(frames, "MAX_SAMPLES", 0)
        return [column.tolist() for column in Order(COUNTS, PARAMS).locate(positions)]


def drawn(num_samples: int, size: int) -> Iterator[Int64Array]:
    """Positions of all three epochs, once each, in any order, a few at a time."""
    positions = np.random.default_rng(5).permutation(3 * num_samples)
    for begin in range(0, positions.size, size):
        yield positions[begin : begin + size]


@pytest.mark.parametrize("max_samples", [frames.MAX_SAMPLES, 24, 16])
def test_positions_in_any_order_are_those_of_single_lanes(max_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order, batches = Order(COUNTS, PARAMS), list(drawn(500, 2))
    wanted = [lane_by_lane(batch, monkeypatch) for batch in batches]
    monkeypatch.setattr(frames, "MAX_SAMPLES", max_samples)  # of windows of 8: frames of three or two lanes forget
    assert fits_frame(PARAMS, 2)
    assert [[column.tolist() for column in order.locate(batch)] for batch in batches] == wanted


def test_lanes_that_are_asked_for_later_find_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(COUNTS, PARAMS)
    for lane in random.Random(1).sample(range(PARAMS.lanes), PARAMS.lanes):
        places = np.arange(500)
        places = places[places // PARAMS.unit % PARAMS.lanes == lane]
        assert [column.tolist() for column in order.locate(places)] == lane_by_lane(places, monkeypatch)


def test_windows_that_would_take_too_much_go_lane_by_lane() -> None:
    assert fits_frame(PARAMS, frames.MAX_SAMPLES // 8)
    assert not fits_frame(PARAMS, frames.MAX_SAMPLES // 8 + 1)
    assert not fits_frame(OrderParams(lanes=2, piece=frames.MAX_WIDTH // 2, window=3), 2)
    assert not fits_frame(OrderParams(lanes=2, piece="shard"), 2)
    order = Order(np.array([200_000]), OrderParams(lanes=2, piece=frames.MAX_WIDTH // 2, window=3))
    assert np.unique(order.locate(np.arange(200_000))[1]).size == 200_000


def test_threads_share_frames() -> None:
    batches = [np.arange(begin, begin + 37) for begin in range(0, 1400, 7)]
    order = Order(COUNTS, PARAMS)
    wanted = [column.tolist() for batch in batches for column in Order(COUNTS, PARAMS).locate(batch)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(order.locate, batches))
    assert [column.tolist() for pair in found for column in pair] == wanted


def test_a_reader_of_hundreds_of_lanes_takes_little_memory() -> None:
    """The tables of 512 lanes of 8,192 samples a window, which one after the other would not fit their cache."""
    counts = np.full(2000, 10_000)
    order = Order(counts, OrderParams(lanes=512, piece=512, window=16, seed=1))
    tracemalloc.start()
    for begin in range(0, 8 << 12, 1 << 12):
        order.locate(np.arange(begin, begin + (1 << 12)))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 512 * 8192 * 2 < kept < 1.2 * 512 * 8192 * 2
    assert peak < 16 << 20


def test_shards_as_pieces_stay_within_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.order.order._PIECE_CACHE", 1 << 18)  # 1 MiB
    order = Order(np.full(40_000, 2), OrderParams("shard", lanes=8, piece="shard", window=1))
    order.locate(np.arange(8))
    tracemalloc.start()
    for epoch in range(30):
        order.locate(np.arange(8) + epoch * order.num_samples)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 1.1 * (1 << 20)


def test_keys_and_tables_of_many_lanes_are_those_of_each() -> None:
    lanes = np.array([0, 1, 5, 4095, 1 << 40])
    keys = derive_keys(2**64 - 3, Purpose.WINDOW, 7, lanes, 9)
    alone = [derive_key(2**64 - 3, Purpose.WINDOW, 7, lane, 9) for lane in lanes.tolist()]
    assert keys.tolist() == alone
    tables = [Permutation(50, key).forward(np.arange(50)).tolist() for key in alone]
    assert hash_orders(50, keys).tolist() == tables
