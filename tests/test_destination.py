"""Where the output goes: full, read-only, foreign, overlapping, linked, oddly named; never a half state."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, read_members, run_cli, working_in
from places import as_somebody, mounted
from snapshots import content, finish, small_tree, temps

from shardtool.errors import DestinationExists, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


# --- not writable


def test_a_read_only_file_system_is_refused(tree: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        ran = run_cli("pack", tree, disk / "out", "--json")
        assert (ran.code, ran.error["code"]) == (6, "DestinationError")
        assert ran.error["where"]["path"].startswith(os.fspath(disk))


def test_a_folder_that_may_not_be_written_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        base.chmod(0o755)
        tree = small_tree(base / "src")
        run_cli("pack", tree, base / "whole")  # imports all that is needed, which somebody may not read
        (base / "locked").mkdir()
        (base / "locked").chmod(0o555)
        with as_somebody():
            ran = run_cli("pack", tree, base / "locked" / "out", "--json")
        assert ran.code == 6, ran.err
        assert "may write" in ran.error["hint"]
        assert list((base / "locked").iterdir()) == []


def test_a_folder_that_may_not_be_listed_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        base.chmod(0o755)
        tree = small_tree(base / "src")
        run_cli("pack", tree, base / "whole")
        (base / "out").mkdir()
        (base / "out").chmod(0)
        with as_somebody():
            ran = run_cli("pack", tree, base / "out")
        assert ran.code == 6, ran.err


def test_a_data_set_that_may_only_be_read_has_nothing_to_do(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=4m") as disk:
        tree = small_tree(tmp_path / "src")
        whole = finish(tree, disk / "out")
        subprocess.run(["mount", "-o", "remount,ro", os.fspath(disk)], check=True)
        ran = run_cli("pack", tree, disk / "out", "--shards", "4", "--durability", "none")
        assert ran.code in (0, 6), ran.err
        assert content(disk / "out") == whole


# --- something else is there


def a_file(out: Path) -> None:
    out.write_text("mine")


def below_a_file(out: Path) -> None:
    out.parent.rmdir()
    out.parent.write_text("mine")


def a_link_to_nothing(out: Path) -> None:
    out.symlink_to("nowhere")


def a_link_to_itself(out: Path) -> None:
    out.symlink_to(out)


def a_fifo(out: Path) -> None:
    os.mkfifo(out)


def a_folder_of_files(out: Path) -> None:
    make_tree(out, {"photo.jpg": "mine", "data/train-00000-of-00001.tar": "mine"})


def a_foreign_manifest(out: Path) -> None:
    make_tree(out, {"manifest.json": '{"version": 3}'})


def a_broken_manifest(out: Path) -> None:
    make_tree(out, {"manifest.json": "{"})


def hidden_files(out: Path) -> None:
    make_tree(out, {".secret": "mine"})


def a_folder_called_like_ours(out: Path) -> None:
    make_tree(out, {".shardtool/notes": "mine", "a.txt": "mine"})


@pytest.mark.parametrize(
    "put",
    [
        a_file,
        below_a_file,
        a_link_to_nothing,
        a_link_to_itself,
        a_fifo,
        a_folder_of_files,
        a_foreign_manifest,
        a_broken_manifest,
        hidden_files,
        a_folder_called_like_ours,
    ],
    ids=lambda put: put.__name__,
)
@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--part", "0/2")], ids=["plain", "overwrite", "part"])
def test_what_is_not_ours_is_refused_and_not_touched(
    tree: Path, tmp_path: Path, put: Callable[[Path], None], more: tuple[str, ...]
) -> None:
    out = tmp_path / "place" / "out"
    out.parent.mkdir()
    put(out)
    before = sorted((path, path.lstat().st_mtime_ns, path.lstat().st_ino) for path in (tmp_path / "place").rglob("*"))
    ran = run_cli("pack", tree, out, *more, "--json")
    assert ran.code == 6, ran.err
    assert ran.error["where"]["path"]
    after = sorted((path, path.lstat().st_mtime_ns, path.lstat().st_ino) for path in (tmp_path / "place").rglob("*"))
    assert after == before


def test_a_refusal_names_what_is_there(tree: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "out", {f"{n}.jpg": "mine" for n in range(5)})
    with pytest.raises(DestinationExists, match=r"0.jpg, 1.jpg, 2.jpg and 2 more"):
        pack(tree, tmp_path / "out")


@pytest.mark.parametrize("names", [[], [".DS_Store"], ["lost+found/"]], ids=["empty", "finder", "fresh-disk"])
def test_an_empty_folder_is_taken(tree: Path, tmp_path: Path, names: list[str]) -> None:
    make_tree(tmp_path / "out", dict.fromkeys(names, b""))
    assert pack(tree, tmp_path / "out").manifest is not None


def test_nothing_is_written_below_a_link_that_leads_out(tree: Path, tmp_path: Path) -> None:
    """A manifest that was tampered with names no place outside, so that --overwrite cannot be led there."""
    finish(tree, tmp_path / "out")
    victim = tmp_path / "victim.tar"
    victim.write_text("mine")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("data/train-00001-of-00004.tar", "../victim.tar"))
    pack(tree, tmp_path / "out", shards=4, overwrite=True)
    assert victim.read_text() == "mine"


# --- source and output overlap


def overlaps(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """name -> (source, output), relative to `tmp_path`."""
    (tmp_path / "link").symlink_to(tmp_path / "src")
    (tmp_path / "src" / "back").symlink_to(tmp_path)
    return {
        "same": ("src", "src"),
        "same-with-slash": ("src/", "src"),
        "inside": ("src", "src/out"),
        "deep-inside": ("src", "src/x/../y/out"),
        "around": ("src/a", "src"),
        "through-a-link": ("link", "src/out"),
        "to-a-link": ("src", "link/out"),
        "dots": ("src/a/..", "src/out"),
        "here": (".", "out"),
    }


@pytest.mark.parametrize("case", ["same", "same-with-slash", "inside", "deep-inside", "around", "through-a-link",
                                  "to-a-link", "dots", "here"])  # fmt: skip
def test_source_and_output_that_overlap_are_refused(tree: Path, tmp_path: Path, case: str) -> None:
    source, out = overlaps(tmp_path)[case]
    before = sorted(tmp_path.rglob("*"))
    with working_in(tmp_path), pytest.raises(UsageProblem, match="overlap"):
        pack(Path(source), Path(out))
    assert sorted(tmp_path.rglob("*")) == before


def test_sources_that_overlap_are_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"src and .*src/a overlap"):
        pack([tree, tree / "a"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_that_begin_alike_do_not_overlap(tree: Path, tmp_path: Path) -> None:
    assert pack(tree, tmp_path / "src-out").manifest is not None


@pytest.mark.parametrize("args", [("", "out"), ("src", "")], ids=["source", "output"])
def test_an_empty_name_is_a_slip_not_the_working_folder(tree: Path, tmp_path: Path, args: tuple[str, str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    with working_in(tmp_path):
        ran = run_cli("pack", *args)
    assert ran.code in (2, 5), ran.err
    assert sorted(tmp_path.rglob("*")) == before


# --- odd places


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "ü/é 日本",
        "line\nbreak",
        "-o",
        "100%",
        "$HOME",
        "a'b\"c",
        "\udcff",
        "x" * 200,
        "tab\t",
        "[a]*?",
        "{1..3}",
    ],
)
def test_any_name_of_the_output(tree: Path, tmp_path: Path, name: str) -> None:
    with working_in(tmp_path):
        ran = run_cli("pack", "src", "--shards", "4", "--json", "--", name)
        assert ran.code == 0, ran.err
        assert ran.json["shards"] == 4
        assert run_cli("pack", "src", "--shards", "4", "--", name).code == 0
    assert content(tmp_path / name) == finish(tree, tmp_path / "whole")


def test_an_output_that_is_the_working_folder(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with working_in(tmp_path / "here"):
        pack(Path("../src"), Path(), shards=4)
    assert content(tmp_path / "here") == finish(tree, tmp_path / "whole")


def test_an_output_behind_links(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "one").symlink_to("real")
    (tmp_path / "two").symlink_to("one")
    pack(tree, tmp_path / "two" / "x", shards=4)
    assert content(tmp_path / "real" / "x") == finish(tree, tmp_path / "whole")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm")
def test_an_output_on_another_file_system(tree: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert os.stat(folder).st_dev != os.stat(tmp_path).st_dev
        pack(tree, Path(folder) / "out", shards=4, durable=True)
        assert content(Path(folder) / "out") == finish(tree, tmp_path / "whole")


def test_an_output_whose_data_folder_lies_elsewhere(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "out", shards=4, part=(0, 2))
    shutil.move(tmp_path / "out" / "data", tmp_path / "elsewhere")
    (tmp_path / "out" / "data").symlink_to(tmp_path / "elsewhere")
    pack(tree, tmp_path / "out", shards=4)
    assert len(read_members(tmp_path / "out")) == 48
    assert temps(tmp_path / "elsewhere") == []
