"""Real corpora go in and come out: every file, every class, as other readers see them. The long run has them all."""

from __future__ import annotations

import gc
import json
import os
import platform
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import webdataset
from corpora import CORPORA, Corpus, fetch, reference, sources
from helpers import Said, pack, read_members, run_cli, shard_paths

from shardtool.index_file import open_index
from shardtool.manifest import load_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.packing.build import PackResult

NAMES = list(CORPORA) if os.environ.get("SHARDTOOL_CORPORA") == "all" else ["tuxpaint"]
RESULTS = os.environ.get("SHARDTOOL_RESULTS")  # a file for what was measured, as JSON


@dataclass
class Packed:
    """One corpus, packed once for all tests."""

    corpus: Corpus
    out: Path
    result: PackResult
    warnings: str
    wanted: dict[bytes, Path]
    members: dict[bytes, bytes]
    figures: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module", params=NAMES)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packed]:
    corpus = CORPORA[request.param]
    if reason := fetch(corpus):
        pytest.skip(reason)
    out, said = tmp_path_factory.mktemp(request.param) / "out", Said()
    began = time.perf_counter()
    result = pack(corpus.roots, out, say=said, **corpus.options)
    seconds = time.perf_counter() - began
    found = Packed(corpus, out, result, "\n".join(said.warnings), reference(corpus), read_members(out))
    found.figures = {"pack_s": round(seconds, 3)}
    yield found
    if RESULTS:
        write_results(Path(RESULTS), request.param, found)


def write_results(place: Path, name: str, found: Packed) -> None:
    """Add the figures of one corpus to the file of results."""
    manifest = load_manifest(os.fspath(found.out))
    document: dict[str, Any] = (
        json.loads(place.read_text()) if place.exists() else {"schema": "shardtool/corpora/1", "corpora": {}}
    )
    document["environment"] = {"system": platform.system(), "machine": platform.machine(), **manifest.created_by}
    document["corpora"][name] = {
        "packages": found.corpus.versions,
        "options": {key: value for key, value in asdict(found.corpus).items() if key not in ("packages", "notices")},
        "samples": manifest.num_samples,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "payload_bytes": manifest.payload_bytes,
        "ledger": manifest.ledger,
        "dataset_id": manifest.dataset_id,
        **found.figures,
    }
    place.write_text(json.dumps(document, indent=1) + "\n")


def test_the_ledger_balances(packed: Packed) -> None:
    assert packed.result.manifest is not None
    ledger = packed.result.manifest.ledger
    assert ledger["seen"] == ledger["packed"] + sum(ledger["ignored"].values()) + ledger["failed"]
    assert ledger["failed"] == 0
    assert ledger["packed"] == len(packed.wanted)
    assert all(word in packed.warnings for word in packed.corpus.notices)


def test_every_file_comes_back_byte_for_byte(packed: Packed) -> None:
    files = {name for name in packed.members if not name.endswith(b".cls")}
    assert files == packed.wanted.keys()
    assert not [name for name in files if packed.members[name] != packed.wanted[name].read_bytes()]


def test_extract_writes_every_file_byte_for_byte(packed: Packed, tmp_path: Path) -> None:
    """Under its own name, and nothing else: class numbers were no files."""
    ran = run_cli("extract", packed.out, tmp_path / "tree")
    assert ran.code == 0, ran.err
    top = os.fsencode(tmp_path / "tree")
    found = {
        os.path.relpath(os.path.join(folder, name), top): os.path.join(folder, name)
        for folder, _, names in os.walk(top)
        for name in names
    }
    wanted = sources(packed.corpus)
    assert found.keys() == wanted.keys()
    for name, path in found.items():
        with open(path, "rb") as file:
            assert file.read() == wanted[name].read_bytes(), name


def test_the_class_histogram_is_unchanged(packed: Packed) -> None:
    labels = json.loads((packed.out / "labels.json").read_text())
    keys = {key_of(name) for name in packed.wanted}
    wanted = Counter(key.partition(b"/")[0].decode() for key in keys)
    numbers = [int(data) for name, data in packed.members.items() if name.endswith(b".cls")]
    assert Counter(labels[number] for number in numbers) == wanted


def test_webdataset_reads_exactly_the_samples_of_the_manifest(packed: Packed) -> None:
    manifest = load_manifest(os.fspath(packed.out))
    wanted: list[str] = []
    for shard in manifest.shards:
        assert shard.index is not None
        keys = open_index(os.fspath(packed.out / shard.index.path)).keys.to_pylist()
        wanted += [key.decode() for key in keys]
        assert len(keys) == shard.num_samples
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its streams are closed by the collector
        paths = [os.fspath(path) for path in shard_paths(packed.out)]
        samples = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
        read = [(sample["__key__"], sum(name[0] != "_" for name in sample)) for sample in samples]
        gc.collect()
    assert [key for key, _ in read] == wanted
    assert sum(count for _, count in read) == len(packed.members)


def test_no_shard_is_larger_than_asked_unless_one_sample_is(packed: Packed) -> None:
    large = [
        shard for shard in load_manifest(os.fspath(packed.out)).shards if shard.num_bytes > packed.corpus.shard_size
    ]
    assert all(shard.num_samples == 1 for shard in large)


def test_verify_deep_finds_it_sound(packed: Packed) -> None:
    began = time.perf_counter()
    ran = run_cli("verify", packed.out, "--deep", "--json")
    packed.figures["verify_deep_s"] = round(time.perf_counter() - began, 3)
    assert ran.code == 0, ran.err
    assert ran.json["samples"] == packed.result.stored.num_samples


def test_a_rerun_has_nothing_to_do(packed: Packed) -> None:
    assert pack(packed.corpus.roots, packed.out, **packed.corpus.options).num_packed == 0


def key_of(member: bytes) -> bytes:
    """The key that every reader sees: up to the first dot of the last component."""
    folder, slash, name = member.rpartition(b"/")
    return folder + slash + name.partition(b".")[0]
