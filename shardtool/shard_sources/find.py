"""What the sources of `convert` are: data sets by their manifest, other files by suffix, folders by their files."""

from __future__ import annotations

import glob
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import SourceNotFound, UsageProblem
from shardtool.indexing.bare_shards import natural
from shardtool.manifest import MANIFEST, Manifest, load_manifest
from shardtool.names import SPLIT_ALIASES, expand_braces
from shardtool.planning.plan_file import PLAN_JSON
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import absolute
from shardtool.storage.regular import refuse_special

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.storage.base import Place, Stat

DATASET = "dataset"  # a shard of a data set of ours, finished
STREAM = "-stream"  # read from its beginning to its end, not by offset
INDEX_JSON = "index.json"  # of MDS and litData
STATE_JSON = "state.json"
SUFFIXES = {
    ".tar": "tar",
    ".tar.gz": "tar-stream",
    ".tgz": "tar-stream",
    ".tar.zst": "tar-stream",
    ".tar.bz2": "tar-stream",
    ".tar.xz": "tar-stream",
    ".zip": "zip",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".jsonl.zst": "jsonl",
    ".tfrecord": "tfrecord",
    ".tfrecord.gz": "tfrecord-stream",
    ".mds": "mds",
    ".mds.zstd": "mds-stream",
    ".csv": "csv",
    ".tsv": "csv",
}
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SourceFile:
    """One file of a source."""

    kind: str  # `dataset`, `litdata`, or of SUFFIXES
    path: str  # or URL
    dataset: str = ""  # the data set that it belongs to
    dataset_id: str = ""
    shard: int = 0  # its place in that manifest
    payload_bytes: int = -1  # of its parts; -1 where nobody tells
    losses: tuple[str, ...] = ()
    split: str = ""  # "" where only the name of the file can tell
    stat: Stat | None = None  # size and version of an object, where a listing told them


def find_sources(sources: Sequence[str]) -> list[SourceFile]:
    """The files behind `sources`, in their order, each once.

    Raises:
        SourceNotFound: a source that does not exist or is unfinished, or a folder that holds nothing of the kind.
        SourceError: one that is a FIFO or a device.
        UsageProblem: a file of a kind that cannot be read.
    """
    found: dict[str, SourceFile] = {}
    for source in sources:
        for file in _find(source):
            found.setdefault(file.path, file)
    return list(found.values())


def _find(source: str) -> list[SourceFile]:
    if _is_dataset(source):
        return list(_shards_of(source))
    if is_remote(source):
        return _objects(source)
    if os.path.isdir(source):
        if described := _described(source):
            return described
        paths = sorted(_files_in(source), key=natural)
        if not paths:
            raise SourceNotFound(
                f"{source} holds no data set, and no shards, archives or tables",
                hint=f"shardtool pack {source} OUT packs a folder of files; here: {', '.join(sorted(SUFFIXES))}",
                where={"path": source},
            )
    elif os.path.lexists(source):
        paths = [source]
    else:
        paths = _expand(source)
    refuse_special(paths)
    return [SourceFile(_kind(path), os.path.abspath(path)) for path in paths]


def _is_dataset(source: str) -> bool:
    """Whether it is a data set of ours, or one that is unfinished: its shards are not all there yet."""
    if is_remote(source):
        return not _suffix(source) and any(_has_object(source, name) for name in (MANIFEST, PLAN_JSON))
    with suppress(OSError):
        if os.path.basename(source) == MANIFEST:
            return True
        return any(os.path.exists(os.path.join(source, name)) for name in (MANIFEST, PLAN_JSON))
    return False


def _has_object(url: str, name: str) -> bool:
    try:
        open_place(url.removesuffix("/" + MANIFEST)).stat(name)
    except FileNotFoundError:
        return False
    return True


def _shards_of(source: str) -> Iterator[SourceFile]:
    folder = source.removesuffix(MANIFEST).rstrip("/") or "." if source.endswith(MANIFEST) else source
    manifest = load_manifest(folder)
    losses = _losses(manifest)
    place = open_place(folder)
    known = {} if place.is_local else _listed(place, manifest)
    for number, shard in enumerate(manifest.shards):
        yield SourceFile(
            DATASET,
            place.shown(shard.path),
            folder,
            manifest.dataset_id,
            number,
            shard.payload_bytes,
            losses,
            stat=known.get(shard.path),
        )


def _listed(place: Place, manifest: Manifest) -> dict[str, Stat]:
    """Sizes and versions of the objects of a data set, from listings of their top folders: 1,000 a request."""
    tops = {shard.path.partition("/")[0] + "/" for shard in manifest.shards if "/" in shard.path}
    return {stat.path: stat for top in sorted(tops) for stat in place.list(top)}


def _losses(manifest: Manifest) -> tuple[str, ...]:
    if manifest.format != "bin":
        return ()
    facts = manifest.membership.get("tokens") or {}
    kind = f"{facts.get('dtype', 'their type')}, little-endian"
    return (f"token ids become parts of raw bytes ({kind}); tokenizer and provenance are told by the source alone",)


