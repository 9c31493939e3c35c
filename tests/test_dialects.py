"""Other loaders' index files: what they say is where the bytes are, they refuse what they cannot say, and stay ours."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from helpers import Ran, make_tree, pack, read_members, read_tar, run_cli, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.writer import TarWriter

from shardtool.dialects import DIALECTS, get_dialect, prepare
from shardtool.dialects.energon import dataset_yaml
from shardtool.dialects.hf_card import split_patterns
from shardtool.emitted import EMITTED, write_emissions
from shardtool.errors import DuplicateKey, UsageProblem
from shardtool.manifest import Manifest, ManifestShard, load_manifest
from shardtool.model import FileRecord
from shardtool.names import expand_braces
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterable

PETS = Path(__file__).parent.parent / "fixtures" / "pets"
ALL = "wids,sizes,list,dali,energon,hf-card"
SPLITS = "train=0.7,validation=0.3"


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    pack(PETS, tmp_path / "out", shard_size=60_000, split=SPLITS)
    return tmp_path / "out"


def emit(out: Path, dialects: str, *more: str) -> Ran:
    return run_cli("index", out, "--emit", dialects, *more)


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def new_files(out: Path, before: Iterable[str]) -> dict[str, bytes]:
    return {name: data for name, data in files_of(out).items() if name not in set(before) | {EMITTED}}


def dali_members(out: Path) -> dict[bytes, bytes]:
    """Every member that the DALI indexes name, read by offset and size alone."""
    found: dict[bytes, bytes] = {}
    for path in shard_paths(out):
        data = path.read_bytes()
        head, *lines = (out / "dali" / f"{path.name.split('.')[0]}.idx").read_text("ascii").splitlines()
        assert head == f"v1.2 {len(lines)}"
        for line in lines:
            words = line.split(" ")
            assert len(words) % 4 == 0
            for part, offset, size, name in zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True):
                assert int(offset) % 512 == 0
                assert name.endswith(f".{part}")
                found[name.encode()] = data[int(offset) : int(offset) + int(size)]
    return found


def energon_members(out: Path) -> dict[bytes, bytes]:
    """Every part that index.sqlite names, read by offset and size; each lies in its sample's extent."""
    paths = list(json.loads((out / ".nv-meta" / ".info.json").read_text())["shard_counts"])
    query = (
        "SELECT tar_file_id, sample_key, part_name, content_byte_offset, content_byte_size, byte_offset, byte_size"
        " FROM sample_parts JOIN samples USING (tar_file_id, sample_index)"
    )
    found: dict[bytes, bytes] = {}
    db = sqlite3.connect(out / ".nv-meta" / "index.sqlite")
    for number, key, part, offset, size, start, extent in db.execute(query):
        assert start <= offset <= offset + size <= start + extent
        with (out / paths[number]).open("rb") as file:
            file.seek(offset)
            found[f"{key}.{part}".encode()] = file.read(size)
    db.close()
    return found


def test_every_index_leads_to_the_bytes_that_were_packed(pets: Path) -> None:
    assert emit(pets, ALL).code == 0
    members = read_members(pets)
    assert dali_members(pets) == members
    assert energon_members(pets) == members


