"""Every format, every command, in a folder and in a bucket: each works, or refuses for the documented reason.

That it works: what it tells and writes is what the source has (`matrix.py`).
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import make_tree, run_cli
from matrix import CHECKS, Cell, samples_of_lines, samples_of_tree
from snapshots import files_below
from store import contents, files_of, tree_of, uploads

from shardtool.formats import FORMATS
from shardtool.loading.reader import SampleReader
from shardtool.manifest import load_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket

PLACES = ("folder", "bucket")
TOKENS = ("bin",)  # made of text, samples of one part
RANGES = ("tar", "bin", "tfrecord", "mds", "litdata")  # a sample is a range of bytes of its shard
COMPRESSED = ("tar", "mds", "parquet", "arrow", "arrow-stream")
ZSTD = ".zst"
KINDS = (*FORMATS, "tar" + ZSTD)
REFUSED: dict[tuple[str, str, str], tuple[int, str]] = {}  # (command, format, place): exit code, words of the reason
COMMANDS = {
    "verify": ("verify", "OUT"),
    "verify --deep": ("verify", "OUT", "--deep"),
    "stats": ("stats", "OUT"),
    "ls": ("ls", "OUT"),
    "ls --samples": ("ls", "OUT", "--samples"),
    "cat": ("cat", "OUT", "KEY", "--part", "PART"),
    "inspect": ("inspect", "OUT", "KEY"),
    "inspect SHARD": ("inspect", "OUT", "0"),
    "status": ("status", "OUT"),
    "index": ("index", "OUT"),
    "diff": ("diff", "OUT", "OUT"),
    "assign": ("assign", "OUT", "--world-size", "2"),
    "where": ("where", "OUT", "KEY", "--world-size", "2"),
    "extract": ("extract", "OUT", "TARGET", "--all-parts"),
    "stage": ("stage", "OUT", "CACHE", "--durability", "none"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_of(tmp_path_factory.mktemp("source") / "src", num_samples=24)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [json.dumps({"id": f"d{number}", "text": "word " * (number % 7 + 1)}) for number in range(24)]
    return make_tree(tmp_path_factory.mktemp("text") / "src", {"docs.jsonl": "\n".join(lines) + "\n"})


def samples_of(name: str, source: Path, text: Path) -> dict[str, dict[str, bytes]]:
    """What a data set of this format holds."""
    if name not in TOKENS:
        return samples_of_tree(source)
    return {key: parts for path in text.glob("*.jsonl") for key, parts in samples_of_lines(path).items()}


def options_of(name: str, source: Path, text: Path) -> tuple[Path, tuple[str, ...]]:
    shards: tuple[str, ...] = ("--format", name.removesuffix(ZSTD), "--shards", "2")
    if name.endswith(ZSTD):
        shards = (*shards, "--compress", "zstd:1")
    return (text, (*shards, "--tokenizer", "bytes")) if name in TOKENS else (source, shards)


@pytest.fixture(scope="module")
def folders(source: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data set of each format."""
    found = {}
    for name in KINDS:
        found[name] = tmp_path_factory.mktemp(name) / "out"
        tree, options = options_of(name, source, text)
        assert run_cli("pack", tree, found[name], *options).code == 0
    return found


@pytest.fixture(scope="module")
def grown(source: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """`source` and `text` a day later: of each one sample is gone, one is new, one has other bytes of the same size."""
    files = {path: data for path, data in files_of(source).items() if not path.startswith("a/0000")}
    files |= {"b/new.bin": b"new", "b/new.txt": b"new", "c/0002.txt": files["c/0002.txt"].upper()}
    tree = make_tree(tmp_path_factory.mktemp("grown") / "src", files)
    lines = (text / "docs.jsonl").read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b"word", b"WORD")
    other = {"docs.jsonl": b"".join(lines[:-1]), "more.jsonl": lines[-1]}  # the last is gone, and another is new
    return tree, make_tree(tmp_path_factory.mktemp("grown-text") / "src", other)


def placed(folder: Path, place: str, bucket: Bucket, prefix: str = "out") -> str:
    """Where a data set is found: its folder, or the prefix of a bucket that it is copied to."""
    if place == "folder":
        return os.fspath(folder)
    bucket.put({f"{prefix}/{path}": data for path, data in files_of(folder).items()})
    return bucket.url(prefix)


