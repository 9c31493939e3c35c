"""`extract` gives every file back, never outside its target, never over another file unless asked."""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, run_cli, shard_paths

from shardtool.errors import DestinationExists
from shardtool.reading import extract as extract_module
from shardtool.reading import extract_shard
from shardtool.reading.extract import safe_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn = random.Random(9)
    files = {f"{'ab'[n % 2]}/{n:03d}.{part}": drawn.randbytes(n * 50) for n in range(40) for part in ("JPG", "txt")}
    files[f"a/{'n' * 180}.JPG"] = b"long"
    files["a/empty.txt"] = b""
    return make_tree(tmp_path_factory.mktemp("extract") / "src", files)


@pytest.fixture(scope="module")
def out(source: Path) -> Path:
    pack(source, source.parent / "out", samples_per_shard=9, label_from="parent", split="train=0.7,test=0.3")
    return source.parent / "out"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def foreign(folder: Path, members: list[tuple[str, bytes]]) -> Path:
    """A data set of one shard with these members, as another tool would write them."""
    folder.mkdir()
    with tarfile.open(folder / "s.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
    assert run_cli("index", folder).code == 0
    return folder


def test_all_files_come_back_under_their_source_paths(source: Path, out: Path, tmp_path: Path) -> None:
    ran = run_cli("extract", out, tmp_path / "to")
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "to") == contents(source)
    assert "42 cls left out" in ran.err


def test_worker_processes_write_the_same(source: Path, out: Path, tmp_path: Path) -> None:
    assert run_cli("extract", out, tmp_path / "to", workers=2).code == 0
    assert contents(tmp_path / "to") == contents(source)


def test_parts_larger_than_a_window_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_shard, "LARGE_BYTES", 10_000)
    monkeypatch.setattr(extract_shard, "PIECE_BYTES", 999)
    source = make_tree(tmp_path / "src", {f"{n}.bin": random.Random(n).randbytes(n * 5000) for n in range(9)})
    pack(source, tmp_path / "out")
    assert run_cli("extract", tmp_path / "out", tmp_path / "to").code == 0
    assert contents(tmp_path / "to") == contents(source)


def test_all_parts_writes_generated_ones_too(out: Path, tmp_path: Path) -> None:
    assert run_cli("extract", out, tmp_path / "to", "a/000", "--all-parts").code == 0
    assert contents(tmp_path / "to").keys() == {"a/000.JPG", "a/000.txt", "a/000.cls"}


def test_by_key_names_files_by_key_and_part(out: Path, tmp_path: Path) -> None:
    assert run_cli("extract", out, tmp_path / "to", "a/000", "--by", "key").code == 0
    assert contents(tmp_path / "to").keys() == {"a/000.jpg", "a/000.txt"}


def test_keys_globs_parts_splits_and_shards_select(source: Path, out: Path, tmp_path: Path) -> None:
    ran = run_cli("extract", out, tmp_path / "1", "b/0*", "a/002", "--parts", "txt", "--json")
    assert ran.json["parts"] == len(contents(tmp_path / "1")) == 21
    assert all(name.endswith(".txt") for name in contents(tmp_path / "1"))
    train = run_cli("extract", out, tmp_path / "2", "--split", "train", "--json").json["samples"]
    test = run_cli("extract", out, tmp_path / "3", "--split", "test", "--json").json["samples"]
    assert train + test == 42
    assert {**contents(tmp_path / "2"), **contents(tmp_path / "3")} == contents(source)
    assert run_cli("extract", out, tmp_path / "4", "--shard", "0", "--shard", "1", "--json").json["samples"] == 18


@pytest.mark.parametrize(
    "words", [["nope"], ["z/*"], ["--split", "none"], ["--shard", "99"], ["--parts", "gif"], ["a/000", "nope"]]
)
def test_what_selects_nothing_is_an_input_problem(out: Path, tmp_path: Path, words: list[str]) -> None:
    assert run_cli("extract", out, tmp_path / "to", *words).code == 5


def test_existing_files_are_never_touched_unless_asked(out: Path, source: Path, tmp_path: Path) -> None:
    target = make_tree(tmp_path / "to", {"a/000.txt": b"mine", "other": b"too"})
    ran = run_cli("extract", out, target)
    assert ran.code == 6
    assert "a/000.txt" in ran.err
    assert contents(target) == {"a/000.txt": b"mine", "other": b"too"}
    assert run_cli("extract", out, target, "--overwrite").code == 0
    assert contents(target) == {**contents(source), "other": b"too"}


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    with (
        extract_shard.Tree(os.fspath(tmp_path), "t", overwrite=False) as tree,
        pytest.raises(DestinationExists, match="there already"),
    ):
        tree.write(b"x", iter([memoryview(b"")]), 0x2D06800538D394C2)
    assert contents(tmp_path) == {"x": b"mine"}