NAMES = st.text("abcXYZ019_-+@", min_size=1, max_size=8)
TREES = st.dictionaries(
    st.tuples(
        st.sampled_from(["", "a/", "a/b.c/", "long" * 30 + "/"]), NAMES, st.sampled_from(["txt", "seg.png", "x"])
    ),
    st.binary(max_size=2000),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(TREES, st.integers(1, 4))
def test_any_tree_reads_back_through_dali_and_energon(tree: dict[tuple[str, str, str], bytes], per_shard: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {f"{place}{name}.{part}": data for (place, name, part), data in tree.items()}
        pack(make_tree(root / "in", files), root / "out", samples_per_shard=per_shard)
        with Dataset.open(str(root / "out")) as dataset:
            write_emissions(str(root / "out"), prepare(dataset, ["dali", "energon"]), durable=False)
        wanted = read_members(root / "out")
        assert len(wanted) == len(files)
        assert dali_members(root / "out") == wanted == energon_members(root / "out")


def test_the_energon_offsets_tell_where_samples_and_the_archive_end(pets: Path) -> None:
    emit(pets, "energon")
    counts = json.loads((pets / ".nv-meta" / ".info.json").read_text())["shard_counts"]
    for path in shard_paths(pets):
        data, raw = path.read_bytes(), Path(f"{path}.idx").read_bytes()
        offsets = struct.unpack(f"<{len(raw) // 8}Q", raw)
        assert len(offsets) == counts[str(path.relative_to(pets))] + 1
        assert offsets[0] == 0
        assert data[offsets[-1] :].strip(b"\0") == b""
        assert all(data[offset + 257 : offset + 262] == b"ustar" for offset in offsets[:-1])


def test_energon_splits_are_those_of_the_data_set(pets: Path) -> None:
    emit(pets, "energon")
    lines = (pets / ".nv-meta" / "split.yaml").read_text().splitlines()
    parts = {name.strip(' "'): json.loads(value) for name, _, value in (line.partition(":") for line in lines[1:4])}
    shown = {
        name: [path for pattern in patterns for path in expand_braces(pattern)] for name, patterns in parts.items()
    }
    shards = load_manifest(str(pets)).shards
    assert shown["train"] == [shard.path for shard in shards if shard.split == "train"]
    assert shown["val"] == [shard.path for shard in shards if shard.split == "validation"]
    assert shown["test"] == []


def test_shares_give_every_shard_to_one_split(tmp_path: Path) -> None:
    """Megatron-Energon 7.4.1 itself, with --split-ratio 7,2,1: test is empty, one shard is nowhere."""
    pack(make_tree(tmp_path / "in", {f"{i}.txt": str(i) for i in range(10)}), tmp_path / "out", samples_per_shard=1)
    done = emit(tmp_path / "out", "energon", "--split-shards", "train=7,val=2,test=1")
    assert done.code == 0, done.err
    text = (tmp_path / "out" / ".nv-meta" / "split.yaml").read_text()
    found = [len(expand_braces(json.loads(line.partition(": ")[2])[0])) for line in text.splitlines()[1:4]]
    assert found == [7, 2, 1]
    few = emit(tmp_path / "out", "energon", "--split-shards", "train=98,val=1,test=1")
    assert (few.code, "would get none" in few.err) == (2, True)


def test_shares_are_refused_where_splits_are(pets: Path) -> None:
    assert emit(pets, "energon", "--split-shards", "train=7,val=3").code == 2
    assert emit(pets, "wids", "--split-shards", "train=7,val=3").code == 2


@pytest.mark.parametrize(
    ("parts", "sample_type"),
    [
        ({"jpg": 9, "cls": 9, "txt": 9}, "ImageClassificationSample"),
        ({"png": 9, "txt": 9}, "CaptioningSample"),
        ({"png": 9, "txt": 8}, "ImageSample"),
        ({"txt": 9}, "TextSample"),
        ({"wav": 9}, "CrudeWebdataset"),
    ],
)
def test_dataset_yaml_names_a_type_whose_parts_all_samples_have(parts: dict[str, int], sample_type: str) -> None:
    from shardtool.model import PartTotals

    totals = {name: PartTotals(count, 1, 1, 1) for name, count in parts.items()}
    shard = ManifestShard("train", (FileRecord("data/a.tar", 1, ""),), None, 9, 1)
    text = dataset_yaml(Manifest("tar", "none", "", "", (shard,), parts=totals)).decode()
    assert f"__class__: {sample_type}\n" in text


def test_wids_counts_and_paths_are_true(pets: Path) -> None:
    emit(pets, "wids")
    for split, figures in load_manifest(str(pets)).splits().items():
        document = json.loads((pets / "wids" / f"{split}.json").read_text())
        assert document["wids_version"] == 1
        assert sum(shard["nsamples"] for shard in document["shardlist"]) == figures["samples"]
        for shard in document["shardlist"]:
            assert (pets / "wids" / shard["url"]).stat().st_size == shard["filesize"]


def test_sizes_and_lists_name_every_shard(pets: Path) -> None:
    emit(pets, "sizes,list")
    manifest = load_manifest(str(pets))
    sizes = json.loads((pets / "data" / "sizes.json").read_text())
    assert sizes == {os.path.basename(shard.path): shard.num_samples for shard in manifest.shards}
    lines = [line for split in manifest.splits() for line in (pets / "lists" / f"{split}.txt").read_text().splitlines()]
    assert lines == [shard.path for shard in manifest.shards]


def manifest_of(*paths: str) -> Manifest:
    """Split and path as `train:data/a.tar`."""
    pairs = [path.split(":") for path in paths]
    shards = tuple(ManifestShard(split, (FileRecord(path, 1, ""),), None, 1, 1) for split, path in pairs)
    return Manifest("tar", "none", "", "0" * 32, shards)


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (
            ["train:data/train-0.tar", "test:data/test-0.tar"],
            {"train": ["data/train-*.tar"], "test": ["data/test-*.tar"]},
        ),
        (
            ["train:data/train-000/train-0.tar", "train:data/train-001/train-1.tar"],
            {"train": ["data/train-*/train-*.tar"]},
        ),
        (["train:a.tar", "train:b.tar"], {"train": ["*.tar"]}),
        (["train:a.tar", "test:b.tar"], {"train": ["a.tar"], "test": ["b.tar"]}),
        (["train:d/a.tar", "train:e/b.tar"], {"train": ["d/a.tar", "e/b.tar"]}),
    ],
)
def test_card_patterns_match_the_shards_of_their_split_alone(paths: list[str], patterns: dict[str, list[str]]) -> None:
    assert split_patterns(manifest_of(*paths)) == patterns


