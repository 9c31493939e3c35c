"""Which shards a node needs, which node this is, how a window moves: all of it pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.assignment.assign import sequence
from shardtool.assignment.assignment import Wish, assign
from shardtool.assignment.placement import data_rank
from shardtool.errors import UsageProblem
from shardtool.manifest import Manifest, ManifestShard
from shardtool.model import FileRecord
from shardtool.staging.nodes import data_rank_here, find_node
from shardtool.staging.request import StageRequest, decode_request, encode_request
from shardtool.staging.share import Share, interleave, join_ranges, node_share, parse_ranges, socket_of
from shardtool.staging.throttle import Throttle
from shardtool.staging.window import Uses, next_step, simulate, times_fetched, uses_of

if TYPE_CHECKING:
    from pathlib import Path


def manifest_of(counts: list[int]) -> Manifest:
    shards = tuple(
        ManifestShard("train", (FileRecord(f"data/{n}.tar", count * 100, "0" * 32),), None, count, count)
        for n, count in enumerate(counts)
    )
    return Manifest("tar", "none", "p", "d", shards)


def read_by(found: Any, node: int, epochs: range) -> set[int]:
    """Shards that a node's ranks read, from the sequences themselves, repeated samples too."""
    size, shards = found.order.num_samples, set()
    for local_rank in range(found.deal.world_size // found.num_nodes):
        rank = data_rank(local_rank, node, found.num_nodes)
        chunks = sequence(found.order, found.deal, rank, epochs.start * size, len(epochs) * size)
        shards |= {int(shard) for chunk in chunks for shard in found.shards.places[chunk.shard].tolist()}
    return shards


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=24),
    nodes=st.integers(1, 4),
    ranks=st.integers(1, 4),
    mode=st.sampled_from(["plw", "shard", "none", "full"]),
    policy=st.sampled_from(["carry", "drop", "pad", "uneven"]),
    epochs=st.tuples(st.integers(0, 2), st.integers(1, 2)),
    batch=st.integers(0, 3),
)
def test_a_share_is_exactly_what_the_ranks_of_the_node_read(
    counts: list[int], nodes: int, ranks: int, mode: Any, policy: Any, epochs: tuple[int, int], batch: int
) -> None:
    wish = Wish(world_size=nodes * ranks, num_nodes=nodes, mode=mode, policy=policy, batch_size=batch * nodes * ranks)
    try:
        found = assign(manifest_of(counts), wish)
    except UsageProblem:
        return  # fewer samples than ranks
    span = range(epochs[0], sum(epochs))
    for node in range(nodes):
        share = node_share(found, node, span)
        assert len(share.by_rank) == ranks
        assert set(share.shards) == read_by(found, node, span)
        assert len(set(share.shards)) == len(share.shards)


def test_the_first_shards_are_those_that_are_read_first() -> None:
    found = assign(manifest_of([10] * 16), Wish(world_size=4, num_nodes=2, mode="shard"))
    share = node_share(found, 1, range(1))
    firsts = []
    for local_rank in range(2):
        chunk = next(sequence(found.order, found.deal, data_rank(local_rank, 1, 2), 0, 160))
        firsts.append(list(dict.fromkeys(chunk.shard.tolist())))
    assert [list(shards) for shards in share.by_rank] == firsts
    assert share.shards[:2] == (firsts[0][0], firsts[1][0])
    assert share.first(1) == share.shards[:2]


@given(st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=5))
def test_interleaved_shards_come_in_turns_and_once(by_rank: list[list[int]]) -> None:
    found = interleave(by_rank)
    assert set(found) == {shard for shards in by_rank for shard in shards}
    assert len(set(found)) == len(found)
    turn = {shard: min(s.index(shard) for s in by_rank if shard in s) for shard in found}
    assert [turn[shard] for shard in found] == sorted(turn[shard] for shard in found)


@given(st.sets(st.integers(0, 99)))
def test_ranges_are_read_back(numbers: set[int]) -> None:
    text = join_ranges(numbers)
    assert (list(parse_ranges(text, 100)) if text else []) == sorted(numbers)


