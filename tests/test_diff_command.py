"""`diff`: two data sets compared by their indexes, equal or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, run_cli

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"{'ab'[n % 2]}/{n}.{part}": f"{n} {part}" for n in range(20) for part in ("jpg", "txt")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    pack(make_tree(tmp_path / "src", FILES), tmp_path / "old", samples_per_shard=5)
    return tmp_path / "old"


def test_equal_data_sets_end_with_0_even_with_exit_code(old: Path) -> None:
    ran = run_cli("diff", old, old, "--exit-code")
    assert ran.code == 0
    assert "the data sets are equal" in ran.out
    assert run_cli("diff", old, old, "--json").json["equal"] is True


def test_added_removed_and_changed_samples_are_counted(old: Path, tmp_path: Path) -> None:
    files = {**FILES, "c/new.jpg": "new", "a/0.txt": "other text"}
    del files["b/1.jpg"], files["b/1.txt"]
    pack(make_tree(tmp_path / "src2", files), tmp_path / "new", samples_per_shard=5)
    ran = run_cli("diff", old, tmp_path / "new", "--json")
    assert ran.code == 0
    assert ran.json["schema"] == "shardtool/diff/1"
    assert [ran.json[name]["count"] for name in ("added", "removed", "changed")] == [1, 1, 1]
    assert ran.json["changed_parts"] == {"txt": 1}
    assert ran.json["added"]["examples"][0]["key"] == "c/new"
    assert ran.json["equal"] is False


def test_a_change_of_equal_size_is_seen_by_its_digest(old: Path, tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src2", {**FILES, "a/0.txt": "0 TXT"}), tmp_path / "new", samples_per_shard=5)
    document = run_cli("diff", old, tmp_path / "new", "--json").json
    assert (document["compared"], document["changed"]["count"]) == ("digests", 1)


def test_exit_code_ends_with_3_where_anything_differs(old: Path, tmp_path: Path) -> None:
    pack(tmp_path / "src", tmp_path / "new", samples_per_shard=5, seed=1)
    assert run_cli("diff", old, tmp_path / "new").code == 0
    ran = run_cli("diff", old, tmp_path / "new", "--exit-code")
    assert ran.code == 3
    assert "moved" in ran.out


def test_another_split_is_a_warning(old: Path, tmp_path: Path) -> None:
    pack(tmp_path / "src", tmp_path / "new", split="train=0.5,test=0.5")
    ran = run_cli("diff", old, tmp_path / "new")
    assert "to another split" in ran.out


def test_a_place_without_a_data_set_is_an_input_problem(old: Path, tmp_path: Path) -> None:
    assert run_cli("diff", old, tmp_path / "absent").code == 5
    assert run_cli("diff", tmp_path / "src", old).code == 5
