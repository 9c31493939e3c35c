"""The state of the data side of a run: one small dictionary, the same on every rank, JSON-able as it is.

Only integers and short strings, and always the same keys, as checkpoint libraries want it. World size, batch size,
nodes and loader workers are not in it: they may change at any position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from shardtool.errors import PlanMismatch, UsageProblem
from shardtool.order.params import OrderParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.order.deal import Policy

__all__ = [
    "STATE_VERSION",
    "Restored",
    "consumed_at",
    "dump_state",
    "load_state",
    "move_to_grown",
    "position_at",
]

STATE_VERSION = 1
_ORDER_VERSION = "1"  # of the arithmetic in docs/formats/order.md; follows the mode: "plw1"


@dataclass(frozen=True)
class Restored:
    """What a state says: go on at `position` with `params`; `notes` are sentences for the user."""

    params: OrderParams
    policy: Policy
    position: int
    notes: tuple[str, ...] = ()


def dump_state(
    params: OrderParams, *, fingerprint: str, num_samples: int, policy: Policy, position: int
) -> dict[str, int | str]:
    """The state at a position of the stream, such as `Deal.position_after` gives.

    Args:
        params: of the order in use.
        fingerprint: the `dataset_id` of the manifest.
        num_samples: samples of one epoch.
        policy: what becomes of the tail of an epoch.
        position: samples of the global stream consumed, counted from the start of training.
    """
    return {
        "v": STATE_VERSION,
        "fingerprint": fingerprint,
        "order": params.mode + _ORDER_VERSION,
        "seed": f"{params.seed:016x}",  # may exceed int64, the largest integer some checkpoints hold
        "lanes": params.lanes,
        "radices": "x".join(map(str, params.radices)),
        "unit": params.unit,
        "piece": params.piece,
        "window": params.window,
        "locality": params.locality,
        "samples": num_samples,
        "policy": policy,
        "position": position,
    }


def load_state(
    state: Mapping[str, Any],
    *,
    fingerprint: str,
    num_samples: int,
    params: OrderParams | None = None,
    policy: Policy | None = None,
    is_strict: bool = False,
    ignores_fingerprint: bool = False,
) -> Restored:
    """Where a run goes on. The state's order wins over `params`, with a note.

    Args:
        state: what `dump_state` gave.
        fingerprint: the `dataset_id` of the data set at hand.
        num_samples: samples of one epoch of the data set at hand.
        params: the order that was asked for, if any.
        policy: the policy that was asked for, if any.
        is_strict: other order parameters are an error.
        ignores_fingerprint: go on with another data set of as many samples.

    Raises:
        PlanMismatch: another data set; another order where strict; another policy inside an epoch.
        UsageProblem: not a state, or of a later version.
    """
    stored, stored_policy, samples, position = _parse(state)
    notes: list[str] = []
    if state["fingerprint"] != fingerprint or samples != num_samples:
        message = (
            f"the state belongs to data set {state['fingerprint']} with {samples:,} samples, "
            f"this is {fingerprint} with {num_samples:,}"
        )
        if not ignores_fingerprint or samples != num_samples:
            raise PlanMismatch(message, hint="go on with the data set the run began with, or start at position 0")
        notes.append(message)
    if params is not None and params != stored:
        message = f"the state was made with {stored}, asked for is {params}"
        if is_strict:
            raise PlanMismatch(message, hint="leave the order options out: the state brings them")
        notes.append(f"{message}; the state's order is used")
    if policy is not None and policy != stored_policy:
        if position % num_samples:
            raise PlanMismatch(
                f"the state was made with policy {stored_policy}, asked for is {policy}, inside an epoch",
                hint=f"go on with --policy {stored_policy} to the end of the epoch",
            )
        stored_policy = policy
    return Restored(stored, stored_policy, position, tuple(notes))


def move_to_grown(position: int, num_samples: int, grown_samples: int) -> int:
    """The same epoch border in the stream of a data set that grew.

    Raises:
        PlanMismatch: the position lies inside an epoch.
    """
    epoch, place = divmod(position, num_samples)
    if place:
        raise PlanMismatch(
            f"position {position} lies {place:,} samples inside epoch {epoch}, and the data set grew",
            hint="a data set may grow between two epochs only",
        )
    return epoch * grown_samples


def consumed_at(position: int, num_samples: int, batch_size: int, policy: Policy = "carry") -> int:
    """`consumed_samples` of a trainer that counts whole global batches, such as Megatron, at a position of the stream.

    Under `carry` they are one number. `drop` leaves the rest of an epoch out, which the position counts and the
    trainer does not.

    Args:
        position: samples of the stream before; of a run that began at 0 and always had this batch size.
        num_samples: of one epoch.
        batch_size: samples of a step over all ranks.
        policy: `carry` or `drop`.

    Raises:
        UsageProblem: another policy, whose last step of an epoch is not whole; or a value out of range.
    """
    kept = _kept(num_samples, batch_size, policy)
    if position < 0:
        raise UsageProblem(f"position {position} is negative", hint="positions count from 0")
    epoch, place = divmod(position, num_samples)
    return epoch * kept + min(place, kept)


def position_at(consumed: int, num_samples: int, batch_size: int, policy: Policy = "carry") -> int:
    """Position of the stream at a trainer's `consumed_samples`; the inverse of `consumed_at`.

    The end of an epoch is the begin of the next one. Arguments and errors as there.
    """
    kept = _kept(num_samples, batch_size, policy)
    if consumed < 0:
        raise UsageProblem(f"consumed_samples {consumed} is negative", hint="a trainer counts from 0")
    epoch, place = divmod(consumed, kept)
    return epoch * num_samples + place


def _kept(num_samples: int, batch_size: int, policy: Policy) -> int:
    """Samples of an epoch that a run reads."""
    if policy not in ("carry", "drop"):
        raise UsageProblem(
            f"policy {policy} has steps that are not whole, which consumed_samples does not tell",
            hint="train with --policy carry or drop",
        )
    if batch_size < 1 or num_samples < 1 or (policy == "drop" and batch_size > num_samples):
        raise UsageProblem(
            f"a batch of {batch_size} of {num_samples} samples", hint="give a batch of 1 or more that fits an epoch"
        )
    return num_samples - num_samples % batch_size if policy == "drop" else num_samples


def _parse(state: Mapping[str, Any]) -> tuple[OrderParams, Policy, int, int]:
    """(order, policy, samples of an epoch, position); checkpoint libraries may give integers of their own back."""
    try:
        if str(state["order"]).startswith("mixture"):
            raise UsageProblem(
                "the state is that of a mixture of data sets", hint="load it into the mixture it was made with"
            )
        if state["v"] != STATE_VERSION or not str(state["order"]).endswith(_ORDER_VERSION):
            raise UsageProblem(
                f"state version {state['v']}, order {state['order']}: made by another version of shardtool",
                hint="load it with that version",
            )
        radices = tuple(int(radix) for radix in state["radices"].split("x") if radix)
        params = OrderParams(
            mode=state["order"].removesuffix(_ORDER_VERSION),
            seed=int(state["seed"], 16),
            lanes=int(state["lanes"]),
            radices=radices,
            unit=int(state["unit"]),
            piece="shard" if state["piece"] == "shard" else int(state["piece"]),
            window=int(state["window"]),
            locality=state["locality"],
        )
        if not isinstance(state["fingerprint"], str):
            raise TypeError(f"fingerprint is {state['fingerprint']!r}")
        return params, cast("Policy", state["policy"]), int(state["samples"]), int(state["position"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageProblem(f"not a state of shardtool: {error}", hint="give what dump_state returned") from error