def test_a_second_run_writes_nothing_and_says_so(pets: Path) -> None:
    assert emit(pets, ALL).code == 0
    before = {
        path: path.stat().st_mtime_ns for path in pets.rglob("*") if path.is_file() and path.name != "emitted.jsonl"
    }
    done = emit(pets, ALL)
    assert done.code == 0
    assert done.out.count("as they were") == len(ALL.split(","))
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_two_copies_of_a_data_set_get_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pack(PETS, tmp_path / name, shard_size=60_000, split=SPLITS)
        emit(tmp_path / name, ALL)
    assert new_files(tmp_path / "one", ()) == new_files(tmp_path / "two", ())


@pytest.mark.parametrize(
    ("files", "dialect", "reason"),
    [
        ({"a b.txt": "x"}, "dali", "blank"),
        ({"\u00e4.txt": "x"}, "dali", "not ASCII"),
        ({"d" * 60 + "/" + "n" * 60 + ".txt": "x"}, "wids", "longer than 100 bytes"),
        ({b"\xff.txt": "x"}, "wids", "not UTF-8"),
        ({b"\xff.txt": "x"}, "energon", "not UTF-8"),
        ({"__a__/b.txt": "x"}, "energon", "__like_this__"),
        ({"a.txt": "x"}, "mds", "holds tar"),
    ],
)
def test_what_a_dialect_cannot_say_is_refused_before_a_file_is_written(
    files: dict[Any, str], dialect: str, reason: str, tmp_path: Path
) -> None:
    pack(make_tree(tmp_path / "in", {**files, "fine.txt": "y"}), tmp_path / "out")
    before = files_of(tmp_path / "out")
    done = emit(tmp_path / "out", f"sizes,{dialect}")
    assert (done.code, reason in done.err.replace("\n", " ")) == (2, True), done.err
    assert files_of(tmp_path / "out") == before


def test_keys_that_occur_twice_are_refused_by_energon(pets: Path) -> None:
    manifest = load_manifest(str(pets))
    with Dataset(str(pets), replace(manifest, shards=(*manifest.shards, manifest.shards[0]))) as dataset:
        assert prepare(dataset, ["sizes"])
        with pytest.raises(DuplicateKey, match="occur more than once"):
            prepare(dataset, ["energon"])


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name not in ("sizes", "list", "mds", "hf-card")])
def test_offsets_into_other_formats_are_refused(dialect: str) -> None:
    for shard_format, compression in (("parquet", "none"), ("tar", "zstd")):
        manifest = Manifest(shard_format, compression, "", "", manifest_of("train:data/a.tar").shards)
        with pytest.raises(UsageProblem, match=r"plain tar|not token ids"):
            get_dialect(dialect)(Dataset("out", manifest), "")


def test_compressed_tar_is_listed_for_a_pipe_and_gets_no_card(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", shards=2, compress="zstd:1")
    listed = emit(tmp_path / "out", "list", "--json")
    assert 'wds.WebDataset("pipe:zstd -dc ' in listed.json["emitted"][0]["recipe"]
    refused = emit(tmp_path / "out", "hf-card")
    assert (refused.code, "opens no compressed tar" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"__a.txt": "1", "b.txt": "2"}, "1 member dropped, the file name begins with . or __ '__a.txt'"),
        ({f"{n}.txt": "1" for n in range(9)} | {"8.png": "2"}, "1 member dropped, parts that the first 5 samples"),
        ({"0.txt": "1", "1.txt": "1", "1.png": "2"}, "1 sample rejected, the first 5 samples of the last split do not"),
    ],
)
def test_a_card_for_what_hugging_face_would_lose_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    tree = make_tree(tmp_path / "in", files)
    pack(tree, tmp_path / "out", shuffle="none")
    refused = emit(tmp_path / "out", "hf-card")
    assert (refused.code, said in " ".join(refused.err.split())) == (2, True), refused.err
    assert not (tmp_path / "out" / "README.md").exists()
    pack(tree, tmp_path / "parquet", format="parquet")
    assert emit(tmp_path / "parquet", "hf-card").code == 0


