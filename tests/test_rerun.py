"""A finished data set is compared with its source: nothing to do, an update, a repair, or exit 6 with the choices."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import pack, run_cli
from snapshots import NUM_SHARDS, begin, content, finish, leftovers, rewrite, rewritten, small_tree, stamps, touch

from shardtool.errors import (
    DestinationExists,
    PlanMismatch,
)
from shardtool.manifest import load_manifest
from shardtool.names import index_path
from shardtool.packing.receipts import FOLDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def shards_with(out: Path, member: bytes) -> set[str]:
    """Shard and index files of the shard that holds `member`."""
    found = set()
    shards = load_manifest(os.fspath(out)).shards
    for number, shard in enumerate(shards):
        if member in (out / shard.path).read_bytes():
            found |= {shard.path, index_path(number, len(shards))}
    return found


def test_a_finished_unchanged_data_set_has_nothing_to_do(tree: Path, out: Path) -> None:
    whole, before = finish(tree, out), stamps(out)
    result = pack(tree, out, shards=NUM_SHARDS)
    assert (result.num_packed, result.num_resumed) == (0, NUM_SHARDS)
    assert stamps(out) == before
    assert content(out) == whole
    assert "nothing to do" in run_cli("pack", tree, out, "--shards", str(NUM_SHARDS)).out


def test_a_finished_data_set_with_other_options_is_refused(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    with pytest.raises(PlanMismatch, match="shards 4, now 5") as caught:
        pack(tree, out, shards=5)
    assert "--overwrite" in caught.value.hint
    assert content(out) == whole


def change_added(tree: Path) -> None:
    (tree / "a" / "new1.txt").write_text("1")
    (tree / "a" / "new2.txt").write_text("2")


def change_removed(tree: Path) -> None:
    (tree / "b" / "001.txt").unlink()


def change_resized(tree: Path) -> None:
    (tree / "c" / "002.txt").write_text("longer than it was before")


def change_renamed(tree: Path) -> None:
    (tree / "b").rename(tree / "d")


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (change_added, "2 added"),
        (change_removed, "1 removed"),
        (change_resized, "1 changed"),
        (change_renamed, "16 added, 16 removed"),
    ],
)
def test_a_source_that_is_another_now_is_counted(
    tree: Path, out: Path, change: Callable[[Path], None], counted: str
) -> None:
    whole = finish(tree, out)
    change(tree)
    with pytest.raises(PlanMismatch, match=counted) as caught:
        pack(tree, out, shards=NUM_SHARDS)
    assert "new folder" in caught.value.hint
    assert "--overwrite" in caught.value.hint
    assert "--update" not in caught.value.hint
    with pytest.raises(PlanMismatch, match=counted):
        pack(tree, out, shards=NUM_SHARDS, update=True)
    assert content(out) == whole


def test_other_contents_of_the_same_size_are_found(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    rewrite(tree / "a" / "003.bin")
    with pytest.raises(PlanMismatch, match=r"1 changed\n  .*a/003.bin") as caught:
        pack(tree, out, shards=NUM_SHARDS)
    assert "--update" in caught.value.hint
    assert content(out) == whole


def test_update_repacks_only_the_shards_that_changed(tree: Path, out: Path, tmp_path: Path) -> None:
    finish(tree, out)
    wanted = shards_with(out, b"a/003.bin")
    before = stamps(out)
    rewrite(tree / "a" / "003.bin")
    touch(tree / "b" / "001.bin")
    result = pack(tree, out, shards=NUM_SHARDS, update=True)
    assert result.num_packed == 1
    assert rewritten(before, stamps(out)) == wanted
    assert content(out) == finish(tree, tmp_path / "whole")
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == 0


def test_update_of_an_unchanged_data_set_does_nothing(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    assert pack(tree, out, shards=NUM_SHARDS, update=True).num_packed == 0
    assert content(out) == whole


def test_touched_files_are_no_change(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, before = finish(tree, out), stamps(out)
    for path in tree.rglob("*.*"):
        touch(path)
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == 0
    assert (content(out), stamps(out)) == (whole, before)
    monkeypatch.setattr("shardtool.packing.compare._digest", lambda path: pytest.fail("contents are read again"))
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == 0


def test_a_damaged_shard_of_touched_files_is_packed_again(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    for path in tree.rglob("*.*"):
        touch(path)
    pack(tree, out, shards=NUM_SHARDS)
    (out / load_manifest(os.fspath(out)).shards[1].path).unlink()
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == 1
    assert content(out) == whole


def test_a_corrected_label_is_a_change(tree: Path, out: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{'abc'[n % 3]}/{n:03d},{'xyz'[n % 3]}" for n in range(24)]
    table.write_text("\n".join(["key,label", *rows]) + "\n")
    options: dict[str, Any] = {"shards": NUM_SHARDS, "join": os.fspath(table), "join_key": "key"}
    pack(tree, out, **options)
    whole = content(out)
    table.write_text("\n".join(["key,label", *rows[:-1], rows[-1][:-1] + "w"]) + "\n")
    with pytest.raises(PlanMismatch, match=r"labels or joined values changed") as caught:
        pack(tree, out, **options)
    assert "--overwrite" in caught.value.hint
    with pytest.raises(PlanMismatch):
        pack(tree, out, **options, update=True)
    assert content(out) == whole


def cut_shard(out: Path, shard: int) -> None:
    path = out / load_manifest(os.fspath(out)).shards[shard].path
    os.truncate(path, path.stat().st_size - 512)


def delete_shard(out: Path, shard: int) -> None:
    (out / load_manifest(os.fspath(out)).shards[shard].path).unlink()


def cut_index(out: Path, shard: int) -> None:
    os.truncate(out / index_path(shard, NUM_SHARDS), 100)


def flip_bit(out: Path, shard: int) -> None:
    path = out / load_manifest(os.fspath(out)).shards[shard].path
    data = bytearray(path.read_bytes())
    data[700] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut_shard, delete_shard, cut_index])
@pytest.mark.parametrize("alone", [False, True], ids=["pack-src-out", "pack-out"])
def test_a_shard_that_is_not_whole_is_packed_again(
    tree: Path, out: Path, damage: Callable[[Path, int], None], alone: bool
) -> None:
    whole, before = finish(tree, out), stamps(out)
    damage(out, 2)
    result = pack([] if alone else tree, out, shards=NUM_SHARDS)
    assert result.num_packed == 1
    assert content(out) == whole
    assert len(rewritten(before, stamps(out))) == 2
    assert leftovers(out) == []


def test_a_flipped_bit_is_repaired_by_deep(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    flip_bit(out, 1)
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == 0
    assert pack(tree, out, shards=NUM_SHARDS, deep=True).num_packed == 1
    assert content(out) == whole


@pytest.mark.parametrize("text", [None, b"", b"{}", b'{"schema": "shardtool/manifest/1"}'])
def test_a_lost_or_damaged_manifest_is_written_again(tree: Path, out: Path, text: bytes | None) -> None:
    whole, before = finish(tree, out), stamps(out)
    (out / "manifest.json").unlink()
    if text is not None:
        (out / "manifest.json").write_bytes(text)
    pack(tree, out, shards=NUM_SHARDS)
    assert content(out) == whole
    assert stamps(out) == before


def test_lost_receipts_are_earned_again(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    (out / FOLDED).unlink()
    assert pack(tree, out, shards=NUM_SHARDS).num_packed == NUM_SHARDS
    assert content(out) == whole


def test_a_finished_data_set_without_its_plan_is_left_alone(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    shutil.rmtree(out / ".shardtool")
    for sources in ([tree], []):
        with pytest.raises(DestinationExists, match="stored plan is gone"):
            pack(sources, out, shards=NUM_SHARDS)
    assert content(out) == whole
    pack(tree, out, shards=NUM_SHARDS, overwrite=True)
    assert content(out) == whole


def test_a_data_set_may_be_moved_and_goes_on(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    out.rename(tmp_path / "moved")
    pack(tree, tmp_path / "moved", shards=NUM_SHARDS)
    assert content(tmp_path / "moved") == finish(tree, tmp_path / "whole")
