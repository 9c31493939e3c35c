"""Tar shards that other tools wrote become a data set: index files and a manifest; the shards stay where they are.

All shards are examined before anything gets its final name. What shards cannot tell stays unknown: how samples were
shuffled, which source they came from.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import DestinationError, DestinationExists, DuplicateKey, UsageProblem
from shardtool.indexing.bare_shards import find_shards, is_folder, split_of
from shardtool.indexing.raw_copy import read_shard
from shardtool.indexing.rebuild import RebuildResult, discard, index_spool, put_in_place, run_bare
from shardtool.indexing.rebuild_shard import BareJob
from shardtool.manifest import (
    LABELS,
    MANIFEST,
    Manifest,
    ManifestShard,
    dataset_identity,
    encode_manifest,
    merge_parts,
    versions,
)
from shardtool.model import FileRecord
from shardtool.names import DATA
from shardtool.packing.destination import HARMLESS
from shardtool.packing.receipts import digest_of
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import absolute, exists
from shardtool.storage.local import write_errors
from shardtool.units import plural
from shardtool.verification.repeats import find_repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.indexing.rebuild_shard import BareResult
    from shardtool.packing.build import Say
    from shardtool.workers import WorkerPool

SPLITS = ("train", "validation", "test")


def index_foreign(places: Sequence[str], pool: WorkerPool, say: Say, *, out: str = "") -> RebuildResult:
    """Write `index/` and manifest.json for the shards at `places`.

    Args:
        places: folders, files, globs or brace ranges.
        pool: reads shards side by side.
        say: shows how far it is.
        out: folder for both, and for links to the shards; "" is the folder that holds the shards.

    Raises:
        SourceNotFound: no shards.
        FormatError: damage, compression, sparse members.
        DuplicateKey, BadKey, GroupError: what readers would merge or lose.
        DestinationExists: something else is in the way.
    """
    began = time.monotonic()
    _check_places(places, out)
    paths = [absolute(path) for path in find_shards(places)]
    _check_alike(paths)
    paths.sort(key=lambda path: (_rank(split_of(path)), split_of(path)))
    root = absolute(out) if out else _common_root(places, paths)
    names = _link_names(root, paths) if out else [_below(path, root) for path in paths]
    _check_destination(root, is_new=bool(out))
    labels = _labels(root)
    with index_spool(root) as spool:
        job = BareJob(root, tuple(paths), tuple(names), {}, labels is not None, spool)
        results = run_bare(job, list(range(len(paths))), pool, say)
        try:
            _check_unique(paths, results)
            if out:
                _link(root, paths, names)
        except BaseException:
            discard(job, results)
            raise
        for result in results:
            put_in_place(job, result)
    manifest = _manifest(results, [split_of(path) for path in paths], labels)
    open_place(root).sync([results[0].index.path])
    open_place(root).put(MANIFEST, encode_manifest(manifest), tag="manifest", durable=True)
    skipped = {name: count for name, count in manifest.ledger["ignored"].items() if name != "directory"}
    is_whole = len(places) == 1 and is_folder(places[0])
    shown = out or (places[0] if is_whole else root if is_remote(root) else os.path.relpath(root))
    return RebuildResult(
        shown, manifest, len(results), is_manifest_new=True, skipped=skipped, seconds=time.monotonic() - began
    )


def _check_places(places: Sequence[str], out: str) -> None:
    kinds = {is_remote(place) for place in places}
    if out and (is_remote(out) or True in kinds):
        raise UsageProblem(
            "--out-dir makes links to the shards, and an object store has none",
            hint="without --out-dir index and manifest go beside the shards",
        )
    if len(kinds) > 1:
        raise UsageProblem(
            "some shards lie in a folder, others in an object store: one data set lies in one place",
            hint="index each by itself",
        )


def _check_alike(paths: list[str]) -> None:
    packed = [path for path in paths if path.endswith(".zst")]
    if packed and len(packed) < len(paths):
        raise UsageProblem(
            f"{len(packed):,} of {plural(len(paths), 'shard')} are compressed, and a data set is or is not",
            hint="index each kind by itself, '*.tar' and '*.tar.zst', the second with --out-dir DIR",
            where={"path": packed[0]},
        )


def _below(path: str, root: str) -> str:
    return path[len(root.rstrip("/")) + 1 :] if is_remote(path) else os.path.relpath(path, root)


def _rank(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def _common_root(places: Sequence[str], paths: list[str]) -> str:
    """The folder that was named, or the one that all shards lie in."""
    if len(places) == 1 and is_folder(places[0]):
        return absolute(places[0])
    folders = [os.path.dirname(path) for path in paths]
    root = os.path.commonpath(folders)
    if is_remote(paths[0]):  # it took the two slashes for one
        root = folders[0][: len(root) + 1]
    return os.path.dirname(root) if os.path.basename(root) == DATA else root


def _link_names(root: str, paths: list[str]) -> list[str]:
    names = [f"{DATA}/{os.path.basename(path)}" for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageProblem(
            f"two of the shards are called {os.path.basename(twice)}, so that {root} cannot hold links to both",
            hint="index each folder by itself",
        )
    return names


def _link(root: str, paths: list[str], names: list[str]) -> None:
    """Symbolic links below `root`, so that the data set is whole by itself."""
    with write_errors(root):
        for path, name in zip(paths, names, strict=True):
            place = os.path.join(root, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with suppress(FileExistsError):
                os.symlink(path, place)
            if os.path.realpath(place) != os.path.realpath(path):
                raise DestinationExists(f"{place} is in the way", hint="choose an empty folder", where={"path": place})


def _check_destination(root: str, *, is_new: bool) -> None:
    if exists(open_place(root), MANIFEST):
        raise DestinationExists(
            f"{root} has a {MANIFEST} that describes other shards",
            hint=f"index the folder as a whole: shardtool index {root}",
            where={"path": root},
        )
    if is_remote(root):
        return
    if not is_new and not os.access(root, os.W_OK):
        raise DestinationError(
            f"{root} cannot be written",
            hint="--out-dir DIR puts index, manifest and links to the shards in another folder",
            where={"path": root},
        )
    if is_new and os.path.isdir(root) and set(os.listdir(root)) - HARMLESS:
        raise DestinationExists(f"{root} is not empty", hint="choose a new folder", where={"path": root})


def _labels(root: str) -> FileRecord | None:
    """labels.json of a data set of ours whose manifest is lost."""
    place = open_place(root)
    with suppress(OSError):
        return FileRecord(LABELS, place.stat(LABELS).num_bytes, digest_of(place.shown(LABELS)))
    return None


def _check_unique(paths: list[str], results: list[BareResult]) -> None:
    first, again = find_repeats([result.key_hashes for result in results])
    shown = []
    for (one, sample), (two, other) in zip(first[:5].tolist(), again[:5].tolist(), strict=True):
        key = read_shard(paths[two]).keys[other]
        if read_shard(paths[one]).keys[sample] == key:
            text = key.decode("utf-8", "backslashreplace")
            shown.append(f"\n  {text!r}  in {os.path.basename(paths[one])} and {os.path.basename(paths[two])}")
    if shown:
        raise DuplicateKey(
            f"{plural(len(again), 'key')} occur in more than one shard{''.join(shown)}",
            hint="index the shards in separate folders, or unpack them to a folder each and pack those",
            where={"path": paths[int(again[0][0])]},
        )


def _manifest(results: list[BareResult], splits: list[str], labels: FileRecord | None) -> Manifest:
    shards = tuple(
        ManifestShard(
            split,
            (result.file,),
            result.index,
            result.num_samples,
            result.payload_bytes,
            raw_bytes=result.raw_bytes,
            raw_xxh3_128=result.raw_xxh3_128,
        )
        for split, result in zip(splits, results, strict=True)
    )
    ignored: dict[str, int] = {}
    for result in results:
        for reason, count in result.skipped.items():
            ignored[reason] = ignored.get(reason, 0) + count
    seen = sum(result.num_members for result in results)
    packed = seen - sum(ignored.values())
    return Manifest(
        format="tar",
        compression="zstd" if any(result.raw_bytes for result in results) else "none",
        plan_id="",
        dataset_id=dataset_identity(labels, shards),
        shards=shards,
        options={},
        membership={"shuffled": None},
        ledger={"seen": seen, "packed": packed, "ignored": dict(sorted(ignored.items())), "failed": 0},
        parts=merge_parts([result.parts for result in results]),
        labels=labels,
        created_by=versions(),
    )
