from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers import (
    Said,
    entry_table,
    json_lines,
    make_tree,
    pack,
    read_members,
    run_cli,
    working_in,
    write_csv,
    write_jsonl,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from shardtool.errors import (
    DuplicateKey,
    GroupError,
    MissingPart,
    UsageProblem,
)
from shardtool.grouping.group import group
from shardtool.grouping.join import join
from shardtool.grouping.row_parts import PartSpec, bare_value, json_object, parse_parts
from shardtool.keys import parse_rule
from shardtool.planning.plan_file import load_plan

if TYPE_CHECKING:
    from pathlib import Path


PHOTOS: dict[str, bytes | str] = {"cat/1.jpg": b"one", "cat/2.jpg": b"two", "dog/3.jpg": b"three"}
ROWS: list[dict[str, Any]] = [
    {"file_name": "cat/1.jpg", "caption": "a cat", "score": 1},
    {"file_name": "cat/2.jpg", "caption": 'two "cats", asleep', "score": 2.5},
    {"file_name": "dog/3.jpg", "caption": "größer als\nerwartet", "score": -3},
]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "photos", PHOTOS)


def joined_parts(photos: Path, table: Path, **options: Any) -> dict[bytes, bytes]:
    """Members that a join adds."""
    pack(photos, photos.parent / "out", join=os.fspath(table), overwrite=True, **options)
    members = read_members(photos.parent / "out")
    return {name: content for name, content in members.items() if not name.endswith(b".jpg")}


# The JSON part


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".CSV"])
def test_a_text_table_becomes_a_json_part_of_texts(photos: Path, ending: str) -> None:
    table = write_csv(photos.parent / f"t{ending}", ROWS, "\t" if ending == ".tsv" else ",")
    assert joined_parts(photos, table) == {
        b"cat/1.json": b'{"caption":"a cat","score":"1"}',
        b"cat/2.json": b'{"caption":"two \\"cats\\", asleep","score":"2.5"}',
        b"dog/3.json": '{"caption":"größer als\\nerwartet","score":"-3"}'.encode(),
    }


def test_json_lines_keep_numbers_lists_and_nothing(photos: Path) -> None:
    rows = [dict(ROWS[0], tags=["a", 1], none=None), dict(ROWS[1], big=2**70), ROWS[2]]
    assert joined_parts(photos, write_jsonl(photos.parent / "t.jsonl", rows)) == {
        b"cat/1.json": b'{"caption":"a cat","none":null,"score":1,"tags":["a",1]}',
        b"cat/2.json": b'{"big":1180591620717411303424,"caption":"two \\"cats\\", asleep","score":2.5}',
        b"dog/3.json": '{"caption":"größer als\\nerwartet","score":-3}'.encode(),
    }


def test_parquet_keeps_types_and_writes_nan_as_null(photos: Path) -> None:
    import datetime

    day = datetime.date(2024, 2, 29)
    rows = [{"id": row["file_name"], "n": number, "x": float("nan"), "on": day} for number, row in enumerate(ROWS)]
    assert joined_parts(photos, write_parquet(photos.parent / "t.parquet", rows)) == {
        b"cat/1.json": b'{"n":0,"on":"2024-02-29","x":null}',
        b"cat/2.json": b'{"n":1,"on":"2024-02-29","x":null}',
        b"dog/3.json": b'{"n":2,"on":"2024-02-29","x":null}',
    }


def test_a_byte_order_mark_and_crlf_leave_no_trace(photos: Path) -> None:
    plain = joined_parts(photos, write_csv(photos.parent / "a.csv", ROWS))
    table = write_csv(photos.parent / "b.csv", ROWS, end="\r\n")
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert joined_parts(photos, table) == plain
    lines = joined_parts(photos, write_jsonl(photos.parent / "a.jsonl", ROWS))
    table = write_jsonl(photos.parent / "b.jsonl", ROWS, end="\r\n\r\n")
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert joined_parts(photos, table) == lines


def test_the_order_of_rows_and_columns_does_not_matter(photos: Path, tmp_path: Path) -> None:
    first = pack(photos, tmp_path / "a", join=os.fspath(write_csv(tmp_path / "a.csv", ROWS)))
    turned = [dict(reversed(row.items())) for row in reversed(ROWS)]
    second = pack(photos, tmp_path / "b", join=os.fspath(write_csv(tmp_path / "b.csv", turned)))
    assert first.stored.plan_id == second.stored.plan_id


def test_chosen_columns_only(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS)
    assert joined_parts(photos, table, join_columns=("score",))[b"cat/1.json"] == b'{"score":"1"}'
    both = joined_parts(photos, table, join_columns=("score", "file_name"))
    assert both[b"cat/1.json"] == b'{"file_name":"cat/1.jpg","score":"1"}'


# Parts of their own


