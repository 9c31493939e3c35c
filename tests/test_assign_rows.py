"""Rows of tables for one rank, and a trainer's consumed_samples: `assign --emit rows`, `consumed_at`, `position_at`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, pack, run_cli
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import UsageProblem
from shardtool.order.deal import Deal
from shardtool.order.state import consumed_at, position_at
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 50


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rows")
    tree = make_tree(folder / "in", {f"s{number:03d}.txt": str(number) for number in range(COUNT)})
    for name in ("parquet", "arrow", "arrow-stream", "tar"):
        pack(tree, folder / name, format=name, samples_per_shard=8, split="train=0.8,validation=0.2")
    return {name: folder / name for name in ("parquet", "arrow", "arrow-stream", "tar")}


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["parquet", "arrow", "arrow-stream"])
@pytest.mark.parametrize("order", ["plw", "shard", "none", "full"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_of_all_ranks_are_the_split_once(outs: dict[str, Path], name: str, order: str, split: str) -> None:
    found: list[int] = []
    files: dict[str, list[int]] = {}
    options = ("--split", split, "--world-size", "3", "--order", order)
    for rank in range(3):
        done = run_cli("assign", outs[name], *options, "--rank", str(rank), "--emit", "rows")
        assert done.code == 0, done.err
        for row in rows_of(done.out):
            found += [row["row"] + row["step"] * turn for turn in range(row["count"])]
            files.setdefault(row["file"], []).extend(row["first"] + row["step"] * turn for turn in range(row["count"]))
    with Dataset.open(str(outs[name])) as dataset:
        shards = [shard for shard in dataset.manifest.shards if shard.split == split]
    assert sorted(found) == list(range(sum(shard.num_samples for shard in shards)))
    assert {path: sorted(rows) for path, rows in files.items()} == {
        shard.path: list(range(shard.num_samples)) for shard in shards
    }


def test_one_file_a_rank_holds_the_same_lines(outs: dict[str, Path], tmp_path: Path) -> None:
    options = ("--world-size", "2", "--emit", "rows")
    assert run_cli("assign", outs["parquet"], *options, "-o", tmp_path / "lists", "-q").code == 0
    for rank in range(2):
        alone = run_cli("assign", outs["parquet"], *options, "--rank", str(rank))
        assert (tmp_path / "lists" / f"rank-{rank:05d}.jsonl").read_text() == alone.out


def test_rows_are_refused_where_there_are_none(outs: dict[str, Path]) -> None:
    done = run_cli("assign", outs["tar"], "--emit", "rows")
    assert (done.code, "rows are those of Parquet and Arrow" in done.err) == (2, True)
    done = run_cli("assign", outs["arrow"], "--emit", "rows", "--world-size", "2")
    assert (done.code, "cannot share one output" in done.err) == (2, True)


@given(
    num_samples=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    policy=st.sampled_from(["carry", "drop"]),
    step=st.integers(0, 200),
)
def test_consumed_samples_are_the_whole_batches_before(
    num_samples: int, batch_size: int, policy: Any, step: int
) -> None:
    batch_size = min(batch_size, num_samples)
    deal = Deal(num_samples, 1, batch_size, policy=policy)
    position = deal.position_after(step)
    assert consumed_at(position, num_samples, batch_size, policy) == (step + 1) * batch_size
    assert position_at((step + 1) * batch_size, num_samples, batch_size, policy) == position


def test_consumed_samples_of_steps_that_are_not_whole_are_unknown(outs: dict[str, Path]) -> None:
    unknown: tuple[Any, ...] = ("pad", "uneven")
    for policy in unknown:
        with pytest.raises(UsageProblem, match="not whole"):
            consumed_at(8, 10, 4, policy)
    for position, batch_size in ((-1, 4), (0, 0), (0, 11)):
        with pytest.raises(UsageProblem):
            consumed_at(position, 10, batch_size, "drop")
    with pytest.raises(UsageProblem, match="negative"):
        position_at(-1, 10, 4)
    samples = run_cli("assign", outs["tar"], "--json").json["samples"]
    options = ("--batch-size", "8", "--json", "--position", str(samples + 8), "--policy")
    kept = samples - samples % 8
    for policy, wanted in (("carry", samples + 8), ("drop", kept + 8), ("pad", None), ("uneven", None)):
        assert run_cli("assign", outs["tar"], *options, policy).json["consumed_samples"] == wanted
