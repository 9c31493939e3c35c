from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from helpers import Said, entry_table, make_tree, pack, read_members, read_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import MissingPart, PlanError, SampleTooLarge, UsageProblem
from shardtool.formats.tar import TarFormat
from shardtool.grouping.group import group
from shardtool.grouping.labels import add_labels
from shardtool.grouping.required import apply_required
from shardtool.index_file import open_index
from shardtool.keys import join, parse_rule
from shardtool.manifest import load_manifest
from shardtool.model import GeneratedPart
from shardtool.names import index_path
from shardtool.packing.prepare import prepare
from shardtool.planning.plan import Plan, PlanOptions, global_order, make_plan
from shardtool.planning.plan_file import load_plan, plan_identity, read_rows
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.model import SampleTable

SMALL = settings(max_examples=60, derandomize=True, deadline=None)
DISK = settings(max_examples=25, derandomize=True, deadline=None)
SHORT = st.binary(max_size=28).map(lambda raw: b"n" + bytes(97 if byte in b"./\0" else byte for byte in raw))
LONG = st.text(st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=20, max_size=60)
LONG_UTF8 = LONG.map(lambda text: b"n" + text.encode())  # where a pax header is needed, it must be UTF-8


def paths(pieces: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    parts = st.sampled_from([b"jpg", b"txt", b"seg.png"])
    folders = st.lists(pieces, max_size=3).map(b"/".join)
    return st.builds(lambda folder, stem, part: join(folder, stem) + b"." + part, folders, pieces, parts)


PATHS = paths(SHORT) | paths(LONG_UTF8)
SIZES = st.one_of(st.integers(0, 3000), st.sampled_from([0, 511, 512, 513, 1024]))
FILES = st.dictionaries(PATHS, SIZES, min_size=1, max_size=12)


def table_of(sizes: dict[bytes, int], seed: int = 0) -> SampleTable:
    return group(entry_table(sizes), parse_rule(), seed=seed, trust_parts=True).samples


def planned(sizes: dict[bytes, int], **options: Any) -> Plan:
    return make_plan(table_of(sizes, options.get("seed", 0)), PlanOptions(**options))


def plan_keys(plan: Plan) -> list[list[bytes]]:
    """Keys of each shard, in order."""
    return [keys_of(plan.samples, plan.samples_of(shard)) for shard in range(len(plan.shards))]


def plan_id_of(*roots: Path, **options: Any) -> str:
    return plan_identity(prepare(tuple(map(os.fspath, roots)), PlanOptions(**options)).plan)


def numbered(count: int, size: int = 10) -> dict[bytes, int]:
    return {b"%04d.bin" % number: size for number in range(count)}


# What is planned is what is written


@DISK
@given(FILES, st.integers(0, 2**64 - 1), st.sampled_from([3000, 6000, 10**6]), st.booleans())
def test_planned_sizes_are_the_real_ones_for_any_names_and_sizes(
    tmp_path_factory: pytest.TempPathFactory, files: dict[bytes, int], seed: int, limit: int, labels: bool
) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    contents = {b"cl/" + path: xxhash.xxh3_64(path).digest() * (size // 8) for path, size in files.items()}
    try:
        make_tree(folder / "in", contents)
    except OSError:
        return  # a folder and a file of one name
    options: dict[str, Any] = {"label_from": "regex:^(..)"} if labels else {}
    result = pack(folder / "in", folder / "out", seed=seed, shard_size=limit, **options)
    found: dict[bytes, bytes] = {}
    keys: list[bytes] = []
    for number, spec in enumerate(result.stored.shards):
        path = folder / "out" / spec.path
        assert path.stat().st_size == spec.num_bytes
        assert spec.num_bytes <= limit or spec.num_samples == 1
        found.update(read_tar(path))
        index = open_index(os.fspath(folder / "out" / index_path(number, len(result.stored.shards))))
        keys += [index.key(row) for row in range(index.num_samples)]
    assert {name: data for name, data in found.items() if not name.endswith(b".cls")} == contents
    assert len(keys) == len(set(keys)) == result.stored.num_samples
    shutil.rmtree(folder)


@SMALL
@given(FILES, st.sampled_from([2600, 4000, 9000]), st.sampled_from(["global", "none"]))
def test_every_sample_is_in_exactly_one_shard_within_the_limit(
    files: dict[bytes, int], limit: int, shuffle: str
) -> None:
    plan = planned(files, shard_size=limit, shuffle=shuffle)
    keys = [key for shard in plan_keys(plan) for key in shard]
    assert sorted(keys) == sorted(keys_of(plan.samples, np.arange(plan.samples.num_samples)))
    for spec in plan.shards:
        assert spec.num_samples > 0
        assert spec.num_bytes <= limit or spec.num_samples == 1
    assert plan.num_bytes == int(TarFormat().sizes(plan.samples).sum()) + 1024 * len(plan.shards)
    assert plan.payload_bytes == sum(files.values())


def test_generated_parts_count_in_sizes_and_payload() -> None:
    table = table_of({b"a" * 95 + b".j": 5, b"b.jpg": 7})
    codes = np.array([0, 1], np.int32)
    more = replace(table, generated=(GeneratedPart(b"cls", [b"1" * 513, b"22"], codes),))
    assert (more.payload_bytes() - table.payload_bytes()).tolist() == [513, 2]
    assert (TarFormat().sizes(more) - TarFormat().sizes(table)).tolist() == [512 + 1024, 1024]
    none = replace(table, generated=(GeneratedPart(b"cls", [b"22"], np.array([-1, 0], np.int32)),))
    assert (TarFormat().sizes(none) - TarFormat().sizes(table)).tolist() == [0, 1024]


# The order


@SMALL
@given(st.sets(st.integers(0, 9999), min_size=2, max_size=40), st.integers(0, 2**64 - 1))
def test_samples_sort_by_the_hash_of_their_key_and_seed(numbers: set[int], seed: int) -> None:
    table = table_of({b"%d.txt" % number: 1 for number in numbers}, seed)
    found = keys_of(table, global_order(table))
    assert found == sorted(found, key=lambda key: (xxhash.xxh3_64_intdigest(key, seed), key))


def test_equal_hashes_sort_by_key() -> None:
    table = table_of(numbered(4))
    for hashes in ([5, 5, 1, 1], [5, 5, 5, 5]):
        same = replace(table, key_hash=np.array(hashes, np.uint64))
        keys = keys_of(same, global_order(same))
        assert keys == sorted(keys, key=lambda key: (hashes[int(key)], key))


def test_an_old_sample_keeps_its_place_relative_to_others_when_a_source_grows() -> None:
    before = [key for shard in plan_keys(planned(numbered(50))) for key in shard]
    after = [key for shard in plan_keys(planned(numbered(80))) for key in shard]
    assert [key for key in after if key in set(before)] == before


def test_source_order_is_kept_without_shuffle() -> None:
    keys = [key for shard in plan_keys(planned(numbered(50), shuffle="none", shards=7)) for key in shard]
    assert keys == [b"%04d" % number for number in range(50)]


# Numbers of shards


@SMALL
@given(st.integers(1, 60), st.integers(1, 60))
def test_exactly_the_shards_that_were_asked_for(count: int, shards: int) -> None:
    if shards > count:
        with pytest.raises(PlanError, match="empty"):
            planned(numbered(count), shards=shards)
        return
    counts = [spec.num_samples for spec in planned(numbered(count), shards=shards).shards]
    assert len(counts) == shards
    assert max(counts) - min(counts) <= 1


def test_samples_per_shard_holds_in_all_but_the_last() -> None:
    assert [spec.num_samples for spec in planned(numbered(25), samples_per_shard=10).shards] == [10, 10, 5]


def test_samples_per_shard_that_break_a_limit_are_refused() -> None:
    with pytest.raises(PlanError, match="10 samples a shard make 2 shards larger than 4,096 bytes"):
        planned(numbered(20), samples_per_shard=10, shard_size=4096)


@pytest.mark.parametrize("multiple", [1, 2, 3, 8])
def test_shards_come_in_multiples_and_within_the_limit(multiple: int) -> None:
    plan = planned(numbered(100, 3000), shard_size=50_000, shards_multiple_of=multiple)
    least = len(planned(numbered(100, 3000), shard_size=50_000).shards)
    assert len(plan.shards) == math.ceil(least / multiple) * multiple
    assert max(spec.num_bytes for spec in plan.shards) <= 50_000


def test_a_limit_that_the_number_of_shards_cannot_keep_is_refused_with_the_number_that_can() -> None:
    with pytest.raises(PlanError, match="do not fit 2 shards") as caught:
        planned(numbered(100), shards=2, shard_size=20_480)
    number = int(caught.value.hint.split()[1].rstrip(","))
    assert len(planned(numbered(100), shards=number, shard_size=20_480).shards) == number


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 4, "samples_per_shard": 2},
        {"samples_per_shard": 2, "shards_multiple_of": 2},
        {"shards": 5, "shards_multiple_of": 2},
        {"stratify": "label", "shuffle": "none"},
        {"stratify": "label", "samples_per_shard": 2},
        {"stratify": "label"},
    ],
)
def test_options_that_contradict_one_another_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem) as caught:
        planned(numbered(20), **options)
    assert caught.value.hint


