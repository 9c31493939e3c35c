"""`shardtool scan`: what is there, what would be left out, and all problems at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import entry_table, make_tree, run_cli

from shardtool.keys import parse_rule
from shardtool.report.text import width
from shardtool.report.topics import TOPICS
from shardtool.statistics.survey import find_duplicates, part_sizes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files: dict[str, bytes | str] = {f"cats/{n:04d}.jpg": b"\xff\xd8\xff" + bytes(100 * n) for n in range(12)}
    files |= {f"dogs/{n:04d}.jpg": b"\xff\xd8\xff" + bytes(50 * n) for n in range(8)}
    files |= {f"cats/{n:04d}.json": "{}" for n in range(5)}
    files |= {"cats/.DS_Store": "", "dogs/.DS_Store": "", "dogs/Thumbs.db": "x"}
    return make_tree(tmp_path / "photos", files)


def test_scan_shows_files_samples_parts_classes_and_what_is_skipped(source: Path) -> None:
    done = run_cli("scan", source)
    assert done.code == 0
    assert "  25 files  20 samples" in done.out
    assert "jpg 20 (" in done.out
    assert "2 folders, 8 .. 12 samples   (as labels: --label-from parent)" in done.out
    assert "3 junk (.DS_Store 2, Thumbs.db 1)" in done.out
    assert "p50 " in done.out
    assert "▁" in done.out
    assert "cats/0000  jpg 3 B   json 2 B" in done.out
    assert "shardtool plan" in done.err


def test_scan_json_has_what_the_text_has(source: Path) -> None:
    document = run_cli("scan", source, "--json").json
    assert document["schema"] == "shardtool/scan/1"
    assert (document["entries"], document["samples"], document["seen"]) == (25, 20, 28)
    assert document["parts"]["json"] == {"entries": 5, "bytes": 10, "p50": 2, "p95": 2, "max": 2}
    assert document["classes"] == {"count": 2, "fewest": 8, "most": 12}
    assert document["ignored"] == {"junk": 3}
    assert len(document["preview"]) == 5
    assert document["preview"][0] == {"key": "cats/0000", "parts": {"jpg": 3, "json": 2}}
    assert document["problems"] == []


def test_the_preview_and_parts_hold_the_labels_that_were_asked_for(source: Path) -> None:
    document = run_cli("scan", source, "--label-from", "parent", "--json").json
    assert document["parts"]["cls"]["entries"] == 20
    assert document["preview"][0]["parts"]["cls"] == 1


def test_seen_is_entries_plus_ignored_plus_failed(source: Path) -> None:
    make_tree(source, {"README": "x", "dogs/x.tmp": ""})
    os.symlink("nowhere", source / "dogs" / "9999.jpg")
    document = run_cli("scan", source, "--json", "--exclude", "*.tmp", "--on-error", "skip").json
    left_out = sum(document["ignored"].values()) + sum(document["failed"].values())
    assert document["failed"] == {"dangling_link": 1}
    assert document["ignored"] == {"excluded": 1, "junk": 3, "no_extension": 1}
    assert document["seen"] == document["entries"] + left_out


def test_ragged_samples_are_a_warning_that_names_the_part(source: Path) -> None:
    assert "! 15 samples have no json: fine for tar, ragged for Hugging Face" in run_cli("scan", source).out


def test_files_without_extension_come_with_the_option_that_packs_them(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a/x": "1", "a/y": "2", "a/z.txt": "3"})
    done = run_cli("scan", tmp_path)
    assert "2 files have no extension" in done.out
    assert "--no-ext data" in done.out
    assert "no extension" not in run_cli("scan", tmp_path, "--no-ext", "data").out


def test_tables_among_the_files_suggest_a_join_that_can_be_pasted(source: Path) -> None:
    make_tree(source, {"metadata.csv": "file,caption\n"})
    assert f"--join {source}/metadata.csv" in " ".join(run_cli("scan", source).out.split())


def test_split_folders_suggest_to_keep_them(tmp_path: Path) -> None:
    make_tree(tmp_path, {f"{split}/a/{n}.txt": "x" for split in ("train", "val") for n in range(3)})
    assert "--split-by dir" in run_cli("scan", tmp_path).out


def test_empty_files_and_names_that_are_not_utf8_are_counted(tmp_path: Path) -> None:
    make_tree(tmp_path, {b"a/\xff1.txt": "x", b"a/\xfe2.txt": "", b"a/3.txt": "y"})
    done = run_cli("scan", tmp_path)
    assert "1 file of 0 bytes" in done.out
    assert "2 names are not UTF-8" in done.out
    assert r"a/\xff1" in done.out
    preview = run_cli("scan", tmp_path, "--json").json["preview"]
    assert {"key": r"a/\xfe2", "key_b64": "YS/+Mg==", "parts": {"txt": 0}} in preview


def test_every_problem_is_shown_and_the_exit_code_is_5(source: Path) -> None:
    os.symlink("nowhere", source / "dogs" / "9999.jpg")
    make_tree(source, {"cats/0001.JPG": "twice"})
    done = run_cli("scan", source)
    assert done.code == 5
    assert "27 files" not in done.out
    assert "jpg 21" in done.out, "the scan is shown although grouping failed"
    assert "dangling_link (9999.jpg)" in done.out
    assert "link" in done.err
    assert "cats/0001.JPG and cats/0001.jpg" in done.err
    document = run_cli("scan", source, "--json")
    kinds = [problem["kind"] for problem in document.json["problems"]]
    assert kinds == ["dangling_link", "duplicate_key"]
    assert document.error["exit_code"] == 5


def test_a_grouping_error_alone_keeps_its_class(source: Path) -> None:
    make_tree(source, {"cats/0001.JPG": "twice"})
    assert run_cli("scan", source, "--json").error["code"] == "DuplicateKey"


def test_duplicates_lists_every_claim(source: Path) -> None:
    make_tree(source, {"cats/0001.JPG": "twice", "dogs/0002.JpG": "twice"})
    done = run_cli("scan", source, "--duplicates")
    assert done.out.splitlines() == [
        "2 files claim cats/0001.jpg",
        "  cats/0001.JPG",
        "  cats/0001.jpg",
        "2 files claim dogs/0002.jpg",
        "  dogs/0002.JpG",
        "  dogs/0002.jpg",
    ]
    assert len(run_cli("scan", source, "--duplicates", "--json").json["duplicates"]) == 2


def test_names_that_become_one_key_are_duplicates_too() -> None:
    entries = entry_table([b"22.05.png", b"22_05.txt", b"23.png"])
    (found,) = find_duplicates(entries, parse_rule("last-dot"))
    assert (found.key, found.part, found.paths) == (b"22_05", None, (b"22.05.png", b"22_05.txt"))


def test_no_duplicates_is_said(source: Path) -> None:
    done = run_cli("scan", source, "--duplicates")
    assert (done.code, done.out) == (0, "")
    assert "claimed twice" in done.err


def test_list_shows_what_was_left_out_and_why(source: Path) -> None:
    done = run_cli("scan", source, "--list", "junk")
    assert len(done.out.splitlines()) == 3
    assert "Thumbs.db   (Windows thumbnails)" in done.out
    every = run_cli("scan", source, "--list", "all").out.splitlines()
    assert all(line.startswith("junk  ") for line in every)
    assert run_cli("scan", source, "--list", "failed").out == ""
    assert len(run_cli("scan", source, "--list", "ignored", "--json").json["listed"]) == 3


def test_a_mistyped_reason_names_the_nearest(source: Path) -> None:
    done = run_cli("scan", source, "--list", "jnuk")
    assert done.code == 2
    assert "did you mean junk?" in done.err


def test_an_empty_folder_exits_5_and_says_so(tmp_path: Path) -> None:
    done = run_cli("scan", tmp_path)
    assert done.code == 5
    assert "0 files" in done.out
    assert "holds no files to pack" in done.err


def test_a_source_that_is_not_there_exits_5(tmp_path: Path) -> None:
    done = run_cli("scan", tmp_path / "nowhere")
    assert (done.code, done.out) == (5, "")


def test_no_source_exits_2() -> None:
    assert run_cli("scan").code == 2


@pytest.mark.parametrize("topic", TOPICS)
def test_topics_are_explained_in_80_columns(topic: str) -> None:
    done = run_cli("scan", "--explain", topic)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert run_cli("scan", "--explain", topic, "--json").json["topic"] == topic


def test_a_mistyped_topic_names_the_nearest() -> None:
    assert "did you mean ragged?" in run_cli("scan", "--explain", "raged").err


def test_lines_stay_in_80_columns_for_long_and_wide_names(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"数据集的文件夹名称很长/{'图' * 40}{n}.png": bytes(n) for n in range(6)}
    files |= {f"b/{'x' * 120}{n}.{'y' * 40}{n}": "1" for n in range(12)}
    files |= {f"b/{'z' * 150}.tmp": ""}
    make_tree(tmp_path, files)
    done = run_cli("scan", tmp_path, "--exclude", "*.tmp")
    lines = done.out.splitlines()
    assert max(map(width, [line for line in lines[1:] if not line.startswith("!")])) <= 80


def test_quiet_is_one_line(source: Path) -> None:
    assert run_cli("scan", source, "-q").out.startswith("25 files  20 samples  ")


def test_part_sizes_count_octaves_from_the_smallest() -> None:
    found = part_sizes(np.array([1, 2, 3, 4, 1000], np.int64))
    assert (found.p50, found.largest, found.num_bytes) == (3, 1000, 1010)
    assert found.octaves == (1, 2, 1, 0, 0, 0, 0, 0, 0, 1)