def test_a_part_named_after_one_column_holds_its_bare_text(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS)
    parts = joined_parts(photos, table, join_part="caption", join_columns=("caption",))
    assert parts == {b"cat/1.caption": b"a cat", b"cat/2.caption": b'two "cats", asleep',
                     b"dog/3.caption": "größer als\nerwartet".encode()}  # fmt: skip


def test_named_parts_and_json_of_the_rest_go_together(photos: Path) -> None:
    table = write_jsonl(photos.parent / "t.jsonl", [dict(row, more=True) for row in ROWS])
    parts = joined_parts(photos, table, join_part="txt=caption,score.json=score,json")
    assert parts[b"dog/3.txt"] == "größer als\nerwartet".encode()
    assert parts[b"dog/3.score.json"] == b"-3"
    assert parts[b"dog/3.json"] == b'{"more":true}'
    assert len(parts) == 9


def test_a_null_cell_makes_no_part_and_an_empty_one_an_empty_part(photos: Path) -> None:
    rows = [dict(ROWS[0], caption=None), dict(ROWS[1], caption=""), {"file_name": "dog/3.jpg"}]
    parts = joined_parts(photos, write_jsonl(photos.parent / "t.jsonl", rows), join_part="txt=caption")
    assert parts == {b"cat/2.txt": b""}
    with pytest.raises(MissingPart, match="2 of 3 samples have no part 'txt'"):
        joined_parts(photos, photos.parent / "t.jsonl", join_part="txt=caption", require=("txt",))


def test_bytes_of_a_parquet_column_become_a_part_but_no_json(photos: Path) -> None:
    rows = [{"key": row["file_name"][:-4], "mask": bytes([number, 255])} for number, row in enumerate(ROWS)]
    table = write_parquet(photos.parent / "t.parquet", rows)
    assert joined_parts(photos, table, join_part="png=mask")[b"dog/3.png"] == b"\x02\xff"
    with pytest.raises(UsageProblem, match="holds bytes") as caught:
        joined_parts(photos, table)
    assert "--join-part png=" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", (PartSpec("json"),)),
        ("none", ()),
        ("txt=caption", (PartSpec("txt", "caption"),)),
        (" txt = a b , json", (PartSpec("txt", "a b"), PartSpec("json"))),
    ],
)
def test_join_part_names_parts_and_columns(text: str, parts: tuple[PartSpec, ...]) -> None:
    assert parse_parts(text) == parts


@pytest.mark.parametrize("text", ["a b=c", "txt=", "=a", ",", "Txt=a", "a=x,a=y", "json,txt", "1.5=a", "a/b=c"])
def test_a_join_part_that_readers_would_not_take_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--join-part"):
        parse_parts(text)


def test_a_bare_part_takes_one_column_only(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS)
    with pytest.raises(UsageProblem, match="2 are chosen: caption, score") as caught:
        joined_parts(photos, table, join_part="txt")
    assert "--join-part txt=caption" in caught.value.hint


def test_columns_that_go_to_no_part_are_refused(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS)
    with pytest.raises(UsageProblem, match="score go to no part"):
        joined_parts(photos, table, join_part="txt=caption", join_columns=("score",))


def test_a_part_that_files_have_already_is_refused_with_the_cure(photos: Path) -> None:
    make_tree(photos, {"cat/1.json": "{}"})
    with pytest.raises(GroupError, match=r"part 'json', but 1 samples have") as caught:
        joined_parts(photos, write_csv(photos.parent / "t.csv", ROWS))
    assert "--join-part" in caught.value.hint
    assert "--exclude '*.json'" in caught.value.hint
    assert joined_parts(photos, photos.parent / "t.csv", exclude=("*.json",))[b"cat/1.json"] != b"{}"


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_json_values_are_valid_and_read_back(value: Any) -> None:
    again = json.loads(json_object({"v": value}))["v"]
    assert json_object({"v": again}) == json_object({"v": value})
    assert bare_value(value) is None or isinstance(bare_value(value), bytes)


# Rows and samples without a partner


def test_a_sample_without_a_row_is_an_error_that_names_it(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS[:2])
    with pytest.raises(MissingPart, match=r"1 of 3 samples have no row in .*t\.csv\n  dog/3") as caught:
        joined_parts(photos, table)
    assert "--on-missing skip" in caught.value.hint
    assert caught.value.exit_code == 5


