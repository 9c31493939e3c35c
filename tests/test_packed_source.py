"""A source that was packed before: a data set is refused, shards among files are noticed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, read_members, run_cli

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"cats/{number}.txt": f"cat {number}" for number in range(6)}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A data set of three shards."""
    out = tmp_path / "out"
    assert run_cli("pack", make_tree(tmp_path / "tree", FILES), out, "--shards", "3").code == 0
    return out


@pytest.mark.parametrize("command", ["pack", "plan"])
def test_a_data_set_is_refused_with_the_command_that_packs_its_samples(
    packed: Path, tmp_path: Path, command: str
) -> None:
    ran = run_cli(command, packed, tmp_path / "new", "--json")
    assert ran.code == 2
    assert f"{packed} is a data set" in ran.error["message"]
    assert f"shardtool convert {packed} {tmp_path / 'new'} " in ran.error["hint"]
    assert not (tmp_path / "new").exists()


def test_the_command_that_the_error_names_packs_the_samples(packed: Path, tmp_path: Path) -> None:
    assert run_cli("convert", packed, tmp_path / "new").code == 0
    assert read_members(tmp_path / "new") == read_members(packed)


def test_a_copy_without_hidden_files_and_a_data_set_that_was_begun_are_known_too(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "begun")
    (tmp_path / "begun" / "manifest.json").unlink()
    shutil.rmtree(packed / ".shardtool")
    for source in (packed, tmp_path / "begun"):
        assert run_cli("pack", source, tmp_path / "new").code == 2


def test_shards_are_packed_as_files_where_that_is_said(packed: Path, tmp_path: Path) -> None:
    assert run_cli("pack", packed, tmp_path / "new", "--group-by", "file").code == 0
    shard = next((packed / "data").iterdir())
    assert read_members(tmp_path / "new")[f"data/{shard.stem}_tar.tar".encode()] == shard.read_bytes()


def test_a_manifest_of_something_else_is_a_file_like_any_other(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"manifest.json": '{"name": "web app"}', "a.txt": "a"})
    assert run_cli("pack", tree, tmp_path / "out").code == 0


def test_a_data_set_below_the_source_is_noticed(packed: Path, tmp_path: Path) -> None:
    make_tree(packed.parent / "all", FILES)
    packed.rename(packed.parent / "all" / "old")
    for command in (("pack", tmp_path / "all", tmp_path / "new"), ("scan", tmp_path / "all")):
        ran = run_cli(*command)
        assert ran.code == 0
        said = " ".join((ran.out + ran.err).split())
        assert f"1 data set lies in the source, and shards are taken for samples: {tmp_path / 'all' / 'old'};" in said


def test_loose_shards_are_noticed_and_a_few_archives_are_not(packed: Path, tmp_path: Path) -> None:
    ran = run_cli("pack", packed / "data", tmp_path / "one")
    assert ran.code == 0
    assert "3 of 3 files are shards or archives, and each is taken for a part: tar; shardtool convert" in ran.err
    shutil.copy(next((packed / "data").iterdir()), tmp_path / "tree" / "old.tar")
    ran = run_cli("pack", tmp_path / "tree", tmp_path / "two")
    assert ran.code == 0
    assert "archives" not in ran.err
