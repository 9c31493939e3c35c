"""`shardtool ls`, `inspect` and `cat`: what lies in a data set, down to the byte."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from helpers import make_tree, pack, run_cli

from shardtool.assignment.lookup import key_bytes, split_member
from shardtool.manifest import load_manifest
from shardtool.names import expand_braces
from shardtool.report.text import escape_key, width
from shardtool.sniff import describe

PETS = Path(__file__).parent.parent / "fixtures" / "pets"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("look") / "out"
    pack(PETS, out, shard_size=50_000, label_from="parent", split="train=0.75,test=0.25")
    return out


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys that are no UTF-8, wide, long, numbers, or hold a backslash."""
    root = tmp_path_factory.mktemp("odd")
    files: dict[str | bytes, bytes | str] = {
        b"a/\xff1.txt": "not utf-8",
        "a/back\\slash.txt": "backslash",
        "图" * 60 + ".png": "wide",
        "n" * 200 + ".txt": "long",
        "3.txt": "three",
        "b/0001.Data.JSON": '{"x": 1}',
        "c/new\nline.txt": "line",
        "u/\u202etxt.txt": "turned",
    }
    make_tree(root / "in", files)
    pack(root / "in", root / "out", shards=5)
    return root / "out"


# ls


def test_ls_lists_the_shards_of_the_manifest(pets: Path) -> None:
    done = run_cli("ls", pets)
    assert done.code == 0
    paths = [shard.path for shard in load_manifest(str(pets)).shards]
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == paths
    document = run_cli("ls", pets, "--json").json
    assert [shard["path"] for shard in document["shards"]] == paths
    assert sum(shard["samples"] for shard in document["shards"]) == 64


def test_ls_quiet_prints_paths_that_exist(pets: Path) -> None:
    lines = run_cli("ls", pets, "-q").out.splitlines()
    assert all(Path(line).is_file() for line in lines)
    assert len(lines) == len(load_manifest(str(pets)).shards)


def test_ls_braces_expand_to_the_shards(pets: Path) -> None:
    patterns = run_cli("ls", pets, "--braces").out.splitlines()
    assert len(patterns) == 2
    assert [name for pattern in patterns for name in expand_braces(pattern)] == run_cli("ls", pets, "-q").out.split()
    assert len(run_cli("ls", pets, "--braces", "--split", "test").out.splitlines()) == 1


def test_ls_samples_lists_every_key_once_with_its_parts(pets: Path) -> None:
    lines = run_cli("ls", pets, "--samples").out.splitlines()
    keys = {line.split()[0] for line in lines}
    assert keys == {str(path.relative_to(PETS))[:-4] for path in PETS.rglob("*.png")}
    size = (PETS / "cats" / "0001.png").stat().st_size
    (line,) = [line for line in lines if line.startswith("cats/0001 ")]
    assert f"png {size:,}" in line
    assert len(run_cli("ls", pets, "--samples", "--split", "test", "-q").out.splitlines()) == 16


def test_ls_samples_json_is_one_document(pets: Path, odd: Path) -> None:
    document = run_cli("ls", pets, "--samples", "--json").json
    assert len(document["samples"]) == 64
    assert document["samples"][0]["parts"]["cls"] == 1
    rows = run_cli("ls", odd, "--samples", "--json").json["samples"]
    (row,) = [row for row in rows if "key_b64" in row]
    assert base64.b64decode(row["key_b64"]) == b"a/\xff1"


def test_ls_of_a_mistyped_split_names_the_nearest(pets: Path) -> None:
    done = run_cli("ls", pets, "--split", "tran")
    assert done.code == 2
    assert "did you mean train?" in done.err


def test_ls_braces_and_samples_exclude_one_another(pets: Path) -> None:
    assert run_cli("ls", pets, "--braces", "--samples").code == 2


def test_a_reader_that_leaves_early_ends_ls_quietly(pets: Path) -> None:
    line = f"{sys.executable} -m shardtool ls {pets} --samples | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


# inspect


