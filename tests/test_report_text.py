"""Text for people: tables line up, keys are safe to show and never ambiguous."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.report.text import (
    ASCII_SPARKS,
    SPARKS,
    escape_key,
    json_key,
    printable,
    sparkline,
    table,
    to_ascii,
    width,
    without_surrogates,
)


def test_numbers_go_right_and_words_left() -> None:
    assert table([("jpg", 7034), ("json", 33)], header=("part", "samples")) == (
        "part  samples\njpg     7,034\njson       33"
    )


def test_a_table_takes_its_sides_and_its_indent() -> None:
    assert table([("a", "1"), ("bb", "22")], align="rl", indent="  ") == "   a  1\n  bb  22"


def test_a_table_of_nothing_is_empty() -> None:
    assert table([]) == ""


def test_wide_characters_take_two_columns() -> None:
    assert table([("猫", "x"), ("cat", "y")]) == "猫   x\ncat  y"
    assert width("e\u0301") == 1


def test_a_sparkline_has_eight_levels() -> None:
    assert sparkline(range(8)) == SPARKS
    assert sparkline(range(8), ascii_only=True) == ASCII_SPARKS
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_the_plain_form_of_a_sparkline_is_its_ascii_form() -> None:
    assert to_ascii(sparkline(range(8))) == sparkline(range(8), ascii_only=True)
    assert to_ascii("a · b → c ü") == "a | b -> c \\xfc"


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"cats/0001", "cats/0001"),
        ("grün/猫".encode(), "grün/猫"),
        (b"a\xffb", "a\\xffb"),
        (b"a\x1b[2Jb\n", "a\\x1b[2Jb\\x0a"),
        (b"a\\xffb", "a\\\\xffb"),
        ("a\u202eb\xa0".encode(), "a\\u202eb\\u00a0"),
    ],
)
def test_keys_are_shown_escaped(key: bytes, shown: str) -> None:
    assert escape_key(key) == shown


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_different_keys_never_look_the_same(one: bytes, other: bytes) -> None:
    assert escape_key(one).isprintable()
    assert (escape_key(one) == escape_key(other)) == (one == other)


@given(st.binary(max_size=12))
def test_a_key_in_json_can_be_had_back(key: bytes) -> None:
    shown = json_key(key)
    back = base64.b64decode(shown["key_b64"]) if "key_b64" in shown else shown["key"].encode()
    assert back == key


def test_a_key_in_json_may_have_another_name() -> None:
    assert json_key(b"a") == {"key": "a"}
    assert json_key(b"\xff", "source") == {"source": "\\xff", "source_b64": "/w=="}


def test_messages_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\n\tb\udcff") == "a\\x1b[31m\n\tb\\xff"


def test_undecodable_bytes_of_a_path_can_be_written() -> None:
    assert without_surrogates("a\udcffb\x1b").encode() == b"a\\xffb\x1b"
