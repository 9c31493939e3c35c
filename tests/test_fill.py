"""Shards of formats with columns, whose sizes are bounds, are nearly as large as was asked for, before compression."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpora import CORPORA, fetch
from helpers import make_tree, pack, run_cli, write_jsonl

from shardtool.formats import FORMATS, get_format
from shardtool.manifest import load_manifest

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 512 << 10
WANTED = 0.9
BOUNDED = [name for name in FORMATS if get_format(name).has_schema and not get_format(name).is_exact]
is_long_run = os.environ.get("SHARDTOOL_CORPORA") == "all"
every_variant = pytest.mark.parametrize(
    ("name", "compress"), [(name, compress) for name in BOUNDED for compress in ("none", "zstd:1")]
)


def fills(out: Path, limit: int) -> list[float]:
    """Bytes of each shard before compression, in parts of what was asked for."""
    shards = load_manifest(os.fspath(out)).shards
    assert len(shards) > 12  # so that equal cuts cost little
    return [(shard.raw_bytes or shard.num_bytes) / limit for shard in shards]


def test_these_formats_are_the_ones_with_bounds() -> None:
    assert BOUNDED == ["parquet", "arrow", "arrow-stream"]


@every_variant
def test_shards_of_texts_are_filled(name: str, compress: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    text = rng.randbytes(16 << 10).hex()
    rows = [
        {"key": f"d/{n:05d}", "txt": " ".join(text[n : n + rng.randrange(100, 700)]), "cls": n % 10}
        for n in range(20_000)
    ]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    options = ("--format", name, "--compress", compress, "--shard-size", str(LIMIT), "--durability", "none")
    assert run_cli("convert", table, tmp_path / "out", *options, "-q").code == 0
    found = fills(tmp_path / "out", LIMIT)
    assert np.median(found) >= WANTED
    assert max(found) <= 1


@every_variant
def test_shards_of_photos_are_filled(name: str, compress: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    files: dict[str, bytes] = {}
    for n in range(600):
        stem = f"{'abc'[n % 3]}/{n:05d}"
        files[f"{stem}.jpg"] = rng.randbytes(int(min(rng.lognormvariate(9.5, 0.6), LIMIT / 2)))
        files |= {f"{stem}.txt": b"a photo of %d" % n, f"{stem}.cls": b"%d" % (n % 10)}
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format=name, compress=compress, shard_size=LIMIT)
    found = fills(tmp_path / "out", LIMIT)
    assert np.median(found) >= WANTED
    assert max(found) <= 1


@pytest.mark.skipif(not is_long_run, reason="the long run packs real corpora: SHARDTOOL_CORPORA=all")
@every_variant
@pytest.mark.parametrize("corpus", ["tuxpaint", "linux-doc"])  # pictures, and texts
def test_shards_of_a_real_corpus_are_filled(name: str, compress: str, corpus: str, tmp_path: Path) -> None:
    found, limit = CORPORA[corpus], 8 << 20
    if reason := fetch(found):
        pytest.skip(reason)
    options: dict[str, Any] = {
        "group_by": found.rule,
        "links": found.links,
        "no_ext": found.no_ext,
        "schema": ("txt=binary",),
    }
    pack(found.roots, tmp_path / "out", format=name, compress=compress, shard_size=limit, **options)
    assert np.median(fills(tmp_path / "out", limit)) >= WANTED
