from __future__ import annotations

import errno
import io
import os
import socket
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import AccessDenied, SourceNotFound, UsageProblem
from shardtool.scan import check_overlap, scan
from shardtool.sources import SOURCES, source_class
from shardtool.sources.found import show_path
from shardtool.sources.junk import JUNK, Glob, junk_reason
from shardtool.sources.listing import ListingSource
from shardtool.sources.tree import BLOCK, TreeSource
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import EntryTable, ScanResult


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, preload=("shardtool.sources.tree",)) as pool:
        yield pool


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder, and the rights of somebody who is not root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        was_root = os.geteuid() == 0
        try:
            if was_root:
                os.chown(folder, 65534, -1)
                os.seteuid(65534)
            yield Path(folder)
        finally:
            if was_root:
                os.seteuid(0)
            for path in [Path(folder), *Path(folder).rglob("*")]:
                path.chmod(0o755)


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def rows(table: EntryTable) -> list[bytes]:
    return [table.path(row) for row in range(table.num_entries)]


def paths(result: ScanResult) -> list[bytes]:
    return rows(result.entries)


def same(one: ScanResult, other: ScanResult) -> bool:
    first, second = one.entries, other.entries
    return (
        first.dirs == second.dirs
        and first.names.equals(second.names)
        and all(
            np.array_equal(getattr(first, column), getattr(second, column))
            for column in ("dir_root", "dir_start", "sizes", "mtimes_ns")
        )
        and (one.ignored, one.failed, one.problems) == (other.ignored, other.failed, other.problems)
        and (one.num_links, one.tables, one.seen) == (other.num_links, other.tables, other.seen)
    )


# --- rows


def test_rows_are_sorted_by_root_folder_and_name(tmp_path: Path) -> None:
    one = make(tmp_path / "z", "b.jpg", "a.jpg", "a/2.jpg", "a/1.jpg", "a-b/3.jpg", "a/c/4.jpg")
    two = make(tmp_path / "y", "0.jpg")
    result = scan([one, two])
    assert paths(result) == [b"a.jpg", b"b.jpg", b"a/1.jpg", b"a/2.jpg", b"a-b/3.jpg", b"a/c/4.jpg", b"0.jpg"]
    assert result.entries.roots == (str(one), str(two))
    assert result.entries.dirs == [b"", b"a", b"a-b", b"a/c", b""]
    assert result.entries.dir_root.tolist() == [0, 0, 0, 0, 1]
    assert result.seen == 7
    assert result.problems == ()


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    make(tmp_path, "a/x", "a/yy", "zzz")
    os.utime(tmp_path / "zzz", ns=(5, 1_234_567_890_123_456_789))
    table = scan([tmp_path]).entries
    for row, path in enumerate(rows(table)):
        status = (tmp_path / path.decode()).stat()
        assert (table.sizes[row], table.mtimes_ns[row]) == (status.st_size, status.st_mtime_ns)


def test_empty_files_are_rows_and_empty_folders_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    result = scan([tmp_path])
    assert paths(result) == [b"empty"]
    assert result.seen == 1


def test_an_empty_source_has_no_rows(tmp_path: Path) -> None:
    result = scan([tmp_path])
    assert (result.entries.num_entries, result.entries.dirs, result.seen) == (0, [], 0)
    assert result.entries.dir_start.tolist() == [0]


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    names = sorted([b"\xff\x92.jpg", b"new\nline", b"tab\t", b"\xc3\xa9", b"e\xcc\x81", b"a" * 255, b" ", b"-rf"])
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    assert paths(scan([tmp_path])) == names


def test_two_roots_keep_equal_paths_apart(tmp_path: Path) -> None:
    result = scan([make(tmp_path / "b", "x/1"), make(tmp_path / "a", "x/1")])
    assert result.entries.dirs == [b"x", b"x"]
    assert result.entries.dir_root.tolist() == [0, 1]


# --- left out


@pytest.mark.parametrize("pattern", sorted(JUNK))
def test_junk_is_counted_and_not_packed(tmp_path: Path, pattern: bytes) -> None:
    name = os.fsdecode(pattern.replace(b"*", b"_x"))
    make(tmp_path, "a.jpg", f"sub/{name}", f"{name}/inside")
    for hidden in (False, True):
        result = scan([tmp_path], hidden=hidden)
        assert paths(result) == [b"a.jpg"]
        assert result.ignored.counts == {"junk": 2}
        assert {detail for _, _, detail in result.ignored.entries} == {JUNK[pattern]}