def test_inspect_alone_shows_how_the_data_set_was_made(pets: Path) -> None:
    done = run_cli("inspect", pets)
    assert "--shard-size 50000" in done.out
    assert "seed 0" in done.out
    assert run_cli("inspect", pets, "--json").json["kind"] == "dataset"


@pytest.mark.parametrize("word", ["1", "1:", "data/{name}", "{name}", "{stem}", "index/00001.arrow"])
def test_a_shard_is_named_in_many_ways(pets: Path, word: str) -> None:
    name = Path(load_manifest(str(pets)).shards[1].path).name
    word = word.format(name=name, stem=name.removesuffix(".tar"))
    document = run_cli("inspect", pets, word, "--json").json
    assert (document["kind"], document["shard"]) == ("shard", 1)


def test_the_file_of_a_shard_may_be_given_alone(pets: Path) -> None:
    record = load_manifest(str(pets)).shards[2]
    document = run_cli("inspect", pets / record.path, "--json").json
    assert (document["shard"], document["xxh3_128"]) == (2, record.files[0].xxh3_128)


def test_a_shard_shows_sizes_digest_keys_and_parts(pets: Path) -> None:
    done = run_cli("inspect", pets, "0")
    assert "overhead" in done.out
    assert "headers" in done.out
    assert "first" in done.out
    document = run_cli("inspect", pets, "0", "--json").json
    assert sum(document["overhead"].values()) == document["bytes"] - document["payload_bytes"]
    assert sum(part["bytes"] for part in document["parts"].values()) == document["payload_bytes"]
    assert document["parts"]["png"]["samples"] == document["samples"]
    assert sum(document["labels"].values()) == document["samples"]


def test_a_sample_shows_where_each_part_lies_byte_for_byte(pets: Path) -> None:
    document = run_cli("inspect", pets, "cats/0008", "--json").json
    assert (document["kind"], document["label_name"]) == ("sample", "cats")
    shard = (pets / document["path"]).read_bytes()
    for part in document["parts"]:
        data = shard[part["offset"] : part["offset"] + part["bytes"]]
        assert f"{xxhash.xxh3_64_intdigest(data):016x}" == part["xxh3_64"]
        if part["name"] != "cls":
            assert data == (PETS / part["source"]).read_bytes()


def test_a_sample_previews_json_text_and_picture(pets: Path) -> None:
    done = run_cli("inspect", pets, "cats/0008")
    assert '"name": "Fips"' in done.out
    assert "PNG 64 x 64, 8 bit RGB" in done.out
    assert "golden cat" in done.out


def test_a_sample_is_found_by_place_and_by_a_key_with_a_part(pets: Path) -> None:
    first = run_cli("inspect", pets, "1:0", "--json").json
    assert (first["shard"], first["sample"]) == (1, 0)
    assert run_cli("inspect", pets, first["key"] + ".png", "--json").json == first
    assert run_cli("inspect", pets, "1:999").code == 5
    assert run_cli("inspect", pets, "99:0").code == 5


def test_a_key_that_is_a_number_goes_before_the_shard_of_that_number(odd: Path) -> None:
    assert run_cli("inspect", odd, "3", "--json").json["kind"] == "sample"
    assert run_cli("inspect", odd, "3:", "--json").json["kind"] == "shard"
    assert run_cli("inspect", odd, "2", "--json").json["kind"] == "shard"


@pytest.mark.parametrize(
    "key", [b"a/\xff1", b"a/back\\slash", "图".encode() * 60, b"n" * 200, b"c/new\nline", "u/\u202etxt".encode()]
)
def test_keys_may_be_pasted_as_they_are_shown(odd: Path, key: bytes) -> None:
    shown = run_cli("inspect", odd, os.fsdecode(key), "--json").json
    pasted = run_cli("inspect", odd, escape_key(key), "--json").json
    assert pasted == shown
    assert base64.b64decode(shown.get("key_b64", "")) in (b"", key)


