"""torchdata's StatefulDataLoader over our sampler and stream: where its state and ours agree, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from peer_data import keys_of, packed_numbers
from torchdata.stateful_dataloader import StatefulDataLoader

from shardtool.errors import UsageProblem
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed_numbers(tmp_path_factory.mktemp("numbers"), 101)


def over_sampler(data: str, num_workers: int) -> Any:
    dataset = ShardDataset(data)
    sampler = ShardBatchSampler(dataset, global_batch=12, seed=3)
    return StatefulDataLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=keys_of)


def over_stream(data: str, num_workers: int) -> Any:
    stream = ShardStream(ShardDataset(data), global_batch=12, seed=3)
    return StatefulDataLoader(stream, batch_size=None, num_workers=num_workers, collate_fn=keys_of)


def positions(state: Any) -> Iterator[int]:
    """Every `position` inside a state."""
    if isinstance(state, dict):
        if "position" in state and "fingerprint" in state:
            yield state["position"]
        for value in state.values():
            yield from positions(value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_over_a_batch_sampler_its_state_holds_our_position(numbers: str, num_workers: int) -> None:
    loader = over_sampler(numbers, num_workers)
    batches = iter(loader)
    before = [next(batches) for _ in range(4)]
    state = loader.state_dict()
    assert set(positions(state)) == {48}
    rest = list(batches)
    again = over_sampler(numbers, num_workers)
    again.load_state_dict(state)
    assert list(again) == rest
    ours = ResumableLoader(
        ShardDataset(numbers),
        batch_sampler=ShardBatchSampler(ShardDataset(numbers), global_batch=12, seed=3),
        collate_fn=keys_of,
    )
    assert list(ours) == [*before, *rest], "the same batches as ResumableLoader"


def test_over_a_batch_sampler_it_wants_the_same_number_of_workers_and_we_do_not(numbers: str) -> None:
    loader = over_sampler(numbers, 2)
    next(iter(loader))
    again = over_sampler(numbers, 1)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(AssertionError):
        next(iter(again))
    (position,) = set(positions(loader.state_dict()))
    sampler = ShardBatchSampler(ShardDataset(numbers), global_batch=12, seed=3, position=position)
    assert next(iter(ResumableLoader(sampler.dataset, batch_sampler=sampler, num_workers=1, collate_fn=keys_of)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_over_a_stream_it_is_refused_and_told_what_to_use(numbers: str, num_workers: int) -> None:
    loader = over_stream(numbers, num_workers)
    with pytest.raises(UsageProblem, match="position is not known"):  # noqa: PT012 - with workers at once, else when asked
        next(iter(loader))
        loader.state_dict()
