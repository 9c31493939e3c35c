"""Keyed permutations: bijections, the same in every form, as docs/formats/order.md writes them down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.order.permute import (
    TABLE_LIMIT,
    Permutation,
    Purpose,
    derive_key,
    mix,
    mix_array,
    permute_one,
    unpermute_one,
)

EXACT = settings(derandomize=True, deadline=None, max_examples=60)
KEYS = st.integers(0, 2**64 - 1)
LARGE = st.integers(TABLE_LIMIT + 1, 2**45)


PAGE = Path(__file__).parent.parent / "docs" / "formats" / "order.md"
GOLDEN: dict[str, Any] = json.loads(PAGE.read_text().split("```json\n")[1].split("```")[0])


def test_mix_gives_the_golden_values() -> None:
    assert [f"{mix(int(x, 16)):016x}" for x, _ in GOLDEN["mix"]] == [y for _, y in GOLDEN["mix"]]


def test_mix_is_the_output_of_splitmix64() -> None:
    # First outputs of splitmix64 from state 0, as published with its reference code.
    phi = 0x9E3779B97F4A7C15
    assert [mix(phi * (i + 1)) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_mix_array_equals_mix_and_leaves_its_input_alone() -> None:
    values = np.array([0, 1, 2**63, 2**64 - 1, 12345678901234567890], np.uint64)
    kept = values.copy()
    assert mix_array(values).tolist() == [mix(int(value)) for value in values]
    assert np.array_equal(values, kept)


def test_keys_are_the_golden_ones() -> None:
    for (seed, purpose, *rest), expected in GOLDEN["key"]:
        assert f"{derive_key(seed, Purpose(purpose), *rest):016x}" == expected


def test_seed_and_epoch_do_not_cancel() -> None:
    keys = {derive_key(seed, Purpose.FULL, epoch) for seed in range(50) for epoch in range(50)}
    assert len(keys) == 2500


def test_every_argument_changes_the_key() -> None:
    base = (3, Purpose.PIECES, 1, 1, 1)
    others = [(4, *base[1:]), (3, Purpose.WINDOW, 1, 1, 1), (3, Purpose.PIECES, 2, 1, 1)]
    others += [(3, Purpose.PIECES, 1, 2, 1), (3, Purpose.PIECES, 1, 1, 2)]
    assert len({derive_key(*arguments) for arguments in [base, *others]}) == 6


@pytest.mark.parametrize("case", GOLDEN["perm"], ids=lambda case: str(case["n"]))
def test_permutations_are_the_golden_ones(case: dict[str, Any]) -> None:
    permutation = Permutation(case["n"], int(case["key"], 16))
    index = np.array(case["index"], np.int64)
    assert permutation.forward(index).tolist() == case["image"]
    assert permutation.inverse(permutation.forward(index)).tolist() == case["index"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 16, 17, 257, 65535, 65536, 65537, 262145, TABLE_LIMIT, TABLE_LIMIT + 1])
def test_every_index_goes_somewhere_and_comes_back(size: int) -> None:
    permutation, everything = Permutation(size, 99), np.arange(size, dtype=np.int64)
    image = permutation.forward(everything)
    assert np.array_equal(np.bincount(image, minlength=size), np.ones(size, np.int64))
    assert np.array_equal(permutation.inverse(image), everything)


@EXACT
@given(st.integers(1, 200), KEYS)
def test_small_permutations_equal_the_scalar_definition(size: int, key: int) -> None:
    image = Permutation(size, key).forward(np.arange(size, dtype=np.int64)).tolist()
    assert image == [permute_one(i, size, key) for i in range(size)]
    assert [unpermute_one(value, size, key) for value in image] == list(range(size))


@EXACT
@given(LARGE, KEYS, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
def test_large_permutations_equal_the_scalar_definition(size: int, key: int, shares: list[float]) -> None:
    index = np.array([int(share * size) for share in shares], np.int64)
    image = Permutation(size, key).forward(index)
    assert image.tolist() == [permute_one(i, size, key) for i in index.tolist()]
    assert [unpermute_one(value, size, key) for value in image.tolist()] == index.tolist()
    assert np.array_equal(Permutation(size, key).inverse(image), index)
    assert image.min() >= 0
    assert image.max() < size


def test_large_permutations_walk_back_inside() -> None:
    # 1025^2 - 2^20 - 1 = 2048 values of the network lie outside: in a full domain walks must happen.
    size = TABLE_LIMIT + 1
    index = np.arange(size, dtype=np.int64)
    assert len(np.unique(Permutation(size, 5).forward(index))) == size


def test_places_are_uniform_over_keys() -> None:
    # Chi-square over 4,000 keys: mean degrees-of-freedom ratio 1, standard deviation sqrt(2 / (n - 1)).
    for size in (7, 64):
        counts = np.zeros(size)
        for seed in range(4000):
            counts[Permutation(size, derive_key(seed, Purpose.WINDOW)).forward(np.array([3]))[0]] += 1
        ratio = ((counts - 4000 / size) ** 2 / (4000 / size)).sum() / (size - 1)
        assert ratio < 1 + 5 * (2 / (size - 1)) ** 0.5


def test_large_places_are_uniform_over_keys() -> None:
    size, bins = 10**9 + 7, 64
    images = [permute_one(3, size, derive_key(seed, Purpose.FULL)) for seed in range(4000)]
    counts = np.bincount(np.array(images) * bins // size, minlength=bins)
    ratio = ((counts - 4000 / bins) ** 2 / (4000 / bins)).sum() / (bins - 1)
    assert ratio < 1 + 5 * (2 / (bins - 1)) ** 0.5


def test_the_shape_of_the_index_is_kept() -> None:
    for size in (10, TABLE_LIMIT + 5):
        assert Permutation(size, 1).forward(np.arange(6, dtype=np.int64).reshape(2, 3)).shape == (2, 3)
        assert Permutation(size, 1).forward(np.empty(0, np.int64)).size == 0