def test_a_sample_without_a_row_can_be_left_out_and_is_listed(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", ROWS[:2])
    done = run_cli("pack", photos, tmp_path / "out", "--join", table, "--on-missing", "skip", "--json")
    assert done.code == 3
    assert done.json["ledger"] == {"seen": 3, "packed": 2, "ignored": {}, "failed": 1}
    assert json_lines(tmp_path / "out/.shardtool/failed.jsonl") == [
        {"reason": "missing_row", "path": str(photos / "dog/3.jpg")}
    ]
    assert set(read_members(tmp_path / "out")) == {b"cat/1.jpg", b"cat/1.json", b"cat/2.jpg", b"cat/2.json"}


def test_a_sample_without_a_row_can_get_empty_parts(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", ROWS[:2])
    parts = joined_parts(photos, table, on_missing="empty", join_part="txt=caption,json")
    assert (parts[b"dog/3.txt"], parts[b"dog/3.json"]) == (b"", b"{}")


def test_rows_without_a_sample_are_an_error_that_names_lines(photos: Path) -> None:
    rows = [*ROWS, {"file_name": "cat/4.jpg", "caption": "", "score": 0}, dict(ROWS[0], file_name="cat/1.png")]
    with working_in(photos.parent), pytest.raises(GroupError) as caught:
        joined_parts(photos, write_csv(photos.parent / "t.csv", rows))
    assert caught.value.message.splitlines() == [
        "2 rows of t.csv match no sample",
        "  t.csv:6: cat/4.jpg",
        "  t.csv:7: cat/1.png (sample cat/1 has no such file)",
    ]


def test_rows_without_a_sample_are_a_notice_under_skip(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [*ROWS, dict(ROWS[0], file_name="cat/4.jpg")])
    said = Said()
    pack(photos, tmp_path / "out", join=os.fspath(table), on_missing="skip", say=said)
    assert any("1 row of" in text and "matches no sample" in text and ":6: cat/4.jpg" in text for text in said.warnings)


def test_two_rows_for_one_sample_are_an_error_that_names_both_lines(photos: Path) -> None:
    rows = [*ROWS, dict(ROWS[0], file_name="cat/1")]
    with working_in(photos.parent), pytest.raises(DuplicateKey, match=r"t\.csv:2 and t\.csv:6: cat/1"):
        joined_parts(photos, write_csv(photos.parent / "t.csv", rows))
    with working_in(photos.parent), pytest.raises(DuplicateKey, match=r"t\.jsonl:1 and t\.jsonl:4"):
        joined_parts(photos, write_jsonl(photos.parent / "t.jsonl", rows), on_missing="skip")
    with working_in(photos.parent), pytest.raises(DuplicateKey, match=r"t\.parquet row 1 and t\.parquet row 4"):
        joined_parts(photos, write_parquet(photos.parent / "t.parquet", [dict(row, score=1) for row in rows]))


def test_a_row_that_fits_several_samples_is_an_error(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", {"a/1.jpg": b"", "b/1.jpg": b""})
    table = write_csv(tmp_path / "t.csv", [{"id": "1.jpg", "n": 1}])
    with pytest.raises(GroupError, match="could belong to several samples"):
        joined_parts(source, table, on_missing="skip")


def test_all_troubles_of_a_table_come_in_one_error(photos: Path) -> None:
    rows = [ROWS[0], ROWS[0], dict(ROWS[1], file_name="cat/9.jpg")]
    with pytest.raises(GroupError) as caught:
        joined_parts(photos, write_csv(photos.parent / "t.csv", rows))
    for text in ("more than one row", "matches no sample", "2 of 3 samples have no row"):
        assert text in caught.value.message


def test_a_table_that_matches_nothing_is_an_error_under_any_policy(photos: Path) -> None:
    table = write_csv(photos.parent / "t.csv", [dict(row, file_name=f"no{n}") for n, row in enumerate(ROWS)])
    for policy in ("error", "skip", "empty"):
        with pytest.raises(GroupError, match="3 of 3 samples have no row") as caught:
            joined_parts(photos, table, on_missing=policy)
        assert "--join-key" in caught.value.hint


# The table file


def test_the_key_column_is_found_by_name_and_said(photos: Path, tmp_path: Path) -> None:
    said = Said()
    pack(photos, tmp_path / "out", join=os.fspath(write_csv(tmp_path / "t.csv", ROWS)), say=said)
    assert any("joined by its column 'file_name'" in text for text in said.warnings)
    quiet = Said()
    pack(photos, tmp_path / "out2", join=os.fspath(tmp_path / "t.csv"), join_key="file_name", say=quiet)
    assert quiet.warnings == []


def test_the_table_among_the_sources_is_joined_and_not_packed(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", PHOTOS)
    write_csv(source / "metadata.csv", ROWS)
    done = run_cli("pack", source, tmp_path / "out", "--join", source / "metadata.csv", "--json")
    assert done.code == 0
    assert done.json["ledger"] == {"seen": 4, "packed": 3, "ignored": {"joined_table": 1}, "failed": 0}
    assert b"metadata.csv" not in read_members(tmp_path / "out")
    (ignored,) = json_lines(tmp_path / "out/.shardtool/ignored.jsonl")
    assert (ignored["reason"], ignored["path"]) == ("joined_table", str(source / "metadata.csv"))
    link = tmp_path / "link"
    link.symlink_to(source)
    with working_in(tmp_path):
        done = run_cli("pack", link, tmp_path / "out2", "--join", "photos/metadata.csv", "--json")
    assert done.json["ledger"]["ignored"] == {"joined_table": 1}


def test_a_table_in_a_folder_of_its_own_leaves_the_other_rows_in_place(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", {**PHOTOS, "a/t.txt": b"", "z/9.jpg": b"nine"})
    os.unlink(source / "a/t.txt")
    table = write_csv(source / "a/t.csv", [*ROWS, dict(ROWS[0], file_name="z/9.jpg")])
    pack(source, tmp_path / "out", join=os.fspath(table))
    members = read_members(tmp_path / "out")
    assert {name: members[name] for name in members if name.endswith(b"jpg")} == {
        b"cat/1.jpg": b"one", b"cat/2.jpg": b"two", b"dog/3.jpg": b"three", b"z/9.jpg": b"nine",
    }  # fmt: skip


# Labels


def test_labels_come_from_a_column_in_the_order_of_their_names(photos: Path, tmp_path: Path) -> None:
    rows = [dict(row, kind=kind) for row, kind in zip(ROWS, ("tiger", "cat", "tiger"), strict=True)]
    table = write_csv(tmp_path / "t.csv", rows)
    parts = joined_parts(photos, table, label_from="column:kind")
    assert (parts[b"cat/1.cls"], parts[b"cat/2.cls"], parts[b"dog/3.cls"]) == (b"1", b"0", b"1")
    assert json.loads((tmp_path / "out/labels.json").read_text()) == ["cat", "tiger"]
    assert b"kind" not in parts[b"cat/1.json"]


@pytest.mark.parametrize(("ending", "write"), [("csv", write_csv), ("jsonl", write_jsonl), ("parquet", write_parquet)])
def test_labels_that_are_numbers_keep_numeric_order(photos: Path, tmp_path: Path, ending: str, write: Any) -> None:
    rows = [{"id": row["file_name"], "y": y} for row, y in zip(ROWS, (10, 9, -1), strict=True)]
    parts = joined_parts(photos, write(tmp_path / f"t.{ending}", rows), label_from="column:y")
    assert parts == {b"cat/1.cls": b"2", b"cat/2.cls": b"1", b"dog/3.cls": b"0"}
    assert json.loads((tmp_path / "out/labels.json").read_text()) == ["-1", "9", "10"]


def test_labels_alone_need_no_part(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", ROWS)
    assert set(joined_parts(photos, table, label_from="column:score", join_part="none")) == {
        b"cat/1.cls", b"cat/2.cls", b"dog/3.cls",
    }  # fmt: skip


def test_a_sample_without_a_label_is_an_error(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [dict(ROWS[0], caption=""), *ROWS[1:]])
    with pytest.raises(GroupError, match=r"1 samples have no label: column 'caption' of .* is empty there\n  cat/1"):
        joined_parts(photos, table, label_from="column:caption")
    with pytest.raises(UsageProblem, match="no column 'captoin'"):
        joined_parts(photos, table, label_from="column:captoin")


def test_join_options_without_a_table_are_refused(photos: Path, tmp_path: Path) -> None:
    for options in (("--join-key", "a"), ("--join-columns", "a"), ("--join-part", "a"), ("--label-from", "column:a")):
        done = run_cli("pack", photos, tmp_path / "out", *options, "--json")
        assert (done.code, done.error["hint"]) == (2, "--join metadata.csv")


def test_a_corrected_label_or_caption_makes_another_plan(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", ROWS)
    options: dict[str, Any] = {"join": os.fspath(table), "label_from": "column:score"}
    pack(photos, tmp_path / "out", **options)
    stored = load_plan(os.fspath(tmp_path / "out"))
    write_csv(table, [dict(ROWS[0], score=2.5), *ROWS[1:]])
    done = run_cli("pack", photos, tmp_path / "out", "--join", table, "--label-from", "column:score", "--json")
    assert done.code == 6
    assert "labels or joined values changed" in done.error["message"]
    again = pack(photos, tmp_path / "out2", **options)
    assert stored is not None
    assert again.stored.plan_id != stored.plan_id


def test_the_library_call_takes_the_seed_of_the_samples(photos: Path, tmp_path: Path) -> None:
    samples = group(entry_table([os.fsencode(path) for path in PHOTOS]), parse_rule(), seed=7).samples
    table = os.fspath(write_csv(tmp_path / "t.csv", ROWS))
    assert len(join(samples, table, seed=7).samples.generated) == 1
    assert pack(photos, tmp_path / "out", join=table, seed=7).manifest is not None
