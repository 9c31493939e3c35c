"""Text to pairs: what comes out is what went in, in a seeded order, whatever the workers and crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import make_tree, pack
from pairs import read_pair

from shardtool.manifest import load_manifest
from shardtool.reading import Dataset
from shardtool.token_options import TokenOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.build import PackResult


def pack_tokens(source: Path, out: Path, *, tokens: dict[str, Any] | None = None, **options: Any) -> PackResult:
    return pack(source, out, format="bin", tokens=TokenOptions(**(tokens or {})), **options)


def prefixes(out: Path, split: str = "") -> list[Path]:
    """Pairs of a data set, in the order of the manifest."""
    shards = load_manifest(str(out)).shards
    return [out / shard.path.removesuffix(".bin") for shard in shards if split in ("", shard.split)]


def documents(out: Path, split: str = "") -> list[list[int]]:
    return [doc for prefix in prefixes(out, split) for doc in read_pair(prefix)]


def keyed(out: Path) -> dict[str, bytes]:
    """{key: text} by the bytes tokenizer."""
    with Dataset.open(str(out)) as dataset:
        return {
            sample.key.decode(): np.frombuffer(sample.parts["tokens"], "<u2")[:-1].astype(np.uint8).tobytes()
            for shard in range(dataset.num_shards)
            for sample in dataset.samples(shard, check=True)
        }


def jsonl(texts: Sequence[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


TEXTS = [f"document {number} " + "x" * (number * 7 % 50) for number in range(100)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS[:60]), "sub/b.jsonl": jsonl(TEXTS[60:])})
    return tmp_path / "in"


def test_texts_come_back(lines: Path, tmp_path: Path) -> None:
    result = pack_tokens(lines, tmp_path / "out", shards=3)
    assert result.manifest is not None
    assert sorted(keyed(tmp_path / "out").values()) == sorted(text.encode() for text in TEXTS)
    docs = documents(tmp_path / "out")
    assert all(doc[-1] == 256 for doc in docs)
    assert [len(p) for p in map(read_pair, prefixes(tmp_path / "out"))] == [
        shard.num_samples for shard in result.manifest.shards
    ]
    assert result.manifest.ledger == {"seen": 100, "packed": 100, "ignored": {}, "failed": 0}
    for spec, shard in zip(result.stored.shards, result.manifest.shards, strict=True):
        assert spec.num_bytes == shard.num_bytes, "planned bytes are those of both files"
    assert not (tmp_path / "out" / ".shardtool" / "parts").exists()
