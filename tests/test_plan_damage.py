"""A stored plan whose rows were damaged on disk: never packed from, and mended without packing everything again."""

from __future__ import annotations

import io
import os
import random
import tarfile
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, read_members, run_cli, shard_paths

from shardtool.errors import FormatError
from shardtool.planning.plan_file import load_plan, read_rows
from shardtool.planning.plan_rows import canonical_rows, guarding_rows

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"{number:02}.txt": f"text {number}" for number in range(24)} | {"05.cls": "1"}
ROWS = ".shardtool/plan/000.arrow"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", FILES)


@pytest.fixture
def out(tree: Path, tmp_path: Path) -> Path:
    """A plan of three shards, of which nothing is packed."""
    assert run_cli("plan", tree, tmp_path / "out", "--shards", "3", "--write").code == 0
    return tmp_path / "out"


def contents(out: Path, shard: int) -> list[bytes]:
    rows = read_rows(os.fspath(out), shard)
    return [bytes(chunk) for chunk in (*canonical_rows(rows), *guarding_rows(rows))]


def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(out: Path) -> None:
    good, whole = (out / ROWS).read_bytes(), [contents(out, shard) for shard in range(3)]
    seed = random.randrange(1 << 32)
    chosen, hints = random.Random(seed), set()
    for _ in range(200):
        place, bit = chosen.randrange(len(good)), 1 << chosen.randrange(8)
        (out / ROWS).write_bytes(good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :])
        for shard in range(3):
            try:
                assert contents(out, shard) == whole[shard], f"byte {place}, bit {bit}, seed {seed}"
            except FormatError as error:
                hints.add(error.hint)
    (hint,) = hints
    assert hint.startswith(f"shardtool pack SRC {out} --rescan")


def damage_somewhere(out: Path) -> None:
    """A flip in the first key of each shard."""
    stored = load_plan(os.fspath(out))
    assert stored is not None
    for shard in range(len(stored.shards)):
        keys = b"".join(read_rows(os.fspath(out), shard).keys.to_pylist())
        data = (out / ROWS).read_bytes()
        place = data.index(keys)
        (out / ROWS).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def test_packing_from_damaged_rows_stops_and_says_how_to_go_on(out: Path, tree: Path, tmp_path: Path) -> None:
    damage_somewhere(out)
    ran = run_cli("pack", out, "--json")
    assert (ran.code, ran.error["code"]) == (4, "FormatError")
    assert f"shardtool pack SRC {out} --rescan" in ran.error["hint"]
    assert not list((out / "data").glob("*.tar"))
    assert run_cli("pack", tree, out, "--shards", "3", "--rescan").code == 0
    assert read_members(out) == {name.encode(): text.encode() for name, text in FILES.items()}
    assert run_cli("verify", out, "--deep").code == 0


def test_shards_that_are_packed_are_kept_where_their_contents_are_the_same(out: Path, tree: Path) -> None:
    assert run_cli("pack", out, "--part", "0/3").code == 0
    (kept,) = (path for path in (out / "data").iterdir())
    before = kept.stat().st_ino
    damage_somewhere(out)
    assert run_cli("pack", tree, out, "--shards", "3", "--rescan").code == 0
    assert kept.stat().st_ino == before
    assert run_cli("verify", out, "--deep").code == 0


def test_a_file_that_changed_meanwhile_is_packed_anew(out: Path, tree: Path) -> None:
    for part in range(3):
        assert run_cli("pack", out, "--part", f"{part}/3").code == 0
    damage_somewhere(out)
    (tree / "07.txt").write_text("TEXT 7")
    ran = run_cli("pack", tree, out, "--shards", "3")
    assert ran.code == 6
    assert "--update" in ran.err
    assert run_cli("pack", tree, out, "--shards", "3", "--update").code == 0
    assert read_members(out)[b"07.txt"] == b"TEXT 7"
    assert len(shard_paths(out)) == 3


def packed_from_tars(tmp_path: Path) -> tuple[Path, Path, tuple[str, ...]]:
    """(loose shards without indexes, what was made of them, options): their parts have no digests that are known."""
    for number in range(3):
        (tmp_path / "tars").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / f"tars/{number}.tar", "w") as archive:
            for name, text in list(FILES.items())[number::3]:
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
    options = ("--shards", "3")
    assert run_cli("convert", tmp_path / "tars", tmp_path / "made", *options).code == 0
    return tmp_path / "tars", tmp_path / "made", options


def test_a_finished_data_set_from_shards_is_mended_where_contents_are_the_same(tmp_path: Path) -> None:
    tars, out, options = packed_from_tars(tmp_path)
    damage_somewhere(out)
    inodes = [path.stat().st_ino for path in shard_paths(out)]
    ran = run_cli("convert", tars, out, *options)
    assert ran.code == 0, ran.err
    assert "the stored rows of 3 shards are damaged: contents are compared" in ran.err
    assert [path.stat().st_ino for path in shard_paths(out)] == inodes
    again = run_cli("convert", tars, out, *options)
    assert (again.code, "damaged" in again.err) == (0, False)


def test_of_shards_only_what_has_other_contents_is_called_changed(tmp_path: Path) -> None:
    tars, out, options = packed_from_tars(tmp_path)
    damage_somewhere(out)
    data = (tars / "1.tar").read_bytes()
    (tars / "1.tar").write_bytes(data.replace(b"text 10", b"TEXT 10"))
    ran = run_cli("convert", tars, out, *options)
    assert (ran.code, "files: 1 changed" in ran.err, "--update" in ran.err) == (6, True, True), ran.err
    assert run_cli("convert", tars, out, *options, "--update").code == 0
    assert read_members(out)[b"10.txt"] == b"TEXT 10"
    assert run_cli("verify", out, "--deep").code == 0


def test_of_shards_without_digests_only_what_has_other_contents_is_called_changed(tmp_path: Path) -> None:
    tars, out, options = packed_from_tars(tmp_path)
    data = (tars / "1.tar").read_bytes()
    (tars / "1.tar").write_bytes(data)
    os.utime(tars / "1.tar", ns=(1, 1))
    assert run_cli("convert", tars, out, *options).code == 0
    (tars / "1.tar").write_bytes(data.replace(b"text 10", b"TEXT 10"))
    ran = run_cli("convert", tars, out, *options)
    assert (ran.code, "files: 1 changed" in ran.err, "10.txt" in ran.err) == (6, True, True), ran.err


def test_another_source_and_a_damaged_plan_are_told_together(out: Path, tree: Path) -> None:
    damage_somewhere(out)
    (tree / "new.txt").write_text("new")
    ran = run_cli("pack", tree, out, "--shards", "3", "--rescan")
    assert ran.code == 4
    assert "and the source is not what it was" in ran.err
    assert "--overwrite" in ran.err
    assert run_cli("pack", tree, out, "--shards", "3", "--overwrite").code == 0