def test_a_file_that_we_did_not_write_stays(pets: Path) -> None:
    (pets / "README.md").write_text("mine")
    before = files_of(pets)
    done = emit(pets, "sizes,hf-card")
    assert (done.code, "README.md" in done.err) == (6, True)
    assert files_of(pets) == before


def test_a_file_that_was_altered_since_is_no_longer_ours(pets: Path) -> None:
    emit(pets, "list")
    (pets / "lists" / "train.txt").write_text("only this one\n")
    assert emit(pets, "list").code == 6
    assert (pets / "lists" / "train.txt").read_text() == "only this one\n"


def test_a_dataset_yaml_of_the_users_is_kept(pets: Path) -> None:
    emit(pets, "energon")
    (pets / ".nv-meta" / "dataset.yaml").write_text("__class__: Mine\n")
    done = emit(pets, "energon")
    assert (done.code, "kept as you have it: .nv-meta/dataset.yaml" in done.out) == (0, True)
    assert (pets / ".nv-meta" / "dataset.yaml").read_text() == "__class__: Mine\n"


def test_a_lost_record_is_no_obstacle_where_the_bytes_are_the_same(pets: Path) -> None:
    emit(pets, ALL)
    (pets / EMITTED).unlink()
    assert emit(pets, ALL).code == 0


def test_emitted_files_are_no_damage_and_go_with_the_data_set(pets: Path) -> None:
    emit(pets, ALL)
    (pets / "README.md").write_text("mine by now")
    assert run_cli("verify", pets, "--deep").code == 0
    done = run_cli("pack", PETS, pets, "--overwrite", "--seed", "1", "--shards", "2", "--durability", "none")
    assert done.code == 0, done.err
    assert not any((pets / name).exists() for name in ("wids", "dali", "lists", ".nv-meta", "data/sizes.json", EMITTED))
    assert not list((pets / "data").glob("*.idx"))
    assert (pets / "README.md").read_text() == "mine by now"


def test_shards_of_other_tools_get_the_same_indexes(tmp_path: Path) -> None:
    samples = [{"__key__": f"a/{i}", "txt": b"t%d" % i, "bin": b"x" * i} for i in range(7)]
    (tmp_path / "shards").mkdir()
    for name, some in (("some-000.tar", samples[:4]), ("some-001.tar", samples[4:])):
        with TarWriter(str(tmp_path / "shards" / name)) as writer:  # a pax header before every member
            for sample in some:
                writer.write(sample)
    done = emit(tmp_path / "shards", "dali,energon,wids,hf-card")
    assert done.code == 0, done.err
    wanted = dict(read_tar(tmp_path / "shards" / "some-000.tar") + read_tar(tmp_path / "shards" / "some-001.tar"))
    assert dali_members(tmp_path / "shards") == wanted == energon_members(tmp_path / "shards")
    assert run_cli("verify", tmp_path / "shards", "--deep").code == 0


def test_above_the_fan_out_a_card_is_written_at_publication(tmp_path: Path) -> None:
    files = {f"{i}.txt": str(i) for i in range(12)}
    tree = make_tree(tmp_path / "in", files)
    with (
        patch("shardtool.names.FAN_OUT_ABOVE", 5),
        patch("shardtool.manifest.FAN_OUT_ABOVE", 5),
        patch("shardtool.names.FAN_OUT", 4),
    ):
        pack(tree, tmp_path / "out", samples_per_shard=1)
        assert 'path: "data/train-*/train-*.tar"' in (tmp_path / "out" / "README.md").read_text()
        make_tree(tmp_path / "mine", {"README.md": "mine", ".shardtool/plan.json": ""})
        (tmp_path / "mine" / ".shardtool" / "plan.json").unlink()
    pack(tree, tmp_path / "few", samples_per_shard=4)
    assert not (tmp_path / "few" / "README.md").exists()


def test_an_mds_index_made_from_the_shards_is_the_one_that_was_packed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{i}.{part}": str(i) * i for i in range(9) for part in ("txt", "bin")})
    pack(tree, tmp_path / "out", format="mds", shards=2)
    path = tmp_path / "out" / "data" / "train" / "index.json"
    packed = path.read_text()
    done = emit(tmp_path / "out", "mds")
    assert "nothing to do" in done.out
    assert "the data set has them" in done.out
    path.unlink()
    bare = replace(load_manifest(str(tmp_path / "out")), side_files=())
    with Dataset(str(tmp_path / "out"), bare) as dataset:
        write_emissions(str(tmp_path / "out"), prepare(dataset, ["mds"]), durable=False)
    assert path.read_text() == packed


def test_an_unknown_dialect_is_named_with_the_nearest() -> None:
    done = run_cli("index", "out", "--emit", "energn")
    assert (done.code, "did you mean energon?" in done.err) == (2, True)