def test_inspect_stays_in_80_columns(odd: Path, pets: Path) -> None:
    names = run_cli("ls", odd, "--samples", "--json").json["samples"]
    words = [os.fsdecode(base64.b64decode(row["key_b64"])) if "key_b64" in row else row["key"] for row in names]
    for out, word in [*((odd, word) for word in [*words, "2", "1:"]), (pets, "cats/0001"), (pets, "0")]:
        done = run_cli("inspect", out, word)
        assert done.code == 0, done.err
        assert max(map(width, done.out.splitlines())) <= 80, word


def test_an_unknown_key_names_the_nearest(pets: Path) -> None:
    done = run_cli("inspect", pets, "cats/008")
    assert done.code == 5
    assert "did you mean cats/0008" in done.err
    assert "did you mean cats/0008" in run_cli("inspect", pets, "cat/0008").err


def test_a_mistyped_shard_names_the_nearest(pets: Path) -> None:
    name = Path(load_manifest(str(pets)).shards[1].path).name
    done = run_cli("inspect", pets, name.replace("train", "tran"))
    assert done.code == 5
    assert f"did you mean {name}?" in done.err


# cat


def test_cat_gives_the_bytes_of_the_file(pets: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from shardtool.__main__ import run

    assert run(["cat", str(pets), "cats/0008.png"]) == 0
    assert capfdbinary.readouterr().out == (PETS / "cats" / "0008.png").read_bytes()


def test_cat_joins_several_parts_and_takes_part_apart(pets: Path) -> None:
    texts = [(PETS / "cats" / f"{n:04d}.txt").read_text() for n in (1, 2)]
    assert run_cli("cat", pets, "cats/0001.txt", "cats/0002.txt").out == "".join(texts)
    assert run_cli("cat", pets, "cats/0001", "cats/0002", "--part", "txt").out == "".join(texts)


def test_cat_takes_part_names_with_dots_and_in_their_old_case(odd: Path) -> None:
    assert json.loads(run_cli("cat", odd, "b/0001.data.json").out) == {"x": 1}
    assert json.loads(run_cli("cat", odd, "b/0001.Data.JSON").out) == {"x": 1}
    assert run_cli("cat", odd, r"a/\xff1.txt").out == "not utf-8"


def test_cat_of_a_sample_with_one_part_needs_no_part(odd: Path, pets: Path) -> None:
    assert run_cli("cat", odd, "3").out == "three"
    done = run_cli("cat", pets, "cats/0008")
    assert (done.code, done.out) == (2, "")
    assert "cats/0008.cls" in done.err


def test_cat_json_carries_text_or_base64(pets: Path) -> None:
    parts = run_cli("cat", pets, "cats/0008.json", "cats/0008.png", "--json").json["parts"]
    assert json.loads(parts[0]["text"])["name"] == "Fips"
    assert base64.b64decode(parts[1]["data_b64"]) == (PETS / "cats" / "0008.png").read_bytes()


def test_cat_finds_all_before_it_writes_any(pets: Path) -> None:
    done = run_cli("cat", pets, "cats/0008.json", "cats/9999.json", "--json")
    assert (done.code, done.out) == (5, "")
    assert done.error["where"]["key"] == "cats/9999.json"


def test_cat_of_an_unknown_part_lists_the_parts(pets: Path) -> None:
    done = run_cli("cat", pets, "cats/0008.jpg")
    assert done.code == 5
    assert "it has: cls, json, png, txt" in done.err


def test_cat_refuses_bytes_that_were_altered(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.txt": "hello", "b.txt": "world"})
    pack(tmp_path / "in", tmp_path / "out")
    (shard,) = (tmp_path / "out" / "data").iterdir()
    shard.write_bytes(shard.read_bytes().replace(b"hello", b"jello"))
    assert run_cli("cat", tmp_path / "out", "a.txt").code == 4
    assert run_cli("cat", tmp_path / "out", "b.txt").out == "world"


@pytest.mark.parametrize("command", [["ls"], ["inspect"], ["cat", "a.txt"]])
@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_what_holds_no_data_set_exits_5(tmp_path: Path, command: list[str], place: str) -> None:
    make_tree(tmp_path, {"empty/": ""})
    done = run_cli(command[0], tmp_path / place, *command[1:], "--json")
    assert (done.code, done.error["exit_code"]) == (5, 5)


# Words and bytes


def test_words_become_keys_and_parts() -> None:
    assert key_bytes(r"a/\xff\\b") == b"a/\xff\\b"
    assert split_member(b"a.b/c.seg.png") == (b"a.b/c", b"seg.png")
    assert split_member(b"a/.hidden") == (b"a/.hidden", b"")


def seen(data: bytes) -> tuple[str, str]:
    found = describe(len(data), lambda offset, size: data[offset : offset + size])
    return found.kind, found.facts


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", 8 + len(body)) + kind + body


def test_headers_tell_the_size_of_pictures() -> None:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 480, 640, 3) + bytes(9)
    jpeg = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14) + frame
    assert seen(jpeg) == ("JPEG", "640 x 480, 8 bit, 3 channels")
    assert seen(b"GIF89a" + struct.pack("<HH", 12, 34)) == ("GIF", "12 x 34")
    riff = b"RIFF" + bytes(4) + b"WEBP"
    assert seen(riff + b"VP8 " + bytes(10) + struct.pack("<HH", 100, 50)) == ("WebP", "100 x 50")
    assert seen(riff + b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 99 | 49 << 14)) == (
        "WebP",
        "100 x 50, lossless",
    )
    assert seen(riff + b"VP8X" + bytes(8) + b"\x63\0\0\x31\0\0") == ("WebP", "100 x 50")