@pytest.mark.parametrize("name", [b"git", b"Thumbs.db.jpg", b"~x", b"x.DS_Store", b"lost", b".gitignore", b"CVS"])
def test_names_like_junk_are_none(name: bytes) -> None:
    assert junk_reason(name) is None


def test_hidden_names_are_counted_unless_wanted(tmp_path: Path) -> None:
    make(tmp_path, ".a.jpg", "b.jpg", ".cache/c.jpg", ".cache/d.jpg")
    result = scan([tmp_path])
    assert paths(result) == [b"b.jpg"]
    base = os.fsencode(tmp_path)
    assert result.ignored.entries == [("hidden", base + b"/.a.jpg", ""), ("hidden", base + b"/.cache/", "")]
    assert paths(scan([tmp_path], hidden=True)) == [b".a.jpg", b"b.jpg", b".cache/c.jpg", b".cache/d.jpg"]


def test_special_files_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jpg")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to_fifo").symlink_to("fifo")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        result = scan([tmp_path])
    (tmp_path / "to_null").symlink_to("/dev/null")
    assert scan([tmp_path]).ignored.counts == {"special": 4}
    assert paths(result) == [b"a.jpg"]
    details = [detail for _, _, detail in result.ignored.entries]
    assert details == ["a fifo", "a socket", "a link to a fifo"]


def test_exclude_leaves_out_files_and_whole_folders(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "a.tmp", "raw/1.jpg", "raw/2.jpg", "x/raw/3.jpg", "x/b.jpg")
    result = scan([tmp_path], exclude=["*.tmp", "raw"])
    assert paths(result) == [b"a.jpg", b"x/b.jpg"]
    assert result.ignored.counts == {"excluded": 3}
    assert [detail for _, _, detail in result.ignored.entries] == ["*.tmp", "raw", "raw"]


def test_include_takes_only_what_matches(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "a.txt", "train/b.jpg", "train/deep/c.txt", "test/d.jpg")
    result = scan([tmp_path], include=["train/**", "a.txt"])
    assert paths(result) == [b"a.txt", b"train/b.jpg", b"train/deep/c.txt"]
    assert result.ignored.counts == {"not_included": 2}
    assert result.problems == ()


def test_an_include_pattern_that_matches_nothing_is_a_problem(tmp_path: Path, pool: WorkerPool) -> None:
    make(tmp_path, "a.jpg", "b/b.jpg", "c/c.png")
    for chosen in (None, pool):
        (problem,) = scan([tmp_path], include=["*.jpg", "*.png", "*.jpgg"], pool=chosen).problems
        assert (problem.kind, problem.examples, problem.is_fatal) == ("include_unmatched", ("*.jpgg",), True)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.jpg", "a.jpg x/y/a.jpg .jpg", "a.jpg.txt a.jpgx jpg"),
        ("a?c", "abc x/abc", "ac abbc a/c"),
        ("x/*.jpg", "x/a.jpg", "x/y/a.jpg a.jpg y/x/a.jpg"),
        ("/a.jpg", "a.jpg", "x/b.jpg"),
        ("x/**", "x/a x/y/a", "x xx/a y/x/a"),
        ("**/a", "a x/a x/y/a", "xa x/ba"),
        ("x/**/a", "x/a x/y/a x/y/z/a", "x/ya xa"),
        ("[a-c]*", "abc bcd", "dab"),
        ("[!a-c]*", "dab", "abc"),
        ("[]]x", "]x", "[x"),
        ("[a", "[a", "a"),
        ("a+(b).x", "a+(b).x", "aab.x"),
        ("[&&^a]", "& ^ a", "b"),
        ("a\\b", "a\\b", "ab"),
    ],
)
def test_globs(pattern: str, matching: str, other: str) -> None:
    glob = Glob(pattern.encode())
    for path in matching.encode().split():
        assert glob.matches(path.rpartition(b"/")[2], path), path
    for path in other.encode().split():
        assert not glob.matches(path.rpartition(b"/")[2], path), path


def test_globs_match_bytes_that_are_no_text() -> None:
    assert Glob(os.fsencode("*\udcff?")).matches(b"a\xff\x80", b"a\xff\x80")
    assert Glob(b"x/").matches(b"x", b"x", is_folder=True)
    assert not Glob(b"x/").matches(b"x", b"x")