def test_a_limit_below_one_header_is_refused() -> None:
    with pytest.raises(PlanError, match="holds no sample"):
        planned(numbered(2), shard_size=1024)


# Large samples


LARGE = {b"a.bin": 100, b"b.bin": 90_000, b"c.bin": 100, b"d.bin": 80_000}


def test_a_large_sample_gets_its_own_shard_and_a_notice() -> None:
    plan = planned(LARGE, shard_size=8192)
    assert sorted(map(sorted, plan_keys(plan))) in ([[b"a"], [b"b"], [b"c"], [b"d"]], [[b"a", b"c"], [b"b"], [b"d"]])
    assert "2 samples are larger than a shard of 8,192 bytes: b (90,624 bytes), d (80,896 bytes)" in plan.notices[0]


def test_large_samples_can_be_refused_or_left_out() -> None:
    with pytest.raises(SampleTooLarge, match="2 samples are larger"):
        planned(LARGE, shard_size=8192, on_oversize="error")
    plan = planned(LARGE, shard_size=8192, on_oversize="skip")
    assert sorted(key for shard in plan_keys(plan) for key in shard) == [b"a", b"c"]
    assert plan.failed.counts == {"oversize": 2}
    with pytest.raises(SampleTooLarge, match="2 samples are larger"):
        planned({b"b.bin": 90_000, b"d.bin": 80_000}, shard_size=8192, on_oversize="skip")


