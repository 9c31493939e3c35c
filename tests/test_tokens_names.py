"""Token data below paths that are no UTF-8: the source, the output, and files of every kind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import run_cli
from test_tokens_pack import IDS, documents, ids_source, jsonl, pack_tokens

from shardtool.indexing import cache
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.storage import open_place
from shardtool.tokens.store import load_inputs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file systems of macOS take UTF-8 alone")
CAFE = os.fsdecode(b"caf\xe9")
NONE = {"tokenizer": "none", "empty": "keep"}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "jsonl"])
def test_files_and_folders_of_any_name_are_sources(tmp_path: Path, kind: str) -> None:
    source = ids_source(tmp_path / "in", kind).rename(tmp_path / CAFE)
    (file,) = source.iterdir()
    file.rename(source / f"{CAFE}{file.suffix}")
    pack_tokens(source, tmp_path / "out", tokens=NONE, shuffle="none")
    assert documents(tmp_path / "out") == IDS
    (stored,) = load_inputs(os.fspath(tmp_path / "out"))
    assert stored.full_path == os.fspath(source / f"{CAFE}{file.suffix}")


def test_an_array_of_any_name_is_a_source(tmp_path: Path) -> None:
    (tmp_path / CAFE).mkdir()
    with (tmp_path / CAFE / f"{CAFE}.npy").open("wb") as file:
        np.save(file, np.arange(12, dtype=np.uint16).reshape(3, 4))
    pack_tokens(tmp_path / CAFE, tmp_path / "out", tokens={"tokenizer": "none"}, shuffle="none")
    assert documents(tmp_path / "out") == np.arange(12).reshape(3, 4).tolist()


def test_a_cache_of_any_name_keeps_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(jsonl(["some text"]))
    pack_tokens(tmp_path / "in", tmp_path / "out")
    record = load_manifest(str(tmp_path / "out")).shards[0].index
    assert record is not None
    place = open_place(str(tmp_path / "out"))
    fetched: list[str] = []

    class Store:
        is_local = False
        shown = staticmethod(place.shown)

        def read(self, path: str) -> bytes:
            fetched.append(path)
            return place.read(path)

    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path / CAFE))
    monkeypatch.setattr(cache, "open_place", lambda _: Store())
    assert cache.load_index("s3://b/out", record).keys == cache.load_index("s3://b/out", record).keys
    assert fetched == [record.path]


def test_an_output_of_any_name_is_packed_resumed_and_compared(tmp_path: Path) -> None:
    source, out = tmp_path / CAFE, tmp_path / os.fsdecode(b"out\xff")
    source.mkdir()
    (source / "a.jsonl").write_bytes(jsonl(["some text", "more of it"]))
    command = ("pack", source, out, "--format", "bin", "--workers", "1")
    assert run_cli(*command).code == 0
    assert len(documents(out)) == 2
    again = run_cli(*command, "--json")
    assert (again.code, again.json["resumed_shards"]) == (0, 1)
    (out / MANIFEST).unlink()
    next((out / "data").glob("*.bin")).unlink()
    assert run_cli(*command).code == 0
    assert run_cli("verify", out, "--deep").code == 0
