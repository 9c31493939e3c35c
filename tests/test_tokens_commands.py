"""Commands on token data sets and bare pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bpe import tokenizer_file
from helpers import make_tree, run_cli
from pairs import write_pair
from test_schemas import check
from test_tokens_merge import DOCS, damage
from test_tokens_pack import TEXTS, documents, jsonl, keyed, pack_tokens, prefixes


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens")
    make_tree(root / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(root / "in", root / "out", shards=3, split="train=0.8,test=0.2")
    return root / "out"


@pytest.fixture
def out(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "out"))


def test_pack_says_what_it_did(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    done = run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin", "--json", "--durability", "none")
    check("pack", done.json)
    assert (done.json["samples"], done.json["format"]) == (100, "bin")
    again = run_cli("pack", tmp_path / "out", "--json")
    assert (again.code, again.json["resumed_shards"]) == (0, 1)
    check("manifest", json.loads((tmp_path / "out" / "manifest.json").read_text()))


def test_token_options_need_the_format(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["x"])})
    refused = run_cli("pack", tmp_path / "in", tmp_path / "out", "--context", "8", "--pack", "best-fit", "--json")
    assert refused.code == 2
    assert "--context, --pack needs --format bin" in refused.error["message"]


def test_a_dry_run_is_exact_where_everything_was_read(tmp_path: Path, packed: Path) -> None:
    source = packed.parent / "in"
    planned = run_cli("pack", source, tmp_path / "no", "--format", "bin", "--shards", "3", "-n", "--json")
    check("plan", planned.json)
    manifest = json.loads((packed / "manifest.json").read_text())
    assert planned.json["is_estimate"] is False
    assert planned.json["tokens"] == manifest["membership"]["tokens"]["count"]
    assert planned.json["ledger"] == {"seen": 100, "packed": 100, "ignored": {}, "failed": 0}
    assert not (tmp_path / "no").exists()
    done = pack_tokens(source, tmp_path / "yes", shards=3)
    assert planned.json["plan_id"] == done.stored.plan_id
    assert [s["bytes"] for s in planned.json["shards"]] == [s.num_bytes for s in done.stored.shards]


def test_a_dry_run_of_a_large_source_estimates_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.estimate.SAMPLE_BYTES", 2000)
    monkeypatch.setattr("shardtool.tokens.estimate.HEAD_BYTES", 1000)
    make_tree(tmp_path / "in", {f"{number}.jsonl": jsonl(TEXTS) for number in range(9)})
    planned = run_cli("plan", tmp_path / "in", tmp_path / "out", "--format", "bin", "--json")
    check("plan", planned.json)
    assert planned.json["is_estimate"] is True
    exact = pack_tokens(tmp_path / "in", tmp_path / "out")
    assert exact.manifest is not None
    wanted = exact.manifest.membership["tokens"]["count"]
    assert abs(planned.json["tokens"] - wanted) < 0.2 * wanted
    text = run_cli("plan", tmp_path / "in", tmp_path / "no", "--format", "bin").out
    assert "estimated from" in text
    assert run_cli("plan", tmp_path / "in", tmp_path / "no", "--format", "bin", "--write").code == 2


def test_an_estimate_counts_ids_of_one_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.tokens.estimate.SAMPLE_BYTES", 2000)
    make_tree(tmp_path / "in", {f"{number}.jsonl": jsonl(["x" * 900]) for number in range(9)})
    options = ("--format", "bin", "--eod", "none", "--dtype", "uint8", "--shard-tokens", "900", "--json")
    planned = run_cli("plan", tmp_path / "in", tmp_path / "out", *options)
    assert planned.json["is_estimate"] is True
    assert len(planned.json["shards"]) >= 9


def test_verify_reads_all_and_names_a_damaged_idx(out: Path) -> None:
    assert run_cli("verify", out, "--deep").code == 0
    idx = Path(f"{prefixes(out)[0]}.idx")
    whole = idx.read_bytes()
    idx.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    found = run_cli("verify", out, "--deep", "--json")
    check("verify", found.json)
    assert [(p["kind"], p["path"]) for p in found.json["problems"]] == [("altered", f"data/{idx.name}")]
    idx.write_bytes(whole[:-1])
    assert [p["kind"] for p in run_cli("verify", out, "--json").json["problems"]] == ["size"]
    idx.unlink()
    assert [p["kind"] for p in run_cli("verify", out, "--json").json["problems"]] == ["missing"]


def test_what_is_lost_is_packed_again_from_the_source(out: Path, packed: Path) -> None:
    (out / "index" / "00001.arrow").unlink()
    refused = run_cli("index", out, "--json")
    assert refused.code == 4
    assert "shardtool pack" in refused.error["hint"]
    again = run_cli("pack", out, "--durability", "none")
    assert again.code == 0, again.err
    assert (out / "index" / "00001.arrow").read_bytes() == (packed / "index" / "00001.arrow").read_bytes()
    (out / "manifest.json").unlink()
    assert run_cli("index", out).code == 0
    assert (out / "manifest.json").read_bytes() == (packed / "manifest.json").read_bytes()


def test_stats_count_tokens_and_lengths(packed: Path) -> None:
    found = run_cli("stats", packed, "--json").json
    check("stats", found)
    lengths = sorted(len(doc) for doc in documents(packed))
    tokens = found["tokens"]
    assert (tokens["count"], tokens["sequences"]) == (sum(lengths), len(lengths))
    assert tokens["length"]["min"] == lengths[0]
    assert tokens["length"]["max"] == lengths[-1]
    assert tokens["length"]["p50"] == lengths[49]
    for low, high, count in tokens["histogram"]:
        assert count == sum(low <= length < high for length in lengths)
    assert "tokens" in run_cli("stats", packed).out


def test_a_sequence_is_shown_with_its_text(packed: Path) -> None:
    docs, texts = documents(packed), keyed(packed)
    for number in (0, 57, 99):
        found = run_cli("inspect", packed, "--doc", str(number), "--decode", "bytes", "--json").json
        check("inspect", found)
        assert found["ids"] == docs[number]
        assert found["text"].encode() == texts[found["key"]]
    by_key = run_cli("inspect", packed, found["key"], "--decode", "bytes")
    assert found["text"] in by_key.out
    assert run_cli("inspect", packed, "--doc", "100").code == 5
    assert run_cli("inspect", packed, "--decode", "bytes").code == 2


def test_another_tokenizer_than_the_one_used_is_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["hello there"])})
    used, other = tokenizer_file(), tokenizer_file(300)
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": str(used)})
    shown = run_cli("inspect", tmp_path / "out", "--doc", "0", "--decode", used, "--json")
    assert shown.json["text"] == "hello there"
    for name in (str(other), "bytes"):
        assert run_cli("inspect", tmp_path / "out", "--doc", "0", "--decode", name).code == 2


def test_ls_cat_where_assign_and_extract_treat_sequences_as_samples(packed: Path, tmp_path: Path) -> None:
    assert len(run_cli("ls", packed, "--samples").out.splitlines()) >= 100
    key, text = next(iter(keyed(packed).items()))
    data = run_cli("cat", packed, key, "--part", "tokens", "--json")
    assert data.code == 0, data.err
    assert run_cli("where", packed, key).code == 0
    ranks = run_cli("assign", packed, "--world-size", "3", "--split", "train", "--json").json["ranks"]
    assert sum(rank["samples"] for rank in ranks) == 80
    done = run_cli("extract", packed, tmp_path / "files", "--all-parts")
    assert done.code == 0, done.err
    files = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    assert len(files) == 100
    assert sorted(path.read_bytes() for path in files)
    assert any(np.frombuffer(path.read_bytes(), "<u2")[:-1].astype(np.uint8).tobytes() == text for path in files)


def test_pairs_without_a_manifest_are_verified(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pairs" / "a", DOCS)
    write_pair(tmp_path / "pairs" / "b", DOCS)
    for place in (pair, f"{pair}.bin", f"{pair}.idx", tmp_path / "pairs"):
        found = run_cli("verify", place, "--deep", "--json")
        check("verify", found.json)
        assert found.code == 0, found.err
    assert found.json["shards"] == 2
    damage(pair, "documents")
    found = run_cli("verify", tmp_path / "pairs", "--json")
    assert found.code == 4
    assert [(p["kind"], Path(p["path"]).name) for p in found.json["problems"]] == [("documents", "a.idx")]
    assert f"shardtool index --repair {pair}:" in found.error["hint"]


def test_overwrite_takes_all_that_is_ours(out: Path) -> None:
    source = out.parent / "src"
    make_tree(source, {"x.txt": "text", "y.bin": "x"})
    (out / "theirs").write_text("keep me")
    done = run_cli("pack", source, out, "--overwrite", "--durability", "none", "--group-by", "file")
    assert done.code == 0, done.err
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert "theirs" in left
    assert not [name for name in left if name.endswith((".idx", ".parquet")) or name.endswith("-of-00003.bin")]


def test_lines_that_were_skipped_end_the_run_with_3(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": b'{"text": "ok"}\nbroken\n'})
    stopped = run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin", "--json")
    assert (stopped.code, stopped.error["where"]["key"]) == (5, "a.jsonl#15")
    skipped = run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin", "--on-error", "skip", "--json")
    assert (skipped.code, skipped.json["ledger"]["failed"]) == (3, 1)


def test_pictures_end_the_run_with_2(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jpg": b"\xff\xd8"})
    refused = run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin", "--json")
    assert (refused.code, "tar or parquet" in refused.error["hint"]) == (2, True)
