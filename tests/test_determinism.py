"""The same plan gives the same bytes: shards, indexes, labels, manifest; whatever the machine and the run are like."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers import make_tree, pack, working_in
from places import read_ahead
from snapshots import content

OPTIONS = ("--shards", "5", "--label-from", "parent", "--split", "train=0.8,test=0.2", "--stratify", "label")
SAME: dict[str, Any] = {
    "shards": 5,
    "label_from": "parent",
    "split": "train=0.8,test=0.2",
    "stratify": "label",
}


def all_files() -> dict[bytes, bytes]:
    """Classes, sidecars, odd names, an empty file, and one of several slabs."""
    rng = random.Random(11)
    files: dict[bytes, bytes] = {}
    for number in range(90):
        folder = ("cats", "dogs", "Übung/höher", "space d", "x")[number % 5]
        stem = f"{folder}/{number * 7919 % 1000:03d}".encode()
        files[stem + b".png"] = rng.randbytes(rng.choice((1, 511, 512, 513, 5_000)))
        if number % 3 == 0:
            files[stem + b".TXT"] = b"caption %d" % number
    files[b"cats/\xff.png"] = b"no UTF-8"
    files[b"dogs/" + b"long" * 40 + b".png"] = b""
    files[b"x/large.png"] = rng.randbytes(9 << 20)
    return files


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("source") / "tree", all_files())


@pytest.fixture(scope="module")
def wanted(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What every variant must give."""
    out = tmp_path_factory.mktemp("wanted") / "out"
    pack(tree, out, **SAME)
    return content(out)


def pack_apart(
    tree: Path | str, out: Path | str, *more: str, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    """Pack in a process of its own."""
    home = os.fspath(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "shardtool", "pack", os.fspath(tree), os.fspath(out), *OPTIONS, *more, "-q"]
    variables = {**os.environ, "PYTHONPATH": home} | (environment or {})
    ran = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()


def test_the_variants_compare_something(wanted: dict[str, bytes]) -> None:
    assert len(wanted) == 2 * (5 + 5) + 2
    assert sum(len(data) for path, data in wanted.items() if path.endswith(".tar")) > 9 << 20


@pytest.mark.parametrize("workers", ["1", "2", "5"])
def test_any_number_of_workers(tree: Path, wanted: dict[str, bytes], tmp_path: Path, workers: str) -> None:
    pack_apart(tree, tmp_path / "out", "--workers", workers)
    assert content(tmp_path / "out") == wanted


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "LANG": "C", "PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "2", "TZ": "America/Adak"},
        {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "0", "COLUMNS": "20", "USER": "someone", "HOME": "/nowhere"},
        {"PYTHONOPTIMIZE": "1", "SOURCE_DATE_EPOCH": "1", "OMP_NUM_THREADS": "3", "ARROW_IO_THREADS": "1"},
    ],
    ids=["c-locale", "no-utf8-mode", "other-user", "optimised"],
)
def test_any_environment(tree: Path, wanted: dict[str, bytes], tmp_path: Path, environment: dict[str, str]) -> None:
    pack_apart(tree, tmp_path / "out", environment=environment)
    assert content(tmp_path / "out") == wanted


@pytest.mark.parametrize(
    ("source", "target"),
    [("tree", "out"), ("./tree/", "./out/"), ("..//work/tree/.", "other/../out"), ("link", "linked-out")],
    ids=["relative", "slashes", "dots", "links"],
)
def test_any_way_to_name_source_and_output(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path, source: str, target: str
) -> None:
    work = tmp_path / "work"
    for folder in ("work/other", "real-out"):
        (tmp_path / folder).mkdir(parents=True)
    (work / "link").symlink_to(tree)
    (work / "tree").symlink_to(tree)
    (work / "linked-out").symlink_to(tmp_path / "real-out")
    with working_in(work):
        pack(Path(source), Path(target), **SAME)
        assert content(Path(target)) == wanted


def test_a_relative_source_with_workers(tree: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    pack_apart(tree.name, os.path.relpath(tmp_path / "out", tree.parent), "-j2", cwd=tree.parent)
    assert content(tmp_path / "out") == wanted


@pytest.mark.parametrize("place", ["/dev/shm", None], ids=["memory", "disk"])
def test_a_copy_made_in_another_order_on_another_file_system(
    wanted: dict[str, bytes], tmp_path: Path, place: str | None
) -> None:
    if place and not os.path.isdir(place):
        pytest.skip(f"there is no {place}")
    files = list(all_files().items())
    seed = random.randrange(1 << 30)
    random.Random(seed).shuffle(files)
    with tempfile.TemporaryDirectory(dir=place or tmp_path) as folder:
        pack(make_tree(Path(folder) / "copy", dict(files)), tmp_path / "out", **SAME)
    assert content(tmp_path / "out") == wanted


def test_any_listing_order(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir

    def backwards(path: Any = ".") -> list[Any]:
        return sorted(listdir(path), reverse=True)

    monkeypatch.setattr(os, "listdir", backwards)
    pack(tree, tmp_path / "out", **SAME)
    assert content(tmp_path / "out") == wanted


def test_other_times_and_modes_of_the_source(wanted: dict[str, bytes], tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    for number, path in enumerate(sorted(copy.rglob("*.*"))):
        path.chmod((0o600, 0o644, 0o755, 0o444)[number % 4])
        os.utime(path, ns=(number, number * 1_000_000_007))
    pack(copy, tmp_path / "out", **SAME)
    assert content(tmp_path / "out") == wanted


def test_links_instead_of_files(wanted: dict[str, bytes], tree: Path, tmp_path: Path) -> None:
    for path in tree.rglob("*.*"):
        link = tmp_path / "links" / path.relative_to(tree)
        link.parent.mkdir(parents=True, exist_ok=True)
        if len(link.parts) % 2:
            link.symlink_to(path)
        else:
            link.hardlink_to(path)
    pack(tmp_path / "links", tmp_path / "out", **SAME)
    assert content(tmp_path / "out") == wanted


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_umask_decides_the_mode_of_files_and_nothing_else(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        pack(tree, tmp_path / "out", **SAME)
    finally:
        os.umask(before)
    assert content(tmp_path / "out") == wanted
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {0o666 & ~mask}


def test_files_read_ahead_are_the_same_bytes(
    tree: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ahead(monkeypatch)
    pack(tree, tmp_path / "out", **SAME, durable=True)
    assert content(tmp_path / "out") == wanted


def test_an_ignored_file_more_or_less_changes_no_shard(wanted: dict[str, bytes], tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    make_tree(copy, {".DS_Store": b"x", "cats/._a.png": b"y", "README": b"z"})
    pack(copy, tmp_path / "out", **SAME)
    found = content(tmp_path / "out")
    found.pop("manifest.json")
    assert found == {path: data for path, data in wanted.items() if path != "manifest.json"}
