"""Token shards in the layouts of other trainers: one payload, small files beside it, refusals in words."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import make_tree, run_cli
from pairs import read_pair
from test_schemas import check
from test_tokens_pack import TEXTS, documents, jsonl, pack_tokens, prefixes

from shardtool.dialects import prepare
from shardtool.dialects.trainers import is_guess_right
from shardtool.emitted import write_emissions
from shardtool.reading.reading import Dataset
from shardtool.storage.local import LocalPlace

if TYPE_CHECKING:
    from helpers import Ran

SPLITS = "train=0.8,validation=0.2"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(tmp_path / "in", tmp_path / "out", split=SPLITS)
    return tmp_path / "out"


def emit(out: Path, *names: str) -> Ran:
    done = run_cli("index", out, "--emit", ",".join(names), "--json")
    if done.code == 0:
        check("index", done.json)
    return done


def test_four_layouts_share_one_payload(out: Path) -> None:
    assert emit(out, "ds", "olmo", "nanogpt").code == 0
    for split, name in (("train", "train"), ("validation", "val")):
        payload = Path(f"{prefixes(out, split)[0]}.bin")
        for path in (
            f"ds/{split}/{split}-00000-of-00001.ds",
            f"olmo/{split}/{split}-00000-of-00001.npy",
            f"nanogpt/{name}.bin",
        ):
            assert os.path.samefile(out / path, payload), path
    assert emit(out, "ds", "olmo", "nanogpt").json["emitted"][0]["new"] == 0
    assert run_cli("verify", out, "--deep").code == 0


def test_links_outlast_a_loss_of_power_as_other_files_do(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(LocalPlace, "sync", lambda _self, paths: synced.extend(paths))
    with Dataset.open(str(out)) as dataset:
        done = write_emissions(str(out), prepare(dataset, ["olmo"]), durable=True)
    assert sorted(synced) == sorted(record.path for record in done[0].files)


def test_ds_files_hold_the_ends_of_documents(out: Path) -> None:
    emit(out, "ds")
    docs = documents(out, "train")
    index = np.fromfile(out / "ds" / "train" / "train-00000-of-00001.ds.index", "<u8")
    assert index.tolist() == np.cumsum([len(doc) for doc in docs]).tolist()
    assert not list((out / "ds").rglob("*.metadata")), "bytes is no tokenizer that nanotron could load"


def test_olmo_rows_name_documents_and_their_tokens(out: Path) -> None:
    emit(out, "olmo")
    with gzip.open(out / "olmo" / "train" / "train-00000-of-00001.csv.gz", "rt", newline="") as file:
        rows = list(csv.reader(file))
    ids = np.fromfile(out / "olmo" / "train" / "train-00000-of-00001.npy", "<u2")
    docs = documents(out, "train")
    assert [ids[int(start) : int(end)].tolist() for start, end, *_ in rows] == docs
    assert {row[3] for row in rows} == {"a.jsonl"}
    assert [int(row[4]) for row in rows] == list(range(1, len(docs) + 1))


def test_llmc_and_npy_have_their_headers(out: Path) -> None:
    emit(out, "llmc", "npy")
    stream = [token for doc in documents(out, "train") for token in doc]
    data = (out / "llmc" / "data_train_000000.bin").read_bytes()
    header = np.frombuffer(data, "<i4", 256)
    assert header[:3].tolist() == [20240520, 1, len(stream)]
    assert np.frombuffer(data, "<u2", offset=1024).tolist() == stream
    assert np.load(out / "npy" / "data_train_000000.npy").tolist() == stream
    assert (out / "llmc" / "data_val_000000.bin").exists()


def test_megatron_arguments_name_every_prefix(out: Path) -> None:
    done = emit(out, "megatron")
    per_split = json.loads((out / "megatron" / "per_split.json").read_text())
    assert list(per_split) == ["train", "valid"]
    train = prefixes(out, "train")[0]
    assert per_split["train"][1::2] == [str(train)]
    assert (out / "megatron" / "data_args.txt").read_text().split()[1::2] == [str(train)]
    sequences = json.loads((out / "megatron" / "sequences.json").read_text())
    count = len(read_pair(train))
    assert sequences[str(train)] == [count, count + 1]
    assert "--per-dataset-sequences-path" in done.json["emitted"][0]["recipe"]


def test_the_fast_start_of_megatron_is_offered_where_its_guess_is_right() -> None:
    assert is_guess_right("uint16", 65_536)
    assert is_guess_right("int32", 65_537)
    assert not is_guess_right("int32", 65_520), "it would read int32 as uint16"
    assert not is_guess_right("int32", None)


def test_nanotron_gets_a_folder_a_split_and_a_data_stage(out: Path) -> None:
    emit(out, "nanotron")
    text = (out / "ds" / "nanotron.yaml").read_text()
    assert f"- {out}/ds/train\n" in text
    assert "token_size_in_bytes: 2\n" in text
    assert [path.suffix for path in sorted((out / "ds" / "train").iterdir())] == [".ds", ".index"]


def test_what_a_layout_cannot_hold_is_refused(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "in"
    pack_tokens(source, tmp_path / "wide", tokens={"dtype": "int32"})
    for name in ("nanogpt", "llmc"):
        refused = emit(tmp_path / "wide", name)
        assert (refused.code, "uint16" in refused.error["message"]) == (2, True)
    pack_tokens(source, tmp_path / "many", shards=2)
    assert "one file a split" in emit(tmp_path / "many", "nanogpt").error["message"]
    pack_tokens(source, tmp_path / "test", split="train=0.5,test=0.5")
    assert "not test" in emit(tmp_path / "test", "llmc").error["message"]
    run_cli("pack", source, tmp_path / "tar", "--group-by", "file", "--durability", "none")
    assert "not token ids" in emit(tmp_path / "tar", "ds").error["message"]


def test_splits_that_a_trainer_has_no_place_for_are_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(tmp_path / "in", tmp_path / "out", split="extra=0.5,test=0.5")
    for name, others in (
        ("nanogpt", "extra, test"),
        ("llmc", "extra, test"),
        ("npy", "extra, test"),
        ("megatron", "extra"),
    ):
        refused = emit(tmp_path / "out", name)
        assert (refused.code, f"not {others}" in refused.error["message"]) == (2, True), name
    recipes = {
        one["dialect"]: one["recipe"] for one in emit(tmp_path / "out", "ds", "olmo", "nanotron").json["emitted"]
    }
    assert "/ds/extra" in recipes["ds"], "a line to paste names a split that is there"
    assert "/olmo/extra/" in recipes["olmo"]
    assert "/ds/extra\n" in (tmp_path / "out" / "ds" / "nanotron.yaml").read_text()


def test_pack_emits_what_it_is_asked_for(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    done = run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin", "--emit", "ds,megatron")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "ds" / "train").is_dir()
    assert (tmp_path / "out" / "megatron" / "per_split.json").exists()
    wrong = run_cli("pack", tmp_path / "in", tmp_path / "two", "--format", "bin", "--emit", "nope")
    assert wrong.code == 2
    assert not (tmp_path / "two").exists()