def holds_tokens(sources: Sequence[str]) -> bool:
    """Whether all sources are data sets of token shards, whose keys may have dots."""
    if not sources or not all(_is_dataset(source) for source in sources):
        return False
    return all(load_manifest(source.removesuffix(MANIFEST).rstrip("/") or ".").format == "bin" for source in sources)


def _objects(source: str) -> list[SourceFile]:
    """The objects meant by the URL of one, by a brace range, or by a prefix."""
    urls = expand_braces(source)
    if len(urls) > 1 or _suffix(source):
        return [SourceFile(_kind(url), url) for url in urls]
    place = open_place(source)
    stats = {stat.path: stat for stat in place.list()}
    if described := _described_objects(place, stats):
        return described
    found = [
        SourceFile(_kind(path), f"{place.url}/{path}", stat=stats[path])
        for path in sorted(stats, key=natural)
        if _suffix(path)
    ]
    if not found:
        raise SourceNotFound(
            f"{source} holds no data set, and no shards, archives or tables",
            hint=f"shardtool pack {source} OUT packs objects as they are",
            where={"path": source},
        )
    return found


def _described_objects(place: Place, stats: dict[str, Stat]) -> list[SourceFile]:
    """As `_described`, of objects."""
    folders = sorted({path.rpartition("/")[0] for path in stats if path.rpartition("/")[2] in (INDEX_JSON, STATE_JSON)})
    below = [folder for folder in folders if folder and "/" not in folder.removeprefix("data/")]
    for group in ([""] if "" in folders else [], below):
        found = []
        for folder in group:
            split = SPLIT_ALIASES.get(folder.rpartition("/")[2].lower(), "")
            found += _named_in(place.shown(folder).rstrip("/"), split)
        if found:
            return [replace(file, stat=stats.get(file.path.removeprefix(place.shown("")))) for file in found]
    return []


def _described(folder: str) -> list[SourceFile]:
    """Shards that an index.json or state.json names, in `folder` or a folder a split below it or its `data` folder."""
    found = _named_in(folder, "")
    for top in (folder, os.path.join(folder, "data")) if not found else ():
        for name in sorted(os.listdir(top)) if os.path.isdir(top) else ():
            found += _named_in(os.path.join(top, name), SPLIT_ALIASES.get(name.lower(), ""))
    return found


def _named_in(folder: str, split: str) -> list[SourceFile]:
    place = open_place(folder)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        # of Hugging Face datasets, save_to_disk
        names = [entry["filename"] for entry in json.loads(place.read(STATE_JSON))["_data_files"]]
        return _inside(place, "arrow", names, split)
    try:
        document = json.loads(place.read(INDEX_JSON))
        if "chunks" in document:
            if document["config"].get("compression"):
                raise UsageProblem(
                    f"{folder} holds litData chunks that are compressed with {document['config']['compression']}",
                    hint="write them again without compression",
                    where={"path": folder},
                )
            return _inside(place, "litdata", [chunk["filename"] for chunk in document["chunks"]], split)
        names = [shard["zip_data"] or shard["raw_data"] for shard in document["shards"]]
        return _inside(place, "mds", [name["basename"] for name in names], split)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _inside(place: Place, kind: str, names: list[str], split: str) -> list[SourceFile]:
    """Shards by the names that such a file gives; none that lead out of its folder are followed."""
    safe = [name for name in names if not name.startswith("/") and ".." not in name.split("/")]
    return [
        SourceFile(kind + STREAM if name.endswith(".zstd") else kind, absolute(place.shown(name)), split=split)
        for name in safe
    ]


def _files_in(folder: str) -> Iterator[str]:
    """Files of a known suffix in `folder`, or in its `data` folder where there are none."""
    for place in (folder, os.path.join(folder, "data")):
        found = False
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if _suffix(entry.name) and not entry.name.startswith(".") and entry.is_file():
                    found = True
                    yield entry.path
        if found:
            return


def _expand(source: str) -> list[str]:
    paths = expand_braces(source)
    if len(paths) < 2:
        paths = sorted(filter(os.path.isfile, glob.glob(source)), key=natural) if _GLOB.search(source) else []
    missing = [path for path in paths if not os.path.exists(path)]
    if not paths or missing:
        raise SourceNotFound(
            f"{(missing or [source])[0]} does not exist",
            hint="name data sets, shards, archives or tables: 'dir/train-{000..099}.tar'",
            where={"path": (missing or [source])[0]},
        )
    return paths


def _suffix(path: str) -> str:
    name = os.path.basename(path).lower()
    fitting = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    return max(fitting, key=len) if fitting else ""


def _kind(path: str) -> str:
    suffix = _suffix(path)
    if not suffix:
        raise UsageProblem(
            f"{path} is none of the kinds that convert reads: {', '.join(sorted(SUFFIXES))}",
            hint="shardtool pack packs folders of files as they are",
            where={"path": path},
        )
    return SUFFIXES[suffix]
