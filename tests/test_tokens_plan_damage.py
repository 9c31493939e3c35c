"""A stored plan of token data that was damaged on disk: no shard is packed from it, none has less than was planned."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers import make_tree
from test_tokens_pack import TEXTS, digests, jsonl, pack_tokens

from shardtool.errors import FormatError
from shardtool.manifest import MANIFEST
from shardtool.tokens.shard import _opened
from shardtool.tokens.store import DROPPED, INPUTS, SHARDS, load_inputs, load_shards

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS[:60]), "b.jsonl": jsonl(TEXTS[50:])})


def all_of(out: Path) -> Any:
    """What the tables tell, as something to compare."""
    plan = load_shards(os.fspath(out))
    dropped = plan.selection.dropped.tolist()
    names = (plan.selection.names, plan.selection.thresholds)
    return plan.shards, dropped, names, plan.runs, plan.dtype, plan.is_sorted, load_inputs(os.fspath(out))


@pytest.mark.parametrize("table", [SHARDS, DROPPED, INPUTS])
def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(source: Path, tmp_path: Path, table: str) -> None:
    out = tmp_path / "out"
    pack_tokens(source, out, tokens={"context": 64, "packing": "best-fit", "dedup": "exact"}, shards=3)
    good, whole = (out / table).read_bytes(), all_of(out)
    assert whole[1], "duplicates were dropped"
    seed = random.randrange(1 << 32)
    chosen, hints = random.Random(seed), set()
    for _ in range(300):
        place, bit = chosen.randrange(len(good)), 1 << chosen.randrange(8)
        (out / table).write_bytes(good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :])
        try:
            assert all_of(out) == whole, f"byte {place}, bit {bit}, seed {seed}"
        except FormatError as error:
            hints.add(error.hint)
    assert hints == {"run the same command with --overwrite to plan and pack again"}


def rewrite(path: Path, change: dict[str, int]) -> None:
    """The table with other values in its first row, and no digest, as an earlier version wrote it."""
    with pa.ipc.open_file(path) as reader:
        table = reader.read_all()
    rows = table.to_pylist()
    rows[0].update({name: rows[0][name] + more for name, more in change.items()})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=table.schema))


def lose_first_shard(out: Path) -> None:
    _opened.cache_clear()  # as in another process
    (out / MANIFEST).unlink()
    for path in (out / "data").glob("train-00000-of-*"):
        path.unlink()


PACKINGS: list[dict[str, Any]] = [{}, {"context": 64}, {"context": 64, "packing": "best-fit"}]


@pytest.mark.parametrize("tokens", PACKINGS, ids=["documents", "concat", "best-fit"])
@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_a_shard_that_would_lack_documents_ends_the_run(
    source: Path, tmp_path: Path, tokens: dict[str, Any], shuffle: str
) -> None:
    out = tmp_path / "out"
    pack_tokens(source, out, tokens=tokens, shards=2, shuffle=shuffle)
    kept = load_shards(os.fspath(out)).shards[0]
    lose_first_shard(out)
    rewrite(out / SHARDS, {"last": -((kept.last - kept.first) // 3)})
    with pytest.raises(FormatError, match=r"data/train-00000-of-00002\.bin got \d+ sequences and .* planned are \d+"):
        pack_tokens(source, out, tokens=tokens, shards=2, shuffle=shuffle)
    assert not list((out / "data").glob("train-00000-of-*"))
    assert not (out / MANIFEST).exists()


def test_a_plan_and_its_row_that_agree_on_too_little_are_held_to_the_sizes_of_the_plan(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pack_tokens(source, out, shards=2, shuffle="none")
    lose_first_shard(out)
    rewrite(out / SHARDS, {"last": -3, "sequences": -3})
    with pytest.raises(FormatError, match="the stored plan or the part files are damaged"):
        pack_tokens(source, out, shards=2, shuffle="none")


def test_a_plan_without_digests_is_read(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_tokens(source, out, shards=2)
    whole, files = all_of(out), digests(out)
    for table in (SHARDS, INPUTS):
        rewrite(out / table, {})
    assert all_of(out) == whole
    lose_first_shard(out)
    pack_tokens(source, out, shards=2)
    assert digests(out) == files
