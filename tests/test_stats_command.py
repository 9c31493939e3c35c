"""`shardtool stats`: figures of a real data set, equal to what its files hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import make_tree, pack, run_cli

from shardtool.manifest import load_manifest
from shardtool.report.text import width

PETS = Path(__file__).parent.parent / "fixtures" / "pets"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stats") / "out"
    pack(PETS, out, shard_size=50_000, label_from="parent")
    return out


def stats_json(*args: Any) -> dict[str, Any]:
    done = run_cli("stats", *args, "--json")
    assert done.code == 0, done.err
    return done.json


def test_figures_are_those_of_the_manifest_and_the_source(pets: Path) -> None:
    document, manifest = stats_json(pets), load_manifest(str(pets))
    assert document["dataset_id"] == manifest.dataset_id
    assert document["samples"] == 64
    assert document["bytes"] == sum((pets / shard.path).stat().st_size for shard in manifest.shards)
    assert document["payload_bytes"] == manifest.payload_bytes
    assert document["overhead_bytes"] == document["bytes"] - document["payload_bytes"]
    for name, part in document["parts"].items():
        sizes = [1] * 64 if name == "cls" else [path.stat().st_size for path in PETS.rglob(f"*.{name}")]
        assert part == {"samples": len(sizes), "bytes": sum(sizes), "min": min(sizes), "max": max(sizes)}
    assert document["labels"]["counts"] == {"birds": 16, "cats": 16, "dogs": 16, "fish": 16}
    assert document["shard_size"] == 50_000
    assert document["fill"]["max"] == max((pets / s.path).stat().st_size for s in manifest.shards) / 50_000


def test_overhead_by_cause_adds_up_and_is_that_of_the_plan(pets: Path, tmp_path: Path) -> None:
    document = stats_json(pets)
    assert sum(document["overhead"].values()) == document["overhead_bytes"]
    plan = run_cli("plan", PETS, tmp_path / "out", "--shard-size", "50KB", "--label-from", "parent", "--json").json
    assert document["overhead"] == plan["overhead"]


def test_sample_sizes_are_those_of_the_files(pets: Path) -> None:
    sizes = sorted(1 + sum(p.stat().st_size for p in png.parent.glob(f"{png.stem}.*")) for png in PETS.rglob("*.png"))
    found = stats_json(pets)["sample_bytes"]
    assert (found["min"], found["max"]) == (sizes[0], sizes[-1])
    assert found["mean"] == pytest.approx(sum(sizes) / 64)
    assert found["p50"] == pytest.approx(sizes[31], rel=0.002)
    assert sum(found["log2_counts"]) == 64


def test_a_shuffled_data_set_looks_shuffled_and_source_order_does_not(pets: Path, tmp_path: Path) -> None:
    assert stats_json(pets)["shuffle"]["neighbour_distance"] > 0.8
    pack(PETS, tmp_path / "sorted", shards=7, label_from="parent", shuffle="none")
    shuffle = stats_json(tmp_path / "sorted")["shuffle"]
    assert shuffle["neighbour_distance"] < 0.1
    assert shuffle["label_tv"]["median"] > shuffle["label_tv"]["expected"]
    said = run_cli("stats", tmp_path / "sorted").out
    assert "source order" in said
    assert "--shuffle global" in said


def test_the_heading_names_data_set_format_seed_and_completeness(pets: Path) -> None:
    done = run_cli("stats", pets)
    head = " ".join(done.out.split("samples", 1)[0].split())
    assert load_manifest(str(pets)).dataset_id[:8] in head
    assert "tar" in head
    assert "shuffled, seed 0 complete" in head
    assert "headers 120 KiB   padding 99.5 KiB   trailers 7.00 KiB" in done.out


def test_a_data_set_with_failures_is_not_called_complete(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{n}.txt": "x" for n in range(5)})
    os.symlink("nowhere", source / "9.txt")
    pack(source, tmp_path / "out", on_error="skip")
    done = run_cli("stats", tmp_path / "out")
    assert "without 1 file that failed" in done.out


def test_splits_are_listed_and_judged_apart(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", shard_size=30_000, split="train=0.75,test=0.25")
    document = stats_json(tmp_path / "out")
    assert document["splits"]["train"]["samples"] == 48
    assert "train 48 in" in run_cli("stats", tmp_path / "out").out


def test_the_load_of_ranks_and_workers_is_plain_division(pets: Path) -> None:
    readers = stats_json(pets, "--world-size", "3", "--loader-workers", "2")["readers"]
    assert (readers["world_size"], readers["loader_workers"]) == (3, 2)
    assert readers["splits"]["train"] == {
        "split": "train",
        "samples_min": 21,
        "samples_max": 22,
        "shards_min": 1,
        "shards_max": 2,
    }
    text = run_cli("stats", pets, "--world-size", "3", "--loader-workers", "2").out
    assert "3 ranks x 2 workers   21 .. 22 samples a rank   1 .. 2 shards a worker" in text
    assert stats_json(pets)["readers"] is None


def test_too_few_shards_for_the_readers_come_with_what_to_type(pets: Path) -> None:
    text = run_cli("stats", pets, "--world-size", "4", "--loader-workers", "4").out
    assert "7 shards for 16 readers" in text
    assert "--shards-multiple-of 16" in text


def test_quiet_prints_the_data_set_id(pets: Path) -> None:
    assert run_cli("stats", pets, "-q").out.strip() == load_manifest(str(pets)).dataset_id


def test_the_manifest_may_be_named(pets: Path) -> None:
    assert run_cli("stats", pets / "manifest.json").code == 0


def test_lines_stay_in_80_columns(tmp_path: Path, pets: Path) -> None:
    files: dict[str | bytes, bytes | str] = {f"{'图' * 50}/{'n' * 60}{n}.{'p' * 30}{n % 3}": "x" for n in range(9)}
    files[b"\xff/\xfe.txt"] = "x" * 5000
    make_tree(tmp_path / "in", files)
    pack(tmp_path / "in", tmp_path / "out", shards=3, label_from="parent")
    for out in (tmp_path / "out", pets):
        done = run_cli("stats", out, "--world-size", "1000", "--loader-workers", "8")
        assert max(map(width, done.out.splitlines())) <= 80
    largest = stats_json(tmp_path / "out")["sample_bytes"]["largest_key"]
    assert largest["key_b64"] == "/y/+"


@pytest.mark.parametrize("name", ["nowhere", "empty", "foreign"])
def test_what_holds_no_data_set_exits_5(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path, {"empty/": "", "foreign/a.txt": "x"})
    done = run_cli("stats", tmp_path / name, "--json")
    assert (done.code, done.out, done.error["exit_code"]) == (5, "", 5)


def test_an_unfinished_data_set_exits_5_and_says_how_to_go_on(tmp_path: Path) -> None:
    run_cli("plan", PETS, tmp_path / "out", "--write", "-q")
    done = run_cli("stats", tmp_path / "out")
    assert done.code == 5
    assert "unfinished" in done.err
    assert "shardtool pack" in done.err


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_lost_or_damaged_index_exits_4(tmp_path: Path, damage: str) -> None:
    pack(PETS, tmp_path / "out", shards=2)
    index = tmp_path / "out" / "index" / "00001.arrow"
    if damage == "gone":
        index.unlink()
    else:
        index.write_bytes(index.read_bytes()[:100])
    done = run_cli("stats", tmp_path / "out")
    assert done.code == 4
    assert "shardtool index" in done.err


def test_a_mistyped_option_is_corrected(pets: Path) -> None:
    assert "did you mean --world-size?" in run_cli("stats", pets, "--word-size", "4").err
