"""Comparing two data sets by their key tables: what was added, removed, moved and changed, and how it reads."""

from __future__ import annotations

import json
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import DuplicateKey
from shardtool.report.diff import advise, render_diff
from shardtool.report.text import width
from shardtool.statistics.dataset_diff import DatasetDiff, KeyTable, compare

Parts: TypeAlias = dict[str, tuple[int, int]]  # name -> (bytes, digest)
Row: TypeAlias = tuple[bytes, int, Parts]  # key, shard, parts


def table(rows: list[Row], *, splits: tuple[str, ...] = ("train",) * 4, has_digests: bool = True) -> KeyTable:
    names = sorted({name for _, _, parts in rows for name in parts})
    flat = [(names.index(name), *value) for _, _, parts in rows for name, value in parts.items()]
    return KeyTable(
        keys=pa.array([key for key, _, _ in rows], pa.binary()),
        shards=np.array([shard for _, shard, _ in rows], np.int64),
        splits=splits,
        part_start=np.cumsum([0, *(len(parts) for _, _, parts in rows)]).astype(np.int64),
        part_names=names,
        part_ids=np.array([part for part, _, _ in flat], np.int16),
        part_sizes=np.array([size for _, size, _ in flat], np.int64),
        part_digests=np.array([digest for _, _, digest in flat], np.uint64) if has_digests else None,
    )


def photos(count: int, *, first: int = 0, shards: int = 4) -> list[Row]:
    return [
        (b"cats/%04d" % k, (k - first) * shards // count, {"jpg": (1000 + k, 2**63 + k), "txt": (5, k)})
        for k in range(first, first + count)
    ]


def test_data_set_equals_itself() -> None:
    found = compare(table(photos(100)), table(photos(100)))

    assert found.is_equal
    assert found.same == 100
    assert found.changed_parts == {}
    assert "the data sets are equal" in render_diff(found, before="a", after="b")


def test_two_empty_data_sets_are_equal() -> None:
    assert compare(table([]), table([])).is_equal


def test_added_and_removed_samples_are_counted_with_their_bytes() -> None:
    found = compare(table(photos(10)), table(photos(10, first=3)))

    assert (found.removed.count, found.added.count) == (3, 3)
    assert found.removed.bytes == 1000 + 1001 + 1002 + 15
    assert found.added.bytes == 1010 + 1011 + 1012 + 15
    assert [example.key for example in found.added.examples] == [b"cats/0010", b"cats/0011", b"cats/0012"]
    assert found.removed.examples[0].before == (0, "train")
    assert found.removed.examples[0].after is None


def test_everything_is_new_beside_an_empty_data_set() -> None:
    found = compare(table([]), table(photos(7)))

    assert (found.added.count, found.removed.count, found.same) == (7, 0, 0)
    assert len(found.added.examples) == 5


def test_moved_sample_is_shown_with_both_shards() -> None:
    old = photos(8)
    new = [*old[1:4], old[0], *old[4:]]
    new[3] = (new[3][0], 2, new[3][2])

    found = compare(table(old), table(new))

    assert found.moved.count == 1
    assert (found.moved.examples[0].before, found.moved.examples[0].after) == ((0, "train"), (2, "train"))
    assert found.same == 7
    assert not found.is_order_kept


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"jpg": (1000, 1), "txt": (5, 0)}, ("jpg",)),  # another digest
        ({"jpg": (999, 2**63), "txt": (5, 0)}, ("jpg",)),  # another size
        ({"jpg": (1000, 2**63)}, ("txt",)),  # a part went
        ({"jpg": (1000, 2**63), "txt": (5, 0), "cls": (1, 1)}, ("cls",)),  # a part came
        ({"png": (1000, 2**63), "txt": (5, 0)}, ("jpg", "png")),  # a part was renamed
    ],
)
def test_changed_sample_names_the_parts_that_differ(parts: Parts, named: tuple[str, ...]) -> None:
    old = photos(4)
    new = [(old[0][0], old[0][1], parts), *old[1:]]

    found = compare(table(old), table(new))

    assert found.changed.count == 1
    assert found.changed.examples[0].parts == named
    assert found.changed_parts == dict.fromkeys(named, 1)
    assert found.same == 3


def test_order_of_parts_inside_a_sample_does_not_matter() -> None:
    old = photos(4)
    new = [(key, shard, dict(reversed(parts.items()))) for key, shard, parts in old]

    assert compare(table(old), table(new)).is_equal


def test_without_digests_sizes_alone_are_compared() -> None:
    old = photos(4)
    new = [(key, shard, {name: (size, 77) for name, (size, _) in parts.items()}) for key, shard, parts in old]

    found = compare(table(old), table(new, has_digests=False))

    assert found.changed.count == 0
    assert found.document()["compared"] == "sizes"
    assert any("shardtool index OUT" in line for line in advise(found))


