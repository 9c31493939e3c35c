"""An unfinished data set goes on from its stored plan, or says why not (design, section 4 "Resume")."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import Said, pack, read_members
from snapshots import NUM_SHARDS, begin, content, finish, leftovers, rewrite, rewritten, small_tree, stamps

from shardtool.errors import (
    FormatError,
    PlanMismatch,
    SourceNotFound,
    UsageProblem,
)
from shardtool.packing import build as build_module

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_resume_skips_shards_with_valid_receipt(tree: Path, out: Path, tmp_path: Path) -> None:
    done = begin(tree, out)
    before = stamps(out)
    result = pack(tree, out, shards=NUM_SHARDS)
    assert (result.num_resumed, result.num_packed) == (len(done), NUM_SHARDS - len(done))
    assert not rewritten(before, stamps(out)) & set(before)
    assert content(out) == finish(tree, tmp_path / "whole")
    assert leftovers(out) == []


def test_resume_does_not_scan_and_says_so(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tree, out)
    monkeypatch.setattr(build_module, "prepare", lambda *args, **kinds: pytest.fail("it scans"))
    said = Said()
    pack(tree, out, shards=NUM_SHARDS, say=said)
    assert "--rescan" in said.steps[0]


def test_pack_out_alone_goes_on_from_the_stored_plan(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    pack([], out)
    assert content(out) == finish(tree, tmp_path / "whole")


def test_pack_out_alone_needs_a_stored_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no stored plan"):
        pack([], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_resume_with_other_options_names_the_difference(tree: Path, out: Path) -> None:
    begin(tree, out)
    before = stamps(out)
    with pytest.raises(PlanMismatch, match=r"seed 0, now 1;  keep-case False, now True"):
        pack(tree, out, shards=NUM_SHARDS, seed=1, keep_case=True)
    assert stamps(out) == before


def test_resume_from_another_source_is_refused(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    shutil.copytree(tree, tmp_path / "copy")
    with pytest.raises(PlanMismatch, match=r"source .*src, now .*copy"):
        pack(tmp_path / "copy", out, shards=NUM_SHARDS)


def test_resume_through_another_name_of_the_source(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    (tmp_path / "link").symlink_to(tree)
    assert pack(tmp_path / "link", out, shards=NUM_SHARDS).manifest is not None


def test_resume_without_its_source_keeps_what_is_there(tree: Path, out: Path) -> None:
    begin(tree, out)
    before = stamps(out)
    tree.rename(tree.with_name("away"))
    with pytest.raises(SourceNotFound, match=r"source .*src cannot be read"):
        pack([], out)
    assert stamps(out) == before
    tree.with_name("away").rename(tree)
    assert pack([], out).num_resumed == len(before) // 2


def test_resume_after_a_file_was_added_packs_the_stored_plan(tree: Path, out: Path, tmp_path: Path) -> None:
    whole = finish(tree, tmp_path / "whole")
    begin(tree, out)
    (tree / "a" / "new.txt").write_text("later")
    pack(tree, out, shards=NUM_SHARDS)
    assert content(out) == whole


def test_rescan_of_an_unfinished_data_set_sees_an_added_file(tree: Path, out: Path) -> None:
    begin(tree, out)
    (tree / "a" / "new.txt").write_text("later")
    with pytest.raises(PlanMismatch, match="1 added"):
        pack(tree, out, shards=NUM_SHARDS, rescan=True)


def test_rescan_takes_contents_that_changed_before_they_were_packed(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    for path in tree.rglob("*.txt"):
        rewrite(path)
    pack(tree, out, shards=NUM_SHARDS, rescan=True)
    assert content(out) == finish(tree, tmp_path / "whole")


def test_rescan_of_an_unchanged_source_goes_on(tree: Path, out: Path) -> None:
    done = begin(tree, out)
    assert pack(tree, out, shards=NUM_SHARDS, rescan=True).num_resumed == len(done)


def test_a_shard_renamed_but_without_receipt_is_packed_again(tree: Path, out: Path, tmp_path: Path) -> None:
    done = begin(tree, out)
    for receipt in (out / ".shardtool" / "receipts").iterdir():
        receipt.unlink()
    result = pack(tree, out, shards=NUM_SHARDS)
    assert (result.num_resumed, result.num_packed) == (0, NUM_SHARDS)
    assert len(done) == 2
    assert content(out) == finish(tree, tmp_path / "whole")


def test_receipts_of_another_plan_are_not_trusted(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    other = tmp_path / "other"
    pack(tree, other, shards=NUM_SHARDS, seed=1, part=(0, 2))
    for name in ("data", "index", ".shardtool/receipts"):
        shutil.rmtree(out / name)
        shutil.copytree(other / name, out / name)
    assert pack(tree, out, shards=NUM_SHARDS).num_resumed == 0
    assert content(out) == finish(tree, tmp_path / "whole")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema": "shardtool/receipt/1"}', b"\xff\xfe\0"])
def test_an_unreadable_receipt_counts_as_none(tree: Path, out: Path, text: bytes) -> None:
    done = begin(tree, out)
    next((out / ".shardtool" / "receipts").iterdir()).write_bytes(text)
    assert pack(tree, out, shards=NUM_SHARDS).num_resumed == len(done) - 1


def test_a_plan_that_was_never_finished_is_made_anew(tree: Path, out: Path, tmp_path: Path) -> None:
    begin(tree, out)
    (out / ".shardtool" / "plan.json").unlink()
    for name in ("data", "index"):
        shutil.rmtree(out / name)
    pack(tree, out, shards=NUM_SHARDS)
    assert content(out) == finish(tree, tmp_path / "whole")


def test_lost_plan_rows_are_named(tree: Path, out: Path) -> None:
    begin(tree, out)
    (out / ".shardtool" / "plan" / "000.arrow").unlink()
    with pytest.raises(FormatError, match=r"stored plan .*000.arrow cannot be read") as caught:
        pack(tree, out, shards=NUM_SHARDS)
    assert "--rescan" in caught.value.hint
    assert pack(tree, out, shards=NUM_SHARDS, rescan=True).num_resumed > 0


@pytest.mark.parametrize("text", [b"", b"{}", b'{"schema": "shardtool/plan-file/99"}', b"[1]"])
def test_a_damaged_plan_is_named_and_overwrite_cures_it(tree: Path, out: Path, tmp_path: Path, text: bytes) -> None:
    begin(tree, out)
    (out / ".shardtool" / "plan.json").write_bytes(text)
    with pytest.raises(FormatError, match="no plan of this version"):
        pack(tree, out, shards=NUM_SHARDS)
    pack(tree, out, shards=NUM_SHARDS, overwrite=True)
    assert content(out) == finish(tree, tmp_path / "whole")


def test_a_sample_that_failed_is_tried_again(tree: Path, out: Path, tmp_path: Path) -> None:
    whole = finish(tree, tmp_path / "whole")
    pack(tree, out, shards=NUM_SHARDS, part=(0, NUM_SHARDS))
    shutil.copytree(tree, tmp_path / "kept")
    lost = [path for path in tree.rglob("*.bin") if path.stat().st_size % 2 == 0][:2]
    for path in lost:
        path.rename(tmp_path / path.name)
    options: dict[str, Any] = {"shards": NUM_SHARDS, "on_error": "skip"}
    result = pack(tree, out, **options)
    assert result.manifest is not None
    ledger = result.manifest.ledger
    assert ledger["seen"] == ledger["packed"] + sum(ledger["ignored"].values()) + ledger["failed"]
    assert ledger["failed"] == 2 * len(result.failed) > 0
    for path in lost:
        (tmp_path / path.name).rename(path)
    again = pack(tree, out, **options)
    assert 0 < again.num_packed < NUM_SHARDS
    assert again.failed_entries == 0
    assert content(out) == whole
    assert (out / ".shardtool" / "failed.jsonl").read_bytes() == b""


def test_everything_is_there_after_all_of_this(tree: Path, out: Path) -> None:
    begin(tree, out)
    pack(tree, out, shards=NUM_SHARDS)
    members = read_members(out)
    assert members == {os.fsencode(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*.*")}
