from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from helpers import entry_table, make_tree, read_members, run_cli
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import BadKey, DuplicateKey, GroupError
from shardtool.grouping import runs
from shardtool.grouping.group import MAX_PART_NAMES, Grouping, group, select_samples
from shardtool.keys import parse_rule
from shardtool.samples import identities_of, keys_of, member_names_of
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardtool.model import SampleTable

SMALL = settings(max_examples=250, derandomize=True, deadline=None)
EYES = r"regex:(?P<part>left|right)/(?P<key>\d+)\.png"
Samples = dict[bytes, dict[bytes, bytes]]


def grouped(paths: Sequence[bytes], group_by: str = "first-dot", **options: Any) -> Grouping:
    roots = options.pop("roots", ())
    policy = {name: options.pop(name) for name in ("on_duplicate", "trust_parts", "seed") if name in options}
    return group(entry_table(paths, roots), parse_rule(group_by, **options), **policy)


def as_dict(table: SampleTable) -> Samples:
    """{key: {part: path}} of a table, through its public columns."""
    rows = np.arange(table.num_samples)
    found: Samples = {}
    for sample, key in zip(rows.tolist(), keys_of(table, rows), strict=True):
        parts = range(int(table.part_start[sample]), int(table.part_start[sample + 1]))
        found[key] = {
            table.part_names[int(table.part_name[part])]: table.entries.path(int(table.part_entry[part]))
            for part in parts
        }
        assert len(found[key]) == len(parts)
    return found


def samples(paths: Sequence[bytes], group_by: str = "first-dot", **options: Any) -> Samples:
    return as_dict(grouped(paths, group_by, **options).samples)


# The reference: what grouping means, with nothing in common with how it is done


def reference(paths: Sequence[bytes], kind: str, no_ext: bytes | None = None) -> Samples | str:
    """{key: {part: path}}, or a word for what is wrong with it."""
    by_identity: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for path in sorted(paths, key=lambda path: path.rpartition(b"/")[::2]):
        folder, slash, name = path.rpartition(b"/")
        hidden = name[:1] if name[:1] == b"." else b""
        pieces = name[len(hidden) :].split(b".")
        at = {"first-dot": 1, "last-dot": len(pieces) - 1 or 1, "file": len(pieces) - 1 or 1}[kind]
        stem, part = hidden + b".".join(pieces[:at]), b".".join(pieces[at:]).lower() or no_ext
        if part is not None:
            by_identity.setdefault(folder + slash + (name if kind == "file" else stem), []).append((part, path))
    if not by_identity:
        return "nothing"
    found: Samples = {}
    for identity, parts in by_identity.items():
        folder, slash, last = identity.rpartition(b"/")
        key = folder + slash + last.replace(b".", b"_")
        if key in found:
            return "one key"
        found[key] = dict(parts)
        if len(found[key]) < len(parts):
            return "twice"
    return found


STEMS = st.sampled_from([b"a", b"b", b"a!", b"a-b", b"22.05", b"a.b", b".h", b"a_b", b"\xff", b""])
PARTS = st.sampled_from([b"", b".", b".jpg", b".JPG", b".txt", b".seg.png", b".cls"])
NAMES = st.builds(lambda stem, part: stem + part, STEMS, PARTS).filter(lambda name: name not in (b"", b".", b".."))
PATHS = st.builds(
    lambda folders, name: b"/".join([*folders, name]),
    st.lists(st.sampled_from([b"d", b"e.v1", b"d!"]), max_size=2),
    NAMES,
)


@SMALL
@given(
    st.lists(PATHS, min_size=1, max_size=14, unique=True),
    st.sampled_from(["first-dot", "last-dot", "file"]),
    st.booleans(),
)
def test_groups_are_those_of_the_reference(paths: list[bytes], kind: str, keeps_bare: bool) -> None:
    expected = reference(paths, kind, b"data" if keeps_bare else None)
    options: dict[str, Any] = {"no_ext": "data"} if keeps_bare else {}
    try:
        found: Samples | str = samples(paths, kind, trust_parts=True, **options)
    except DuplicateKey as error:
        found = "one key" if "one key" in error.message else "twice"
    except GroupError:
        found = "nothing"
    if isinstance(expected, str) and expected != "nothing":
        assert found in ("one key", "twice")  # both may be wrong with the same input
    else:
        assert found == expected