@pytest.mark.parametrize("text", ["", "a", "3-1", "5,", "1-2-3", "100", "-", "0-100"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_ranges(text, 100)


def test_open_ranges_reach_to_the_ends() -> None:
    assert parse_ranges("-2,8-", 10) == (0, 1, 2, 8, 9)


def test_ranks_are_dealt_to_sockets_in_runs() -> None:
    assert [socket_of(rank, 8, 2) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    share = Share(((1, 2), (2, 3), (4,), (5,)))
    assert share.of_ranks([0, 1]).shards == (1, 2, 3)


LAUNCHED = {
    "torchrun": ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "32"}, (2, 4, 8)),
    "older torchrun": ({"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, (1, 2, 2)),
    "slurm, a task a rank": ({"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_TASKS_PER_NODE": "8(x4)"}, (1, 4, 8)),
    "slurm, a task a node": (
        {"SLURM_NODEID": "3", "SLURM_NNODES": "4", "SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "4"},
        (3, 4, 4),
    ),
    "mpi": (
        {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        (1, 2, 8),
    ),
    "operator": ({"PET_NODE_RANK": "1", "PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "8"}, (1, 4, 8)),
    "nothing": ({}, (0, 1, 1)),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launcher_tells_which_node_this_is(name: str) -> None:
    environment, (node, nodes, ranks) = LAUNCHED[name]
    found = find_node(environment)
    assert (found.node, found.num_nodes, found.local_ranks) == (node, nodes, ranks)


def test_torchrun_inside_slurm_is_believed_first() -> None:
    environment = {**LAUNCHED["torchrun"][0], "SLURM_NODEID": "0", "SLURM_NNODES": "1"}
    assert find_node(environment).found_by == "torchrun"


def torchrun(node: int, local: int, nodes: int, ranks: int) -> dict[str, str]:
    told = {"GROUP_RANK": node, "LOCAL_RANK": local, "RANK": node * ranks + local}
    sizes = {"GROUP_WORLD_SIZE": nodes, "LOCAL_WORLD_SIZE": ranks, "WORLD_SIZE": nodes * ranks}
    return {name: str(value) for name, value in {**told, **sizes}.items()}


def slurm(node: int, local: int, nodes: int, ranks: int) -> dict[str, str]:
    told = {"SLURM_NODEID": node, "SLURM_LOCALID": local, "SLURM_PROCID": local * nodes + node, "SLURM_NNODES": nodes}
    return {**{name: str(value) for name, value in told.items()}, "SLURM_TASKS_PER_NODE": f"{ranks}(x{nodes})"}


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([torchrun, slurm]))
def test_every_process_has_the_data_rank_that_stage_counts_for_it(nodes: int, ranks: int, launcher: Any) -> None:
    seen = set()
    for node, local in itertools.product(range(nodes), range(ranks)):
        environment = launcher(node, local, nodes, ranks)
        own = int(environment.get("RANK") or environment["SLURM_PROCID"])
        found = data_rank_here(environment, own, nodes * ranks)
        assert found == data_rank(local, node, nodes)
        seen.add(found)
    assert seen == set(range(nodes * ranks))


@pytest.mark.parametrize(
    ("environment", "rank", "world_size"),
    [
        ({}, 3, 4),
        (torchrun(1, 1, 2, 2), 2, 4),  # of the parent of this process
        (torchrun(1, 1, 2, 2), 3, 8),  # each rank has started another one
        ({**slurm(1, 1, 2, 2), "SLURM_TASKS_PER_NODE": "2,2"}, 3, 4),
        ({**slurm(1, 0, 2, 1), "SLURM_GPUS_ON_NODE": "4"}, 1, 2),  # a task a node, which leads four ranks
        ({"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}, 3, 4),
    ],
)
def test_where_the_launcher_does_not_tell_all_of_it_the_global_rank_counts(
    environment: dict[str, str], rank: int, world_size: int
) -> None:
    assert data_rank_here(environment, rank, world_size) == rank


def test_options_win_over_the_launcher() -> None:
    found = find_node(LAUNCHED["torchrun"][0], node=0, num_nodes=2, world_size=8)
    assert (found.node, found.num_nodes, found.local_ranks, found.found_by) == (0, 2, 4, "torchrun")


def test_a_pod_of_an_indexed_job_needs_the_number_of_nodes() -> None:
    environment = {"JOB_COMPLETION_INDEX": "2"}
    assert find_node(environment, num_nodes=4).node == 2
    with pytest.raises(UsageProblem, match="of how many") as caught:
        find_node(environment)
    assert "--num-nodes" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"num_nodes": 2},
        {"node": 2, "num_nodes": 2},
        {"node": 0, "num_nodes": 2, "world_size": 3},
        {"node": 0, "num_nodes": 2, "world_size": 8, "local_ranks": 2},
    ],
)
def test_contradicting_nodes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageProblem):
        find_node({}, **options)


def test_a_request_travels_as_text() -> None:
    wish = Wish(world_size=4, elastic=(2, 4), mode="shard", seed=3, position=5)
    request = StageRequest("out", ("a", "b"), epochs=(1, 3), wish=wish, state={"v": 1}, budget=7, durable=False)
    assert decode_request(encode_request(request)) == request


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(rate=st.integers(1, 1000), sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=30))
def test_a_throttle_never_lets_more_through_than_its_rate(rate: int, sizes: list[int]) -> None:
    clock = Clock()
    throttle, began = Throttle(rate, lambda: clock.now, clock.sleep), clock.now
    for size in sizes:
        throttle.take(size)
    assert clock.now - began >= sum(sizes) / rate - 1e-6
    assert clock.now - began <= sum(sizes) / rate + 1e-6


def test_no_limit_never_sleeps() -> None:
    clock = Clock()
    Throttle(0, lambda: clock.now, clock.sleep).take(1 << 40)
    assert clock.now == 100.0


# The window


@st.composite
def windows(draw: st.DrawFn) -> tuple[Uses, dict[int, int], int]:
    count = draw(st.integers(1, 8))
    by_shard = {
        shard: tuple(sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=6)))) for shard in range(count)
    }
    sizes = {shard: draw(st.integers(1, 10)) for shard in range(count)}
    return Uses(by_shard), sizes, draw(st.integers(max(sizes.values()), 40))


@given(windows(), st.data())
def test_a_step_keeps_the_budget_and_what_is_held(drawn: Any, data: st.DataObject) -> None:
    uses, sizes, budget = drawn
    present: set[int] = set()
    for shard in data.draw(st.permutations(sorted(sizes))):
        if sum(sizes[s] for s in present) + sizes[shard] <= budget:
            present.add(shard)
    held = set(data.draw(st.lists(st.sampled_from(sorted(sizes))))) & present
    step = next_step(uses, sizes, present, data.draw(st.integers(0, 31)), budget, held)
    assert not set(step.evict) & held
    assert set(step.evict) <= present
    assert not set(step.fetch) & present
    after = (present - set(step.evict)) | set(step.fetch)
    assert sum(sizes[shard] for shard in after) <= budget


@given(windows(), st.integers(0, 31))
def test_what_is_read_next_is_fetched_first_and_what_is_read_last_goes_first(drawn: Any, position: int) -> None:
    uses, sizes, budget = drawn
    fetched = next_step(uses, sizes, (), position, budget).fetch
    nexts = [use for shard in fetched if (use := uses.next_use(shard, position)) is not None]
    assert len(nexts) == len(fetched)
    assert nexts == sorted(nexts)
    outside = [uses.next_use(shard, position) for shard in sizes if shard not in fetched]
    upcoming = [use for use in outside if use is not None]
    assert not upcoming or not nexts or min(upcoming) >= nexts[-1]


def least_recently_used(uses: Uses, sizes: dict[int, int], budget: int) -> int:
    """Fetches of a cache that drops what was used longest ago."""
    cache: dict[int, None] = {}
    fetches = 0
    for _, shard in sorted((use, shard) for shard, quanta in uses.by_shard.items() for use in quanta):
        if shard in cache:
            cache[shard] = cache.pop(shard)
            continue
        fetches += 1
        while sum(sizes[s] for s in cache) + sizes[shard] > budget:
            cache.pop(next(iter(cache)))
        cache[shard] = None
    return fetches


@given(st.integers(2, 7), st.integers(2, 6), st.integers(0, 6))
def test_shards_of_one_size_in_a_cycle_are_fetched_no_more_often_than_by_lru(
    count: int, rounds: int, room: int
) -> None:
    uses = Uses({s: tuple(range(s, count * rounds, count)) for s in range(count)})
    sizes = dict.fromkeys(range(count), 1)
    budget = min(1 + room, count)
    found = simulate(uses, sizes, budget)
    assert found.misses == 0
    assert found.fetches <= least_recently_used(uses, sizes, budget)
    if budget == count:
        assert found.fetches == count


def test_uses_are_when_the_ranks_read(tmp_path: Path) -> None:
    found = assign(manifest_of([20] * 8), Wish(world_size=2, num_nodes=2, mode="shard"))
    uses = uses_of(found, 0, range(1), range(2))
    wanted: dict[int, set[int]] = {}
    for chunk in sequence(found.order, found.deal, 0, 0, 320):
        for shard, position in zip(chunk.shard.tolist(), chunk.position.tolist(), strict=True):
            wanted.setdefault(shard, set()).add(position // uses.quantum)
    assert uses.by_shard == {shard: tuple(sorted(quanta)) for shard, quanta in wanted.items()}
    assert set(uses.by_shard) == set(node_share(found, 0, range(2)).shards)
    for shard, quanta in itertools.islice(uses.by_shard.items(), 3):
        assert uses.next_use(shard, 0) == quanta[0]
        assert uses.next_use(shard, 320) is None


def test_what_a_budget_costs_is_told_by_order() -> None:
    sizes = dict.fromkeys(range(8), 10)
    one_by_one = Uses({shard: (4 * shard, 4 * shard + 1, 4 * shard + 2) for shard in range(8)})
    all_at_a_time = Uses({shard: tuple(range(32)) for shard in range(8)})
    assert times_fetched(one_by_one, sizes, 20) == (1.0, 0.0)
    times, missing = times_fetched(all_at_a_time, sizes, 20)
    assert times > 10
    assert missing == 0.75
    assert times_fetched(all_at_a_time, sizes, 80) == (1.0, 0.0)


def test_a_shard_is_needed_once_in_each_epoch() -> None:
    twice = Uses({shard: (shard, shard + 8) for shard in range(8)}, quantum=1, epoch=8)
    assert times_fetched(twice, dict.fromkeys(range(8), 10), 10) == (1.0, 0.0)


def test_only_the_beginning_of_a_long_run_is_looked_at() -> None:
    uses = Uses({0: (1, 5, 9), 1: (7,)})
    assert uses.until(2).by_shard == {0: (1, 5)}
    assert uses.until(3).by_shard == {0: (1, 5), 1: (7,)}
