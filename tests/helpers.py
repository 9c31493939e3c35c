"""What several test modules share: trees on disk, command lines run in this process, packed data sets read back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from webdataset.tariterators import group_by_keys, tar_file_iterator

from shardtool.__main__ import run
from shardtool.executors.local import LocalExecutor
from shardtool.manifest import load_manifest
from shardtool.model import EntryTable
from shardtool.packing.build import PackRequest, PackResult, build
from shardtool.planning.plan import PlanOptions
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

MTIME_NS = 1_700_000_000_000_000_000
PLAN_FIELDS = {field.name for field in fields(PlanOptions)}


class Ran(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout, where it is one JSON document."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def error(self) -> dict[str, Any]:
        """The error of a run with --json: the last line of stderr."""
        document: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return document


def make_tree(root: Path, files: Mapping[Any, bytes | str]) -> Path:
    """`root` with the given files: path (str or bytes) -> content; a path that ends in a slash is an empty folder."""
    base = os.fsencode(root)
    os.makedirs(base, exist_ok=True)
    for path, content in files.items():
        place = os.path.join(base, os.fsencode(path))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not place.endswith(b"/"):
            with open(place, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
    return root


def run_cli(*args: str | Path, workers: int = 0) -> Ran:
    """Run a command line in this process; `workers` = 0 packs in this process too, whatever --workers says."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    count = patch("shardtool.executors.local.workers_for", lambda wanted: workers)
    with count, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([os.fspath(arg) for arg in args])
    return Ran(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


class Said:
    """Collects what a run says, in the place of a terminal."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.warnings: list[str] = []
        self.shards = 0

    def step(self, verb: str, text: str) -> None:
        self.steps.append(f"{verb} {text}")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def progress(self, total_shards: int, total_bytes: int, total_samples: int) -> AbstractContextManager[Said]:
        return contextlib.nullcontext(self)

    def advance(self, shards: int, nbytes: int, samples: int) -> None:
        self.shards += shards


def pack(sources: Path | Sequence[Path], out: Path, *, say: Said | None = None, **options: Any) -> PackResult:
    """Pack in this process, without fsync unless `durable` is given; `options` are those of plan and request alike."""
    paths = (sources,) if isinstance(sources, Path) else tuple(sources)
    plan = {name: value for name, value in options.items() if name in PLAN_FIELDS}
    rest = {name: value for name, value in options.items() if name not in PLAN_FIELDS}
    request = PackRequest(
        sources=tuple(map(os.fspath, paths)),
        out=os.fspath(out),
        options=PlanOptions(**plan),
        **{"durable": False, **rest},
    )
    pool = WorkerPool(0)
    return build(request, pool, LocalExecutor(pool), say or Said())


def shard_paths(out: Path) -> list[Path]:
    """The shard files of a finished data set, in the order of the manifest."""
    return [out / shard.path for shard in load_manifest(os.fspath(out)).shards]


def read_tar(path: Path) -> list[tuple[bytes, bytes]]:
    """(name, content) of each member, by the standard library."""
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
        return [(os.fsencode(member.name), _content(archive, member)) for member in archive]


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def read_webdataset(path: Path) -> list[dict[str, Any]]:
    """The samples of a shard as the webdataset library reads them, without its meta fields."""
    with path.open("rb") as file:
        members = list(tar_file_iterator(file))
    samples = group_by_keys({**member, "__url__": path.name} for member in members)
    hidden = ("__url__", "__local_path__")
    return [{name: value for name, value in sample.items() if name not in hidden} for sample in samples]


def read_members(out: Path) -> dict[bytes, bytes]:
    """Every member of a finished tar data set; fails where a name is there twice."""
    found: dict[bytes, bytes] = {}
    for path in shard_paths(out):
        for name, content in read_tar(path):
            assert name not in found, name
            found[name] = content
    return found


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_csv(path: Path, rows: list[dict[str, Any]], separator: str = ",", end: str = "\n") -> Path:
    """A table with every cell in quotes, as spreadsheets write it."""
    names = list(rows[0])
    cells = [names] + [[str(row[name]) for name in names] for row in rows]
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in cells]
    path.write_bytes("".join(separator.join(row) + end for row in quoted).encode())
    return path


def write_jsonl(path: Path, rows: list[Any], end: str = "\n") -> Path:
    """A table of JSON Lines."""
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return path


def entry_table(paths: Sequence[bytes] | Mapping[bytes, int], roots: Sequence[int] = ()) -> EntryTable:
    """What a scan of these paths would give; sizes 0 unless given, the root of path i is `roots[i]`, 0 by default."""
    sizes = paths if isinstance(paths, dict) else {}
    rows = sorted(_row(number, path, roots) for number, path in enumerate(paths))
    folders = list(dict.fromkeys((root, folder) for root, folder, _ in rows))
    counts = [sum(row[:2] == folder for row in rows) for folder in folders]
    return EntryTable(
        roots=tuple(f"/root{number}" for number in range(max(roots, default=0) + 1)),
        dirs=[folder for _, folder in folders],
        dir_root=np.array([root for root, _ in folders], np.int32),
        dir_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        names=pa.array([name for _, _, name in rows], pa.large_binary()),
        sizes=np.array([sizes.get(_path(folder, name), 0) for _, folder, name in rows], np.int64),
        mtimes_ns=np.full(len(rows), MTIME_NS, np.int64),
    )


def _row(number: int, path: bytes, roots: Sequence[int]) -> tuple[int, bytes, bytes]:
    folder, _, name = path.rpartition(b"/")
    return (roots[number] if roots else 0), folder, name


def _path(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """`folder` as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
