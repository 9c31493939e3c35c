from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from helpers import entry_table
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.grouping.group import group
from shardtool.grouping.match import NOWHERE, SEVERAL, match_rows
from shardtool.keys import parse_rule
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from shardtool.model import SampleTable


def samples_of(*paths: bytes, group_by: str = "first-dot", **rule: Any) -> SampleTable:
    return group(entry_table(paths), parse_rule(group_by, **rule), trust_parts=True).samples


def matched(samples: SampleTable, *names: str | bytes) -> list[bytes | int]:
    """The key of the sample of each row, or the number that says why there is none."""
    found = match_rows(samples, 0, pa.array([os.fsencode(name) for name in names], pa.large_binary())).tolist()
    keys = keys_of(samples, np.arange(samples.num_samples))
    return [keys[sample] if sample >= 0 else sample for sample in found]


def test_rows_match_by_key_by_file_and_by_part_without_regard_to_case() -> None:
    samples = samples_of(b"a/1.jpg", b"a/1.txt", b"b/2.JPG")
    assert matched(samples, "a/1", "a/1.jpg", "./a//1.txt", " b/2.jpg ") == [b"a/1", b"a/1", b"a/1", b"b/2"]


def test_a_row_that_names_a_file_that_is_not_there_matches_nothing() -> None:
    samples = samples_of(b"a/1.jpg")
    assert matched(samples, "a/1.png", "a/2", "b/1.jpg", "") == [NOWHERE, NOWHERE, NOWHERE, NOWHERE]
    alias = samples_of(b"a/1.jpeg", aliases=("jpg=jpeg,png",))
    assert matched(alias, "a/1.png") == [b"a/1"]


def test_rows_match_without_leading_folders_where_that_is_unique() -> None:
    samples = samples_of(b"x/cat/1.jpg", b"x/dog/1.jpg", b"x/dog/2.jpg")
    assert matched(samples, "2.jpg", "dog/1", "1.jpg", "x/2.jpg") == [b"x/dog/2", b"x/dog/1", SEVERAL, NOWHERE]


def test_rows_match_behind_folders_that_all_of_them_share() -> None:
    samples = samples_of(b"cat/1.jpg", b"1.jpg", b"dog/2.jpg")
    assert matched(samples, "/data/v1/cat/1.jpg", "/data/v1/dog/2.jpg") == [b"cat/1", b"dog/2"]
    assert matched(samples, "cat/1.jpg", "old/1.jpg") == [b"cat/1", NOWHERE]


def test_rows_match_behind_the_path_or_name_of_a_source() -> None:
    samples = samples_of(b"cat/1.jpg", b"dog/2.jpg")
    assert matched(samples, "/root0/cat/1.jpg", "root0/dog/2.jpg") == [b"cat/1", b"dog/2"]


def test_keys_with_dots_match_as_they_are_spelt_in_the_table() -> None:
    samples = samples_of(b"22.05.png", b"22.06.png", b"22.png", group_by="last-dot")
    assert matched(samples, "22.05", "22_06", "22.05.png", "22") == [b"22_05", b"22_06", b"22_05", b"22"]
    assert matched(samples, "22.07") == [NOWHERE]


def test_rows_match_under_every_rule() -> None:
    assert matched(samples_of(b"a/x.jpg", b"b/x.jpg", group_by="dir"), "a", "b/x.jpg") == [b"a", b"b"]
    assert matched(samples_of(b"a/x.jpg", b"a/x.txt", group_by="file"), "a/x.jpg") == [b"a/x_jpg"]
    eyes = samples_of(b"left/1.png", b"right/1.png", group_by=r"regex:(?P<part>left|right)/(?P<key>\d+)\.png")
    assert matched(eyes, "1", "left/1.png", "up/1.png") == [b"1", b"1", NOWHERE]
    plain = samples_of(b"README", b"b", no_ext="data")
    assert matched(plain, "README", "b") == [b"README", b"b"]


def test_names_that_are_not_utf8_match() -> None:
    samples = samples_of(b"caf\xe9.jpg", escape_names=True)
    assert matched(samples, b"caf\xe9.jpg", b"caf%E9") == [b"caf%E9", b"caf%E9"]


NAME = st.text("ab12", min_size=1, max_size=3).map(str.encode)
FILE = st.builds(
    lambda folders, stem, part: b"/".join([*folders, stem + b"." + part]),
    st.lists(NAME, max_size=2),
    NAME,
    st.sampled_from([b"jpg", b"txt", b"seg.png"]),
)


@given(st.lists(FILE, min_size=1, max_size=12, unique=True), st.randoms(use_true_random=False))
@settings(max_examples=80, derandomize=True, deadline=None)
def test_every_file_and_key_finds_its_own_sample(paths: list[bytes], random: Any) -> None:
    rows = [random.choice((path, key_of(path))) for path in paths]
    assert matched(samples_of(*paths), *rows) == [key_of(path) for path in paths]


@given(st.lists(FILE, min_size=1, max_size=10, unique=True), FILE)
@settings(max_examples=80, derandomize=True, deadline=None)
def test_an_end_of_a_path_matches_only_where_one_sample_has_it(paths: list[bytes], row: bytes) -> None:
    keys = {key_of(path) for path in paths if (b"/" + key_of(path)).endswith(b"/" + key_of(row))}
    has_file = any((b"/" + path).endswith(b"/" + row) for path in paths)
    found = matched(samples_of(*paths, b"zz/zz.jpg"), row, "zz/zz")[0]
    if row in paths:
        assert found == key_of(row)
    elif len(keys) == 1 and has_file:
        assert found == next(iter(keys))
    else:
        assert found in (NOWHERE, SEVERAL)


def key_of(path: bytes) -> bytes:
    folder, slash, name = path.rpartition(b"/")
    return folder + slash + name.partition(b".")[0]