def test_a_pattern_that_is_none_is_a_usage_problem(tmp_path: Path) -> None:
    make(tmp_path, "a")
    with pytest.raises(UsageProblem, match=r"\[z-a\]"):
        scan([tmp_path], include=["[z-a]"])


# --- links


def test_links_to_files_and_folders_are_followed_and_counted(tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", "1.jpg", "deep/2.jpg")
    source = make(tmp_path / "source", "0.jpg")
    (source / "folder").symlink_to(outside)
    (source / "same").symlink_to(outside)
    (source / "file.jpg").symlink_to(outside / "1.jpg")
    result = scan([source])
    names = [b"0.jpg", b"file.jpg", b"folder/1.jpg", b"folder/deep/2.jpg", b"same/1.jpg", b"same/deep/2.jpg"]
    assert paths(result) == names
    assert result.num_links == 3
    assert result.entries.sizes.tolist() == [5, 5, 5, 10, 5, 10]


def test_a_class_folder_that_is_a_link_to_its_sibling_is_legal(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg")
    (tmp_path / "kitten").symlink_to("cat")
    assert paths(scan([tmp_path])) == [b"cat/1.jpg", b"kitten/1.jpg"]


@pytest.mark.parametrize("target", [".", "..", "../..", "../../.."])
def test_a_link_to_a_folder_above_ends_as_a_loop(tmp_path: Path, target: str) -> None:
    source = make(tmp_path / "source", "a/b/1.jpg")
    (source / "a" / "b" / "up").symlink_to(target)
    result = scan([source])
    assert paths(result)[0] == b"a/b/1.jpg"
    assert len(paths(result)) <= 2
    assert result.ignored.counts == {"link_loop": 1}


def test_links_that_lead_to_one_another_end(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "to_b").symlink_to("../b")
    (tmp_path / "b" / "to_a").symlink_to("../a")
    result = scan([tmp_path])
    assert paths(result) == [b"a/1.jpg", b"a/to_b/2.jpg", b"b/2.jpg", b"b/to_a/1.jpg"]
    assert result.ignored.counts == {"link_loop": 2}
    assert result.num_links == 2


def test_dangling_links_are_fatal_unless_errors_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg")
    for number in range(7):
        (tmp_path / f"gone{number}.jpg").symlink_to("nowhere")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    for on_error, is_fatal in (("error", True), ("skip", False)):
        result = scan([tmp_path], on_error=on_error)
        (problem,) = result.problems
        assert (problem.kind, problem.count, len(problem.examples), problem.is_fatal) == (
            "dangling_link",
            8,
            5,
            is_fatal,
        )
        assert result.failed.counts == {"dangling_link": 8}
        assert result.failed.entries[0] == ("dangling_link", os.fsencode(tmp_path / "gone0.jpg"), "to nowhere")
        assert paths(result) == [b"a.jpg"]


def test_links_can_be_skipped_or_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").symlink_to("a.jpg")
    (tmp_path / "gone").symlink_to("nowhere")
    skipped = scan([tmp_path], links="skip")
    assert (paths(skipped), skipped.ignored.counts, skipped.problems) == ([b"a.jpg"], {"link": 2}, ())
    refused = scan([tmp_path], links="error")
    assert (paths(refused), refused.failed.counts) == ([b"a.jpg"], {"link": 2})
    assert [problem.kind for problem in refused.problems] == ["link"]


def test_excluded_and_junk_links_may_dangle(tmp_path: Path) -> None:
    for name in ("a.tmp", ".nfs1", ".hidden"):
        (tmp_path / name).symlink_to("nowhere")
    assert scan([tmp_path], exclude=["*.tmp"]).ignored.counts == {"excluded": 1, "hidden": 1, "junk": 1}


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", "a/1.jpg")
    (tmp_path / "link").symlink_to("real")
    result = scan([tmp_path / "link"])
    assert (paths(result), result.num_links) == ([b"a/1.jpg"], 0)


# --- rights


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_unreadable_files_and_folders_are_found_without_reading(on_error: str) -> None:
    with ordinary_user() as folder:
        make(folder, "a.jpg", "secret.jpg", "closed/b.jpg", "listable/c.jpg", "group.jpg")
        (folder / "secret.jpg").chmod(0)
        (folder / "group.jpg").chmod(0o440)
        (folder / "closed").chmod(0o300)
        (folder / "listable").chmod(0o400)
        result = scan([folder], on_error=on_error)
        assert paths(result) == [b"a.jpg", b"group.jpg"]
        base = os.fsencode(folder)
        denied = [base + b"/closed", base + b"/listable/c.jpg", base + b"/secret.jpg"]
        assert [path for _, path, _ in result.failed.entries] == denied
        (problem,) = result.problems
        assert (problem.kind, problem.count, problem.is_fatal) == ("access_denied", 3, on_error == "error")


def test_a_root_that_may_not_be_read_is_denied() -> None:
    with ordinary_user() as folder:
        make(folder, "closed/a.jpg")
        (folder / "closed").chmod(0)
        with pytest.raises(AccessDenied, match="closed"):
            scan([folder / "closed"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads everything")
def test_root_reads_everything(tmp_path: Path) -> None:
    make(tmp_path, "secret.jpg").joinpath("secret.jpg").chmod(0)
    assert paths(scan([tmp_path])) == [b"secret.jpg"]


# --- troubles


def test_roots_that_do_not_exist_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"no1, .*no2 does not exist"):
        scan([tmp_path / "no1", tmp_path, tmp_path / "no2"])
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(SourceNotFound, match="link that points to nothing"):
        scan([tmp_path / "gone"])


def test_a_root_that_is_a_file_is_a_usage_problem(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg")
    with pytest.raises(UsageProblem, match="not a folder"):
        scan([tmp_path / "a.jpg"])


@pytest.mark.parametrize("wrong", [{"links": "ignore"}, {"on_error": "raise"}])
def test_words_that_are_no_policy_are_usage_problems(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem, match="is not one of"):
        scan([tmp_path], **wrong)


def test_no_root_is_a_usage_problem() -> None:
    with pytest.raises(UsageProblem, match="no source"):
        scan([])


def test_overlaps_are_refused_in_both_directions(tmp_path: Path) -> None:
    make(tmp_path, "a/b/1.jpg", "ab/2.jpg")
    (tmp_path / "link").symlink_to("a")
    a, b, link = tmp_path / "a", tmp_path / "a" / "b", tmp_path / "link"
    for roots, output in (([a], a), ([a], b), ([b], a), ([a], a / "new" / "out"), ([a], link / "out"), ([link], b)):
        with pytest.raises(UsageProblem, match="output"):
            check_overlap(roots, output)
    for roots in ([a, a], [a, b], [b, a], [link, b]):
        with pytest.raises(UsageProblem, match="sources"):
            check_overlap(roots, None)
        with pytest.raises(UsageProblem, match="sources"):
            scan(roots)
    check_overlap([a, tmp_path / "ab"], tmp_path / "out")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, "vanished"),
        (errno.ENOTDIR, "vanished"),
        (errno.EIO, "unreadable"),
        (errno.EACCES, "access_denied"),
    ],
)
def test_a_folder_that_cannot_be_listed_is_one_failed_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    make(tmp_path, "a/1.jpg", "b/2.jpg", "b/3.jpg")
    real_open = os.open

    def fickle(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.fsencode(path).endswith(b"/b"):
            raise OSError(code, os.strerror(code))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fickle)
    result = scan([tmp_path])
    assert (paths(result), result.seen) == ([b"a/1.jpg"], 2)
    assert result.failed.entries == [(kind, os.fsencode(tmp_path / "b"), os.strerror(code))]
    assert result.problems[0].is_fatal


def test_a_file_that_vanishes_is_a_failed_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "1.jpg", "2.jpg")
    real_listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*real_listdir(path), b"gone.jpg", b".nfs17"])
    result = scan([tmp_path])
    assert (paths(result), result.failed.counts) == ([b"1.jpg", b"2.jpg"], {"vanished": 1})
    assert result.ignored.counts == {"junk": 1}


