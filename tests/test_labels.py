from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import entry_table, make_tree, pack, read_members
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import GroupError, UsageProblem
from shardtool.grouping.group import group
from shardtool.grouping.labels import add_labels, label_samples
from shardtool.index_file import open_index
from shardtool.keys import parse_rule
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.model import SampleTable

SMALL = settings(max_examples=100, derandomize=True, deadline=None)


def table_of(*paths: bytes) -> SampleTable:
    return group(entry_table(paths), parse_rule(), trust_parts=True).samples


def labels_of(table: SampleTable) -> dict[bytes, str]:
    """{key: class name}, and the `cls` part holds the number of that name."""
    assert table.labels is not None
    cls = next(part for part in table.generated if part.name == b"cls")
    numbers = [int(cls.values[code]) for code in cls.codes.tolist()]
    assert numbers == table.labels.tolist()
    keys = keys_of(table, np.arange(table.num_samples))
    return {key: table.label_names[number] for key, number in zip(keys, numbers, strict=True)}


def test_the_parent_folder_names_the_class() -> None:
    table = add_labels(table_of(b"train/cat/1.jpg", b"train/dog/1.jpg", b"val/cat/2.jpg"), "parent")
    assert labels_of(table) == {b"train/cat/1": "cat", b"train/dog/1": "dog", b"val/cat/2": "cat"}
    assert table.label_names == ["cat", "dog"]


def test_a_regex_names_the_class_by_its_first_group_or_its_match() -> None:
    table = table_of(b"n01_cat/1.jpg", b"n02_dog/1.jpg")
    assert labels_of(add_labels(table, "regex:_([a-z]+)/")) == {b"n01_cat/1": "cat", b"n02_dog/1": "dog"}
    assert labels_of(add_labels(table, r"regex:n\d+")) == {b"n01_cat/1": "n01", b"n02_dog/1": "n02"}


def test_classes_are_numbered_in_the_byte_order_of_their_names() -> None:
    table = add_labels(table_of(b"b/1.j", b"a/1.j", b"10/1.j", b"9/1.j", "é/1.j".encode(), b"Z/1.j"), "parent")
    assert table.label_names == ["10", "9", "Z", "a", "b", "é"]


def test_names_that_are_all_numbers_can_keep_numeric_order() -> None:
    table = table_of(b"1.j", b"2.j", b"3.j", b"4.j")
    names = [b"10", b"9", b"-1", b"2.5"]
    assert label_samples(table, [names], "", numeric=True).label_names == ["-1", "2.5", "9", "10"]
    assert label_samples(table, [names[:2], [b"x", b"2.5"]], "", numeric=True).label_names == ["10", "2.5", "9", "x"]


def test_names_that_are_no_utf8_are_shown_escaped() -> None:
    assert add_labels(table_of(b"caf\xe9/1.j"), "parent").label_names == ["caf\\xe9"]


def test_samples_without_a_class_are_an_error_that_shows_them() -> None:
    with pytest.raises(GroupError, match="2 samples have no label: they lie in no folder\n  1\n  2"):
        add_labels(table_of(b"1.jpg", b"2.jpg", b"a/3.jpg"), "parent")
    with pytest.raises(GroupError, match="1 samples have no label: their key does not match\n  b/1"):
        add_labels(table_of(b"a/1.jpg", b"b/1.jpg"), "regex:^a")
    with pytest.raises(GroupError, match="no label"):
        add_labels(table_of(b"a/1.jpg", b"b/1.jpg"), "regex:^(a)|b")


def test_a_cls_part_of_files_is_not_overwritten() -> None:
    with pytest.raises(GroupError, match="parts of that name already") as caught:
        add_labels(table_of(b"a/1.jpg", b"a/1.cls"), "parent")
    assert "--exclude '*.cls'" in caught.value.hint


@pytest.mark.parametrize("label_from", ["folder", "column:x", ""])
def test_a_source_of_labels_that_is_none_is_refused(label_from: str) -> None:
    with pytest.raises(UsageProblem, match="--label-from"):
        add_labels(table_of(b"a/1.jpg"), label_from)


FOLDERS = st.sampled_from([b"a", b"b", b"c", b"\xff"])


@SMALL
@given(st.dictionaries(st.integers(0, 99), FOLDERS, min_size=1, max_size=20), st.integers(1, 7))
def test_labels_do_not_depend_on_the_pieces_that_names_come_in(classes: dict[int, bytes], size: int) -> None:
    paths = [name + b"/%d.jpg" % number for number, name in classes.items()]
    table = table_of(*paths)
    names = [key.partition(b"/")[0] for key in keys_of(table, np.arange(table.num_samples))]
    pieces = [names[at : at + size] for at in range(0, len(names), size)]
    found = label_samples(table, pieces, "")
    assert labels_of(found) == labels_of(add_labels(table, "parent"))
    assert found.label_names == [name.decode("utf-8", "backslashreplace") for name in sorted(set(names))]


def test_labels_reach_the_shards_the_index_and_labels_json(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {"cat/1.jpg": "x", "dog/1.jpg": "y", "ant/1.jpg": "z"})
    pack(source, tmp_path / "out", label_from="parent")
    members = read_members(tmp_path / "out")
    assert {name: members[name] for name in members if name.endswith(b".cls")} == {
        b"ant/1.cls": b"0", b"cat/1.cls": b"1", b"dog/1.cls": b"2",
    }  # fmt: skip
    assert json.loads((tmp_path / "out/labels.json").read_text()) == ["ant", "cat", "dog"]
    index = open_index(str(tmp_path / "out/index/00000.arrow"))
    labels: Any = index.labels
    assert {index.key(row): int(labels[row]) for row in range(3)} == {b"ant/1": 0, b"cat/1": 1, b"dog/1": 2}
