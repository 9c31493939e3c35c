"""`shardtool index --repair`: the `.idx` of damaged pairs is mended in place, the `.bin` never touched."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from pathlib import Path

import pytest
from helpers import make_tree, pack, run_cli
from pairs import read_pair, write_pair
from test_schemas import check
from test_tokens_merge import DOCS, both, damage
from test_tokens_pack import pack_tokens, prefixes

from shardtool.errors import CorruptShard, DestinationExists, NoSpace, SourceNotFound, UsageProblem
from shardtool.formats.bin_index import encode_idx, read_idx
from shardtool.formats.bin_pairs import check_pair
from shardtool.tokens import mend
from shardtool.tokens.mend import mend_pairs
from shardtool.tokens.merge import cut_pairs, merge_pairs, open_pairs

MENDED = ("dtype", "pointers", "pointer_overflow", "documents", "truncated_index", "trailing_bytes", "negative_length")


def overflow(prefix: Path) -> None:
    """Pointers as a sum in 32 bits makes them beyond 2 GiB; the .bin is sparse."""
    count, length = 3, 1 << 30
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, count + 1)
    pointers = (0, -(1 << 31), 0)
    documents = struct.pack("<4q", 0, 1, 2, 3)
    Path(f"{prefix}.idx").write_bytes(
        head + struct.pack("<3i", *[length] * count) + struct.pack("<3q", *pointers) + documents
    )
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * count * length)


@pytest.mark.parametrize("kind", MENDED)
def test_an_idx_is_mended_where_its_information_is_elsewhere(tmp_path: Path, kind: str) -> None:
    prefix = write_pair(tmp_path / "a", DOCS)
    whole = Path(f"{prefix}.idx").read_bytes()
    if kind == "pointer_overflow":
        overflow(prefix)
        damaged = Path(f"{prefix}.idx").read_bytes()
        whole = damaged[:46] + struct.pack("<3q", 0, 1 << 31, 1 << 32) + damaged[70:]
    else:
        damage(prefix, kind)
        damaged = Path(f"{prefix}.idx").read_bytes()
    before = os.stat(f"{prefix}.bin")
    ran = run_cli("index", "--repair", prefix, "--json")
    check("repair", ran.json)
    (pair,) = ran.json["pairs"]
    assert kind in pair["mended"]
    assert (pair["sequences"], pair["documents"]) == (3, 3)
    assert Path(f"{prefix}.idx").read_bytes() == whole
    assert check_pair(str(prefix)).faults == []
    after = os.stat(f"{prefix}.bin")
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert Path(pair["kept"]).read_bytes() == damaged, "what was replaced is there under another name"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("truncated", "neither lengths nor pointers agree"),
        ("oversized", "2 bytes after the last token, and it is left as it is"),
        ("header", "its header cannot be read"),
    ],
)
def test_what_no_idx_makes_sound_is_refused_with_the_cure(tmp_path: Path, kind: str, says: str) -> None:
    good, bad = write_pair(tmp_path / "a", DOCS), write_pair(tmp_path / "b", DOCS)
    damage(good, "documents")
    damage(bad, kind)
    before = both(good), both(bad)
    ran = run_cli("index", "--repair", good, bad)
    assert ran.code == 4
    assert says in ran.err
    assert "leave these pairs out to mend the others" in ran.err
    if kind == "oversized":
        assert f"shardtool merge --repair {bad} -o MENDED" in ran.err
    assert (both(good), both(bad)) == before, "nothing is mended where not all can be"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "b.bin", "b.idx"]


def test_sound_pairs_stay_and_a_folder_is_mended_at_once(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path / "p" / "a", DOCS), write_pair(tmp_path / "p" / "b", DOCS)
    damage(two, "documents")
    stamp = os.stat(f"{one}.idx").st_mtime_ns
    ran = run_cli("index", "--repair", tmp_path / "p")
    assert ran.code == 0, ran.err
    assert f"mended {two}.idx   documents   3 documents, 11 tokens\n       as it was: {two}.idx.damaged\n" in ran.out
    assert "sound  1 pair; nothing to mend" in ran.out
    assert os.stat(f"{one}.idx").st_mtime_ns == stamp
    assert read_pair(two) == DOCS
    assert run_cli("index", "--repair", tmp_path / "p", "-q").out == ""


def test_a_second_damage_does_not_replace_what_the_first_repair_kept(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    damage(pair, "documents")
    mend_pairs([str(pair)])
    damage(pair, "pointers")
    kept = Path(f"{pair}.idx.damaged").read_bytes()
    with pytest.raises(DestinationExists, match=r"a\.idx\.damaged exists"):
        mend_pairs([str(pair)])
    assert Path(f"{pair}.idx.damaged").read_bytes() == kept


def test_a_repair_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    whole = both(pair)
    damage(pair, "pointers")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mend, "write_idx", killed)
    with pytest.raises(KeyboardInterrupt):
        mend_pairs([str(pair)])
    monkeypatch.undo()
    assert check_pair(str(pair)).kinds == {"pointers"}
    mend_pairs([str(pair)])
    assert both(pair) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "a.idx.damaged"]


def test_without_links_the_damaged_idx_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    pair = write_pair(tmp_path / "a", DOCS)
    damage(pair, "documents")
    damaged = Path(f"{pair}.idx").read_bytes()
    mend_pairs([str(pair)], durable=False)
    assert Path(f"{pair}.idx.damaged").read_bytes() == damaged
    assert read_pair(pair) == DOCS


def test_a_full_disk_leaves_the_damaged_pair_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    damage(pair, "documents")
    before = both(pair)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(NoSpace):
        mend_pairs([str(pair)])
    assert both(pair) == before


def test_the_shards_of_a_data_set_get_the_bytes_of_the_manifest_back(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"{n}.txt": f"document {n}" for n in range(20)})
    pack_tokens(tmp_path / "in", tmp_path / "out", shards=2)
    damage(prefixes(tmp_path / "out")[1], "pointers")
    assert run_cli("verify", tmp_path / "out", "--deep").code == 4
    ran = run_cli("index", "--repair", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "again what the manifest says" in ran.out
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0, "no other file stays beside the shards"
    idx = Path(f"{prefixes(tmp_path / 'out')[0]}.idx")
    data = bytearray(idx.read_bytes())
    struct.pack_into("<2i", data, 34, *reversed(struct.unpack_from("<2i", data, 34)))
    struct.pack_into("<q", data, len(data) - 8, 0)
    idx.write_bytes(data)
    ran = run_cli("index", "--repair", tmp_path / "out")
    assert ran.code == 4
    assert "can be made sound, but not what was packed" in ran.err
    assert idx.read_bytes() == data
    sound = b"".join(encode_idx(read_idx(str(idx)).lengths, "uint16"))
    idx.write_bytes(sound)
    assert check_pair(str(idx)).faults == []
    with pytest.raises(CorruptShard, match="but not what was packed"):
        mend_pairs([str(tmp_path / "out")])


def test_places_that_hold_no_pairs_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFound, match=r"holds no \.bin/\.idx pairs"):
        mend_pairs([str(tmp_path / "empty")])
    half = write_pair(tmp_path / "half" / "a", DOCS)
    Path(f"{half}.idx").unlink()
    with pytest.raises(SourceNotFound, match=r"a\.idx does not exist"):
        mend_pairs([str(tmp_path / "half")])
    with pytest.raises(UsageProblem, match="mended where they lie on a disk"):
        mend_pairs(["s3://bucket/a"])
    pack(make_tree(tmp_path / "in", {"a.txt": "x"}), tmp_path / "tar")
    with pytest.raises(UsageProblem, match="holds tar shards"):
        mend_pairs([str(tmp_path / "tar")])
    assert run_cli("index", "--repair", half, "--emit", "ds").code == 2


def multimodal(prefix: Path, modes: bytes) -> Path:
    """A pair whose sequences have modes."""
    write_pair(prefix, DOCS)
    with open(f"{prefix}.idx", "ab") as file:
        file.write(modes)
    return prefix


def test_modes_of_multimodal_sequences_are_kept(tmp_path: Path) -> None:
    one, two = multimodal(tmp_path / "a", b"\0\1\0"), multimodal(tmp_path / "b", b"\1\1\0")
    shutil.copy(f"{two}.idx", tmp_path / "whole")
    data = bytearray(Path(f"{two}.idx").read_bytes())
    struct.pack_into("<q", data, 34 + 12 + 8, 6)
    Path(f"{two}.idx").write_bytes(data)
    (mended,) = mend_pairs([str(two)])
    assert mended.mended == ("pointers",)
    assert Path(f"{two}.idx").read_bytes() == (tmp_path / "whole").read_bytes()
    merged = merge_pairs(open_pairs([str(one), str(two)]), str(tmp_path / "m"))
    assert Path(f"{merged.prefix}.idx").read_bytes()[-6:] == b"\0\1\0\1\1\0"
    assert merged.num_bytes == sum(map(len, both(tmp_path / "m")))
    cut = cut_pairs(open_pairs([merged.prefix]), str(tmp_path / "c"), shard_bytes=100)
    assert [Path(f"{pair.prefix}.idx").read_bytes()[-pair.num_sequences :] for pair in cut] == [
        b"\0\1",
        b"\0",
        b"\1\1",
        b"\0",
    ]
    assert all(pair.num_bytes <= 100 for pair in cut)
    plain = write_pair(tmp_path / "plain", DOCS)
    with pytest.raises(UsageProblem, match="plain has no modes"):
        open_pairs([str(one), str(plain)])


def test_a_pair_that_cannot_be_mended_is_told_from_one_that_can(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    damage(pair, "truncated")
    with pytest.raises(CorruptShard) as caught:
        mend_pairs([str(pair)])
    assert "leave these pairs out" not in caught.value.hint
