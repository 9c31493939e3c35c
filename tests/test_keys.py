from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from shardtool.errors import UsageProblem
from shardtool.keys import RULES, compile_pattern, escape_bytes, join, parse_rule

SMALL = settings(max_examples=200, derandomize=True, deadline=None)
NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name)
FOLDERS = st.lists(NAMES, max_size=3).map(b"/".join)


def cut(path: bytes, group_by: str = "first-dot", **options: Any) -> tuple[bytes, bytes | None] | None:
    """(key, part) of a path."""
    rule = parse_rule(group_by, **options)
    folder, _, name = path.rpartition(b"/")
    found = rule.split(folder, name)
    return (rule.key(found[0]), rule.part(found[1])) if found else None


@pytest.mark.parametrize(
    ("path", "group_by", "expected"),
    [
        (b"a.jpg", "first-dot", (b"a", b"jpg")),
        (b"cat/a.seg.png", "first-dot", (b"cat/a", b"seg.png")),
        (b"train.v1/0001.jpg", "first-dot", (b"train.v1/0001", b"jpg")),
        (b"22.05.png", "first-dot", (b"22", b"05.png")),
        (b"A.JPG", "first-dot", (b"A", b"jpg")),
        (b"README", "first-dot", (b"README", None)),
        (b"a.", "first-dot", (b"a", None)),
        (b".hidden.jpg", "first-dot", (b"_hidden", b"jpg")),
        (b".hidden", "first-dot", (b"_hidden", None)),
        (b"22.05.png", "last-dot", (b"22_05", b"png")),
        (b"some/22.0/1.1.png", "last-dot", (b"some/22.0/1_1", b"png")),
        (b".hidden", "last-dot", (b"_hidden", None)),
        (b"x/a.seg.png", "file", (b"x/a_seg_png", b"png")),
        (b"s1/left.png", "dir", (b"s1", b"left.png")),
        (b"v1.0/s1/left.png", "dir", (b"v1.0/s1", b"left.png")),
        (b"v.1/left.png", "dir", (b"v_1", b"left.png")),
        (b"left/0001.png", r"regex:(?P<part>left|right)/(?P<key>\d+)\.png", (b"0001", b"left")),
        (b"0001_left.png", r"regex:(\d+)_(\w+)\.png", (b"0001", b"left")),
        (b"0001.png", r"regex:(\d+)\.png", (b"0001", None)),
        (b"x/0001_left.png", r"regex:(\d+)_(\w+)\.png", None),
    ],
)
def test_a_path_is_cut_as_its_rule_says(path: bytes, group_by: str, expected: tuple[bytes, bytes | None]) -> None:
    assert cut(path, group_by) == expected


def test_extensions_are_lowered_unless_their_case_is_kept() -> None:
    assert cut(b"a.LEFT.Jpg") == (b"a", b"left.jpg")
    assert cut(b"a.LEFT.Jpg", keep_case=True) == (b"a", b"LEFT.Jpg")


def test_aliases_rename_parts_after_lowering() -> None:
    aliases = ("jpg=jpeg,png", "txt=caption")
    assert cut(b"a.JPEG", aliases=aliases) == (b"a", b"jpg")
    assert cut(b"a.png", aliases=aliases) == (b"a", b"jpg")
    assert cut(b"a.caption", aliases=aliases) == (b"a", b"txt")
    assert cut(b"a.gif", aliases=aliases) == (b"a", b"gif")


def test_files_without_extension_get_the_part_that_was_asked_for() -> None:
    assert cut(b"README", no_ext="data") == (b"README", b"data")
    assert cut(b"a.", no_ext="data") == (b"a", b"data")


def test_bytes_that_are_no_utf8_are_escaped_when_asked() -> None:
    assert cut(b"caf\xe9.jpg") == (b"caf\xe9", b"jpg")
    assert cut(b"caf\xe9 100%.jpg", escape_names=True) == (b"caf%E9 100%25", b"jpg")
    assert cut("café 100%.jpg".encode(), escape_names=True) == ("café 100%".encode(), b"jpg")


@SMALL
@given(st.binary(max_size=20))
def test_escaped_names_are_utf8_and_can_be_turned_back(name: bytes) -> None:
    escaped = escape_bytes(name)
    escaped.decode("utf-8")
    assert escaped == name or unquote_to_bytes(escaped) == name


@SMALL
@given(FOLDERS, NAMES, st.sampled_from([*RULES, "regex:(?s:(?P<key>.*?)(?P<part>.?))"]))
def test_a_key_never_has_a_dot_in_its_last_component(folder: bytes, name: bytes, group_by: str) -> None:
    found = cut(join(folder, name), group_by)
    assert found is not None
    assert b"." not in found[0].rpartition(b"/")[2]


@SMALL
@given(FOLDERS, NAMES, st.sampled_from(RULES))
def test_webdataset_cuts_a_member_name_where_the_rule_did(folder: bytes, name: bytes, group_by: str) -> None:
    found = cut(join(folder, name), group_by, no_ext="data")
    assert found is not None
    key, part = (name and name.decode("latin-1") for name in found)
    if key and part and "\n" not in key + part:
        assert base_plus_ext(f"{key}.{part}") == (key, part)


@pytest.mark.parametrize("group_by", ["first", "regex:(", "regex:.*", "", "regex:"])
def test_a_rule_that_is_none_is_refused(group_by: str) -> None:
    with pytest.raises(UsageProblem, match="--group-by"):
        parse_rule(group_by)


@pytest.mark.parametrize("alias", ["jpg", "=jpeg", "jpg="])
def test_an_alias_that_is_none_is_refused(alias: str) -> None:
    with pytest.raises(UsageProblem, match="--alias"):
        parse_rule(aliases=(alias,))


def test_a_pattern_may_hold_bytes_that_are_no_utf8() -> None:
    assert compile_pattern("caf\udce9", "--group-by") == re.compile(b"caf\xe9")