def test_a_link_in_the_way_is_not_followed(out: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a").symlink_to(tmp_path / "outside")
    for words in ([], ["--overwrite"]):
        assert run_cli("extract", out, tmp_path / "to", "a/000", *words).code == 6
    assert contents(tmp_path / "outside") == {}


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(out: Path, tmp_path: Path) -> None:
    victim = make_tree(tmp_path / "v", {"file": b"mine"}) / "file"
    (tmp_path / "to/a").mkdir(parents=True)
    (tmp_path / "to/a/000.txt").symlink_to(victim)
    assert run_cli("extract", out, tmp_path / "to", "a/000").code == 6
    assert run_cli("extract", out, tmp_path / "to", "a/000", "--overwrite").code == 0
    assert victim.read_bytes() == b"mine"
    assert not (tmp_path / "to/a/000.txt").is_symlink()


@pytest.mark.parametrize(
    ("path", "safe"),
    [
        (b"a/b.c", b"a/b.c"),
        (b"./a//b", b"a/b"),
        (b"/etc/passwd", None),
        (b"../x", None),
        (b"a/../../x", None),
        (b"", None),
        (b"./.", None),
        (b"a\0b", None),
    ],
)
def test_paths_stay_inside(path: bytes, safe: bytes | None) -> None:
    assert safe_path(path) == safe


def test_an_index_that_leads_out_of_the_target_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = foreign(tmp_path / "out", [("a.txt", b"x")])
    monkeypatch.setattr(extract_module, "paths_of", lambda *_: [b"../../evil"])
    ran = run_cli("extract", out, tmp_path / "deep/to")
    assert ran.code == 5
    assert "lead out of" in ran.err
    assert not (tmp_path / "evil").exists()


def test_names_that_differ_in_case_alone_are_refused_where_the_file_system_joins_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = foreign(tmp_path / "out", [("Ab.txt", b"x"), ("ab.txt", b"y")])
    assert run_cli("extract", out, tmp_path / "1").code == 0
    assert len(contents(tmp_path / "1")) == 2
    monkeypatch.setattr(extract_module, "is_case_blind", lambda _: True)
    ran = run_cli("extract", out, tmp_path / "2")
    assert ran.code == 5
    assert "Ab.txt and ab.txt" in ran.err
    assert contents(tmp_path / "2") == {}


def test_two_parts_of_one_path_are_refused_and_by_key_helps(tmp_path: Path) -> None:
    """Two sources, in which the same path has different letters' case after grouping."""
    one, two = make_tree(tmp_path / "one", {"x.txt": b"1"}), make_tree(tmp_path / "two", {"y.txt": b"2"})
    pack([one, two], tmp_path / "out")
    assert run_cli("extract", tmp_path / "out", tmp_path / "to").code == 0
    assert contents(tmp_path / "to") == {"x.txt": b"1", "y.txt": b"2"}


def test_damaged_parts_are_left_out_and_reported(source: Path, out: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    path = shard_paths(copy)[0]
    data = path.read_bytes()
    place = data.rindex(b"ustar") - 257
    os.truncate(path, place)  # the last member is lost
    ran = run_cli("extract", copy, tmp_path / "to", "--json")
    assert ran.code == 4
    (damage,) = ran.json["damaged"]
    assert damage["shard"] == 0
    lost = contents(source).keys() - contents(tmp_path / "to").keys()
    assert len(lost) <= 1
    assert all(contents(source)[name] == data for name, data in contents(tmp_path / "to").items())


def test_an_altered_part_never_appears(source: Path, out: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    wanted = contents(source)["b/039.JPG"]
    for path in shard_paths(copy):
        data = path.read_bytes()
        if (place := data.find(wanted)) >= 0:
            path.write_bytes(data[:place] + b"\0\0\0\0" + data[place + 4 :])
    ran = run_cli("extract", copy, tmp_path / "to")
    assert ran.code == 4
    assert "b/039.JPG" in ran.out
    assert contents(source).keys() - contents(tmp_path / "to").keys() == {"b/039.JPG"}
    assert not [name for name in os.listdir(tmp_path / "to/b") if name.startswith(".")]


def test_a_target_inside_the_data_set_is_refused(out: Path) -> None:
    assert run_cli("extract", out, out / "to").code == 2
    assert run_cli("extract", out, out).code == 2


def test_the_document_counts_what_was_written(out: Path, source: Path, tmp_path: Path) -> None:
    document = json.loads(run_cli("extract", out, tmp_path / "to", "--json").out)
    files = contents(source)
    assert document["schema"] == "shardtool/extract/1"
    assert (document["samples"], document["parts"]) == (42, len(files))
    assert document["bytes"] == sum(map(len, files.values()))
    assert document["left_out_parts"] == {"cls": 42}


def test_names_in_any_bytes_come_back(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "src", {b"caf\xe9/\xff.txt": b"x", "ü/ß.txt".encode(): b"y"})
    pack(source, tmp_path / "out")
    assert run_cli("extract", tmp_path / "out", tmp_path / "to").code == 0
    assert sorted(os.walk(os.fsencode(tmp_path / "to")))[1:] != []
    found = {
        os.path.join(top, name) for top, _, names in os.walk(b"%b" % os.fsencode(tmp_path / "to")) for name in names
    }
    prefix = os.fsencode(tmp_path / "to") + b"/"
    assert {path.removeprefix(prefix) for path in found} == {b"caf\xe9/\xff.txt", "ü/ß.txt".encode()}