def test_stratified_shards_isolate_a_large_sample_too() -> None:
    sizes = {b"%s/%03d.bin" % (name, number): 100 for name in (b"x", b"y") for number in range(40)} | {
        b"x/big.bin": 99_999
    }
    plan = make_plan(add_labels(table_of(sizes), "parent"), PlanOptions(shard_size=20_480, stratify="label"))
    for spec, keys in zip(plan.shards, plan_keys(plan), strict=True):
        assert spec.num_bytes <= 20_480 or keys == [b"x/big"]


# Stratified


@SMALL
@given(st.lists(st.integers(8, 40), min_size=2, max_size=4), st.integers(1, 8), st.integers(0, 99))
def test_stratified_shards_have_each_class_within_one_sample(counts: list[int], shards: int, seed: int) -> None:
    sizes = {b"c%d/%d.j" % (label, number): 10 for label, count in enumerate(counts) for number in range(count)}
    plan = make_plan(
        add_labels(table_of(sizes, seed), "parent"), PlanOptions(shards=shards, stratify="label", seed=seed)
    )
    assert len(plan.shards) == shards
    for keys in plan_keys(plan):
        for label, count in enumerate(counts):
            assert abs(sum(key.startswith(b"c%d/" % label) for key in keys) - count / shards) < 1


# plan_id


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files: dict[Any, bytes | str] = {f"{name}/{n}.jpg": f"{name}{n}" for name in ("cat", "dog") for n in range(9)}
    return make_tree(tmp_path / "tree", files)


def test_a_copied_tree_and_other_times_give_the_same_plan(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "copy")
    os.utime(tmp_path / "copy/cat/1.jpg", ns=(1, 1))
    assert plan_id_of(tree, shards=3) == plan_id_of(tmp_path / "copy", shards=3)