def refusal(command: str, name: str, place: str) -> tuple[int, str] | None:
    return REFUSED.get((command, name, place)) or REFUSED.get((command, name, ""))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_every_command_tells_what_the_source_has_or_says_why_not(
    name: str, place: str, folders: dict[str, Path], source: Path, text: Path, seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    where = placed(folders[name], place, seaweedfs_bucket)
    samples = samples_of(name, source, text)
    cell = Cell(folders[name], samples, name.removesuffix(ZSTD) in RANGES, tmp_path / "files", tmp_path / "cache")
    words = {"OUT": where, "KEY": cell.key, "PART": cell.part}
    words |= {"TARGET": os.fspath(cell.files), "CACHE": os.fspath(cell.cache)}
    for command, template in COMMANDS.items():
        ran = run_cli(*(words.get(word, word) for word in template), "--json")
        expected = refusal(command, name, place)
        if expected is None:
            assert ran.code == 0, (command, ran.err)
            CHECKS[command](ran.json, cell)
        else:
            assert ran.code == expected[0], (command, ran.err)
            assert expected[1] in ran.error["message"], (command, ran.err)
    (staged,) = (path for path in cell.cache.iterdir() if (path / "manifest.json").exists())
    assert run_cli("verify", staged, "--deep").code == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_what_differs_is_named(
    name: str,
    place: str,
    folders: dict[str, Path],
    source: Path,
    text: Path,
    grown: tuple[Path, Path],
    seaweedfs_bucket: Bucket,
    tmp_path: Path,
) -> None:
    tree, options = options_of(name, *grown)
    assert run_cli("pack", tree, tmp_path / "other", *options).code == 0
    before = placed(folders[name], place, seaweedfs_bucket)
    after = placed(tmp_path / "other", place, seaweedfs_bucket, "other")
    ran = run_cli("diff", before, after, "--exit-code", "--json")
    assert ran.code == 3, ran.err
    one, two = samples_of(name, source, text), samples_of(name, *grown)
    wanted = {
        "added": two.keys() - one.keys(),
        "removed": one.keys() - two.keys(),
        "changed": {key for key in one.keys() & two.keys() if one[key] != two[key]},
    }
    assert [len(keys) for keys in wanted.values()] == [1, 1, 1]
    assert {kind: {example["key"] for example in ran.json[kind]["examples"]} for kind in wanted} == wanted
    assert (ran.json["equal"], ran.json["changed_parts"]) == (False, {"tokens" if name in TOKENS else "txt": 1})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_the_reader_of_the_loaders_takes_every_format(
    name: str, place: str, folders: dict[str, Path], seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    """`ShardDataset` and `ShardSource` hand out what this reader reads; they need torch and Grain."""
    where = placed(folders[name], place, seaweedfs_bucket)
    assert run_cli("extract", folders[name], tmp_path / "files", "--all-parts").code == 0
    with closing(SampleReader(where, check=True)) as reader:
        samples = reader.read(np.random.default_rng(1).permutation(len(reader)))
    parts = {
        f"{sample['__key__']}.{part}": data
        for sample in samples
        for part, data in sample.items()
        if not part.startswith("__")
    }
    assert len(samples) == 24
    files = {os.fspath(path.relative_to(tmp_path / "files")): path for path in files_below(tmp_path / "files")}
    assert parts == {path: file.read_bytes() for path, file in files.items()}


@pytest.mark.parametrize("name", KINDS)
def test_every_format_is_packed_to_a_bucket_or_says_why_not(
    name: str, folders: dict[str, Path], source: Path, text: Path, seaweedfs_bucket: Bucket
) -> None:
    tree, options = options_of(name, source, text)
    ran = run_cli("pack", tree, seaweedfs_bucket.url("out"), *options, "--json")
    expected = refusal("pack", name, "bucket")
    if expected is not None:
        assert (ran.code, expected[1] in ran.error["message"]) == (expected[0], True), ran.err
        assert contents(seaweedfs_bucket, "") == {}
        return
    assert ran.code == 0, ran.err
    assert contents(seaweedfs_bucket, "out/") == files_of(folders[name])
    assert uploads(seaweedfs_bucket) == []


@pytest.mark.parametrize("name", KINDS)
def test_every_format_is_packed_from_a_bucket(
    name: str, folders: dict[str, Path], source: Path, text: Path, seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    tree, options = options_of(name, source, text)
    seaweedfs_bucket.put({f"in/{path}": data for path, data in files_of(tree).items()})
    ran = run_cli("pack", seaweedfs_bucket.url("in"), tmp_path / "out", *options, "--json")
    assert ran.code == 0, ran.err
    wanted, found = load_manifest(os.fspath(folders[name])), load_manifest(os.fspath(tmp_path / "out"))
    assert (found.dataset_id, found.plan_id) == (wanted.dataset_id, wanted.plan_id)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_shards_are_packed_to_a_bucket_and_read_there(
    name: str, source: Path, seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    url, options = seaweedfs_bucket.url("out"), ("--format", name, "--shards", "2", "--compress", "zstd:1")
    assert run_cli("pack", source, tmp_path / "out", *options).code == 0
    assert run_cli("pack", source, url, *options).code == 0
    assert contents(seaweedfs_bucket, "out/") == files_of(tmp_path / "out")
    assert run_cli("verify", url, "--deep").code == 0
    assert run_cli("extract", url, tmp_path / "files").code == 0
    assert len(files_below(tmp_path / "files")) == len(files_below(source))