def test_order_of_old_samples_is_kept_when_others_come_between() -> None:
    old = photos(20)
    new = sorted([*old, *((b"cats/%04d_b" % k, 0, {"jpg": (1, 1)}) for k in range(20))], key=lambda row: row[0])

    found = compare(table(old), table(new))

    assert found.is_order_kept
    assert not found.is_equal


def test_samples_that_change_split_are_counted_and_advised() -> None:
    old, splits = photos(8), ("train", "train", "train", "test")
    new = [(key, 3 if k == 0 else shard, parts) for k, (key, shard, parts) in enumerate(old)]

    found = compare(table(old, splits=splits), table(new, splits=splits))

    assert found.other_split == found.moved.count == 1
    text = render_diff(found, before="a", after="b")
    assert "train -> test shard 0 -> 3" in text
    assert "\n! 1 sample changed split" in text


def test_repeated_keys_are_an_error_that_shows_them() -> None:
    rows = [*photos(3), (b"cats/0001", 3, {"jpg": (1, 1)})]

    with pytest.raises(DuplicateKey, match=r"second data set .*'cats/0001'") as error:
        compare(table(photos(3)), table(rows))

    assert "--on-duplicate" in error.value.hint


def test_chunked_and_large_keys_are_taken_too() -> None:
    plain = table(photos(6))
    chunked = KeyTable(**{**vars(plain), "keys": pa.chunked_array([plain.keys[:2], plain.keys[2:]])})
    large = KeyTable(**{**vars(plain), "keys": plain.keys.cast(pa.large_binary())})

    assert compare(chunked, large).is_equal
    assert compare(large, chunked).is_equal


row_sets = st.dictionaries(
    st.binary(max_size=2),
    st.tuples(
        st.integers(0, 3),
        st.dictionaries(st.sampled_from(["jpg", "txt"]), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    ),
    max_size=30,
)


@given(row_sets, row_sets)
def test_counts_are_those_of_a_dictionary(
    old: dict[bytes, tuple[int, Parts]], new: dict[bytes, tuple[int, Parts]]
) -> None:
    found = compare(*(table([(key, *value) for key, value in rows.items()]) for rows in (old, new)))

    both = old.keys() & new.keys()
    assert found.added.count == len(new.keys() - old.keys())
    assert found.removed.count == len(old.keys() - new.keys())
    assert found.moved.count == sum(old[key][0] != new[key][0] for key in both)
    assert found.changed.count == sum(old[key][1] != new[key][1] for key in both)
    assert found.same == sum(old[key] == new[key] for key in both)
    assert found.changed_parts == {
        name: count
        for name in ("jpg", "txt")
        if (count := sum(old[key][1].get(name) != new[key][1].get(name) for key in both))
    }


def awkward() -> DatasetDiff:
    def rows(shard: int, digest: int) -> list[Row]:
        parts = {f"{'部分' * 20}{k}": (k, digest) for k in range(12)}
        return [(b"\x1b[31m%03d" % k + "鍵".encode() * 90, shard, parts) for k in range(9)]

    splits = ("train", "validation_of_a_very_long_name", "test", "test")
    return compare(table(rows(0, 1), splits=splits), table([*rows(1, 2), *photos(100_000)], splits=splits))


def test_text_fits_80_columns_whatever_the_names() -> None:
    text = render_diff(awkward(), before="a" * 70, after="b" * 70)

    assert max(width(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text


def test_ascii_text_is_ascii() -> None:
    assert render_diff(awkward(), before="a", after="b", ascii_only=True).isascii()


def test_document_holds_examples_with_keys_that_are_not_text() -> None:
    found = compare(table([]), table([(b"caf\xe9", 1, {"jpg": (3, 1)})]))

    document = json.loads(json.dumps(found.document()))

    assert document["schema"] == "shardtool/diff/1"
    assert document["added"] == {
        "count": 1,
        "bytes": 3,
        "examples": [{"key": "caf\\xe9", "key_b64": "Y2Fm6Q==", "to": {"shard": 1, "split": "train"}}],
    }
    assert document["equal"] is False


def test_sample_that_moved_and_changed_is_listed_as_both() -> None:
    old = photos(4)
    new = [(old[0][0], 3, {"jpg": (1, 1)}), *old[1:]]

    found = compare(table(old), table(new))

    assert (found.moved.count, found.changed.count, found.same) == (1, 1, 3)
    text = render_diff(found, before="a", after="b")
    assert "cats/0000   train shard 0 -> 3" in text
    assert "cats/0000   jpg, txt" in text
