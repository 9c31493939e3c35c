"""Several data sets in one stream: which source stands at each position, in fixed proportions.

Weights are integers; a period of sum(weights) positions holds exactly weight w of each source, in an order permuted
by a key of its own. One integer position tells every source's position, whatever the world size; weights may change
at a recorded position. In: positions. Out: (source, position in the source's own endless stream).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.order.lanes import grouped
from shardtool.order.permute import Permutation, Purpose, derive_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.model import Int64Array

__all__ = ["Mixture", "Phase", "whole_weights"]

MAX_PERIOD = 10_000  # positions; a period's table is rebuilt on a cold seek


def whole_weights(weights: Iterable[float]) -> tuple[int, ...]:
    """The weights as integers.

    Raises:
        UsageProblem: one of them is no whole number.
    """
    found = tuple(weights)
    if any(int(weight) != weight for weight in found):
        raise UsageProblem(
            f"weights {found} are no whole numbers",
            hint="write proportions as whole numbers: (7, 3) for 0.7 and 0.3",
        )
    return tuple(int(weight) for weight in found)


class Phase(NamedTuple):
    """From `position` of the mixed stream on, the sources have these weights."""

    position: int
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Mixture:
    """A mixed stream over as many sources as there are weights.

    Args:
        phases: ascending by position, the first at 0; a source not yet, or no longer, read has weight 0.
        seed: 0 .. 2^64 - 1.

    Raises:
        UsageProblem: phases out of order, negative weights, none above 0, or a sum above 10,000.
    """

    phases: tuple[Phase, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        starts = [phase.position for phase in self.phases]
        if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise UsageProblem(f"phases begin at {starts}; the first is 0, the others ascend")
        for phase in self.phases:
            if len(phase.weights) != self.num_sources or min(phase.weights) < 0:
                raise UsageProblem(f"weights {phase.weights}: one of 0 or more for each of {self.num_sources} sources")
            if not 1 <= sum(phase.weights) <= MAX_PERIOD:
                raise UsageProblem(
                    f"weights {phase.weights} sum to {sum(phase.weights)}", hint=f"scale them to 1 .. {MAX_PERIOD}"
                )

    @property
    def num_sources(self) -> int:
        """Data sets in the mixture."""
        return len(self.phases[0].weights)

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(source, position in that source's stream) of positions of the mixed stream, int64[n] each."""
        positions = np.asarray(positions, np.int64)
        sources, own = np.empty_like(positions), np.empty_like(positions)
        starts = np.array([phase.position for phase in self.phases], np.int64)
        for number, rows in grouped(np.searchsorted(starts, positions, side="right") - 1):
            period = sum(self.phases[number].weights)
            nth, inside = np.divmod(positions[rows] - starts[number], period)
            found, ordinals = self._look_up(number, nth, inside)
            weights = np.array(self.phases[number].weights, np.int64)
            sources[rows] = found
            own[rows] = self._bases[number][found] + weights[found] * nth + ordinals
        return sources, own

    def position(self, source: int, own: int) -> int:
        """Position of the mixed stream that reads position `own` of one source's stream; the inverse of `locate`.

        Raises:
            UsageProblem: the source is never read that far.
        """
        for number in range(len(self.phases) - 1, -1, -1):
            phase, base = self.phases[number], int(self._bases[number][source])
            if own >= base and phase.weights[source]:
                nth, ordinal = divmod(own - base, phase.weights[source])
                slots, _ = self._period(number, nth)
                found = phase.position + nth * sum(phase.weights) + int(np.flatnonzero(slots == source)[ordinal])
                if number + 1 == len(self.phases) or found < self.phases[number + 1].position:
                    return found
        raise UsageProblem(f"source {source} is never read at its position {own}", hint="its weight is 0 by then")

    def source_positions(self, position: int) -> Int64Array:
        """int64[num_sources]: samples of each source among the first `position` of the mixed stream."""
        number = sum(phase.position <= position for phase in self.phases) - 1
        return self._bases[number] + self._read(number, position - self.phases[number].position)

    @cached_property
    def _bases(self) -> list[Int64Array]:
        """int64[num_sources] for each phase: samples of each source read before it."""
        bases = [np.zeros(self.num_sources, np.int64)]
        for number, (phase, later) in enumerate(pairwise(self.phases)):
            bases.append(bases[-1] + self._read(number, later.position - phase.position))
        return bases

    def _read(self, number: int, size: int) -> Int64Array:
        """int64[num_sources]: samples of each source in the first `size` positions of a phase."""
        weights = np.array(self.phases[number].weights, np.int64)
        nth, inside = divmod(size, int(weights.sum()))
        slots, _ = self._period(number, nth)
        return weights * nth + np.bincount(slots[:inside], minlength=self.num_sources)

    def _look_up(self, number: int, nth: Int64Array, inside: Int64Array) -> tuple[Int64Array, Int64Array]:
        found, ordinals = np.empty_like(nth), np.empty_like(nth)
        for period, rows in grouped(nth):
            slots, counts = self._period(number, period)
            found[rows], ordinals[rows] = slots[inside[rows]], counts[inside[rows]]
        return found, ordinals

    def _period(self, number: int, nth: int) -> tuple[Int64Array, Int64Array]:
        phase = self.phases[number]
        return _make_period(phase.weights, derive_key(self.seed, Purpose.MIXTURE, number, 0, nth))


@lru_cache(maxsize=64)  # 16 bytes a position: at most 10 MB
def _make_period(weights: tuple[int, ...], key: int) -> tuple[Int64Array, Int64Array]:
    """(source, how many of it came before in this period) at each position of a period."""
    tickets = np.repeat(np.arange(len(weights), dtype=np.int64), weights)
    slots = tickets[Permutation(len(tickets), key).forward(np.arange(len(tickets), dtype=np.int64))]
    by_source = np.argsort(slots, kind="stable")
    begins = np.cumsum(weights) - weights
    counts = np.empty_like(slots)
    counts[by_source] = np.arange(len(slots), dtype=np.int64) - begins[slots[by_source]]
    return slots, counts
