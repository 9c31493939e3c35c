from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import Said, entry_table, make_tree, pack, read_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import GroupError, PlanError, UsageProblem
from shardtool.grouping.group import group
from shardtool.grouping.labels import add_labels
from shardtool.keys import parse_rule
from shardtool.manifest import load_manifest
from shardtool.planning.cuts import apportion
from shardtool.planning.splits import assign_splits, parse_shares
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardtool.model import SampleTable

SMALL = settings(max_examples=100, derandomize=True, deadline=None)
NAMES = st.sets(st.integers(0, 999), min_size=1, max_size=60)
SHARES = st.lists(st.integers(1, 20), min_size=1, max_size=4).map(
    lambda values: ",".join(f"s{number}={value / 20}" for number, value in enumerate(values))
)


def split_counts(names: list[str], splits: Any) -> dict[str, int]:
    """Samples of each split."""
    return dict(zip(names, np.bincount(splits, minlength=len(names)).tolist(), strict=True))


def table_of(paths: Iterable[bytes]) -> SampleTable:
    return group(entry_table(list(paths)), parse_rule(), trust_parts=True).samples


def assigned(table: SampleTable, seed: int = 0, **options: Any) -> dict[bytes, str]:
    """{key: split}."""
    names, splits = assign_splits(table, seed=seed, **options)
    keys = keys_of(table, np.arange(table.num_samples))
    return {key: names[number] for key, number in zip(keys, splits.tolist(), strict=True)}


@SMALL
@given(NAMES, SHARES, st.integers(0, 2**64 - 1))
def test_splits_are_a_partition_by_largest_remainder(numbers: set[int], shares: str, seed: int) -> None:
    table = table_of(b"%d.jpg" % number for number in numbers)
    names, splits = assign_splits(table, seed=seed, shares=shares)
    values = list(parse_shares(shares).values())
    assert list(split_counts(names, splits).values()) == apportion(table.num_samples, values)
    assert names == list(parse_shares(shares))


@SMALL
@given(NAMES, SHARES, st.randoms(use_true_random=False))
def test_splits_do_not_depend_on_where_files_were_found(numbers: set[int], shares: str, random: Any) -> None:
    paths = [b"%d.jpg" % number for number in numbers]
    roots = [random.randrange(3) for _ in paths]
    spread = group(entry_table(paths, roots), parse_rule()).samples
    assert assigned(spread, shares=shares) == assigned(table_of(paths), shares=shares)


def test_another_seed_gives_another_split() -> None:
    table = table_of(b"%d.jpg" % number for number in range(100))
    assert assigned(table, 1, shares="a=1,b=1") != assigned(table, 2, shares="a=1,b=1")


@SMALL
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), SHARES, st.integers(0, 99))
def test_groups_stay_whole_and_are_cut_where_the_counts_come_nearest(owners: list[int], shares: str, seed: int) -> None:
    table = table_of(b"p%d_%d.jpg" % (owner, number) for number, owner in enumerate(owners))
    found = assigned(table, seed, shares=shares, split_group="^p[0-9]+")
    by_group: dict[bytes, set[str]] = {}
    for key, split in found.items():
        by_group.setdefault(key.partition(b"_")[0], set()).add(split)
    assert all(len(splits) == 1 for splits in by_group.values())
    largest = max(owners.count(owner) for owner in owners)
    wanted = np.cumsum(apportion(len(owners), list(parse_shares(shares).values())))
    counts = np.cumsum([list(found.values()).count(name) for name in parse_shares(shares)])
    assert counts[-1] == len(owners)
    assert (np.abs(counts - wanted) <= largest).all()


@SMALL
@given(st.lists(st.integers(4, 30), min_size=1, max_size=4), SHARES, st.integers(0, 99))
def test_stratified_splits_have_each_class_within_one_sample(counts: list[int], shares: str, seed: int) -> None:
    paths = [b"c%d/%d.jpg" % (label, number) for label, count in enumerate(counts) for number in range(count)]
    table = add_labels(table_of(paths), "parent")
    names, splits = assign_splits(table, seed=seed, shares=shares, stratify=True)
    found = split_counts(names, splits)
    assert list(found.values()) == apportion(len(paths), list(parse_shares(shares).values()))
    ends = [0, *np.cumsum(list(found.values())).tolist()]
    for label, count in enumerate(counts):
        assert table.labels is not None
        inside = np.bincount(splits[table.labels == label], minlength=len(names))
        for number, (start, stop) in enumerate(pairwise(ends)):
            drift = len(counts) * count / len(paths)  # a cut falls on a sample, not on a share
            assert abs(int(inside[number]) - count * (stop - start) / len(paths)) <= 1 + drift


