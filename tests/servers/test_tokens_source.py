"""Text and ids in a bucket become the pairs that a copied folder gives, through faults, kills and changes."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import signal
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fault_proxy import Fault, FaultProxy
from groups import start, until
from helpers import make_tree, run_cli
from snapshots import files_below
from store import contents, files_of, uploads

from shardtool.manifest import load_manifest
from shardtool.tokens import documents, files, inputs
from shardtool.tokens.store import load_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket

BIN = ("--format", "bin", "--tokenizer", "bytes", "--shards", "3")
IDS = ("--format", "bin", "--tokenizer", "none", "--shards", "2", "--eod", "0")
NAMES_SOURCES = ("plan.json", "inputs.arrow", "ignored.jsonl")  # files of a data set that say where its source lay


def words(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("abcdefgh äö日 ", k=rng.randrange(1, 120))) for _ in range(count)]


def jsonl(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in texts)


def ipc(table: Any, *, stream: bool) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    return sink.getvalue()


def parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=50)
    return sink.getvalue()


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def tar_of(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for number, text in enumerate(texts):
            for name, data in ((f"{number}.txt", text.encode()), (f"{number}.jpg", b"\xff\xd8")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def corpus() -> dict[str, bytes]:
    """Texts in a file of every kind that is read."""
    rng = random.Random(1)
    table = pa.table({"n": range(120), "text": words(rng, 120), "more": words(rng, 120)})
    halves = [jsonl(words(rng, 60)) for _ in range(4)]
    return {
        "lines.jsonl": jsonl(words(rng, 400)),
        "a/one line without an end.jsonl": jsonl(words(rng, 1)).rstrip(b"\n"),
        "a/twice.jsonl.gz": gzip.compress(halves[0]) + gzip.compress(halves[1]),
        "a/b/frames.jsonl.zst": zstandard.compress(halves[2]) + zstandard.compress(halves[3]),
        "rows.parquet": parquet(table),
        "file.arrow": ipc(table, stream=False),
        "stream.arrow": ipc(table, stream=True),
        "part.tar": tar_of(words(rng, 30)),
        "text.txt.gz": gzip.compress(words(rng, 1)[0].encode()),
        "text.txt.zst": zstandard.compress(words(rng, 1)[0].encode()),
        "no suffix": words(rng, 1)[0].encode(),
        "empty.txt": b"",
        ".DS_Store": b"junk",
        **{f"texts/{number:03d}.txt": text.encode() for number, text in enumerate(words(rng, 60))},
    }


def id_corpus() -> dict[str, bytes]:
    """Ids in a file of every kind that is read."""
    rng = np.random.default_rng(2)
    lists = [rng.integers(1, 60_000, rng.integers(1, 40)).tolist() for _ in range(90)]
    table = pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))})
    matrix = rng.integers(1, 60_000, (70, 16)).astype("<i4")
    return {
        "lines.jsonl": b"".join(json.dumps({"input_ids": ids}).encode() + b"\n" for ids in lists),
        "rows.parquet": parquet(table),
        "file.arrow": ipc(table, stream=False),
        "matrix.npy": npy(matrix),
        "fortran.npy": npy(np.asfortranarray(matrix[:20])),
        "big-endian.npy": npy(matrix[:5].astype(">u2")),
        "one.npy": npy(matrix.reshape(-1)[:500].astype(np.uint16)),
        "none.npy": npy(matrix[:0]),
    }


def data_set(found: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a data set whose bytes do not depend on where the source lay."""
    return {path: data for path, data in found.items() if not path.endswith(NAMES_SOURCES)}


