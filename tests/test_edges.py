"""What nobody means to type, and what no program of ours writes: an answer with a hint, never a traceback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, run_cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", {f"cats/{number}.txt": f"cat {number}" for number in range(8)})


@pytest.fixture
def out(tree: Path, tmp_path: Path) -> Path:
    assert run_cli("pack", tree, tmp_path / "out", "--shards", "2").code == 0
    return tmp_path / "out"


@pytest.mark.parametrize(
    "args",
    [["pack", "", "OUT"], ["pack", "SRC", ""], ["scan", ""], ["verify", ""], ["cat", "OUT", ""], ["stage", "", "x"]],
)
def test_an_empty_argument_is_refused(tree: Path, out: Path, args: list[str]) -> None:
    places = {"SRC": str(tree), "OUT": str(out)}
    ran = run_cli(*(places.get(arg, arg) for arg in args), "--json")
    assert (ran.code, "an empty argument for" in ran.error["message"]) == (2, True)
    assert "variable" in ran.error["hint"]


def test_a_batch_far_beyond_the_data_set_is_answered(out: Path) -> None:
    ran = run_cli("assign", out, "--world-size", "4", "--batch-size", "1000000000000")
    assert ran.code == 0
    assert "is longer than an epoch of 8" in ran.err


def test_hints_name_what_is_possible(tree: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for args, hint in (
        (["assign", out, "--world-size", "4", "--rank", "4"], "--rank 0 to 3"),
        (["assign", out, "--world-size", "4", "--num-nodes", "2", "--node-rank", "2"], "--node-rank 0 to 1"),
        (["pack", tree, tmp_path / "new", "--compress", "zstd:99"], "zstd:1 to 19"),
        (["pack", tree, tmp_path / "new", "--join", "none.csv"], "check the path"),
        (["extract", out, tmp_path / "file"], "choose another name"),
    ):
        ran = run_cli(*map(str, args), "--json")
        assert hint in ran.error["hint"], args


PLAN, FOLDED = ".shardtool/plan.json", ".shardtool/receipts.jsonl"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("options", []),
        ("options", {"seed": "x"}),
        ("options", {"include": 5}),
        ("settings", 0),
        ("sources", [1.5]),
        ("ledger", 1),
        ("labels", "x"),
        ("shards", [["train", 1 << 70, 0, 1, 2, 3]]),
        ("shards", [["train", "../../x.tar", 0, 8, 2, 3]]),
        ("shards", [["train", "data/x.tar", 8, 0, 2, 3]]),
        ("shards", [["train", "data/x.tar", 0, "8", 2, 3]]),
    ],
)
@pytest.mark.parametrize("command", ["status", "pack"])
def test_a_plan_of_wrong_types_is_damage(tree: Path, out: Path, command: str, field: str, value: Any) -> None:
    document = json.loads((out / PLAN).read_text())
    (out / PLAN).write_text(json.dumps(document | {field: value}))
    args = [tree, out, "--shards", "2"] if command == "pack" else [out]
    ran = run_cli(command, *args, "--json")
    assert (ran.code, ran.error["code"]) == (4, "FormatError"), ran.err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parts", -1),
        ("parts", {"txt": {"samples": 1, "bytes": "x", "min": 1, "max": 1}}),
        ("files", []),
        ("samples", None),
        ("payload_bytes", None),
        ("shard", {}),
        ("failed", 7),
    ],
)
@pytest.mark.parametrize("command", ["index", "pack", "status"])
def test_a_receipt_of_wrong_types_counts_as_none(tree: Path, out: Path, command: str, field: str, value: Any) -> None:
    lines = (out / FOLDED).read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {field: value})
    (out / FOLDED).write_text("\n".join(lines) + "\n")
    args = [tree, out, "--shards", "2"] if command == "pack" else [out]
    assert run_cli(command, *args).code == 0
    assert run_cli("verify", out, "--deep").code == 0