@SMALL
@given(st.lists(PATHS, min_size=1, max_size=14, unique=True), st.integers(0, 2**64 - 1))
def test_every_entry_is_in_one_sample_or_ignored_with_a_reason(paths: list[bytes], seed: int) -> None:
    try:
        found = grouped(paths, trust_parts=True, on_duplicate="skip", seed=seed)
    except GroupError:
        return
    table = found.samples
    taken = table.part_entry.tolist()
    assert len(set(taken)) == len(taken)
    assert len(taken) + found.ignored.total() == len(paths)
    assert len({path for _, path, _ in found.ignored.entries}) == found.ignored.total()
    for row in taken:
        assert not any(path.endswith(b"/root0/" + table.entries.path(row)) for _, path, _ in found.ignored.entries)
    keys = keys_of(table, np.arange(table.num_samples))
    assert table.key_hash.tolist() == [xxhash.xxh3_64_intdigest(key, seed) for key in keys]
    assert table.key_bytes.tolist() == [len(key) for key in keys]
    assert all(list(parts) == sorted(parts) for parts in as_dict(table).values())


# Rules, one by one


def test_folders_stay_in_keys() -> None:
    assert set(samples([b"catA/1.jpg", b"catB/1.jpg", b"1.jpg"])) == {b"catA/1", b"catB/1", b"1"}


def test_a_dotted_folder_does_not_merge_its_files() -> None:
    found = samples([b"train.v1/0001.jpg", b"train.v1/0001.json", b"train.v1/0002.jpg"])
    assert {key: set(parts) for key, parts in found.items()} == {
        b"train.v1/0001": {b"jpg", b"json"},
        b"train.v1/0002": {b"jpg"},
    }


def test_dots_in_names_give_one_sample_each_under_last_dot() -> None:
    assert samples([b"22.05.png", b"22.06.png", b"23.05.png"], "last-dot") == {
        b"22_05": {b"png": b"22.05.png"},
        b"22_06": {b"png": b"22.06.png"},
        b"23_05": {b"png": b"23.05.png"},
    }


def test_one_sample_a_folder_with_file_names_as_parts() -> None:
    found = samples([b"s1/left.png", b"s1/right.png", b"s2/left.png"], "dir")
    assert found[b"s1"] == {b"left.png": b"s1/left.png", b"right.png": b"s1/right.png"}
    assert set(found) == {b"s1", b"s2"}


def test_a_regex_brings_files_of_several_folders_together() -> None:
    paths = [b"left/0001.png", b"right/0001.png", b"left/0002.png", b"right/0002.png", b"notes.txt"]
    found = grouped(paths, EYES)
    assert as_dict(found.samples) == {
        b"0001": {b"left": b"left/0001.png", b"right": b"right/0001.png"},
        b"0002": {b"left": b"left/0002.png", b"right": b"right/0002.png"},
    }
    assert found.ignored.counts == {"no_match": 1}
    assert member_names_of(found.samples, np.arange(4)) == [b"0001.left", b"0001.right", b"0002.left", b"0002.right"]


def test_roots_are_merged_sample_by_sample() -> None:
    table = grouped([b"a.jpg", b"b.jpg", b"a.txt", b"c.jpg"], roots=[0, 0, 1, 1]).samples
    assert {key: set(parts) for key, parts in as_dict(table).items()} == {
        b"a": {b"jpg", b"txt"}, b"b": {b"jpg"}, b"c": {b"jpg"},
    }  # fmt: skip
    assert identities_of(table, np.arange(3)) == keys_of(table, np.arange(3))