@pytest.fixture(params=["large", "small"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and windows as they are, or so small that lines, batches and tails cross them everywhere."""
    if request.param == "small":
        monkeypatch.setattr(inputs, "LEAST_SLICE_BYTES", 700)
        monkeypatch.setattr(inputs, "BATCH_FILES", 7)
        monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 500)
        monkeypatch.setattr(files, "COLUMN_BYTES", 300)
        monkeypatch.setattr("shardtool.storage.files.WINDOW_BYTES", 256)
        monkeypatch.setattr("shardtool.storage.files.TAIL_BYTES", 16)


@pytest.fixture
def proxy(seaweedfs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between shardtool and SeaweedFS."""
    with FaultProxy(seaweedfs_bucket.server.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        yield running


def fill(bucket: Bucket, tree: dict[str, bytes], prefix: str = "text/") -> None:
    bucket.put({prefix + path: data for path, data in tree.items()})


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize(("make", "options"), [(corpus, BIN), (id_corpus, IDS)])
def test_a_folder_and_every_store_give_the_same_pairs(
    bucket: Bucket, tmp_path: Path, make: Any, options: tuple[str, ...]
) -> None:
    tree = make()
    fill(bucket, tree)
    local = run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *options, "--json")
    remote = run_cli("pack", bucket.url("text"), tmp_path / "b", *options, "--json")
    assert (local.code, remote.code) == (0, 0), (local.err, remote.err)
    for name in ("dataset_id", "plan_id", "ledger"):
        assert remote.json[name] == local.json[name]
    assert data_set(files_of(tmp_path / "a")) == data_set(files_of(tmp_path / "b"))
    assert run_cli("verify", tmp_path / "b", "--deep").code == 0


def test_a_bucket_is_packed_to_a_bucket_and_the_objects_are_named(seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    tree = corpus()
    fill(seaweedfs_bucket, tree)
    assert run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN).code == 0
    url = seaweedfs_bucket.url("out")
    ran = run_cli("pack", seaweedfs_bucket.url("text/"), url, *BIN, workers=2)
    assert ran.code == 0, ran.err
    assert data_set(contents(seaweedfs_bucket, "out/")) == data_set(files_of(tmp_path / "a"))
    named = {file.full_path: file.version for file in load_inputs(url)}
    wanted = {seaweedfs_bucket.url(f"text/{path}") for path in tree if path != ".DS_Store"}
    assert named.keys() == wanted
    client = seaweedfs_bucket.server.client()
    etag = client.head_object(Bucket=seaweedfs_bucket.name, Key="text/lines.jsonl")["ETag"].strip('"')
    assert named[seaweedfs_bucket.url("text/lines.jsonl")] == etag


def test_folders_and_prefixes_are_packed_together(bucket: Bucket, tmp_path: Path) -> None:
    tree = corpus()
    fill(bucket, tree, "deep/c/")
    root = make_tree(tmp_path, {**{f"a/{path}": data for path, data in tree.items()}, "b/x.txt": b"x"})
    make_tree(tmp_path / "c", tree)
    options = (*BIN, "--shuffle", "none", "--json")
    local = run_cli("pack", root / "a", root / "c", root / "b", tmp_path / "one", *options)
    mixed = run_cli("pack", root / "a", bucket.url("deep/c"), root / "b", tmp_path / "two", *options)
    assert (local.code, mixed.code) == (0, 0), (local.err, mixed.err)
    assert data_set(files_of(tmp_path / "one")) == data_set(files_of(tmp_path / "two"))
    again = run_cli("pack", root / "a", bucket.url("deep/c"), root / "b", tmp_path / "two", *options)
    assert (again.code, again.json["dataset_id"]) == (0, local.json["dataset_id"]), again.err


def test_one_object_is_a_source(bucket: Bucket, tmp_path: Path) -> None:
    tree = corpus()
    fill(bucket, tree)
    make_tree(tmp_path / "text", tree)
    ids = {
        run_cli("pack", source, tmp_path / name, *BIN, "--json").json["dataset_id"]
        for name, source in (("a", tmp_path / "text" / "lines.jsonl"), ("b", bucket.url("text/lines.jsonl")))
    }
    assert len(ids) == 1


ODD = (
    "a b", "a//b", "a/./b", "a/../b", "../b", "back\\slash", "new\nline", "ä/ö", "日本", "k", "k.txt/x", "p+%25",
    "?q=1#f", "x" * 240, "/lead", "//lead", "$dollar", "\u3000", "del\x7f", "q'\"<>&", "trailing ", "-dash",
)  # fmt: skip


def test_odd_keys_come_through_on_a_store_that_keeps_them(ceph_bucket: Bucket, tmp_path: Path) -> None:
    suffixes = (".txt", ".jsonl", ".parquet")
    fill(
        ceph_bucket,
        {
            **{f"{key}.txt": key.encode() for key in ODD},
            **{f"{key}.jsonl": jsonl([f"line of {key}"]) for key in ODD},
            **{f"{key}.parquet": parquet(pa.table({"text": [f"row of {key}"]})) for key in ODD},
        },
    )
    ran = run_cli("pack", ceph_bucket.url("text"), tmp_path / "out", *BIN, "--hidden", "--json", "--shuffle", "none")
    assert ran.code == 0, ran.err
    assert ran.json["ledger"]["packed"] == len(suffixes) * len(ODD)
    listed = run_cli("ls", tmp_path / "out", "--samples", "--json").json["samples"]
    assert len({sample["key"] for sample in listed}) == len(suffixes) * len(ODD)
    one = ceph_bucket.url("text/a//b.txt")
    assert run_cli("pack", one, tmp_path / "one", *BIN[:-1], "1").code == 0


def test_faults_on_the_wire_change_nothing(proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    tree = {**corpus(), **{f"more/{number:04d}.txt": b"%d" % number for number in range(600)}}
    tree |= {f"lines/{number}.jsonl": jsonl(words(random.Random(number), 300)) for number in range(40)}
    fill(seaweedfs_bucket, tree)
    wanted = run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN, "--json")
    kinds = [
        Fault("status", status=503, code="SlowDown"),
        Fault("status", status=500, code="InternalError"),
        Fault("refuse"),
        Fault("reset", at=100),
        Fault("close", at=10),
    ]
    for number, fault in enumerate(kinds):
        proxy.add(r"GET .*text/", fault, times=-1, probability=0.01, seed=number)
    run = start("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN, "--workers", "2")
    code, err = run.end()
    assert code == 0, err
    (told,) = re.findall(r"retry +([0-9]+) requests had to be sent again", err)
    assert int(told) > sum(seen.fault == "status" for seen in proxy.requests) > 5, "of the workers, too"
    assert load_manifest(os.fspath(tmp_path / "b")).dataset_id == wanted.json["dataset_id"]
    assert proxy.faults() > 15


def test_a_body_that_breaks_goes_on_where_it_broke(proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    text = jsonl(words(random.Random(4), 4000))
    tree = {"x.jsonl.gz": gzip.compress(text, 1)}
    fill(seaweedfs_bucket, tree)
    wanted = run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN, "--json")
    proxy.add(r"GET .*x\.jsonl\.gz", Fault("close", at=50_000))
    ran = run_cli("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN, "--json")
    assert ran.json["dataset_id"] == wanted.json["dataset_id"]
    asked = [seen for seen in proxy.requests if seen.method == "GET" and "x.jsonl.gz" in seen.path]
    assert [seen.range for seen in asked] == [
        f"bytes=0-{len(tree['x.jsonl.gz']) - 1}",
        f"bytes=50000-{len(tree['x.jsonl.gz']) - 1}",
    ]
    assert len({seen.if_match for seen in asked} - {""}) == 1


def test_a_slice_asks_for_its_own_bytes_and_little_more(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LEAST_SLICE_BYTES", 100_000)
    tree = {"x.jsonl": jsonl(words(random.Random(6), 8000))}
    fill(seaweedfs_bucket, tree)
    assert run_cli("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN).code == 0
    ranges = [seen for seen in proxy.requests if seen.range]
    num_slices = -(-len(tree["x.jsonl"]) // 100_000)
    assert num_slices > 5
    sent = sum(seen.sent_bytes for seen in ranges)
    assert sent <= len(tree["x.jsonl"]) + num_slices * ((64 << 10) + 1)


def test_columns_that_are_not_wanted_are_not_fetched(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    rng = random.Random(7)
    table = pa.table({"image": [rng.randbytes(30_000) for _ in range(200)], "text": words(rng, 200)})
    tree = {"x.parquet": parquet(table), "x.arrow": ipc(table, stream=False)}
    fill(seaweedfs_bucket, tree)
    assert run_cli("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN).code == 0
    sent = sum(seen.sent_bytes for seen in proxy.requests if seen.method == "GET" and "text/x" in seen.path)
    assert sent < sum(map(len, tree.values())) / 10


@pytest.mark.parametrize(
    "path", ["lines.jsonl", "a/twice.jsonl.gz", "rows.parquet", "file.arrow", "part.tar", "texts/003.txt", "no suffix"]
)
def test_an_object_that_is_replaced_after_the_listing_is_an_error(
    bucket: Bucket, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = corpus()
    fill(bucket, tree)
    listed = inputs.cut_tasks

    def replaced(found: Any) -> Any:
        tasks = listed(found)
        bucket.put({f"text/{path}": tree[path][:-1] + b"!"})
        return tasks

    monkeypatch.setattr("shardtool.tokens.build.cut_tasks", replaced)
    ran = run_cli("pack", bucket.url("text"), tmp_path / "out", *BIN, "--json")
    assert ran.code == 5
    assert path in ran.error["message"]
    assert "is not the object that it was" in ran.error["message"]
    monkeypatch.undo()


def test_an_object_that_is_gone_is_named(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bucket, corpus())
    listed = inputs.cut_tasks

    def removed(found: Any) -> Any:
        tasks = listed(found)
        bucket.server.client().delete_object(Bucket=bucket.name, Key="text/lines.jsonl")
        return tasks

    monkeypatch.setattr("shardtool.tokens.build.cut_tasks", removed)
    ran = run_cli("pack", bucket.url("text"), tmp_path / "out", *BIN, "--json")
    assert ran.code == 5
    assert "text/lines.jsonl does not exist" in ran.error["message"]


def test_a_store_that_keeps_failing_ends_the_run_with_code_8_and_the_rerun_goes_on(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = corpus()
    fill(seaweedfs_bucket, tree)
    monkeypatch.setenv("SHARDTOOL_S3_RETRY_SECONDS", "0.5")
    proxy.add(r"rows\.parquet", Fault("status", status=500, code="InternalError"), skip=2, times=-1)
    ran = run_cli("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN, "--json")
    assert ran.code == 8
    assert "rows.parquet" in ran.error["message"]
    proxy.clear()
    again = run_cli("pack", seaweedfs_bucket.url("text"), tmp_path / "b", *BIN)
    assert again.code == 0, again.err
    assert "slices of the source are tokenized already" in again.err
    assert proxy.count(r"GET .*lines\.jsonl") == 0, "its slice has a receipt"
    wanted = run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN, "--json")
    assert load_manifest(os.fspath(tmp_path / "b")).dataset_id == wanted.json["dataset_id"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("requests", [6, 20, 45, 60])
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_killed_run_goes_on_to_the_same_pairs(
    seaweedfs_bucket: Bucket, tmp_path: Path, place: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {**corpus(), **{f"l/{number}.jsonl": jsonl(words(random.Random(number), 200)) for number in range(40)}}
    fill(seaweedfs_bucket, tree)
    assert run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN).code == 0
    out = os.fspath(tmp_path / "b") if place == "folder" else seaweedfs_bucket.url("out")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("TMPDIR", os.fspath(temporary))
        run = start("pack", seaweedfs_bucket.url("text"), out, *BIN, "--workers", "2")
        until(lambda: run.is_over or len(proxy.requests) >= requests)
        run.signal(signal.SIGKILL, group=True)
        run.end()
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs_bucket.server.endpoint)
    assert not [path for path in files_below(temporary) if path.stat().st_size > 0], "copies have no name"
    ran = run_cli("pack", seaweedfs_bucket.url("text"), out, *BIN)
    assert ran.code == 0, ran.err
    found = files_of(tmp_path / "b") if place == "folder" else contents(seaweedfs_bucket, "out/")
    assert data_set(found) == data_set(files_of(tmp_path / "a"))
    assert uploads(seaweedfs_bucket) == []


def test_a_finished_data_set_is_compared_by_etag(bucket: Bucket, tmp_path: Path) -> None:
    rows = [b'{"n": %d, "text": "%s"}\n' % (number, text) for number, text in enumerate((b"one", b"two", b"six"))]
    fill(bucket, {"x.jsonl": b"".join(rows)})
    out, one = tmp_path / "out", (*BIN[:-1], "1")
    assert run_cli("pack", bucket.url("text"), out, *one).code == 0
    fill(bucket, {"x.jsonl": b"".join(rows)})  # the same again, at another time
    same = run_cli("pack", bucket.url("text"), out, *one)
    assert (same.code, "nothing to do" in same.out, "read again" in same.err) == (0, True, False), same.err
    fill(bucket, {"x.jsonl": b"".join(rows).replace(b'"n": 2', b'"n": 7')})
    read_again = run_cli("pack", bucket.url("text"), out, *one)
    assert (read_again.code, "read again" in read_again.err) == (0, True), read_again.err
    fill(bucket, {"x.jsonl": b"".join(rows).replace(b"six", b"ten")})
    changed = run_cli("pack", bucket.url("text"), out, *one, "--json")
    assert (changed.code, "x.jsonl" in changed.error["message"]) == (6, True), changed.err


def test_part_files_that_are_gone_are_made_again_of_the_objects_that_were_planned(
    seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = corpus()
    fill(seaweedfs_bucket, tree)
    url, out = seaweedfs_bucket.url("text"), seaweedfs_bucket.url("out")
    assert run_cli("pack", url, out, *BIN, "--part", "0/2").code == 0
    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path / "another"))
    assert run_cli("pack", out, "--part", "1/2").code == 0
    assert run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "a", *BIN).code == 0
    assert data_set(contents(seaweedfs_bucket, "out/")) == data_set(files_of(tmp_path / "a"))


def test_a_dry_run_reads_little_of_large_objects(proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    one = jsonl(words(random.Random(8), 1000))
    tree = {f"{number}.jsonl": one * 40 for number in range(6)}
    fill(seaweedfs_bucket, tree)
    source = seaweedfs_bucket.url("text")
    ran = run_cli("pack", source, tmp_path / "out", *BIN, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["is_estimate"] is True
    local = run_cli("pack", make_tree(tmp_path / "text", tree), tmp_path / "out", *BIN, "--dry-run", "--json")
    for name in ("samples", "tokens", "bytes", "shards", "ledger", "sampled_share"):
        assert ran.json[name] == local.json[name]
    sent = sum(seen.sent_bytes for seen in proxy.requests if seen.method == "GET")
    assert sent < sum(map(len, tree.values())) / 2
    assert not (tmp_path / "out").exists()


def test_what_is_no_text_is_refused_before_anything_is_written(bucket: Bucket, tmp_path: Path) -> None:
    fill(bucket, {"a.txt": b"x", "b.jpg": b"\xff\xd8", "c": b"\0\1", "d": b"text", "e.tar.gz": b"x"})
    ran = run_cli("pack", bucket.url("text"), tmp_path / "out", *BIN, "--exclude", "*.gz", "--json")
    assert ran.code == 2
    assert bucket.url("text/b.jpg") in ran.error["message"]
    assert bucket.url("text/c") in ran.error["message"]
    assert "2 files hold no text" in ran.error["message"]
    archive = run_cli("pack", bucket.url("text"), tmp_path / "out", *BIN, "--include", "*.gz", "--json")
    assert (archive.code, "compressed archives" in archive.error["message"]) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_data_set_in_a_bucket_is_no_source_of_documents(seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    make_tree(tmp_path / "text", {"a.txt": b"one", "b.txt": b"two"})
    url = seaweedfs_bucket.url("tar")
    assert run_cli("pack", tmp_path / "text", url).code == 0
    ran = run_cli("pack", url, tmp_path / "out", *BIN, "--json")
    assert (ran.code, "is a data set" in ran.error["message"]) == (2, True)
    assert f"shardtool pack {url}/data OUT" in ran.error["hint"]
    assert run_cli("pack", f"{url}/data", tmp_path / "out", *BIN[:-1], "1").code == 0


def test_damaged_objects_are_named(bucket: Bucket, tmp_path: Path) -> None:
    tree = corpus()
    wrong = {
        "a.jsonl.gz": tree["a/twice.jsonl.gz"][:-9],
        "b.jsonl.zst": tree["a/b/frames.jsonl.zst"][:-9],
        "c.parquet": tree["rows.parquet"][:-9],
        "d.arrow": tree["stream.arrow"][: len(tree["stream.arrow"]) // 2],
        "e.npy": npy(np.arange(100))[:-8],
        "f.tar": tree["part.tar"][:700],
    }
    for path, data in wrong.items():
        bucket.put({f"{path}/{path}": data})
        local = run_cli("pack", make_tree(tmp_path / path, {path: data}), tmp_path / "out", *BIN, "--json")
        ran = run_cli("pack", bucket.url(path), tmp_path / "out", *BIN, "--json")
        assert (ran.code, local.code) in ((5, 5), (4, 4)), (path, ran.err, local.err)
        shown = bucket.url(f"{path}/{path}")
        assert ran.error["message"].replace(shown, "X") == local.error["message"].replace(
            os.fspath(tmp_path / path / path), "X"
        )


def test_a_list_of_keys_and_a_kept_listing_name_the_objects(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    fill(seaweedfs_bucket, {"a.txt": b"a", "b.txt": b"b", "c.txt": b"c"})
    (tmp_path / "list").write_text("a.txt\nc.txt\n")
    url, one = seaweedfs_bucket.url("text"), (*BIN[:-1], "1")
    chosen = run_cli("pack", url, tmp_path / "a", *one, "--files-from", tmp_path / "list", "--json")
    assert (chosen.code, chosen.json["samples"]) == (0, 2), chosen.err
    kept = ("--list-cache", tmp_path / "list.arrow", "--json")
    assert run_cli("pack", url, tmp_path / "b", *one, "--dry-run", *kept).json["samples"] == 3
    proxy.clear()
    second = run_cli("pack", url, tmp_path / "b", *one, *kept)
    assert (second.code, second.json["samples"]) == (0, 3), second.err
    assert proxy.count("list-type=2.*delimiter") == 0
    assert "hours old" in second.err
    several = run_cli("pack", url, seaweedfs_bucket.url("more"), tmp_path / "c", *one, *kept)
    assert (several.code, "holds the list of one source" in several.error["message"]) == (2, True)
