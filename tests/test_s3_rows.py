"""Keys become the rows that the paths of a copied tree would, whatever they hold; what is left out is accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import columns
from shardtool.errors import SourceError
from shardtool.model import Tally
from shardtool.sources.junk import NameRules
from shardtool.sources.s3_rows import BLOCK, cut, repeated, rows_of, table_of, taken_apart
from shardtool.storage.s3.pages import Objects

if TYPE_CHECKING:
    from shardtool.model import EntryTable
    from shardtool.sources.s3_rows import Rows

KEYS = st.lists(st.binary(min_size=1, max_size=9).map(lambda key: key.replace(b"\x01", b"/")), max_size=40, unique=True)


def objects_of(keys: list[bytes], base: bytes = b"") -> Objects:
    numbers = np.arange(len(keys), dtype=np.int64)
    names = pa.array([base + key for key in keys], pa.large_binary())
    return Objects(names, numbers, numbers * 10, pa.array([b"e%d" % n for n in range(len(keys))], pa.binary()))


def rows(keys: list[bytes], base: bytes = b"", rules: NameRules | None = None) -> tuple[Rows, Tally]:
    ignored = Tally()
    found, others = taken_apart(objects_of(keys, base))
    return rows_of(cut(found, len(base)), others, b"s3://b", rules or NameRules(hidden=True), ignored), ignored


def table(keys: list[bytes], base: bytes = b"") -> EntryTable:
    return table_of(["s3://b"], [rows(keys, base)[0]])


@settings(max_examples=200)
@given(KEYS, st.sampled_from([b"", b"data/"]))
def test_every_key_is_a_row_with_its_own_size_or_a_marker(keys: list[bytes], base: bytes) -> None:
    found, ignored = rows(keys, base)
    entries = table_of(["s3://b"], [found])
    kept = {entries.path(row): int(entries.sizes[row]) for row in range(entries.num_entries)}
    left_out = {path for _, path, _ in ignored.entries}
    for number, key in enumerate(keys):
        assert (
            kept.get(key) == number
            or b"s3://b/" + key in left_out
            or any((b"s3://b/" + key).startswith(path) for path in left_out if path.endswith(b"/"))
        )
    assert len(kept) == entries.num_entries <= len(keys)


@given(KEYS)
def test_rows_are_sorted_by_folder_and_name(keys: list[bytes]) -> None:
    entries = table(keys)
    names = entries.names.to_pylist()
    pairs = [
        (entries.dirs[folder], names[row]) for folder, first, last in entries.folders() for row in range(first, last)
    ]
    assert pairs == sorted(pairs)
    assert len(set(entries.dirs)) == len(entries.dirs)


def test_keys_are_cut_at_their_last_slash() -> None:
    keys = [b"a", b"a/b", b"a/b/c", b"a//b", b"/a", b"//a", b"../x", b"a/", b"new\nline/\xc3\xa4"]
    folders, codes, names = cut([pa.array(keys, pa.large_binary())], 0)
    pairs = [(folders[code], name) for code, name in zip(codes.tolist(), names[0].to_pylist(), strict=True)]
    assert pairs == [
        (b"", b"a"),
        (b"a", b"b"),
        (b"a/b", b"c"),
        (b"a/", b"b"),
        (b"", b"/a"),
        (b"/", b"a"),
        (b"..", b"x"),
        (b"a", b""),
        (b"new\nline", b"\xc3\xa4"),
    ]


def test_paths_of_odd_keys_are_what_they_were() -> None:
    keys = [b"/a.jpg", b"//a.jpg", b"a//b.jpg", b"../x.jpg", b"k", b"k/x", b"a\nb.jpg"]
    entries = table(keys)
    assert sorted(entries.path(row) for row in range(entries.num_entries)) == sorted(keys)


def test_folder_markers_are_counted_with_what_they_hold() -> None:
    found, ignored = rows([b"dir/", b"x.jpg", b"dir_$folder$"])
    assert found.names.to_pylist() == [b"x.jpg"]
    assert ignored.counts == {"folder_marker": 2}
    assert [detail for _, path, detail in ignored.entries if path.endswith(b"$")] == ["2 bytes"]


def test_junk_and_hidden_names_are_left_out_as_in_a_tree() -> None:
    keys = [b"a.jpg", b".DS_Store", b"b/Thumbs.db", b"__MACOSX/x/y.jpg", b"__MACOSX/z.jpg", b".h/c.jpg", b"._a.jpg"]
    found, ignored = rows(keys, rules=NameRules())
    assert found.names.to_pylist() == [b"a.jpg"]
    assert ignored.counts == {"junk": 4, "hidden": 1}
    assert (b"s3://b/__MACOSX/" in {path for _, path, _ in ignored.entries}) is True


def test_globs_select_paths() -> None:
    rules = NameRules(include=(b"*.jpg",), exclude=(b"old/**", b"drafts/"))
    found, ignored = rows([b"a.jpg", b"a.txt", b"old/b.jpg", b"new/c.jpg", b"drafts/d/e.jpg"], rules=rules)
    assert found.names.to_pylist() == [b"a.jpg", b"c.jpg"]
    assert ignored.counts == {"not_included": 1, "excluded": 2}
    assert rules.used_includes() == {b"*.jpg"}


def test_columns_follow_their_names() -> None:
    entries = table([b"b/2", b"a", b"b/1"])
    assert entries.sizes.tolist() == [1, 2, 0]
    assert entries.mtimes_ns.tolist() == [10, 20, 0]
    assert entries.versions is not None
    assert entries.versions.to_pylist() == [b"e1", b"e2", b"e0"]


def test_an_unknown_etag_is_no_guard() -> None:
    objects = objects_of([b"a", b"b"])
    bare = Objects(objects.keys, objects.sizes, objects.mtimes_ns, pa.array([b"", b"e"], pa.binary()))
    found, others = taken_apart(bare)
    entries = table_of(["s3://b"], [rows_of(cut(found, 0), others, b"s3://b", NameRules(), Tally())])
    assert entries.versions is not None
    assert entries.versions.to_pylist() == [None, b"e"]


def test_names_of_a_folder_that_come_out_of_order_are_sorted_with_their_columns() -> None:
    keys = [b"a/%03d" % (number * 37 % 100) for number in range(100)]
    entries = table(keys)
    assert entries.names.to_pylist() == sorted(key.removeprefix(b"a/") for key in keys)
    assert [keys[size] for size in entries.sizes.tolist()] == sorted(keys)


def test_more_etags_than_a_column_holds_are_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_BINARY_BYTES", 3)
    with pytest.raises(SourceError, match="ETags of 2 objects") as caught:
        rows([b"a", b"b"])
    assert "merge" in caught.value.hint


def test_repeated_keys_are_found() -> None:
    found, _ = rows([b"a/x", b"b", b"a/x", b"a/x"])
    assert list(repeated(found)) == [b"a/x", b"a/x"]


def test_several_roots_are_one_table() -> None:
    parts = [rows([b"a/x", b"y"])[0], rows([])[0], rows([b"z"])[0]]
    entries = table_of(["s3://b/1", "s3://b/2", "s3://b/3"], parts)
    assert [(int(entries.dir_root[folder]), entries.dirs[folder]) for folder, _, _ in entries.folders()] == [
        (0, b""),
        (0, b"a"),
        (2, b""),
    ]
    assert entries.names.to_pylist() == [b"y", b"x", b"z"]


def test_more_keys_than_a_block_are_cut_alike() -> None:
    keys = [b"f%03d/%d" % (number % 300, number) for number in range(150_000)]
    folders, codes, names = cut([pa.array(keys, pa.large_binary())], 0)
    assert len(folders) == 300
    assert [len(chunk) for chunk in names] == [BLOCK, BLOCK, 150_000 - 2 * BLOCK]
    assert folders[codes[149_999]] + b"/" + names[-1][-1].as_py() == keys[-1]