def test_the_same_file_in_two_roots_is_a_part_that_is_there_twice() -> None:
    with pytest.raises(DuplicateKey, match="part is there twice") as caught:
        grouped([b"a.jpg", b"a.jpg"], roots=[0, 1])
    first, second = caught.value.message.splitlines()[-1].split(" and ")
    assert first.strip() != second
    assert first.endswith("/a.jpg")
    assert "--on-duplicate" in caught.value.hint
    assert caught.value.where == {"key": "a"}


# Names that would be lost or merged


def test_names_that_differ_in_case_only_are_an_error_that_names_both() -> None:
    with pytest.raises(DuplicateKey, match=r"a\.JPG and a\.jpg") as caught:
        grouped([b"a.JPG", b"a.jpg"])
    assert "--keep-case" in caught.value.hint
    assert set(samples([b"a.JPG", b"a.jpg"], keep_case=True)[b"a"]) == {b"JPG", b"jpg"}


@pytest.mark.parametrize(
    ("policy", "kept", "dropped"), [("first", {b"jpg": b"a.JPG", b"txt": b"a.txt"}, 2), ("skip", {b"txt": b"a.txt"}, 3)]
)
def test_duplicate_parts_follow_their_policy(policy: str, kept: dict[bytes, bytes], dropped: int) -> None:
    found = grouped([b"a.JPG", b"a.JpG", b"a.jpg", b"a.txt"], on_duplicate=policy)
    assert as_dict(found.samples) == {b"a": kept}
    assert found.ignored.counts == {"duplicate": dropped}


def test_a_sample_left_without_parts_is_gone() -> None:
    found = grouped([b"a.JPG", b"a.jpg", b"b.txt"], on_duplicate="skip")
    assert set(as_dict(found.samples)) == {b"b"}


def test_an_alias_that_makes_a_part_twice_is_found() -> None:
    with pytest.raises(DuplicateKey, match="there twice"):
        grouped([b"a.jpg", b"a.jpeg"], aliases=("jpg=jpeg",))


def test_different_names_that_become_one_key_are_an_error() -> None:
    with pytest.raises(DuplicateKey, match=r"22\.05 and 22_05 -> key 22_05"):
        grouped([b"22.05.png", b"22_05.png"], "last-dot")
    with pytest.raises(DuplicateKey, match=r"-> key _a"):
        grouped([b".a.png", b"_a.txt"])
    with pytest.raises(DuplicateKey, match="one key"):
        grouped([b"caf\xe9%.jpg", b"caf%E9%25.txt"], escape_names=True)


def test_an_error_shows_five_offenders_and_how_many_more() -> None:
    paths = [b"%d.%s" % (number, part) for number in range(8) for part in (b"jpg", b"JPG")]
    with pytest.raises(DuplicateKey) as caught:
        grouped(paths)
    lines = caught.value.message.splitlines()
    assert lines[0] == "8 parts are there twice"
    assert len(lines) == 7
    assert lines[-1] == "  and 3 more"


@pytest.mark.parametrize(
    "name", [b"235 Track 2.0 (Clean).mp3", b"22.05.png", b"a. jpg", b"a..jpg", b"a.b\\c", b"a.x:y", b"a.\x01"]
)
def test_a_name_that_is_cut_at_the_wrong_place_is_an_error(name: bytes) -> None:
    with pytest.raises(BadKey, match="1 keys look wrong: the name is cut at its first dot") as caught:
        grouped([name, b"b.jpg"])
    assert "--group-by last-dot" in caught.value.hint
    assert grouped([name, b"b.jpg"], trust_parts=True).problems[0].kind == "odd_part"


def test_many_part_names_are_an_error_unless_the_rule_was_chosen() -> None:
    paths = [b"a.part%03d" % number for number in range(MAX_PART_NAMES + 1)]
    with pytest.raises(BadKey, match=r"65 different part names \(more than 64\)"):
        grouped(paths)
    assert len(samples(paths, trust_parts=True)[b"a"]) == MAX_PART_NAMES + 1
    assert len(samples(paths[1:])[b"a"]) == MAX_PART_NAMES


