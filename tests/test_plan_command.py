"""`shardtool plan`: the decision and what it costs, equal to what packing then does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import make_tree, pack, run_cli
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats.tar_header import BLOCK, extension_bytes, padded
from shardtool.packing.prepare import prepare
from shardtool.planning.plan import PlanOptions
from shardtool.report.text import width
from shardtool.statistics.advice import figures_of
from shardtool.statistics.overhead import add_causes, overhead_by_cause
from shardtool.statistics.probe import Speed, read_some

if TYPE_CHECKING:
    from helpers import Ran

PETS = Path(__file__).parent.parent / "fixtures" / "pets"


def plan_json(*args: Any) -> dict[str, Any]:
    done = run_cli("plan", *args, "--json")
    assert done.code == 0, done.err
    return done.json


def inodes_in(folder: Path) -> int:
    return 1 + sum(len(folders) + len(names) for _, folders, names in os.walk(folder))


def test_the_plan_is_what_packing_does(tmp_path: Path) -> None:
    document = plan_json(PETS, tmp_path / "out", "--shard-size", "50KB", "--label-from", "parent")
    assert not (tmp_path / "out").exists()
    result = pack(PETS, tmp_path / "out", shard_size=50_000, label_from="parent")
    assert result.manifest is not None
    assert document["plan_id"] == result.stored.plan_id
    for shard, planned in zip(result.manifest.shards, document["shards"], strict=True):
        assert planned == {
            "split": shard.split,
            "path": shard.path,
            "samples": shard.num_samples,
            "bytes": (tmp_path / "out" / shard.path).stat().st_size,
        }
    assert document["ledger"] == result.manifest.ledger
    assert document["splits"] == result.manifest.splits()


@pytest.mark.parametrize("label_from", ["", "parent"])
def test_inodes_are_counted_exactly(tmp_path: Path, label_from: str) -> None:
    args = ["--label-from", label_from] if label_from else []
    document = plan_json(PETS, tmp_path / "out", "--shard-size", "50KB", *args)
    pack(PETS, tmp_path / "out", shard_size=50_000, label_from=label_from)
    assert document["inodes"] == {"before": inodes_in(PETS), "after": inodes_in(tmp_path / "out")}


def test_overhead_by_cause_adds_up(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"{'d' * 90}/{'n' * 80}{n}.txt": "x" * n for n in range(11)})
    document = plan_json(tmp_path / "in", tmp_path / "out", "--shards", "3")
    causes = document["overhead"]
    assert sum(causes.values()) == document["overhead_bytes"] == document["bytes"] - document["payload_bytes"]
    assert causes["trailers"] == 3 * 1024
    assert causes["headers"] == 11 * 512
    assert causes["pax"] == 0, "a long name that splits at a slash needs none"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 1 << 40)), min_size=1, max_size=20))
def test_pax_bytes_are_the_extensions_of_names_and_sizes(parts: list[tuple[bytes, int]]) -> None:
    sizes = np.array([size for _, size in parts], np.int64)
    pax = sum(extension_bytes(name, size) for name, size in parts)
    total = int(padded(sizes).sum()) + BLOCK * len(parts) + pax + 2 * 1024
    causes = overhead_by_cause("tar", sizes, total, 2)
    assert causes["pax"] == pax
    assert sum(causes.values()) == total - int(sizes.sum())


def test_causes_are_added_by_name() -> None:
    assert add_causes({"headers": 1}, {"headers": 2, "pax": 3}) == {"headers": 3, "pax": 3}
    assert overhead_by_cause("other", np.array([5, 6]), 20, 1) == {"container": 9}


def test_generated_and_skipped_parts_enter_the_figures(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a/1.txt": "x" * 40_000, "a/2.txt": "y", "b/3.txt": "z"})
    options = PlanOptions(shard_size=20_000, on_oversize="skip", label_from="parent")
    prepared = prepare((str(tmp_path),), options)
    figures = figures_of(prepared.plan, prepared.scanned.seen)
    assert [(part.name, part.samples, part.payload_bytes) for part in figures.parts] == [(b"cls", 2, 2), (b"txt", 2, 2)]
    assert figures.overhead_bytes == prepared.plan.num_bytes - prepared.plan.payload_bytes


def test_text_shows_sizes_overhead_inodes_needs_and_ledger(tmp_path: Path) -> None:
    done = run_cli("plan", PETS, tmp_path / "out", "--shard-size", "50KB")
    assert "64 samples   176 parts" in done.out
    assert "headers 88.0 KiB" in done.out
    assert "181 become" in done.out
    assert "to plan" in done.out
    assert "just now" in done.out
    assert "seen 176 = packed 176 + ignored 0 + failed 0" in " ".join(done.out.split())
    assert "data/train-00000-of-" in done.out


def test_long_plans_show_the_first_and_last_shards_unless_all_are_asked_for(tmp_path: Path) -> None:
    short = run_cli("plan", PETS, tmp_path / "out", "--shards", "30")
    assert "... 21 more (-v shows all)" in short.out
    assert "train-00005-of-00030" in short.out
    assert "train-00006-of-00030" not in short.out
    assert "train-00029-of-00030" in short.out
    assert "train-00014-of-00030" in run_cli("plan", PETS, tmp_path / "out", "--shards", "30", "-v").out


def test_quiet_prints_the_plan_id(tmp_path: Path) -> None:
    done = run_cli("plan", PETS, tmp_path / "out", "-q")
    assert len(done.out.strip()) == 32


def advice(tmp_path: Path, *args: str, source: Path = PETS) -> str:
    return "\n".join(plan_json(source, tmp_path / "out", *args)["advice"])


def test_tiny_parts_are_named_with_what_they_cost(tmp_path: Path) -> None:
    said = advice(tmp_path, "--label-from", "parent")
    assert "tiny parts (cls 1 B, json 59 B, txt 43 B on average) take 170 KiB of headers and padding" in said


def test_a_large_overhead_without_tiny_parts_is_named(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{n}.bin": bytes(1500) for n in range(20)})
    assert "of the bytes are headers and padding" in advice(tmp_path, source=source)


def test_big_parts_give_no_advice_about_overhead(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{n}.bin": bytes(200_000) for n in range(10)})
    assert advice(tmp_path, "--shards", "4", source=source) == ""


def test_too_few_shards_for_the_readers_come_with_what_to_type(tmp_path: Path) -> None:
    said = advice(tmp_path, "--shards", "4", "--world-size", "4", "--loader-workers", "2")
    assert "4 shards are few for 4 ranks x 2 workers" in said
    assert "--shards-multiple-of 8" in said
    assert "few for" not in advice(tmp_path, "--shards", "8", "--world-size", "4", "--loader-workers", "2")


def test_uneven_shards_for_the_readers_are_said(tmp_path: Path) -> None:
    said = advice(tmp_path, "--shards", "9", "--world-size", "4", "--loader-workers", "2")
    assert "1 for some readers and 2 for others" in said


def test_more_readers_than_samples_is_said(tmp_path: Path) -> None:
    assert "some readers get none" in advice(tmp_path, "--world-size", "100")


def test_one_shard_only_is_said(tmp_path: Path) -> None:
    assert "one shard only" in advice(tmp_path)
    assert "one shard only" not in advice(tmp_path, "--shards", "2")


def test_oversize_samples_are_said(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {"a.bin": bytes(90_000), "b.bin": bytes(10), "c.bin": bytes(10)})
    assert "larger than a shard" in advice(tmp_path, "--shard-size", "64KiB", source=source)


def test_ragged_parts_are_judged_by_the_first_five_samples_of_a_split(tmp_path: Path) -> None:
    assert "Hugging Face datasets refuses the split train" in advice(tmp_path)
    files: dict[str, bytes | str] = {f"{n:03d}.txt": "x" for n in range(40)}
    files |= {f"{n:03d}.json": "{}" for n in range(39)}
    source = make_tree(tmp_path / "in", files)
    seeds = [advice(tmp_path, "--seed", str(seed), source=source) for seed in range(12)]
    assert any("code that expects it must cope" in said for said in seeds)
    assert "without json" in seeds[0]
    assert "without json" not in advice(tmp_path, "--require", "json", "--on-missing", "empty", source=source)


def test_splits_are_listed(tmp_path: Path) -> None:
    done = run_cli("plan", PETS, tmp_path / "out", "--split", "train=0.75,test=0.25")
    assert "splits" in done.out
    assert "train 48 in 1 shard" in done.out


def test_write_stores_a_plan_that_pack_goes_on_from(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_cli("plan", PETS, out, "--shard-size", "50KB", "--write", "--json")
    assert done.code == 0
    assert done.json["is_written"]
    assert "planned, nothing is running" in run_cli("status", out).out
    packed = run_cli("pack", out, "--json", "--durability", "none")
    assert packed.code == 0
    assert packed.json["plan_id"] == done.json["plan_id"]


def test_write_again_is_harmless_and_another_plan_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert run_cli("plan", PETS, out, "--shard-size", "50KB", "--write").code == 0
    refused = run_cli("plan", PETS, out, "--shard-size", "40KB", "--write", "--json")
    assert refused.code == 6
    assert refused.error["code"] == "PlanMismatch"


def test_a_folder_that_is_not_ours_is_refused_untouched(tmp_path: Path) -> None:
    out = make_tree(tmp_path / "out", {"thesis.tex": "x"})
    for flags in ([], ["--write"]):
        done = run_cli("plan", PETS, out, *flags)
        assert done.code == 6
        assert "thesis.tex" in done.err
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_what_packing_would_meet_in_the_output_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(PETS, out, shard_size=50_000)
    same = run_cli("plan", PETS, out, "--shard-size", "50KB")
    assert "finished, with this very plan" in same.err
    other = run_cli("plan", PETS, out, "--shard-size", "40KB")
    assert other.code == 0
    assert "with another plan" in other.err
    assert "--overwrite" in other.err


def test_dry_run_is_the_same(tmp_path: Path) -> None:
    args = (PETS, tmp_path / "out", "--shard-size", "50KB", "--json")
    plans = [run_cli("plan", *args).json, run_cli("pack", *args, "--dry-run").json]
    for plan in plans:
        del plan["estimate"]
    assert plans[0] == plans[1]
    assert not (tmp_path / "out").exists()


def test_dry_run_of_an_output_alone_exits_2(tmp_path: Path) -> None:
    done = run_cli("pack", tmp_path / "out", "--dry-run")
    assert done.code == 2
    assert "shardtool status" in done.err


def test_source_and_output_that_overlap_are_refused(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a.txt": "x"})
    assert run_cli("plan", tmp_path, tmp_path / "out").code == 2


@pytest.mark.parametrize(
    ("args", "code"),
    [(["nowhere", "out"], 5), (["empty", "out"], 5), (["out"], 2), (["--shards", "99", "few", "out"], 2)],
)
def test_exit_codes(tmp_path: Path, args: list[str], code: int) -> None:
    make_tree(tmp_path, {"empty/": "", "few/a.txt": "x"})
    placed = [str(tmp_path / arg) if arg.isalpha() else arg for arg in args]
    done = run_cli("plan", *placed, "--json")
    assert (done.code, done.error["exit_code"]) == (code, code)
    assert done.out == ""


def test_files_that_failed_exit_3_after_the_plan(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "in", {f"{n}.txt": "x" for n in range(5)})
    os.symlink("nowhere", source / "9.txt")
    done = run_cli("plan", source, tmp_path / "out", "--on-error", "skip")
    assert done.code == 3
    assert "failed 1" in " ".join(done.out.split())


def test_lines_stay_in_80_columns(tmp_path: Path) -> None:
    files: dict[str | bytes, bytes | str] = {f"{'图' * 50}/{'n' * 60}{n}.{'p' * 30}{n % 3}": "x" for n in range(9)}
    files[b"\xff/\xfe.txt"] = "x"
    source = make_tree(tmp_path / "in", files)
    for options in itertools.chain([[]], [["--world-size", "64", "--split", "train=0.6,validation=0.2,test=0.2"]]):
        done: Ran = run_cli("plan", source, tmp_path / "out", *options)
        assert done.code == 0, done.err
        assert max(map(width, done.out.splitlines())) <= 80


def test_the_estimate_follows_from_files_bytes_and_workers() -> None:
    speed = Speed(10, 1000, per_file_s=0.01, per_byte_s=0.001)
    assert speed.seconds(100, 500, 1) == pytest.approx(2.5)
    assert speed.seconds(100, 500, 2) == pytest.approx(1.5)
    assert speed.files_per_s == pytest.approx(10 / 1.1)


def test_the_probe_reads_few_files_and_takes_gone_ones_lightly(tmp_path: Path) -> None:
    make_tree(tmp_path, {f"{n}.txt": "x" * 100 for n in range(8)} | {"large.bin": bytes(1 << 20)})
    plan = prepare((str(tmp_path),), PlanOptions()).plan
    ticks = itertools.count()
    found = read_some(plan, clock=lambda: next(ticks) / 1000)
    assert found is not None
    assert (found.files, found.num_bytes) == (9, 800 + (1 << 20))
    assert found.per_file_s == pytest.approx(0.003)
    assert found.per_byte_s == pytest.approx(0.001 / (1 << 20))
    for path in tmp_path.iterdir():
        path.unlink()
    assert read_some(plan) is None
