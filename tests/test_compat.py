"""The pre-flight tells what other readers do with names; webdataset itself, and a slow walk over all, are the oracles.

The readers that are not installed here are compared in tests/peers/test_*_rules.py.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from babel import SAMPLES, Babel, names_in, packed
from helpers import make_tree, pack, run_cli
from hypothesis import given, settings
from webdataset.tariterators import group_by_keys, tar_file_iterator

from shardtool import columns
from shardtool.compat import EVEN, TWICE, UNSEEN, ShardNames, Verdict, _walk, examine, readers_named
from shardtool.dialects.rules import READERS, Cut, Loss
from shardtool.errors import UsageProblem

PETS = Path(__file__).parent.parent / "fixtures" / "pets"
KINDS = {
    ("webdataset", "__a__/b.txt"): "dropped",
    ("webdataset", "__b.x__"): "dropped",
    ("webdataset", "noext"): "dropped",
    ("webdataset", ".hidden.x"): "dropped",
    ("hf", "a/.hidden.x"): "dropped",
    ("hf", "a/__b.txt"): "dropped",
    ("hf", "\udcff.txt"): "rejected",
    ("energon", "__a__/b.txt"): "dropped",
    ("energon", "\udcff.txt"): "rejected",
    ("dali", "a b.txt"): "rejected",
    ("dali", "\u00e4.txt"): "rejected",
    ("dali", ".hidden.x"): "dropped",
    ("wids", "d/" + "n" * 99 + ".txt"): "rejected",
    ("wids", "\udcff.txt"): "rejected",
    ("wids", "a\nb.txt"): "rejected",
    ("wids", "noext"): "dropped",
    ("litdata", "d.v1/noext"): "dropped",
    ("tarp", ".hidden"): "rejected",
    ("ray", ".hidden.x"): "dropped",
}
CUTS = {
    ("webdataset", "a.v1/b.SEG.PNG"): ("a.v1/b", "seg.png"),
    ("webdataset", "img.v1.001.jpg"): ("img", "v1.001.jpg"),
    ("webdataset", "a/.hidden.x"): ("a/", "hidden.x"),
    ("webdataset", "a\nb.txt"): ("a\nb", "txt"),
    ("hf", "a.v1/b.SEG.PNG"): ("a.v1/b", "SEG.PNG"),
    ("energon", "img.v1.001.jpg"): ("img", "v1.001.jpg"),
    ("dali", "a/b.jpg"): ("a/b", "jpg"),
    ("dali", "noext"): ("noex", "noext"),
    ("wids", "d.v1/noext"): ("d", "v1/noext"),
    ("wids", "a/.hidden.x"): ("a/", "hidden.x"),
    ("litdata", "a/b/0001.seg.png"): ("0001", "seg.png"),
    ("ray", "__a__/b.txt"): ("__a__/b", "txt"),
    ("tarp", "a/b.c.d"): ("a/b", "c.d"),
}


@pytest.mark.parametrize(("reader", "name"), KINDS, ids=lambda value: ascii(value)[:30])
def test_names_that_a_reader_loses(reader: str, name: str) -> None:
    found = READERS[reader].cut(name.encode("utf-8", "surrogateescape"))
    assert isinstance(found, Loss)
    assert found.kind == KINDS[reader, name]


@pytest.mark.parametrize(("reader", "name"), CUTS, ids=lambda value: ascii(value)[:30])
def test_names_that_a_reader_cuts(reader: str, name: str) -> None:
    assert READERS[reader].cut(name.encode()) == Cut(*CUTS[reader, name])


def shard_names(samples: Babel, split: str = "train") -> ShardNames:
    names = [name for _, parts in samples for name in parts]
    starts = np.cumsum([0, *(len(parts) for _, parts in samples)])
    keys = columns.binary([key for key, _ in samples])
    return ShardNames(split, keys, starts.astype(np.int64), columns.binary(names))


def verdict_of(reader: str, *shards: Babel, split: str = "train") -> Verdict:
    (verdict,) = examine([shard_names(s, split) for s in shards], [READERS[reader]], last_split=split)
    return verdict


def read_by_webdataset(samples: Babel) -> list[dict[str, Any]] | None:
    """The samples as webdataset reads them from a tar; None where it stops."""
    members = list(tar_file_iterator(io.BytesIO(packed(samples))))
    try:
        return list(group_by_keys({**member, "__url__": ""} for member in members))
    except ValueError:
        return None


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_webdataset_reads_as_packed_where_and_only_where_nothing_is_found(samples: Babel) -> None:
    found = read_by_webdataset(samples)
    seen = None if found is None else [(s["__key__"], {k for k in s if k not in ("__key__", "__url__")}) for s in found]
    assert (seen == names_in(samples)) == verdict_of("webdataset", samples).is_clean


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_the_short_way_finds_what_a_walk_over_all_samples_finds(samples: Babel) -> None:
    keys, names = [key for key, _ in samples], [name for _, parts in samples for name in parts]
    bounds = np.cumsum([0, *(len(parts) for _, parts in samples)]).tolist()
    for name, reader in READERS.items():
        slow = Verdict(name)
        _walk(reader, slow, keys, names, bounds, list(range(len(keys))))
        fast = verdict_of(name, samples).findings
        assert {at: found for at, found in fast.items() if at[1] not in (EVEN, UNSEEN, TWICE)} == slow.findings, name


def test_two_keys_that_a_reader_takes_for_one_are_merged() -> None:
    samples = [(b"a/0001", [b"jpg"]), (b"b/0001", [b"txt"]), (b"c/0001", [b"txt"]), (b"c/2", [b"txt"])]
    kinds = {(found.kind, found.count) for found in verdict_of("litdata", samples).findings.values()}
    assert kinds == {("merged", 2), ("dropped", 1)}
    assert verdict_of("webdataset", samples).is_clean


def test_the_first_samples_of_the_last_split_decide_for_hugging_face() -> None:
    even, uneven = [(b"%d" % i, [b"txt"]) for i in range(7)], [(b"a", [b"txt"]), (b"b", [b"jpg", b"txt"])]
    assert verdict_of("hf", even).is_clean
    (stops,) = verdict_of("hf", uneven).findings.values()
    assert (stops.kind, stops.why, stops.examples) == ("rejected", EVEN, [b"b"])
    (drops,) = verdict_of("hf", even, uneven).findings.values()
    assert (drops.kind, drops.why, drops.count, drops.examples) == ("dropped", UNSEEN, 1, [b"b.jpg"])


def test_energon_wants_every_key_once() -> None:
    (found,) = verdict_of("energon", [(b"a", [b"txt"])], [(b"b", [b"txt"]), (b"a", [b"txt"])]).findings.values()
    assert (found.kind, found.why, found.count) == ("rejected", TWICE, 1)


def test_counts_go_on_beyond_the_examples() -> None:
    (found,) = verdict_of("dali", [(b"a b%d" % i, [b"txt", b"cls"]) for i in range(50)]).findings.values()
    assert (found.count, len(found.examples)) == (100, 3)


def test_a_plan_and_its_data_set_get_the_same_verdicts(tmp_path: Path) -> None:
    tree = make_tree(
        tmp_path / "in",
        {"w/a b.txt": "1", "x/1.txt": "2", "y/1.txt": "3", "__a__/z.txt": "4", "l" * 101 + "/1.txt": "5"},
    )
    planned = run_cli("plan", tree, tmp_path / "out", "--compat", "all", "--label-from", "parent", "--json")
    pack(tree, tmp_path / "out", label_from="parent")
    found = run_cli("inspect", tmp_path / "out", "--compat", "all", "--json")
    assert planned.json["compat"] == found.json["compat"]
    assert {one["reader"] for one in found.json["compat"]} == set(READERS)
    by_reader = {one["reader"]: one for one in found.json["compat"]}
    assert by_reader["ray"]["ok"]
    (dali,) = by_reader["dali"]["findings"]
    assert (dali["kind"], dali["unit"], dali["count"]) == ("rejected", "member", 2)
    assert {"name": "w/a b.txt"} in dali["examples"]


def test_the_text_fits_a_terminal_and_names_each_reader(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {"a b.txt": "1", "\u00e4/" + "n" * 90 + ".txt": "2", b"\xff/q.TXT": "3"})
    done = run_cli("plan", tree, tmp_path / "out", "--compat", "all", "--keep-case")
    assert done.code == 0, done.err
    assert "hint  leave --keep-case out" in done.out
    assert "hint  --escape-names" in done.out
    text = done.out[done.out.index("compat ") :]
    assert max(map(len, text.splitlines())) <= 80
    assert [line.split()[0] for line in text.splitlines() if line[:2] == "  " and line[2] != " "] == list(READERS)


def test_one_reader_alone_may_be_asked(tmp_path: Path) -> None:
    done = run_cli("plan", PETS, tmp_path / "out", "--compat", "hf,webdataset", "--json")
    assert [one["reader"] for one in done.json["compat"]] == ["webdataset", "hf"]
    assert "compat" not in run_cli("plan", PETS, tmp_path / "out", "--json").json


def test_unknown_readers_and_other_formats_are_refused(tmp_path: Path) -> None:
    done = run_cli("inspect", "out", "--compat", "webdatset")
    assert (done.code, "did you mean webdataset?" in done.err) == (2, True)
    with pytest.raises(UsageProblem, match="is no reader"):
        readers_named(["nobody"])
    pack(PETS, tmp_path / "out")
    assert run_cli("inspect", tmp_path / "out", "0:", "--compat", "all").code == 2
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest | {"format": "parquet"}))
    assert run_cli("inspect", tmp_path / "out", "--compat", "all").code == 2
