"""The reading order of a mixture: several data sets as one stream, and its state.

    order = MixedOrder((order_a, order_b), Mixture((Phase(0, (7, 1)),), seed=3), num_samples=10_000)
    order.locate(positions)           (shard, row); shards of all sources are numbered through
    order.reweighed(position, (3, 1)) other weights from a position on

A source is read along its own endless stream, in its own order, each sample once in each of its epochs. In: positions.
Out: where their samples lie. The state names every source's data set and order and all phases, so that one position
tells where each source stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardtool.errors import PlanMismatch, UsageProblem
from shardtool.order.lanes import grouped
from shardtool.order.mixture import Mixture, Phase, whole_weights
from shardtool.order.order import Order
from shardtool.order.params import OrderParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.model import Int64Array
    from shardtool.order.deal import Policy

__all__ = ["MIXTURE_VERSION", "MixedOrder", "RestoredMixture", "dump_mixture", "load_mixture"]

MIXTURE_VERSION = "mixture1"  # of section 8 in docs/formats/order.md


@dataclass(frozen=True, eq=False)
class MixedOrder:
    """Sources in fixed proportions.

    Args:
        sources: the order of each data set.
        mixture: which source stands at each position.
        num_samples: positions of one epoch of the mixed stream; only loops and tail policies ask for it.

    Raises:
        UsageProblem: as many weights as sources are not there, or an epoch without samples.
    """

    sources: tuple[Order, ...]
    mixture: Mixture
    num_samples: int

    def __post_init__(self) -> None:
        if self.mixture.num_sources != len(self.sources):
            raise UsageProblem(
                f"{self.mixture.num_sources} weights for {len(self.sources)} data sets", hint="give each a weight"
            )
        if self.num_samples < 1:
            raise UsageProblem(f"an epoch of {self.num_samples} samples", hint="epoch_samples is 1 or more")

    @cached_property
    def params(self) -> OrderParams:
        """What a deal to ranks has to know: single samples, no lanes that a rank could own."""
        return OrderParams(mode="full", seed=self.mixture.seed)

    @cached_property
    def first_shards(self) -> Int64Array:
        """int64[num_sources + 1]: number of each source's first shard."""
        return np.cumsum([0, *(len(order.counts) for order in self.sources)]).astype(np.int64)

    @property
    def weights(self) -> tuple[int, ...]:
        """Those of the last phase."""
        return self.mixture.phases[-1].weights

    def weights_at(self, position: int) -> tuple[int, ...]:
        """Those in force at a position."""
        return next(phase.weights for phase in reversed(self.mixture.phases) if phase.position <= position)

    def split(self, positions: Int64Array) -> list[tuple[int, Int64Array | slice, Int64Array]]:
        """(source, which of the positions, their places in the source's own stream), a row a source."""
        sources, own = self.mixture.locate(positions)
        return [(source, rows, own[rows]) for source, rows in grouped(sources)]

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(shard, row) of positions of the stream, int64[n] each."""
        shards, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for source, chosen, own in self.split(positions):
            found, rows[chosen] = self.sources[source].locate(own)
            shards[chosen] = found + self.first_shards[source]
        return shards, rows

    def reweighed(self, position: int, weights: Sequence[int]) -> MixedOrder:
        """The same up to a position, with other weights from there on; itself where they are in force already.

        Raises:
            UsageProblem: weights that make no sense.
        """
        wanted = whole_weights(weights)
        before = tuple(phase for phase in self.mixture.phases if phase.position < position)
        if before and before[-1].weights == wanted:
            phases = before
        else:
            phases = (*before, Phase(position, wanted))
        if phases == self.mixture.phases:
            return self
        return replace(self, mixture=Mixture(phases, self.mixture.seed))


@dataclass(frozen=True)
class RestoredMixture:
    """What a state says: go on at `position` of `order`; `notes` are sentences for the user."""

    order: MixedOrder
    policy: Policy
    position: int
    notes: tuple[str, ...] = ()


def dump_mixture(
    order: MixedOrder, *, fingerprints: Sequence[str], policy: Policy, position: int
) -> dict[str, int | str]:
    """The state of a mixture at a position: integers and strings, always the same keys.

    Args:
        order: in use.
        fingerprints: of each source's data set and split.
        policy: what becomes of the tail of an epoch.
        position: samples of the mixed stream consumed.
    """
    return {
        "v": 1,
        "order": MIXTURE_VERSION,
        "seed": f"{order.mixture.seed:016x}",
        "phases": ";".join(f"{start}:{','.join(map(str, weights))}" for start, weights in order.mixture.phases),
        "fingerprint": " ".join(fingerprints),
        "source_samples": ",".join(str(source.num_samples) for source in order.sources),
        "source_orders": " ".join(_params_text(source.params) for source in order.sources),
        "samples": order.num_samples,
        "policy": policy,
        "position": position,
    }


def load_mixture(
    state: Mapping[str, Any], order: MixedOrder, *, fingerprints: Sequence[str], policy: Policy | None = None
) -> RestoredMixture:
    """Where a run over a mixture goes on. Phases, seed, orders and epoch length of the state win.

    Data sets added behind those of the state have weight 0 until the weights are changed.

    Raises:
        PlanMismatch: other data sets, or another policy inside an epoch.
        UsageProblem: not the state of a mixture, or of a later version.
    """
    phases, params, seed, num_samples, position = _parse(state)
    _check_sources(state, order, fingerprints)
    missing = (0,) * (len(order.sources) - len(params))
    restored = MixedOrder(
        (
            *(
                source if source.params == found else Order(source.counts, found)
                for source, found in zip(order.sources, params, strict=False)
            ),
            *order.sources[len(params) :],
        ),
        Mixture(tuple(Phase(start, (*weights, *missing)) for start, weights in phases), seed),
        num_samples,
    )
    stored = cast("Policy", state["policy"])
    if policy is not None and policy != stored:
        if position % restored.num_samples:
            raise PlanMismatch(
                f"the state was made with policy {stored}, asked for is {policy}, inside an epoch",
                hint=f"go on with policy {stored} to the end of the epoch",
            )
        stored = policy
    return RestoredMixture(restored, stored, position, tuple(_notes(order, restored)))


def _notes(asked: MixedOrder, restored: MixedOrder) -> list[str]:
    """Where the state differs from what was asked for."""
    if asked.weights == restored.weights:
        return []
    return [
        f"the state has weights {restored.weights}, asked for are {asked.weights}; the state's are used "
        "(reweigh() changes them from here on)"
    ]


def _check_sources(state: Mapping[str, Any], order: MixedOrder, fingerprints: Sequence[str]) -> None:
    known = list(zip(state["fingerprint"].split(" "), state["source_samples"].split(","), strict=True))
    here = [(mark, str(source.num_samples)) for mark, source in zip(fingerprints, order.sources, strict=True)]
    if here[: len(known)] == known:
        return
    place = next((k for k, (a, b) in enumerate(zip(known, here, strict=False)) if a != b), len(here))
    found = f"{here[place][0]} with {here[place][1]}" if place < len(here) else "missing"
    raise PlanMismatch(
        f"data set {place} of the state's mixture is {known[place][0]} with {known[place][1]} samples, "
        f"here it is {found}",
        hint="give the data sets the run began with, in that order, and new ones behind them; "
        "one that is no longer wanted keeps its place with weight 0",
    )


def _params_text(params: OrderParams) -> str:
    radices = "x".join(map(str, params.radices))
    fields = (params.mode, f"{params.seed:016x}", params.lanes, radices, params.unit, params.piece, params.window)
    return ":".join(map(str, (*fields, params.locality)))


def _params_of(text: str) -> OrderParams:
    mode, seed, lanes, radices, unit, piece, window, locality = text.split(":")
    return OrderParams(
        mode=cast("Any", mode),
        seed=int(seed, 16),
        lanes=int(lanes),
        radices=tuple(int(radix) for radix in radices.split("x") if radix),
        unit=int(unit),
        piece="shard" if piece == "shard" else int(piece),
        window=int(window),
        locality=cast("Any", locality),
    )


def _parse(state: Mapping[str, Any]) -> tuple[list[Phase], list[OrderParams], int, int, int]:
    """(phases, order of each source, seed, samples of an epoch, position); all keys are there then."""
    try:
        if state["v"] != 1 or state["order"] != MIXTURE_VERSION:
            raise UsageProblem(
                f"state version {state['v']}, order {state['order']}: not of a mixture, or of another version",
                hint="a mixture goes on from the state of a mixture: one of a single data set says nothing of others",
            )
        pairs = [text.split(":") for text in state["phases"].split(";")]
        phases = [Phase(int(start), tuple(int(weight) for weight in weights.split(","))) for start, weights in pairs]
        params = [_params_of(text) for text in state["source_orders"].split(" ")]
        for name in ("fingerprint", "source_samples", "policy"):
            if not isinstance(state[name], str):
                raise TypeError(f"{name} is {state[name]!r}")
        return phases, params, int(state["seed"], 16), int(state["samples"]), int(state["position"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageProblem(f"not a state of shardtool: {error}", hint="give what state_dict returned") from error
