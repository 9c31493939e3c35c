"""Megatron-Energon accepts the folder as it is, and its readers find every byte; the rules of `--compat energon`."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from babel import SAMPLES, Babel, packed
from emitted import is_as_packed, packed_with, real_corpus, samples_of, shard_paths_of, some_tree, verdict_of
from helpers import make_tree
from hypothesis import given, settings
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader, SqliteITarEntryReader
from megatron.energon.flavors.webdataset.metadata import WebdatasetMeta
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
from megatron.energon.flavors.webdataset.structs import FilteredSample
from record_data import FEW, TREES, made_tree
from record_data import samples_of as samples_of_tree

ENERGON = str(Path(sys.executable).parent / "energon")
OWN = set(FilteredSample.__annotations__)  # FilteredSample(**parts, __key__=...) stops at a part with such a name
SPLITS = "train=0.7,validation=0.3"
Samples = dict[str, dict[str, bytes]]


def by_offset(out: str, split: str) -> Samples:
    """All samples of a split by the `.tar.idx` files."""
    meta = WebdatasetMeta.from_config(EPath(out), split_part=split)
    reader = ShardInfosITarReader(EPath(out), meta.shards)
    return dict(_plain(reader[number]) for number in range(len(reader)))


def by_key(out: str, keys: list[str]) -> Samples:
    """Samples by index.sqlite."""
    reader = SqliteITarEntryReader(EPath(out))
    assert len(reader) == len(keys)
    return dict(_plain(reader[key]) for key in keys)


def by_part(out: str, names: list[str]) -> dict[str, bytes]:
    """Single parts by index.sqlite."""
    reader = SqliteITarEntryReader(EPath(out), key_is_full_entryname=True)
    return {name: reader[name][0] for name in names}


def _plain(sample: dict[str, object]) -> tuple[str, dict[str, bytes]]:
    parts = {name: value for name, value in sample.items() if not name.startswith("__")}
    assert all(isinstance(value, bytes) for value in parts.values())
    return str(sample["__key__"]), parts  # type: ignore[return-value]


def test_its_readers_find_every_byte(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["energon"], some_tree(tmp_path / "in"), samples_per_shard=1, split=SPLITS)
    assert by_offset(out, "train") == samples_of(out, "train")
    assert by_offset(out, "val") == samples_of(out, "validation")
    wanted = samples_of(out)
    assert by_key(out, list(wanted)) == wanted
    members = {f"{key}.{part}": content for key, parts in wanted.items() for part, content in parts.items()}
    assert by_part(out, list(members)) == members


def test_a_real_corpus_reads_whole(tmp_path: Path) -> None:
    out = real_corpus(tmp_path / "out", ["energon"])
    wanted = samples_of(out)
    assert by_offset(out, "train") == wanted == by_key(out, list(wanted))


@FEW
@given(TREES)
def test_any_samples_are_found(tmp_path_factory: pytest.TempPathFactory, parts: dict[tuple[str, str], bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    tree = made_tree(folder / "in", parts)
    out = packed_with(folder / "out", ["energon"], tree, shard_size=16 << 10, keep_case=True)
    wanted = samples_of_tree(tree)
    assert by_offset(out, "train") == wanted == by_key(out, list(wanted))
    shutil.rmtree(folder)


@pytest.mark.parametrize("command", ["info", "lint"])
def test_its_own_tools_have_no_complaint(command: str, tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["energon"], shard_size=60_000, split=SPLITS)
    done = subprocess.run([ENERGON, command, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    if command == "info":
        assert "64 samples" in done.stdout
        assert "`train`: 70%, 45 samples" in done.stdout


def test_the_files_are_those_of_its_own_prepare(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["energon"], shard_size=60_000)
    theirs = tmp_path / "theirs"
    shutil.copytree(Path(out) / "data", theirs / "data", ignore=shutil.ignore_patterns("*.idx"))
    prepare = [ENERGON, "prepare", str(theirs), "--non-interactive", "--split-ratio", "1,0,0"]
    done = subprocess.run(
        [*prepare, "--sample-type", "CrudeWebdataset"], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for path in shard_paths_of(out):
        mine, other = Path(f"{path}.idx"), theirs / "data" / f"{path.name}.idx"
        assert mine.read_bytes() == other.read_bytes()
    assert rows_of(Path(out)) == rows_of(theirs)


def rows_of(folder: Path) -> list[list[tuple[object, ...]]]:
    """Both tables of index.sqlite, with the names of shards, and the definitions of tables and indexes."""
    names = list(json.loads((folder / ".nv-meta" / ".info.json").read_text())["shard_counts"])
    db = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
    tables = [
        sorted((names[row[0]], *row[1:]) for row in db.execute(f"SELECT * FROM {table}"))
        for table in ("samples", "sample_parts")
    ]
    made = sorted(
        (name, "".join((sql or "").split())) for name, sql in db.execute("SELECT name, sql FROM sqlite_master")
    )
    db.close()
    return [*tables, made]


class Keys(DefaultTaskEncoder):  # type: ignore[misc]
    """Gives the key and text of each sample, undecoded."""

    decoder = None

    def batch(self, samples: list[TextSample]) -> list[tuple[str, bytes]]:
        return [(sample.__key__, sample.text) for sample in samples]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_its_loader_gives_each_sample_of_an_epoch_once(tmp_path: Path) -> None:
    out = packed_with(tmp_path / "out", ["energon"], some_tree(tmp_path / "in"), samples_per_shard=1)
    dataset = get_train_dataset(
        out,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=Keys(),
    )
    found = [tuple(pair) for batch in get_loader(dataset) for pair in batch]
    assert sorted(found) == sorted((key, parts["txt"]) for key, parts in samples_of(out).items())


@edataclass
class Stored(Sample):  # type: ignore[misc]
    """A sample as it is stored."""

    parts: dict[str, bytes]


@stateless  # type: ignore[untyped-decorator]
def as_stored(sample: dict[str, object]) -> Stored:
    return Stored(**basic_sample_keys(sample), parts=_plain(sample)[1])


class AllParts(DefaultTaskEncoder):  # type: ignore[misc]
    """Gives the key and all parts of each sample, undecoded."""

    decoder = None
    cookers = (Cooker(as_stored),)

    def batch(self, samples: list[Stored]) -> list[tuple[str, dict[str, bytes]]]:
        return [(sample.__key__, sample.parts) for sample in samples]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("world_size", [1, 2])
def test_its_ranks_share_an_epoch_with_all_parts(world_size: int, tmp_path: Path) -> None:
    files = {f"{number:02d}.{part}": f"{number} {part}" for number in range(24) for part in ("jpg", "seg.png", "json")}
    ragged = {path: text for path, text in files.items() if not path.endswith("jpg") or int(path[:2]) % 3}
    tree = make_tree(tmp_path / "in", ragged)
    out = packed_with(tmp_path / "out", ["energon"], tree, samples_per_shard=3)
    ranks = [whole_epoch(out, rank, world_size) for rank in range(world_size)]
    assert all(ranks)
    found = [pair for rank in ranks for pair in rank]
    assert len(found) == len(dict(found))
    assert dict(found) == samples_of_tree(tree)


def whole_epoch(out: str, rank: int, world_size: int) -> list[tuple[str, dict[str, bytes]]]:
    """What one rank reads."""
    dataset = get_train_dataset(
        out,
        worker_config=WorkerConfig(rank=rank, world_size=world_size, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=AllParts(),
    )
    return [pair for batch in get_loader(dataset) for pair in batch]


def read(samples: Babel) -> list[tuple[str, set[str]]] | None:
    with tarfile.open(fileobj=io.BytesIO(packed(samples))) as archive:
        rows = [(key, part) for _, key, part in WebdatasetPreparator._iter_tar_sample_members(archive)]
    if OWN & {part for _, part in rows}:
        return None
    try:
        "".join(key + part for key, part in rows).encode()
    except UnicodeEncodeError:
        return None
    found: list[tuple[str, set[str]]] = []
    for key, part in rows:
        if not found or found[-1][0] != key:
            found.append((key, set()))
        found[-1][1].add(part)
    return found


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_samples_come_as_packed_where_and_only_where_nothing_is_found(samples: Babel) -> None:
    assert is_as_packed(samples, read(samples)) == verdict_of("energon", samples).is_clean