def test_numeric_parts_alone_are_no_sign_of_a_wrong_cut() -> None:
    assert set(samples([b"img.001", b"img.002"])[b"img"]) == {b"001", b"002"}


def test_more_part_names_than_a_table_can_hold_are_an_error() -> None:
    with pytest.raises(BadKey, match="32,767 different part names"):
        grouped([b"a.p%d" % number for number in range(2**15)], trust_parts=True)


# What becomes no sample


def test_files_without_extension_are_ignored_and_counted() -> None:
    found = grouped([b"README", b"a.", b"a.jpg", b"LICENSE"])
    assert found.ignored.counts == {"no_extension": 3}
    assert sorted(os.path.basename(path) for _, path, _ in found.ignored.entries) == [b"LICENSE", b"README", b"a."]


def test_nothing_to_pack_is_an_error_that_says_why() -> None:
    with pytest.raises(GroupError, match="none of 2 files became a sample: 2 no_extension") as caught:
        grouped([b"README", b"LICENSE"])
    assert "--no-ext data" in caught.value.hint
    with pytest.raises(GroupError, match="none of 1 files became a sample: 1 no_match"):
        grouped([b"a.jpg"], EYES)
    with pytest.raises(GroupError, match="holds no files"):
        grouped([])


def test_bare_files_beside_others_of_their_name_join_them() -> None:
    assert samples([b"a", b"a!b.jpg", b"a.jpg"], no_ext="data")[b"a"] == {b"data": b"a", b"jpg": b"a.jpg"}


@SMALL
@given(st.lists(PATHS, min_size=2, max_size=10, unique=True), st.data())
def test_selected_samples_keep_their_parts(paths: list[bytes], data: st.DataObject) -> None:
    try:
        table = grouped(paths, trust_parts=True, on_duplicate="first").samples
    except GroupError:
        return
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=table.num_samples, max_size=table.num_samples)))
    everything = as_dict(table)
    kept = [key for key, wanted in zip(everything, keep, strict=True) if wanted]
    assert as_dict(select_samples(table, keep)) == {key: everything[key] for key in kept}


def test_a_command_shows_offenders_and_takes_the_cure(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {"22.05.png": b"a", "22.06.png": b"b"})
    done = run_cli("pack", source, tmp_path / "out", "--json")
    assert (done.code, done.error["code"]) == (5, "BadKey")
    assert re.search(r"22\.05\.png, 22\.06\.png  ->  key 22", done.error["message"])
    assert run_cli("pack", source, tmp_path / "out", "--group-by", "last-dot").code == 0
    assert read_members(tmp_path / "out") == {b"22_05.png": b"a", b"22_06.png": b"b"}


@pytest.mark.parametrize("group_by", ["first-dot", "last-dot", "dir"])
def test_workers_that_share_the_names_find_the_same_samples(monkeypatch: pytest.MonkeyPatch, group_by: str) -> None:
    monkeypatch.setattr(runs, "SHARED_ROWS", 1)
    monkeypatch.setattr(runs, "CHUNK_ROWS", 64)
    parts = (b"jpg", b"TXT", b"json", b"x%d")
    paths = [b"d%d/s%03d.%s" % (n % 9, n // 2, (parts[n % 3 + n % 2])[:3]) for n in range(900)] + [
        b"d3/README",
        b"top.jpg",
    ]
    table = entry_table(sorted(set(paths)))
    rule = parse_rule(group_by, no_ext="none" if group_by == "dir" else None)
    alone = group(table, rule, seed=3, trust_parts=True, on_duplicate="first")
    with WorkerPool(2) as pool:
        shared = group(table, rule, seed=3, trust_parts=True, on_duplicate="first", pool=pool)
    assert as_dict(shared.samples) == as_dict(alone.samples)
    assert shared.samples.key_hash.tolist() == alone.samples.key_hash.tolist()
    assert shared.ignored == alone.ignored
