"""Keyed permutations that stay the same for ever: no library's random generator takes part.

A key is derived from (seed, purpose, epoch, lane, window) with the finaliser of splitmix64. Up to 2^20 elements a
permutation is the argsort of a hash; above that a Feistel network on Z_a x Z_b, walked until it lands inside.
Written down with golden vectors in docs/formats/order.md. In: integers. Out: integers; nothing is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import Int32Array, Int64Array, UInt64Array

__all__ = [
    "ROUNDS",
    "TABLE_LIMIT",
    "Permutation",
    "Purpose",
    "derive_key",
    "derive_keys",
    "hash_orders",
    "mix",
    "mix_array",
    "permute_one",
    "unpermute_one",
]

TABLE_LIMIT = 1 << 20  # elements; larger domains use the Feistel network
ROUNDS = 6  # of the Feistel network; chi-square of positions over keys is 1.0 from n = 64 up

_MASK = (1 << 64) - 1
_PHI = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
_MIX_1 = 0xBF58476D1CE4E5B9  # Stafford's variant 13, the finaliser of splitmix64
_MIX_2 = 0x94D049BB133111EB
_BLOCK = 1 << 14  # elements worked on at a time: three uint64 columns stay in a 512 KiB cache


class Purpose(IntEnum):
    """What a key is for; part of the key, so that no two uses ever share a permutation."""

    SHARDS = 1
    PIECES = 2
    WINDOW = 3
    ROTATION = 4
    FULL = 5
    MIXTURE = 6


def mix(value: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: UInt64Array) -> UInt64Array:
    """uint64[n]: `mix` of each value; `values` is left alone."""
    out = values ^ (values >> np.uint64(30))
    out *= np.uint64(_MIX_1)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_MIX_2)
    out ^= out >> np.uint64(31)
    return out


def derive_key(seed: int, purpose: Purpose, epoch: int = 0, lane: int = 0, window: int = 0) -> int:
    """The 64-bit key of one permutation; every argument changes it, and none cancels another."""
    key = mix(seed + _PHI)
    for part in (int(purpose), epoch, lane, window):
        key = mix(key ^ mix(part + _PHI))
    return key


def derive_keys(seed: int, purpose: Purpose, epoch: int, lanes: Int64Array, window: int) -> UInt64Array:
    """uint64[n]: `derive_key` for each lane."""
    key = mix(seed + _PHI)
    for part in (int(purpose), epoch):
        key = mix(key ^ mix(part + _PHI))
    keys = mix_array(mix_array(lanes.astype(np.uint64) + np.uint64(_PHI)) ^ np.uint64(key))
    return mix_array(keys ^ np.uint64(mix(window + _PHI)))


def hash_orders(num_elements: int, keys: UInt64Array) -> Int64Array:
    """int64[n, num_elements]: the permutation of 0..num_elements-1 that each key (uint64[n]) selects, by its hashes."""
    # Neither i * PHI nor mix has collisions, so there are no ties and any sort gives the stable one.
    hashes = np.arange(num_elements, dtype=np.uint64) * np.uint64(_PHI) + keys[:, None]
    return np.argsort(mix_array(hashes), axis=1)


@dataclass(frozen=True)
class Permutation:
    """The permutation of 0..num_elements-1 that `key` selects, forward and back.

    Up to TABLE_LIMIT elements each direction keeps a table of 4 bytes an element once used; above it nothing.
    """

    num_elements: int
    key: int

    def forward(self, index: Int64Array) -> Int64Array:
        """int64[n]: where each index (int64[n], each in range) goes."""
        if self.num_elements <= TABLE_LIMIT:
            return self._table[index].astype(np.int64)
        return _feistel(index, self.num_elements, self.key, is_inverse=False)

    def inverse(self, value: Int64Array) -> Int64Array:
        """int64[n]: the index that `forward` takes to each value."""
        if self.num_elements <= TABLE_LIMIT:
            return self._inverse_table[value].astype(np.int64)
        return _feistel(value, self.num_elements, self.key, is_inverse=True)

    @cached_property
    def _table(self) -> Int32Array:
        table: Int32Array = hash_orders(self.num_elements, np.array([self.key], np.uint64))[0].astype(np.int32)
        return table

    @cached_property
    def _inverse_table(self) -> Int32Array:
        table = np.empty(self.num_elements, np.int32)
        table[self._table] = np.arange(self.num_elements, dtype=np.int32)
        return table


def permute_one(index: int, num_elements: int, key: int) -> int:
    """`Permutation.forward` of one index in plain integers: the definition, and the oracle of the fast one."""
    if num_elements <= TABLE_LIMIT:
        return _hash_order(num_elements, key)[index]
    first, second = _radices(num_elements)
    while True:
        low, high = index % first, index // first
        for number, round_key in enumerate(_round_keys(key)):
            if number % 2 == 0:
                low = (low + mix(high + round_key) % first) % first
            else:
                high = (high + mix(low + round_key) % second) % second
        index = high * first + low
        if index < num_elements:
            return index


def unpermute_one(value: int, num_elements: int, key: int) -> int:
    """`Permutation.inverse` of one value in plain integers."""
    if num_elements <= TABLE_LIMIT:
        return _hash_order(num_elements, key).index(value)
    first, second = _radices(num_elements)
    while True:
        low, high = value % first, value // first
        for number, round_key in reversed(list(enumerate(_round_keys(key)))):
            if number % 2 == 0:
                low = (low - mix(high + round_key) % first) % first
            else:
                high = (high - mix(low + round_key) % second) % second
        value = high * first + low
        if value < num_elements:
            return value


def _hash_order(num_elements: int, key: int) -> list[int]:
    return sorted(range(num_elements), key=lambda i: mix(i * _PHI + key))


def _radices(num_elements: int) -> tuple[int, int]:
    first = math.isqrt(num_elements - 1) + 1
    return first, -(-num_elements // first)


def _round_keys(key: int) -> list[int]:
    return [mix(key + _PHI * (number + 1)) for number in range(ROUNDS)]


def _feistel(index: Int64Array, num_elements: int, key: int, *, is_inverse: bool) -> Int64Array:
    flat = np.ascontiguousarray(index, np.int64).reshape(-1)
    out = np.empty(flat.size, np.int64)
    keys, radices = _round_keys(key), _radices(num_elements)
    for start in range(0, flat.size, _BLOCK):
        block = _walk(flat[start : start + _BLOCK].view(np.uint64), radices, keys, is_inverse)
        outside = np.flatnonzero(block >= num_elements)
        while outside.size:  # expected walks per element: under 1 / sqrt(num_elements)
            block[outside] = _walk(block[outside], radices, keys, is_inverse)
            outside = outside[block[outside] >= num_elements]
        out[start : start + _BLOCK] = block.view(np.int64)
    return out.reshape(index.shape)


def _walk(values: UInt64Array, radices: tuple[int, int], keys: list[int], is_inverse: bool) -> UInt64Array:
    first = np.uint64(radices[0])
    high = values // first
    halves = [values - high * first, high]
    rounds = range(ROUNDS - 1, -1, -1) if is_inverse else range(ROUNDS)
    for number in rounds:
        changed, other = number % 2, 1 - number % 2
        radix = np.uint64(radices[changed])
        amount = _remainder(mix_array(halves[other] + np.uint64(keys[number])), radix)
        moved = halves[changed] + (radix - amount if is_inverse else amount)
        np.subtract(moved, radix, out=moved, where=moved >= radix)
        halves[changed] = moved
    out = halves[1] * first
    out += halves[0]
    return out


def _remainder(values: UInt64Array, radix: np.uint64) -> UInt64Array:
    # floor_divide by a scalar multiplies by a reciprocal; remainder divides: 4 times slower.
    quotient: NDArray[np.uint64] = values // radix
    quotient *= radix
    values -= quotient
    return values
