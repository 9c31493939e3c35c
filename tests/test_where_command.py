"""`shardtool where`: the epoch, step, rank, worker and slot that it names are those that read the sample."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import make_tree, pack, run_cli

from shardtool.assignment.assignment import Wish, assign
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset

SCHEMA = json.loads((Path(__file__).parent.parent / "docs/reference/schemas/where.schema.json").read_text())
NUM_SAMPLES = 53


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("where")
    src = make_tree(root / "src", {f"{i % 3}/{i:03}.txt": f"{i}" * (i % 5 + 1) for i in range(NUM_SAMPLES)})
    pack(src, root / "out", samples_per_shard=8)
    return root / "out"


def asked(out: Path, key: str, *args: str) -> dict[str, Any]:
    """The JSON document, checked against its schema."""
    done = run_cli("where", out, key, "--json", *args)
    assert done.code == 0, done.err
    jsonschema.validate(done.json, SCHEMA)
    return done.json


def read_by(out: Path, rank: int, epoch: int, **wish: Any) -> list[tuple[int, int, int, bool]]:
    """(shard, row, step, is_valid) of what a rank reads of an epoch, from the library."""
    found = assign(load_manifest(str(out)), Wish(**wish))
    first = max(found.position, epoch * NUM_SAMPLES)
    rows = []
    for chunk in found.sequence(rank, first, (epoch + 1) * NUM_SAMPLES - first):
        columns = (chunk.shard, chunk.row, chunk.step, chunk.is_valid)
        rows += list(zip(*(column.tolist() for column in columns), strict=True))
    return rows


@pytest.mark.parametrize("policy", ["carry", "pad", "uneven"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_it_names_the_step_rank_worker_and_slot_that_read_the_sample(out: Path, policy: Any, epoch: int) -> None:
    args = ("--world-size", "4", "--batch-size", "12", "--loader-workers", "3", "--policy", policy)
    for number in (0, 1, 17, 52):
        document = asked(out, f"{number % 3}/{number:03}", *args, "--epoch", str(epoch))
        assert document["epoch"] == epoch
        assert document["position"] // NUM_SAMPLES == epoch
        assert document["readings"][0]["is_valid"]
        for reading in document["readings"]:
            rows = read_by(out, reading["rank"], epoch, world_size=4, batch_size=12, policy=policy)
            wanted = (document["shard"], document["sample"], reading["step"], reading["is_valid"])
            assert wanted in rows
            assert reading["worker"] == reading["step"] % 3
            # A rank's part of a step may begin in the epoch before; only then the slot is not the place in these rows.
            step = [row for row in rows if row[2] == reading["step"]]
            if step.index(wanted) != reading["slot"]:
                assert policy == "carry"
                assert rows[0][2] == reading["step"]


def test_a_sample_that_pad_repeats_has_two_readings(out: Path) -> None:
    args = ("--world-size", "6", "--batch-size", "12", "--policy", "pad")
    repeated = []
    for number in range(NUM_SAMPLES):
        readings = asked(out, f"{number % 3}/{number:03}", *args)["readings"]
        assert [reading["is_valid"] for reading in readings] in ([True], [True, False])
        repeated += readings[1:]
    assert len(repeated) == -NUM_SAMPLES % 6
    assert sorted(reading["rank"] for reading in repeated) == [5]


def test_a_sample_that_is_dropped_has_no_reading_and_a_reason(out: Path) -> None:
    args = ("--world-size", "4", "--batch-size", "20", "--policy", "drop", "--epoch", "1")
    documents = [asked(out, f"{number % 3}/{number:03}", *args) for number in range(NUM_SAMPLES)]
    unread = [document for document in documents if not document["readings"]]
    assert len(unread) == NUM_SAMPLES % 20
    assert all("policy drop leaves it out" in document["reason"] for document in unread)
    assert all(document["reason"] == "" for document in documents if document["readings"])


def test_steps_count_from_where_a_run_was_resumed(out: Path, tmp_path: Path) -> None:
    state = run_cli("assign", out, "--world-size", "4", "--position", "24", "--json").json["state"]
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(state))
    start = {True: 0, False: 0}
    for number in range(NUM_SAMPLES):
        document = asked(out, f"{number % 3}/{number:03}", "--state", str(saved), "--world-size", "2")
        assert document["start"] == 24
        start[bool(document["readings"])] += 1
        if document["readings"]:
            assert document["readings"][0]["step"] == (document["position"] - 24) // 2
        else:
            assert "was read before position 24" in document["reason"]
    assert start == {False: 24, True: NUM_SAMPLES - 24}


def test_the_node_and_local_rank_follow_from_the_data_rank(out: Path) -> None:
    document = asked(out, "0/000", "--world-size", "8", "--num-nodes", "2")
    (reading,) = document["readings"]
    assert reading["local_rank"] * 2 + reading["node"] == reading["rank"]


def test_a_key_is_found_in_its_split(tmp_path: Path) -> None:
    src = make_tree(tmp_path / "src", {f"{split}/{i}.txt": "x" for split in ("train", "test") for i in range(9)})
    pack(src, tmp_path / "out", split_by="dir")
    document = asked(tmp_path / "out", "test/3")
    assert document["split"] == "test"
    assert document["position"] < 9
    done = run_cli("where", tmp_path / "out", "test/3", "--split", "train")
    assert done.code == 5


def test_a_key_that_is_not_utf8_is_found_as_it_is_shown(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {b"\xff.txt": "x", "b.txt": "y"}), tmp_path / "out")
    document = asked(tmp_path / "out", os.fsdecode(b"\xff"))
    assert document["key_b64"] == "/w=="
    assert asked(tmp_path / "out", r"\xff") == document
    assert run_cli("where", tmp_path / "out", r"\xff").out.startswith(r"sample \xff  train")


def test_an_unknown_key_exits_5_with_those_like_it(out: Path) -> None:
    done = run_cli("where", out, "0/00", "--json")
    assert done.code == 5
    assert done.error["hint"].startswith("did you mean 0/0")


def test_the_answer_fits_80_columns(out: Path) -> None:
    done = run_cli("where", out, "1/001", "--world-size", "16", "--epoch", "3", "--loader-workers", "4")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["sample", "order", "epoch", "read"]
    assert "of 16" in done.out
    assert "node " in done.out
    assert "worker " in done.out


def test_what_is_not_read_says_why_in_words(out: Path) -> None:
    done = run_cli("where", out, "1/001", "--position", "106", "--epoch", "0")
    assert "not in this epoch: position " in " ".join(done.out.split())


def test_an_epoch_beyond_all_positions_is_refused(out: Path) -> None:
    with Dataset.open(str(out)) as dataset:
        key = dataset.index(0).key(0).decode()
    refused = run_cli("where", out, key, "--epoch", str(2**60))
    assert (refused.code, "lies beyond position 2^62" in refused.err) == (2, True), refused.err