def test_headers_tell_rate_and_length_of_sound() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(4 * 4000))
    assert seen(file.getvalue()) == ("WAV", "8,000 Hz, 2 channels, 16 bit, 0.50 s")
    packed = 44100 << 44 | 1 << 41 | 15 << 36 | 88200
    assert seen(b"fLaC" + bytes(14) + packed.to_bytes(8, "big")) == ("FLAC", "44,100 Hz, 2 channels, 16 bit, 2.00 s")


def test_headers_tell_size_and_length_of_a_film_wherever_its_index_lies() -> None:
    header = box(b"mvhd", bytes(12), struct.pack(">II", 1000, 2500), bytes(80))
    track = box(b"trak", box(b"tkhd", bytes(76), struct.pack(">II", 1920 << 16, 1080 << 16)))
    film = box(b"ftyp", b"isom", bytes(4)) + box(b"mdat", bytes(3 << 20)) + box(b"moov", header, track)
    assert seen(film) == ("MP4", "isom, 2.50 s, 1920 x 1080")


def test_npy_tells_shape_and_type_without_loading_it() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((3, 4), np.float32))
    assert seen(file.getvalue()) == ("npy", "3 x 4, dtype <f4")
    evil = file.getvalue().replace(b"'<f4'", b"exec(").ljust(200)
    assert seen(evil) == ("npy", "its header is damaged")


def test_text_json_and_binary_are_told_apart() -> None:
    assert seen(b'{"a": [1, 2]}')[0] == "json"
    assert seen(b"{ not json")[0] == "text"
    assert seen("größe".encode())[0] == "text"
    assert seen(bytes(range(256)))[0] == "binary"
    assert seen(b"")[0] == "empty"
    assert describe(64, lambda offset, size: bytes(range(64))[offset : offset + size]).text.startswith("0000  00 01 02")
    long = describe(5000, lambda offset, size: b"x" * size)
    assert (len(long.text), long.text[-3:]) == (303, "...")


@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_break_a_preview(seed: int) -> None:
    magics = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"fLaC", b"\x93NUMPY\x01\0", b"RIFFxxxxWAVE", b"xxxxftyp"]
    for number in range(300):
        noise = hashlib.shake_128(f"{seed} {number}".encode()).digest(number % 120)
        data: Any = magics[number % len(magics)] + noise
        assert re.fullmatch(r"[A-Za-z0-9]+", seen(data)[0])
