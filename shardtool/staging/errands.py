"""What a request means for one data set: which shards go to which folder, checked before anything is written."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.assignment.assignment import assign
from shardtool.errors import DestinationError, FormatError, UsageProblem
from shardtool.formats.unpacked import decompressed
from shardtool.manifest import MANIFEST, decode_manifest, encode_manifest, no_manifest
from shardtool.staging.folder import Target, target_in
from shardtool.staging.share import Share, node_share, parse_ranges, socket_of
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from shardtool.manifest import Manifest, ManifestShard
    from shardtool.model import FileRecord
    from shardtool.staging.request import StageRequest
    from shardtool.storage.base import Place


@dataclass(frozen=True)
class Errand:
    """What one folder gets."""

    target: Target
    manifest: Manifest
    manifest_data: bytes
    share: Share
    decompress: str = ""  # `drop` or `keep`, where shards are decompressed on arrival

    def records(self) -> list[ManifestShard]:
        """Its shards, in the order to fetch."""
        return [self.manifest.shards[shard] for shard in self.share.shards]

    def first(self, count: int) -> list[ManifestShard]:
        """The first shards of each of its ranks."""
        return [self.manifest.shards[shard] for shard in self.share.first(count)]

    def fetched_files(self, record: ManifestShard) -> tuple[FileRecord, ...]:
        """The files of a shard as the source has them."""
        return record.packed_files if self.decompress else record.files

    @property
    def num_bytes(self) -> int:
        """Bytes of its shards, as they lie in the folder."""
        return sum(record.num_bytes for record in self.records())


def errands_of(place: Place, request: StageRequest) -> list[Errand]:
    """One errand a target.

    Raises:
        SourceNotFound: the source holds no finished data set.
        FormatError: its manifest is damaged.
        UsageProblem: no such shard, split or node.
        DestinationError: a target lies in the source, or is the source.
    """
    data = _read_manifest(place)
    manifest = _decoded(place, data)
    share = share_of(manifest, request)
    is_raw = bool(request.decompress) and any(shard.raw_bytes for shard in manifest.shards)
    if is_raw:
        manifest = replace(manifest, compression="none", shards=tuple(map(decompressed, manifest.shards)))
        data = encode_manifest(manifest)
    name = os.path.basename(place.url.rstrip("/")) or "dataset"
    if place.is_local:
        name = os.path.basename(os.path.abspath(place.url)) or "dataset"
    targets = [target_in(parent, name, manifest.dataset_id, is_decompressed=is_raw) for parent in request.targets]
    for target in targets:
        _check_apart(place, target)
    if len({os.path.realpath(target.path) for target in targets}) < len(targets):
        raise UsageProblem("a DST is given twice", hint="name one folder for each socket")
    ranks = range(len(share.by_rank))
    errands = []
    for number, target in enumerate(targets):
        mine = [rank for rank in ranks if socket_of(rank, len(ranks), len(targets)) == number]
        part = share.of_ranks(mine) if len(targets) > 1 else share
        errands.append(Errand(target, manifest, data, part, request.decompress if is_raw else ""))
    for errand in errands:
        _check_budget(errand, request)
    return errands


def share_of(manifest: Manifest, request: StageRequest) -> Share:
    """The shards that are asked for."""
    count = len(manifest.shards)
    if request.select == "list":
        return Share((parse_ranges(request.listed, count),))
    split = request.wish.split
    if request.select == "all":
        if split and split not in manifest.splits():
            raise UsageProblem(f"there is no split {split!r}", hint=f"there are: {', '.join(manifest.splits())}")
        places = tuple(place for place, shard in enumerate(manifest.shards) if split in ("", shard.split))
        return Share((), places)
    wish = request.wish
    found = assign(manifest, wish, request.state)
    return node_share(found, request.node, range(*request.epochs))


def later_shards(manifest: Manifest, request: StageRequest) -> tuple[int, int]:
    """(shards, bytes) that the node's ranks read in the next epoch, and that are not among those asked for."""
    if request.select != "share":
        return 0, 0
    here = set(share_of(manifest, request).shards)
    last = request.epochs[1]
    later = share_of(manifest, replace(request, epochs=(last, last + 1))).shards
    missing = [manifest.shards[shard] for shard in later if shard not in here]
    return len(missing), sum(record.num_bytes for record in missing)


def _read_manifest(place: Place) -> bytes:
    try:
        return place.read(MANIFEST)
    except FileNotFoundError as error:
        raise no_manifest(place.url) from error


def _decoded(place: Place, data: bytes) -> Manifest:
    try:
        return decode_manifest(data)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{place.shown(MANIFEST)} is no manifest of ours, or it is damaged: {error}",
            hint=f"shardtool index {place.url} builds it again",
            where={"path": place.shown(MANIFEST)},
        ) from error


def _check_apart(place: Place, target: Target) -> None:
    """Refuse to copy a data set onto, or into, itself."""
    if not place.is_local:
        return
    source, wanted = os.path.realpath(place.url), os.path.realpath(target.path)
    if source == wanted or wanted.startswith(source + os.sep) or source.startswith(wanted + os.sep):
        raise DestinationError(
            f"{target.path} and the source {place.url} are one place, or one lies in the other",
            hint="name a DST on the node's own disk, outside the data set",
            where={"path": target.path},
        )


def _check_budget(errand: Errand, request: StageRequest) -> None:
    largest = max((record.num_bytes for record in errand.records()), default=0)
    if 0 < request.budget < largest:
        raise UsageProblem(
            f"--budget {format_bytes(request.budget)} is less than one shard of {format_bytes(largest)}",
            hint=f"give at least {format_bytes(2 * largest)}: one shard that is read, and one that comes",
        )
