from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from helpers import Said, make_tree, pack, run_cli, shard_paths

from shardtool.formats import get_format
from shardtool.manifest import load_manifest
from shardtool.packing.prepare import prepare
from shardtool.planning.compress_choice import SPEEDS, choose, seconds_a_byte
from shardtool.planning.plan import PlanOptions

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.model import SampleTable

MB = 10**6


def texts(root: Path) -> Path:
    rng = random.Random(1)
    words = [rng.randbytes(4).hex() for _ in range(300)]
    return make_tree(root, {f"{n}.txt": " ".join(rng.choices(words, k=2000)) for n in range(60)})


def noise(root: Path) -> Path:
    return make_tree(root, {f"{n}.jpg": random.Random(n).randbytes(40_000) for n in range(40)})


def table_of(tree: Path) -> SampleTable:
    return prepare((os.fspath(tree),), PlanOptions()).plan.samples


def test_texts_are_compressed_the_harder_the_slower_the_link(tmp_path: Path) -> None:
    table = table_of(texts(tmp_path / "in"))
    choices = [choose(table, get_format("tar"), link) for link in (10**12, 0, 10 * MB, 10**5)]
    levels = [int(choice.compress.partition(":")[2] or 0) for choice in choices]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, max(SPEEDS))
    assert levels[1] > 0
    assert "assumed; --link tells" in " ".join(choices[1].why)
    assert "does not pay at 1000 GB/s" in " ".join(choices[0].why)


def test_pictures_are_not_compressed_twice(tmp_path: Path) -> None:
    choice = choose(table_of(noise(tmp_path / "in")), get_format("tar"), 10 * MB)
    assert (choice.compress, choice.why[-1]) == ("none", "not compressed twice")


def test_the_choice_costs_least_of_all_levels() -> None:
    costs = {level: seconds_a_byte(level, 0.3 - level / 200, 10**9) for level in SPEEDS}
    assert min(costs, key=costs.__getitem__) in (1, 3)
    assert seconds_a_byte(0, 1.0, 10**9) == pytest.approx(10 / 1e9)


def test_what_cannot_be_read_is_not_compressed(tmp_path: Path) -> None:
    tree = texts(tmp_path / "in")
    table = table_of(tree)
    for path in tree.iterdir():
        path.unlink()
    choice = choose(table, get_format("tar"))
    assert (choice.compress, choice.ratio) == ("none", None)


@pytest.mark.parametrize("shard_format", ["tar", "mds"])
def test_pack_follows_the_choice_and_says_so(tmp_path: Path, shard_format: str) -> None:
    say = Said()
    pack(texts(tmp_path / "in"), tmp_path / "out", format=shard_format, compress="auto", say=say)
    manifest = load_manifest(os.fspath(tmp_path / "out"))
    assert manifest.compression.startswith("zstd:")
    assert f"level {manifest.compression[5:]}" in next(step for step in say.steps if step.startswith("zstd"))
    again = Said()
    assert pack(tmp_path / "in", tmp_path / "out", format=shard_format, compress="auto", say=again).num_packed == 0
    pack(noise(tmp_path / "noise"), tmp_path / "plain", format=shard_format, compress="auto")
    assert load_manifest(os.fspath(tmp_path / "plain")).compression == "none"
    assert shard_paths(tmp_path / "plain")[0].name.endswith((".tar", ".mds"))


def test_a_dry_run_estimates_the_size_and_says_that_it_is_an_estimate(tmp_path: Path) -> None:
    tree = texts(tmp_path / "in")
    for text in ("zstd", "auto"):
        ran = run_cli("plan", tree, tmp_path / "out", "--compress", text)
        assert (ran.code, "on disk, an estimate from a sample" in ran.out) == (0, True)
    estimate = run_cli("plan", tree, tmp_path / "out", "--compress", "zstd", "--json").json["estimate"]
    pack(tree, tmp_path / "out", compress="zstd")
    assert estimate["compressed_bytes"] == pytest.approx(shard_paths(tmp_path / "out")[0].stat().st_size, rel=0.1)
    assert run_cli("plan", tree, tmp_path / "none", "--json").json["estimate"]["compressed_bytes"] is None


@pytest.mark.parametrize("text", ["fast", "1", "10 parsecs"])
def test_a_link_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    ran = run_cli("plan", texts(tmp_path / "in"), tmp_path / "out", "--compress", "auto", "--link", text)
    assert (ran.code, "--link" in ran.err) == (2, True)
