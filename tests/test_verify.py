"""`verify` finds what is cut, altered, lost, doubled or strange, and says where and what repairs it."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from helpers import Said, make_tree, pack, run_cli, shard_paths

from shardtool.index_file import open_index
from shardtool.manifest import decode_manifest, encode_manifest, load_manifest
from shardtool.verification.bare import check_bare
from shardtool.verification.shard import VerifyJob, check_shard
from shardtool.verification.verify import VerifyResult, verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = "d" * 60 + "/" + "e" * 60 + "/" + "f" * 120  # needs a pax header


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 samples in three classes, five shards or so, one name that needs a pax header."""
    top = tmp_path_factory.mktemp("verify")
    drawn = random.Random(7)
    files: dict[str, bytes] = {f"{LONG}/00.jpg": b"long"}
    for number in range(36):
        name = f"{'abc'[number % 3]}/{number:04d}"
        files[f"{name}.jpg"] = drawn.randbytes(drawn.randrange(0, 3000))
        files[f"{name}.txt"] = b"caption %d" % number
    pack(make_tree(top / "src", files), top / "out", shard_size=24_000, label_from="parent")
    return top / "out"


@pytest.fixture
def out(packed: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(packed, tmp_path / "out")


def check(out: Path, **options: Any) -> VerifyResult:
    return verify(os.fspath(out), WorkerPool(0), Said(), **options)


def kinds(result: VerifyResult) -> set[str]:
    return {fault.kind for fault in result.faults}


def job_of(out: Path, *, is_deep: bool = False) -> VerifyJob:
    return VerifyJob(os.fspath(out), load_manifest(os.fspath(out)).shards, is_deep)


def alter(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
    return path


def test_a_sound_data_set_is_ok_quick_deep_and_through_webdataset(packed: Path) -> None:
    for options in ({}, {"is_deep": True}, {"reader": "webdataset"}):
        result = check(packed, **options)
        assert result.is_ok, result.faults
        assert (result.num_samples, result.num_parts) == (37, 37 * 3 - 1)


def test_the_command_prints_one_line_and_exits_with_0(packed: Path) -> None:
    ran = run_cli("verify", packed, "--deep")
    assert ran.code == 0
    assert ran.out.startswith("ok     ")
    assert len(ran.out.splitlines()) == 1
    assert "digests equal" in ran.out


def test_worker_processes_find_the_same(out: Path) -> None:
    alter(shard_paths(out)[2], 700, b"\xff")
    with WorkerPool(2) as pool:
        there = verify(os.fspath(out), pool, Said(), is_deep=True)
    assert there.faults == check(out, is_deep=True).faults != ()


def test_truncation_at_every_byte_is_found_with_the_last_whole_sample(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(make_tree(tmp_path / "src", {f"{n}.txt": b"x" * (400 * n) for n in range(4)}), out)
    path, job = shard_paths(out)[0], job_of(out)
    index = open_index(os.fspath(out / "index/00000.arrow"))
    ends = (index.offset + index.num_bytes).tolist()
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        (fault,) = check_shard(job, 0).faults
        whole = sum(end <= size for end in ends)
        assert (fault.kind, fault.offset, fault.key) == ("truncated", size, index.key(whole - 1) if whole else None)
        assert f"#{whole:,} of {index.num_samples}" in fault.message or not whole


def test_truncation_at_every_byte_of_a_bare_shard_is_found(tmp_path: Path) -> None:
    members = [(f"k{number}.{part}", b"x" * (700 * number)) for number in range(3) for part in ("a", "b")]
    path = write_tar(tmp_path / "s.tar", members)
    with path.open("r+b") as file:
        file.truncate(sum(512 + -(-len(data) // 512) * 512 for _, data in members) + 1024)
    paths = [os.fspath(path)]
    assert not check_bare(paths, 0).faults
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        assert check_bare(paths, 0).faults, size


def test_a_truncated_shard_reads_as_in_the_manual(out: Path) -> None:
    path = shard_paths(out)[3]
    os.truncate(path, path.stat().st_size - 5000)
    ran = run_cli("verify", out)
    assert ran.code == 4
    assert "5,000 bytes short of" in ran.out
    assert "the last whole sample is #" in ran.out
    assert f"shardtool pack {out} --deep rewrites only" in ran.err


def flip(path: Path, drawn: random.Random) -> None:
    offset = drawn.randrange(path.stat().st_size)
    byte = path.read_bytes()[offset]
    alter(path, offset, bytes([byte ^ (1 << drawn.randrange(8))]))


def zero_a_run(path: Path, drawn: random.Random) -> None:
    data = path.read_bytes()
    offset = drawn.choice([place for place, byte in enumerate(data) if byte])
    alter(path, offset, bytes(drawn.randrange(1, 600))[: len(data) - offset])


def swap_blocks(path: Path, drawn: random.Random) -> None:
    data = path.read_bytes()
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    one = drawn.randrange(len(blocks))
    two = drawn.choice([place for place, block in enumerate(blocks) if block != blocks[one]])
    blocks[one], blocks[two] = blocks[two], blocks[one]
    path.write_bytes(b"".join(blocks))


def cut(path: Path, drawn: random.Random) -> None:
    os.truncate(path, drawn.randrange(path.stat().st_size))


def grow(path: Path, drawn: random.Random) -> None:
    with path.open("ab") as file:
        file.write(bytes(drawn.randrange(1, 2000)))


def drop_a_block(path: Path, drawn: random.Random) -> None:
    data = path.read_bytes()
    start = drawn.randrange(len(data) // 512) * 512
    path.write_bytes(data[:start] + data[start + 512 :])


def lose(path: Path, drawn: random.Random) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip,
    flip,
    flip,
    zero_a_run,
    swap_blocks,
    cut,
    grow,
    drop_a_block,
    lose,
)


def test_200_random_damages_are_all_found(packed: Path, tmp_path: Path) -> None:
    seed = 20_000
    targets = [*shard_paths(packed), *sorted((packed / "index").iterdir())]
    for number in range(200):
        drawn = random.Random(seed + number)
        out = shutil.copytree(packed, tmp_path / f"{number}")
        path, damage = out / drawn.choice(targets).relative_to(packed), drawn.choice(DAMAGES)
        damage(path, drawn)
        result = check(out, is_deep=True)
        assert not result.is_ok, f"seed {seed + number}: {damage.__name__} of {path.name}"
        assert any(fault.path.endswith(path.name) for fault in result.faults), f"seed {seed + number}: {result.faults}"
        shutil.rmtree(out)


def test_any_flipped_bit_of_the_manifest_is_found(out: Path) -> None:
    path = out / "manifest.json"
    text = path.read_bytes()
    versions = range(text.index(b'"created_by"'), text.index(b'"options"'))
    drawn = random.Random(5)
    for offset in drawn.sample(range(len(text)), 200):
        if offset in versions:
            continue
        path.write_bytes(text[:offset] + bytes([text[offset] ^ 1]) + text[offset + 1 :])
        assert not check(out).is_ok, f"byte {offset}"


def test_a_flipped_bit_is_named_with_shard_offset_and_key(out: Path) -> None:
    index = open_index(os.fspath(out / "index/00001.arrow"))
    part = int(index.part_bytes.argmax())
    offset = int(index.part_offset[part])
    path = shard_paths(out)[1]
    alter(path, offset + 3, bytes([path.read_bytes()[offset + 3] ^ 4]))
    assert check(out).is_ok  # the quick look does not read payload
    ran = run_cli("verify", out, "--deep", "--json")
    assert ran.code == 4
    (problem,) = ran.json["problems"]
    owner = int(index.owners()[part])
    assert (problem["kind"], problem["shard"], problem["offset"]) == ("altered", 1, offset)
    assert problem["key"] == index.key(owner).decode()
    assert ran.error["code"] == "DamageFound"


def test_a_damaged_header_is_named(out: Path) -> None:
    index = open_index(os.fspath(out / "index/00002.arrow"))
    offset = int(index.part_offset[4])
    alter(shard_paths(out)[2], offset - 512 + 1, b"?")
    (fault,) = check(out, is_deep=True).faults
    assert (fault.kind, fault.offset, fault.key) == ("structure", offset - 512, index.key(int(index.owners()[4])))


def test_damage_in_padding_is_found(out: Path) -> None:
    index = open_index(os.fspath(out / "index/00000.arrow"))
    ragged = next(part for part in range(index.num_parts) if int(index.part_bytes[part]) % 512)
    alter(shard_paths(out)[0], int(index.part_offset[ragged] + index.part_bytes[ragged]), b"!")
    (fault,) = check(out, is_deep=True).faults
    assert fault.kind == "altered"
    assert "padding" in fault.message


def test_a_damaged_pax_header_is_found(out: Path) -> None:
    for shard, path in enumerate(shard_paths(out)):
        if (place := path.read_bytes().find(b" path=")) > 0:
            alter(path, place + 20, b"?")
            faults = check(out, is_deep=True).faults
            assert {(fault.kind, fault.shard) for fault in faults} == {("structure", shard)}
            return
    pytest.fail("no pax header packed")


def test_the_quick_look_notices_other_content_at_either_end(out: Path) -> None:
    first, second = shard_paths(out)[:2]
    alter(first, 0, b"zzzz")
    alter(second, second.stat().st_size - 3, b"z")
    assert kinds(check(out)) == {"structure"}


def test_missing_extra_renamed_and_partial_files_are_named(out: Path) -> None:
    one, two = shard_paths(out)[:2]
    one.unlink()
    two.rename(out / "data/other.tar")
    (out / "data/notes.txt").write_text("mine")
    (out / "data/.tmp-0123abcd-3-0123abcd-77-x.tar").write_bytes(b"half")
    (out / "index/00099.arrow").write_bytes(b"")
    (out / "data/.DS_Store").write_bytes(b"")
    found = {(fault.kind, fault.path) for fault in check(out).faults}
    assert found == {
        ("missing", f"data/{one.name}"),
        ("renamed", "data/other.tar"),
        ("stranger", "data/notes.txt"),
        ("partial", "data/.tmp-0123abcd-3-0123abcd-77-x.tar"),
        ("stranger", "index/00099.arrow"),
    }
    hint = run_cli("verify", out).err
    assert f"mv {out}/data/other.tar {out}/data/{two.name}" in hint


def test_a_lost_or_altered_index_is_repaired_by_index(out: Path) -> None:
    (out / "index/00000.arrow").unlink()
    alter(out / "index/00001.arrow", 400, b"\xff\xff")
    result = check(out)
    assert [(fault.kind, fault.shard) for fault in result.faults] == [("index", 0), ("index", 1)]
    assert f"shardtool index {out}" in run_cli("verify", out).err
    assert run_cli("index", out).code == 0
    assert check(out, is_deep=True).is_ok


def test_a_lost_label_table_is_found(out: Path) -> None:
    (out / "labels.json").unlink()
    assert kinds(check(out)) == {"labels"}
    (out / "labels.json").write_text("[]")
    assert kinds(check(out)) == {"labels"}


@pytest.mark.parametrize("text", ['["cat", "\\ud800"]', '["cat", 7]', "7", "["])
def test_a_damaged_label_table_is_damage_for_who_shows_names(out: Path, text: str) -> None:
    (out / "labels.json").write_text(text)
    assert kinds(check(out)) == {"labels"}
    for command in (("stats", out), ("convert", out, out.with_name("again"))):
        ran = run_cli(*command)
        assert (ran.code, "labels.json" in ran.err, "Traceback" in ran.err) == (4, True, False)


@pytest.mark.parametrize("change", ["samples", "bytes", "digest", "totals", "parts", "split", "twice"])
def test_a_manifest_that_disagrees_is_found(out: Path, change: str) -> None:
    shutil.rmtree(out / ".shardtool")  # so that only the manifest itself can tell
    path = out / "manifest.json"
    document = json.loads(path.read_bytes())
    shard = document["shards"][1]
    if change == "samples":
        shard["samples"] += 1
    elif change == "bytes":
        shard["files"][0]["bytes"] += 512
    elif change == "digest":
        shard["files"][0]["xxh3_128"] = "0" * 32
    elif change == "totals":
        document["totals"]["samples"] += 1
    elif change == "parts":
        document["parts"]["jpg"]["max"] += 1
    elif change == "split":
        shard["split"] = "test"
    else:
        document["shards"].append(shard)
    path.write_text(json.dumps(document))
    assert not check(out).is_ok
    assert run_cli("verify", out).code == 4


@pytest.mark.parametrize(
    "spoiled",
    [
        {"parts": []},
        {"parts": None},
        {"membership": None},
        {"membership": {"seed": "x"}},
        {"ledger": None},
        {"ledger": {"seen": "x"}},
        {"options": None},
        {"created_by": None},
        {"format": []},
        {"dataset_id": 5},
        {"labels": "x"},
        {"path": ""},
        {"path": "/etc/passwd"},
        {"path": "data/a\0b.tar"},
        {"path": "data/\ud800.tar"},
        {"split": "\udcff"},
        {"compression": "\ud800"},
        {"bytes": -5},
        {"bytes": 1 << 70},
        {"samples": -1},
        {"split": "../x"},
    ],
)
def test_a_malformed_manifest_is_damage_for_every_reader_of_it(out: Path, spoiled: dict[str, Any]) -> None:
    document = json.loads((out / "manifest.json").read_bytes())
    for name, value in spoiled.items():
        shard = document["shards"][0]
        place = shard["files"][0] if name in ("path", "bytes") else shard if name in shard else document
        place[name] = value
    data = json.dumps(document).encode()
    (out / "manifest.json").write_bytes(data)
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode_manifest(data)
    assert kinds(check(out)) == {"manifest"}
    assert run_cli("stats", out).code == 4


def test_a_deep_manifest_is_damage(out: Path) -> None:
    (out / "manifest.json").write_text("[" * 100_000)
    assert kinds(check(out)) == {"manifest"}


def test_a_manifest_with_consistent_sums_but_a_wrong_index_count_is_found(out: Path) -> None:
    """As when the samples of one shard are miscounted and everything else is made to fit."""
    shutil.rmtree(out / ".shardtool")
    path = out / "manifest.json"
    document = json.loads(path.read_bytes())
    document["shards"][0]["samples"] += 1
    path.write_bytes(encode_manifest(decode_manifest(json.dumps(document).encode())))
    assert {"manifest", "index"} <= kinds(check(out))


def test_an_unreadable_manifest_is_damage_and_index_repairs_it(out: Path) -> None:
    (out / "manifest.json").write_text("{")
    ran = run_cli("verify", out, "--json")
    assert ran.code == 4
    assert [problem["kind"] for problem in ran.json["problems"]] == ["manifest"]
    assert run_cli("index", out).code == 0
    assert check(out).is_ok


def test_a_lost_manifest_is_damage_and_an_unfinished_data_set_is_not(out: Path) -> None:
    (out / "manifest.json").unlink()
    ran = run_cli("verify", out)
    assert ran.code == 4
    assert f"shardtool index {out}" in ran.err
    min((out / "data").iterdir()).unlink()
    ran = run_cli("verify", out)
    assert ran.code == 5
    assert "unfinished" in ran.err


def test_a_path_that_leads_out_of_the_folder_is_refused(out: Path) -> None:
    path = out / "manifest.json"
    path.write_text(path.read_text().replace("data/train-00000", "../train-00000"))
    assert run_cli("verify", out).code == 4


def test_a_key_in_two_shards_is_found_with_both_places(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pack(make_tree(tmp_path / name, {"k/1.txt": name, f"k/{name}.txt": name}), tmp_path / f"out-{name}")
    out = tmp_path / "out"
    for name in ("data", "index"):
        (out / name).mkdir(parents=True)
    shards = []
    for number, name in enumerate(("one", "two")):
        other = tmp_path / f"out-{name}"
        shard = json.loads((other / "manifest.json").read_bytes())["shards"][0]
        shutil.copy(shard_paths(other)[0], out / f"data/{name}.tar")
        shards.append(index_as(other / "index/00000.arrow", out, number, f"data/{name}.tar", shard))
    document = json.loads((tmp_path / "out-one/manifest.json").read_bytes())
    document.update(shards=shards, labels=None)
    document["parts"]["txt"] = {"samples": 4, "bytes": 12, "min": 3, "max": 3}
    manifest = decode_manifest(json.dumps(document).encode())
    (out / "manifest.json").write_bytes(encode_manifest(manifest))
    found = [fault for fault in check(out).faults if fault.kind == "duplicate_key"]
    assert [(fault.shard, fault.key) for fault in found] == [(1, b"k/1")]
    assert "data/one.tar" in found[0].message
    assert "data/two.tar" in found[0].message


def index_as(index: Path, out: Path, number: int, place: str, shard: dict[str, Any]) -> dict[str, Any]:
    """The manifest entry of a shard under another name, its index written anew."""
    from shardtool.index_file import encode_columns
    from shardtool.indexing.bare_shards import read_bare
    from shardtool.packing.receipts import digest_of

    read, bare = open_index(os.fspath(index)), read_bare(os.fspath(out / place))
    meta = {**read.meta, "shard": {**read.meta["shard"], "path": place}}
    encoded = encode_columns(
        keys=read.keys,
        offset=bare.offset,
        num_bytes=bare.sample_bytes,
        labels=None,
        part_start=read.part_start,
        names=read.part_names,
        part_offset=bare.part_offset,
        part_bytes=bare.part_sizes,
        part_xxh3_64=read.part_xxh3_64,
        source=read.part_source,
        meta=meta,
    )
    path = out / f"index/{number:05d}.arrow"
    path.write_bytes(encoded)
    record = {"path": f"index/{number:05d}.arrow", "bytes": len(encoded), "xxh3_128": digest_of(os.fspath(path))}
    return {**shard, "files": [{**shard["files"][0], "path": place}], "index": record}


def test_pack_deep_repairs_only_what_is_damaged(out: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in shard_paths(out)}
    damaged = shard_paths(out)[2]
    alter(damaged, 900, bytes([damaged.read_bytes()[900] ^ 1]))
    assert run_cli("verify", out, "--deep").code == 4
    assert run_cli("pack", out, "--deep", "--durability", "none").code == 0
    assert check(out, is_deep=True).is_ok
    changed = [path.name for path in shard_paths(out) if path.stat().st_mtime_ns != before[path.name]]
    assert changed == [damaged.name]


def test_bare_shards_are_checked_for_structure(tmp_path: Path) -> None:
    for number in range(12):
        write_tar(tmp_path / f"s-{number}.tar", [(f"k{number}.jpg", b"x"), (f"k{number}.cls", b"1")])
    for place in (tmp_path, tmp_path / "s-*.tar", tmp_path / "s-{0..11}.tar"):
        ran = run_cli("verify", place, "--json")
        assert ran.code == 0
        assert (ran.json["shards"], ran.json["samples"]) == (12, 12)
    assert "without a manifest" in run_cli("verify", tmp_path).out


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        (["0.a", "1.a", "0.b", "1.b"], "not_adjacent"),
        (["0.a", "0.a"], "duplicate_part"),
        (["0.a", "1.a", "0.a"], "duplicate_key"),
        (["../0.a"], "bad_name"),
    ],
)
def test_bare_shards_with_members_that_readers_merge_are_damage(tmp_path: Path, members: list[str], kind: str) -> None:
    write_tar(tmp_path / "s.tar", [(name, b"x") for name in members])
    ran = run_cli("verify", tmp_path, "--json")
    assert ran.code == 4
    assert kind in [problem["kind"] for problem in ran.json["problems"]]


def test_a_key_in_two_bare_shards_is_found(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tar", [("same.jpg", b"x"), (f"{name}.jpg", b"y")])
    ran = run_cli("verify", tmp_path, "--json")
    assert ran.code == 4
    (problem,) = ran.json["problems"]
    assert (problem["kind"], problem["shard"], problem["key"]) == ("duplicate_key", 1, "same")


def test_an_empty_file_and_an_archive_without_members_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    (tmp_path / "b.tar").write_bytes(bytes(10240))
    ran = run_cli("verify", tmp_path, "--json")
    assert ran.code == 4
    assert [problem["shard"] for problem in ran.json["problems"]] == [0]


def test_places_without_a_data_set_are_an_input_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("absent", "empty", "*.tar"):
        assert run_cli("verify", tmp_path / place).code == 5


def test_webdataset_disagreeing_with_the_index_is_found(tmp_path: Path) -> None:
    """A hard link: the index resolves it, webdataset passes over it."""
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        info = tarfile.TarInfo("a.jpg")
        info.size = 3
        archive.addfile(info, BytesIO(b"abc"))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
        archive.addfile(link)
    assert run_cli("index", tmp_path).code == 0
    assert run_cli("verify", tmp_path, "--deep").code == 0
    ran = run_cli("verify", tmp_path, "--reader", "webdataset")
    assert ran.code == 4
    assert "webdataset reads 1 samples, the index has 2" in ran.out


def written_again(tmp_path: Path, members: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """What webdataset finds where an indexed shard of samples `a` and `b` was replaced by one of the same size."""
    write_tar(tmp_path / "s.tar", [("a.jpg", b"one"), ("b.jpg", b"two")])
    assert run_cli("index", tmp_path).code == 0
    write_tar(tmp_path / "s.tar", members)
    ran = run_cli("verify", tmp_path, "--reader", "webdataset", "--json")
    assert ran.code == 4
    return [problem for problem in ran.json["problems"] if problem["kind"] == "reader"]


def test_a_sample_that_webdataset_reads_under_another_key_is_named(tmp_path: Path) -> None:
    (problem,) = written_again(tmp_path, [("a.jpg", b"one"), ("c.jpg", b"two")])
    assert problem["message"] == "s.tar: webdataset reads sample #2 as 'c', the index has 'b'"
    assert (problem["key"], problem["offset"]) == ("b", 1024)


def test_a_part_that_webdataset_reads_with_other_bytes_is_named(tmp_path: Path) -> None:
    (problem,) = written_again(tmp_path, [("a.jpg", b"one"), ("b.jpg", b"TWO")])
    assert problem["message"] == "s.tar: webdataset reads other parts of 'b': jpg"
    assert (problem["key"], problem["offset"]) == ("b", 1024)


def test_a_part_that_webdataset_reads_under_another_name_is_named(tmp_path: Path) -> None:
    (problem,) = written_again(tmp_path, [("a.png", b"one"), ("b.jpg", b"two")])
    assert problem["message"] == "s.tar: webdataset reads other parts of 'a': jpg, png"


def test_a_sample_that_the_index_does_not_have_is_named(tmp_path: Path) -> None:
    found = written_again(tmp_path, [("a.jpg", b"one"), ("b.jpg", b"two"), ("c.jpg", b"x")])
    assert [problem["message"] for problem in found] == [
        "s.tar: webdataset reads a sample 'c' that the index does not have",
        "s.tar: webdataset reads 3 samples, the index has 2",
    ]


def test_a_shard_that_webdataset_fails_on_is_named_with_how_far_it_came(tmp_path: Path) -> None:
    """Its second sample has two parts of one name, which webdataset refuses."""
    (problem,) = written_again(tmp_path, [("a.jpg", b"one"), ("b.jpg", b"two"), ("b.jpg", b"2")])
    assert problem["message"].startswith("s.tar: webdataset fails after 1 samples: ValueError: ")
    assert problem["shard"] == 0


def test_a_flipped_bit_in_any_byte_of_a_shard_or_its_index_is_found_and_named(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {"a.txt": b"one", "b.txt": b"two", "b.cls": b"2"}), tmp_path / "out")
    out = tmp_path / "out"
    (shard,), index = shard_paths(out), open_index(os.fspath(out / "index/00000.arrow"))
    wanted: dict[int, tuple[str, int | None, bytes | None]] = {}  # place -> kind, offset, key
    for row, owner in enumerate(index.owners().tolist()):
        begin, size = int(index.part_offset[row]), int(index.part_bytes[row])
        wanted |= dict.fromkeys(range(begin - 512, begin), ("structure", begin - 512, index.key(owner)))
        wanted |= dict.fromkeys(range(begin, begin + size), ("altered", begin, index.key(owner)))
    seed = random.randrange(1 << 32)
    drawn, job = random.Random(seed), job_of(out, is_deep=True)
    for path in (shard, out / "index/00000.arrow"):
        good = path.read_bytes()
        for place in range(len(good)):
            bit = 1 << drawn.randrange(8)
            alter(path, place, bytes([good[place] ^ bit]))
            first, where = check_shard(job, 0).faults[0], f"{path.name}: byte {place}, bit {bit}, seed {seed}"
            expected = wanted.get(place, ("altered", 0, None)) if path == shard else ("index", None, None)
            assert (first.kind, first.offset, first.key, first.shard) == (*expected, 0), where
            alter(path, place, good[place : place + 1])
    assert not check_shard(job, 0).faults


@pytest.mark.parametrize(("name", "hint"), [("data", "shardtool pack {} --deep"), ("index", "shardtool index {}")])
def test_the_command_that_mends_one_flipped_bit_is_told_and_mends_it(out: Path, name: str, hint: str) -> None:
    path = min((out / name).iterdir())
    alter(path, 700, bytes([path.read_bytes()[700] ^ 4]))
    ran = run_cli("verify", out, "--deep")
    assert ran.code == 4
    command = hint.format(out)
    assert command in ran.err, ran.err
    assert run_cli(*command.split()[1:]).code == 0
    assert run_cli("verify", out, "--deep").code == 0


def test_many_faults_are_counted_and_the_first_are_shown(out: Path) -> None:
    for path, offset in itertools.product(shard_paths(out), (0,)):
        alter(path, offset, b"\xff" * 3)
    for number in range(30):
        (out / f"data/x{number:02d}").touch()
    ran = run_cli("verify", out)
    assert len(ran.out.splitlines()) == 21
    assert "more; --json lists all" in ran.out