def test_the_order_and_number_of_roots_do_not_change_the_plan(tree: Path, tmp_path: Path) -> None:
    for name, folder in (("one", "cat"), ("two", "dog")):
        shutil.copytree(tree / folder, tmp_path / name / folder)
    whole = plan_id_of(tree, shards=3, label_from="parent")
    assert plan_id_of(tmp_path / "one", tmp_path / "two", shards=3, label_from="parent") == whole
    assert plan_id_of(tmp_path / "two", tmp_path / "one", shards=3, label_from="parent") == whole


def test_another_listing_order_gives_the_same_plan(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan_id_of(tree, shards=3)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda *args: sorted(real(*args), reverse=True))
    assert plan_id_of(tree, shards=3) == before


def test_contents_of_equal_size_do_not_change_the_plan_but_names_and_sizes_do(tree: Path) -> None:
    before = plan_id_of(tree)
    (tree / "cat/1.jpg").write_text("xxxx")
    assert plan_id_of(tree) == before
    (tree / "cat/1.jpg").write_text("longer")
    changed = plan_id_of(tree)
    (tree / "cat/1.jpg").rename(tree / "cat/99.jpg")
    assert len({before, changed, plan_id_of(tree)}) == 3


@pytest.mark.parametrize(
    "options",
    [{"seed": 1}, {"shards": 3}, {"shuffle": "none"}, {"split": "train=1,test=1"}, {"split_by": "dir"},
     {"label_from": "parent"}, {"label_from": "regex:[0-9]$"}, {"alias": ("jpeg=jpg",)}, {"group_by": "file"},
     {"exclude": ("9.jpg", "8.jpg")}],
)  # fmt: skip
def test_every_option_that_changes_a_byte_changes_the_plan(tree: Path, options: dict[str, Any]) -> None:
    assert plan_id_of(tree, **options) != plan_id_of(tree)


def test_a_class_with_another_name_changes_the_plan(tree: Path, tmp_path: Path) -> None:
    pattern = "regex:^(.).*/"  # c and d
    shutil.copytree(tree, tmp_path / "copy")
    before = plan_id_of(tree, label_from=pattern)
    assert plan_id_of(tree, label_from="regex:^(..).*/") != before  # the same numbers for other names
    assert plan_id_of(tmp_path / "copy", label_from=pattern) == before


def test_what_is_stored_is_what_was_planned(tree: Path, tmp_path: Path) -> None:
    result = pack(tree, tmp_path / "out", shards=4, label_from="parent")
    stored = load_plan(os.fspath(tmp_path / "out"))
    fresh = prepare((os.fspath(tree),), result.stored.options).plan
    assert stored == result.stored
    assert stored is not None
    assert stored.plan_id == plan_identity(fresh)
    for shard, keys in enumerate(plan_keys(fresh)):
        rows = read_rows(os.fspath(tmp_path / "out"), shard)
        assert rows.keys.to_pylist() == keys
        assert int(rows.sizes.sum()) == stored.shards[shard].payload_bytes
    assert PlanOptions.from_document(stored.options.document()) == stored.options


# Parts that must be there


def test_a_missing_part_is_an_error_is_left_out_or_is_made_empty(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {"1.jpg": "a", "1.txt": "b", "2.jpg": "c", "3.txt": "d"})
    with pytest.raises(MissingPart, match="1 of 3 samples have no part 'jpg'\n  3"):
        pack(source, tmp_path / "out", require=("jpg", "txt"))
    said = Said()
    result = pack(source, tmp_path / "out", require=("jpg", "txt"), on_missing="skip", say=said)
    assert read_members(tmp_path / "out") == {b"1.jpg": b"a", b"1.txt": b"b"}
    ledger = load_manifest(os.fspath(tmp_path / "out")).ledger
    assert ledger == {"seen": 4, "packed": 2, "ignored": {}, "failed": 2}
    assert result.failed_entries == 2
    pack(source, tmp_path / "out2", require=("jpg", "txt"), on_missing="empty")
    assert read_members(tmp_path / "out2") == {
        b"1.jpg": b"a", b"1.txt": b"b", b"2.jpg": b"c", b"2.txt": b"", b"3.jpg": b"", b"3.txt": b"d",
    }  # fmt: skip


def test_a_part_that_no_sample_has_is_an_error_under_skip_too() -> None:
    with pytest.raises(MissingPart, match="2 of 2 samples"):
        apply_required(table_of(numbered(2)), ("jpg",), "skip")