def test_tables_among_the_files_are_noticed(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "a/metadata.csv", "a/other.csv", "top.parquet", "labels.tsv", "b/labels.jsonl")
    result = scan([tmp_path])
    names = ("a/metadata.csv", "b/labels.jsonl", "labels.tsv", "top.parquet")
    assert result.tables == tuple(os.fsencode(tmp_path / name) for name in names)
    assert b"a/metadata.csv" in paths(result)
    make(tmp_path / "plain", "x.csv", "y.jpg")
    assert scan([tmp_path / "plain"]).tables == (os.fsencode(tmp_path / "plain" / "x.csv"),)


def test_paths_are_shown_without_breaking_a_terminal() -> None:
    assert show_path(b"a\xff\n\x1b[31m/\xc3\xa9") == r"a\xff\n\x1b[31m/é"


# --- lists


def listed(root: Path, data: bytes, **options: Any) -> ScanResult:
    where = root.parent / "list"
    where.write_bytes(data)
    return scan([root], files_from=str(where), **options)


def test_a_list_chooses_files(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a.jpg", "b/1.jpg", "b/2.jpg", "b/.h.jpg", "c.jpg")
    data = b"b/2.jpg\n./a.jpg\n\nb//1.jpg\n" + os.fsencode(root) + b"/c.jpg\nb/.h.jpg"
    result = listed(root, data)
    assert paths(result) == [b"a.jpg", b"c.jpg", b"b/.h.jpg", b"b/1.jpg", b"b/2.jpg"]
    assert result.seen == 5
    assert result.problems == ()
    assert result.entries.sizes.tolist() == [5, 5, 8, 7, 7]


def test_a_list_may_be_separated_by_nul(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "new\nline", "x")
    assert paths(listed(root, b"new\nline\0x\0", null_separated=True)) == [b"new\nline", b"x"]
    with pytest.raises(UsageProblem, match="NUL"):
        listed(root, b"new\nline\0x\0")


def test_a_list_comes_from_stdin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a", "b")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"b\n")))
    assert paths(scan([tmp_path], files_from="-")) == [b"b"]


def test_windows_line_ends_are_taken_off(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a", "b")
    assert paths(listed(root, b"a\r\n\r\nb\r\n")) == [b"a", b"b"]


def test_every_trouble_of_a_list_is_told(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a", "b/1", ".git/config", "x.tmp", "y.tmp/1")
    data = b"a\nno\nno/such\na/below\na\n./a\n../list\n/etc/passwd\nb\nb/../a\n.git/config\nx.tmp\ny.tmp/1\n"
    result = listed(root, data, exclude=["*.tmp"])
    assert paths(result) == [b"a"]
    assert result.failed.counts == {"not_found": 3, "listed_twice": 2, "outside_root": 3, "not_a_file": 1}
    assert result.ignored.counts == {"junk": 1, "excluded": 2}
    assert result.seen == 13
    assert {problem.kind for problem in result.problems} == set(result.failed.counts)
    assert all(problem.is_fatal for problem in result.problems)
    assert not any(problem.is_fatal for problem in listed(root, data, on_error="skip").problems)


def test_a_list_follows_links_by_the_same_rules(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a")
    (root / "b").symlink_to("a")
    (root / "gone").symlink_to("nowhere")
    result = listed(root, b"a\nb\ngone")
    assert (paths(result), result.num_links, result.failed.counts) == ([b"a", b"b"], 1, {"dangling_link": 1})
    assert listed(root, b"a\nb\ngone", links="skip").ignored.counts == {"link": 2}


def test_a_list_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a")
    with pytest.raises(SourceNotFound, match="no-list"):
        scan([root], files_from=str(tmp_path / "no-list"))
    with pytest.raises(UsageProblem, match="empty"):
        listed(root, b"\n\n")
    with pytest.raises(UsageProblem, match="one source folder"):
        scan([root, tmp_path / "root2"], files_from="-")


# --- with workers


def wide_tree(root: Path) -> Path:
    """Folders, links, junk, and one folder of more names than a task takes."""
    for number in range(150):
        make(root, f"p{number % 7}/d{number:03d}/x.jpg", f"p{number % 7}/d{number:03d}/x.txt")
    make(root, "p3/Thumbs.db", "p3/metadata.csv", "p4/.hidden", "p5/__pycache__/x")
    (root / "p1" / "loop").symlink_to("..")
    (root / "p2" / "gone").symlink_to("nowhere")
    (root / "p2" / "other").symlink_to("../p6")
    flat = root / "flat"
    flat.mkdir()
    for number in range(2 * BLOCK + 10):
        os.close(os.open(flat / f"{number:06d}", os.O_CREAT | os.O_WRONLY))
    make(flat, "sub/1.jpg")
    return root


def test_workers_find_the_same_as_one_process(tmp_path: Path, pool: WorkerPool) -> None:
    root = wide_tree(tmp_path / "root")
    roots = (str(root / "flat"), str(root))
    alone, spread = TreeSource(roots).scan(), TreeSource(roots, pool=pool, alone_s=0.0).scan()
    assert same(alone, spread)
    assert alone.entries.num_entries == 300 + 1 + 42 + 2 * (2 * BLOCK + 11)
    data = [path.removeprefix(b"flat/") for path in rows(TreeSource((str(root),)).scan().entries)]
    everything = [path for path in data if b"/" in path or path.isdigit()]
    args = (str(root / "flat"), [*everything, b"missing", b"000001"])
    assert same(ListingSource(*args).scan(), ListingSource(*args, pool=pool, alone_s=0.0).scan())


def test_small_trees_start_no_worker(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/2.jpg")
    with WorkerPool(2) as pool:
        assert scan([tmp_path], pool=pool).seen == 2
        assert pool._workers == []


def test_workers_see_the_working_folder_they_had(tmp_path: Path, pool: WorkerPool) -> None:
    make(tmp_path, "a/1.jpg")
    before = {folder for _, folder in pool.run("worker_tasks:folder", range(4))}
    TreeSource((str(tmp_path),), pool=pool, alone_s=0.0).scan()
    assert {folder for _, folder in pool.run("worker_tasks:folder", range(4))} == before


def test_every_source_has_a_class() -> None:
    assert [source_class(name).__name__ for name in SOURCES] == ["TreeSource", "ListingSource", "S3Source"]
    with pytest.raises(UsageProblem, match="unknown source 'cloud'"):
        source_class("cloud")


# --- against a simple reader of trees, on trees of any shape

NAMES = st.sampled_from([b"a", b"b.jpg", b"c", b".h", b"Thumbs.db", b"~$x", b"\xff", b"n\nl", b"metadata.csv", b"-"])
LEAVES = st.one_of(
    st.integers(0, 3),
    st.sampled_from(["fifo", "link:a", "link:..", "link:.", "link:nowhere", "link:../c", "link:b.jpg", "link:../.."]),
)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=5), max_leaves=25)


def build(path: bytes, shape: Any) -> None:
    if isinstance(shape, dict):
        os.mkdir(path)
        for name, inner in shape.items():
            build(os.path.join(path, name), inner)
    elif isinstance(shape, int):
        with open(path, "wb") as out:
            out.write(b"x" * shape)
    elif shape == "fifo":
        os.mkfifo(path)
    else:
        os.symlink(shape.partition(":")[2].encode(), path)


def simple(path: bytes, above: list[tuple[int, int]], *, hidden: bool) -> Iterator[tuple[str, bytes, int]]:
    """(what, path, size) of everything below a folder, written for reading and not for speed."""
    status = os.stat(path)
    above = [*above, (status.st_dev, status.st_ino)]
    for name in os.listdir(path):
        below = os.path.join(path, name)
        if junk_reason(name) is not None:
            yield "junk", below, 0
        elif name.startswith(b".") and not hidden:
            yield "hidden", below, 0
        elif not os.path.exists(below):
            yield "dangling_link", below, 0
        elif stat.S_ISDIR(os.stat(below).st_mode):
            identity = (os.stat(below).st_dev, os.stat(below).st_ino)
            if identity in above:
                yield "link_loop", below, 0
            else:
                yield from simple(below, above, hidden=hidden)
        elif os.path.isfile(below):
            yield "row", below, os.stat(below).st_size
        else:
            yield "special", below, 0


@settings(deadline=None, max_examples=100)
@given(shape=st.dictionaries(NAMES, TREES, max_size=6), hidden=st.booleans())
def test_nothing_is_lost_on_any_tree(shape: dict[bytes, Any], hidden: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(os.fsencode(folder), b"root", b"source")
        os.mkdir(os.path.dirname(base))
        build(base, shape)
        expected = list(simple(base, [], hidden=hidden))
        result = scan([os.fsdecode(base)], hidden=hidden)
        table = result.entries
        found = [("row", os.path.join(base, path), int(table.sizes[row])) for row, path in enumerate(rows(table))]
        assert found == sorted(found, key=lambda row: os.path.split(row[1][len(base) :]))
        others = [*result.ignored.entries, *result.failed.entries]
        assert sorted(found + [(kind, path.rstrip(b"/"), 0) for kind, path, _ in others]) == sorted(expected)
        assert result.seen == len(expected)