def test_without_options_everything_is_train() -> None:
    assert set(assigned(table_of([b"a.jpg", b"val/b.jpg"])).values()) == {"train"}


@pytest.mark.parametrize(
    ("folder", "split"),
    [("train", "train"), ("Training", "train"), ("val", "validation"), ("valid", "validation"), ("dev", "validation"),
     ("TEST", "test"), ("eval", "test"), ("fold_1", "fold_1")],
)  # fmt: skip
def test_the_first_folder_names_the_split(folder: str, split: str) -> None:
    assert assigned(table_of([f"{folder}/cat/1.jpg".encode()]), split_by="dir") == {f"{folder}/cat/1".encode(): split}


def test_splits_by_name_come_in_the_usual_order() -> None:
    paths = [b"zoo/1.j", b"test/1.j", b"val/1.j", b"train/1.j", b"dev/2.j", b"abc/1.j"]
    names, splits = assign_splits(table_of(paths), seed=0, split_by="dir")
    assert names == ["train", "validation", "test", "abc", "zoo"]
    assert split_counts(names, splits) == {"train": 1, "validation": 2, "test": 1, "abc": 1, "zoo": 1}


def test_a_regex_names_the_split() -> None:
    found = assigned(table_of([b"a_train_1.jpg", b"b_val_2.jpg"]), split_by="regex:_([a-z]+)_")
    assert found == {b"a_train_1": "train", b"b_val_2": "validation"}


def test_samples_that_no_rule_places_are_an_error() -> None:
    with pytest.raises(GroupError, match="'a' lies in no folder"):
        assigned(table_of([b"a.jpg", b"train/b.jpg"]), split_by="dir")
    with pytest.raises(GroupError, match="--split-by: the pattern does not match key 'a'"):
        assigned(table_of([b"a.jpg"]), split_by="regex:x")
    with pytest.raises(GroupError, match="--split-group: the pattern does not match"):
        assigned(table_of([b"a.jpg"]), shares="a=1", split_group="x")
    with pytest.raises(UsageProblem, match="other characters"):
        assigned(table_of([b"my train/a.jpg"]), split_by="dir")


@pytest.mark.parametrize("text", ["", "train", "train=", "train=x", "train=0", "train=-1", "a=1,a=2", "a b=1", "=1",
                                  "a=nan", "a=inf"])  # fmt: skip
def test_shares_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_shares(text)


def test_options_that_contradict_one_another_are_refused() -> None:
    table = table_of([b"a/1.jpg"])
    with pytest.raises(UsageProblem, match="exclude one another"):
        assigned(table, shares="a=1", split_by="dir")
    with pytest.raises(UsageProblem, match="--split-group needs --split"):
        assigned(table, split_group="x")
    with pytest.raises(UsageProblem, match="neither dir nor regex"):
        assigned(table, split_by="folder")


def test_each_split_has_shards_of_its_own(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{number:03d}.txt": "x" * number for number in range(100)})
    pack(source, tmp_path / "out", split="train=0.8,validation=0.15,test=0.05", shard_size=40_000)
    manifest = load_manifest(str(tmp_path / "out"))
    assert {name: split["samples"] for name, split in manifest.splits().items()} == {
        "train": 80, "validation": 15, "test": 5,
    }  # fmt: skip
    for shard in manifest.shards:
        assert shard.path.startswith(f"data/{shard.split}-")
        assert len(read_tar(tmp_path / "out" / shard.path)) == shard.num_samples
    assert [shard.split for shard in manifest.shards] == sorted(
        (shard.split for shard in manifest.shards), key=["train", "validation", "test"].index
    )


def test_a_split_too_small_for_a_sample_is_said_and_has_no_shard(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{number}.txt": "" for number in range(4)})
    said = Said()
    pack(source, tmp_path / "out", split="train=0.99,test=0.01", say=said)
    assert said.warnings == ["split 'test' gets no sample"]
    assert set(load_manifest(str(tmp_path / "out")).splits()) == {"train"}


def test_more_shards_than_a_split_has_samples_are_refused(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{number}.txt": "" for number in range(10)})
    with pytest.raises(PlanError, match="5 shards for 1 samples would leave empty ones"):
        pack(source, tmp_path / "out", split="train=0.9,test=0.1", shards=5)
