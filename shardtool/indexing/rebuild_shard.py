"""The index and receipt of one shard, made again from the shard itself: the tasks of workers of `index`.

With the stored plan the result is bit for bit what packing wrote; from a bare shard it is all that a shard can tell.
A digest that is still known, in a receipt, a manifest or an index, must agree, so that damage is never made official.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard, DestinationExists, FormatError, ShardtoolError
from shardtool.formats import PARTS_READERS, Settings, WrittenShard, get_format
from shardtool.formats.cells_again import keys_in, written_again
from shardtool.formats.frames import frames_of_file
from shardtool.formats.tar import layout_of
from shardtool.formats.tar_check import HeaderCheck
from shardtool.formats.tar_header import TRAILER_BYTES
from shardtool.index_file import encode_columns, encode_index, index_meta
from shardtool.indexing.bare_shards import FOREIGN_LAYOUT, read_bare, refuse_problems
from shardtool.indexing.cache import read_index
from shardtool.indexing.raw_copy import frames_of, raw_copy
from shardtool.model import FileRecord, PartTotals, Receipt, ShardRows
from shardtool.names import index_path
from shardtool.packing.pack import STAGED, drop_samples, part_totals
from shardtool.packing.receipts import digest_of, write_receipt
from shardtool.planning.plan_file import read_rows
from shardtool.samples import member_names
from shardtool.storage import open_place
from shardtool.storage.files import exists, file_size, local_copy, open_stream
from shardtool.storage.local import LocalFile, temp_name
from shardtool.verification.digest import FrameDigests, digest_frames, digest_shard

if TYPE_CHECKING:
    from shardtool.formats import ShardLayout, StructureCheck
    from shardtool.formats.cells_again import ColumnFormat
    from shardtool.formats.frames import Frames
    from shardtool.hashing import FileDigest
    from shardtool.indexing.bare_shards import BareShard
    from shardtool.manifest import ManifestShard
    from shardtool.model import Int32Array, Int64Array, ShardSpec, UInt64Array
    from shardtool.verification.digest import ShardDigests


ZSTD_SETTINGS = {"compress": "zstd"}  # a shard does not tell its level


@dataclass(frozen=True)
class PlannedJob:
    """Shards of a stored plan."""

    out: str
    plan_id: str
    format: str
    specs: tuple[ShardSpec, ...]
    known: dict[int, str]  # xxh3_128 of the shard file, where a receipt or manifest tells it
    durable: bool = True
    settings: Settings = field(default_factory=Settings)


def rebuild_planned(job: PlannedJob, shard: int) -> tuple[Receipt, bool]:
    """(receipt of shard k, whether a digest was left to compare with); its index and receipt are on disk then.

    Raises:
        CorruptShard: the shard is not the one that was planned, or not what was packed.
    """
    if job.format in STAGED:
        raise _not_from_shard(job, shard)
    spec = job.specs[shard]
    path = os.path.join(job.out, spec.path)
    shard_format = get_format(job.format, job.settings)
    if job.format in PARTS_READERS:
        rows, failed, written, file = _read_columns(job, shard, path)
        bad_parts: list[int] = []
    else:
        frames = _frames(path) if job.settings.compress != "none" else None
        rows, failed = _rows_in(job, shard, path, frames)
        layout = shard_format.layout_of(rows, member_names(rows))
        if layout is None:
            raise _not_from_shard(job, shard)
        check = shard_format.structure(rows, layout.part_offset)
        written, file, bad_parts = _read_again(path, frames, layout, rows, check)
    record = FileRecord(spec.path, file.num_bytes, file.hexdigest())
    place = index_path(shard, len(job.specs))
    _compare(job, shard, record, place, bad_parts)
    encoded = encode_index(rows, written, shard_format, record, file.blocks())
    is_known = shard in job.known or _stated_digest(job.out, place) is not None
    tag = f"{job.plan_id[:8]}-{shard}"
    receipt = Receipt(
        plan_id=job.plan_id,
        shard=shard,
        split=spec.split,
        files=(record,),
        index=open_place(job.out).put(place, encoded, tag=tag, durable=job.durable),
        num_samples=rows.num_samples,
        payload_bytes=int(rows.sizes.sum()),
        parts=part_totals(rows),
        failed=failed,
        failed_entries=read_rows(job.out, shard).num_parts - rows.num_parts if failed else 0,
        raw_bytes=written.raw_bytes,
        raw_xxh3_128=written.raw_xxh3_128,
    )
    write_receipt(job.out, receipt, len(job.specs), tag=tag, durable=job.durable)
    return receipt, is_known


def _read_columns(
    job: PlannedJob, shard: int, path: str
) -> tuple[ShardRows, tuple[tuple[str, str], ...], WrittenShard, FileDigest]:
    """(rows, keys and reasons of those left out, what writing the shard gave, its digests), for shards of columns."""
    shard_format, nothing = cast("ColumnFormat", get_format(job.format, job.settings)), np.zeros(0, np.int64)
    with local_copy(path) as copy, closing(shard_format.open_cells(copy)) as source:
        rows, failed = _without_absent(read_rows(job.out, shard), set(keys_in(source)))
        written = written_again(shard_format, source, rows, path)
        return rows, failed, written, digest_shard(copy, nothing, nothing).file


def _frames(path: str) -> Frames | None:
    with open_stream(path) as file:
        return frames_of_file(file.num_bytes, file.pread)


def _read_again(
    path: str, frames: Frames | None, layout: ShardLayout, rows: ShardRows, check: StructureCheck | None
) -> tuple[WrittenShard, FileDigest, list[int]]:
    """(what writing the shard would have given, digests of its file, rows of parts whose container is damaged)."""
    look = check.look if check else None
    if frames is None:
        found = digest_shard(path, layout.part_offset, rows.sizes, look)
        bad = check.bad_parts(path) if check else []
        return WrittenShard(layout.sample_offset, layout.sample_bytes, layout.part_offset, found.parts), found.file, bad
    inside = digest_frames(path, frames, layout.part_offset, rows.sizes, look)
    bad = [*inside.bad_frames, *(check.bad_parts("") if check else [])]
    written = WrittenShard(layout.sample_offset, layout.sample_bytes, layout.part_offset, inside.parts)
    return frames.stamp(written, inside.raw_xxh3_128), inside.file, bad


def _not_from_shard(job: PlannedJob, shard: int) -> CorruptShard:
    path = job.specs[shard].path
    return CorruptShard(
        f"the index of {path} is lost, and {job.format} shards do not tell all that it held",
        hint=f"shardtool pack {job.out} packs this shard again from its source",
        where={"path": path, "shard": shard},
    )


def _rows_in(
    job: PlannedJob, shard: int, path: str, frames: Frames | None
) -> tuple[ShardRows, tuple[tuple[str, str], ...]]:
    """The planned rows without samples that packing left out: a tar shard smaller than planned tells which."""
    rows = read_rows(job.out, shard)
    if (frames.raw_bytes if frames else file_size(path)) == job.specs[shard].num_bytes:
        return rows, ()
    if job.format != "tar" or job.settings.compress != "none":
        raise _not_from_shard(job, shard)
    return _without_absent(rows, set(read_bare(path).keys))


def _without_absent(rows: ShardRows, present: set[bytes]) -> tuple[ShardRows, tuple[tuple[str, str], ...]]:
    """(rows of the keys that are present, the other keys with a reason)."""
    keys = columns.to_list(rows.keys)
    absent = [sample for sample, key in enumerate(keys) if key not in present]
    reason = "left out when the shard was packed; its receipt, which had the reason, is lost"
    kept = drop_samples(rows, absent) if len(absent) < len(keys) else rows
    return kept, tuple((keys[sample].decode("utf-8", "backslashreplace"), reason) for sample in absent)


def _compare(job: PlannedJob, shard: int, record: FileRecord, place: str, bad_parts: list[int]) -> None:
    stated = job.known.get(shard) or _stated_digest(job.out, place) or record.xxh3_128
    if bad_parts or stated != record.xxh3_128:
        what = "its headers are not those of the plan" if bad_parts else f"its digest is not {stated}, as packed"
        raise CorruptShard(
            f"{record.path} is damaged: {what}",
            hint=f"shardtool pack {job.out} --deep rewrites only the damaged shards from their source",
            where={"path": record.path, "shard": shard},
        )


def _stated_digest(out: str, path: str) -> str | None:
    """Digest of its shard that the index file `path` states; None where it is no index."""
    with suppress(FormatError, OSError, KeyError, TypeError):
        return str(read_index(out, path).meta["shard"]["xxh3_128"])
    return None


@dataclass(frozen=True)
class BareJob:
    """Shards without a plan.

    Args:
        out: folder of the data set.
        paths: where the shards lie.
        places: their paths below `out`.
        known: xxh3_128 of the shard files, where a manifest tells them.
        has_labels: the `cls` part is the number of a class.
        spool: a local folder where indexes wait for their final names, where `out` is no folder.
    """

    out: str
    paths: tuple[str, ...]
    places: tuple[str, ...]
    known: dict[int, str]
    has_labels: bool
    spool: str = ""


@dataclass(frozen=True)
class BareResult:
    """One indexed shard; its index lies beside its final place, under the name `temp`."""

    shard: int
    file: FileRecord
    index: FileRecord
    temp: str
    num_samples: int
    payload_bytes: int
    parts: dict[str, PartTotals]
    num_members: int
    skipped: dict[str, int]
    key_hashes: UInt64Array
    raw_bytes: int = 0  # of a compressed shard
    raw_xxh3_128: str = ""


def index_bare(job: BareJob, shard: int) -> BareResult | ShardtoolError:
    """Index shard k from itself alone. Errors come back as values, so that all of them can be shown together."""
    try:
        return _index_bare(job, shard)
    except ShardtoolError as error:
        return error


def _index_bare(job: BareJob, shard: int) -> BareResult:
    path, place = job.paths[shard], index_path(shard, len(job.paths))
    with local_copy(path) as copy:
        frames = frames_of(copy, path)
        with raw_copy(copy, path) as raw:
            bare = read_bare(raw, path)
            refuse_problems(path, bare)
            rows = bare.rows()
            is_ours, found, digests = _digests(copy, raw, frames, bare, rows)
            labels = _labels(raw, bare) if job.has_labels else None
    record = FileRecord(job.places[shard], found.file.num_bytes, found.file.hexdigest())
    if job.known.get(shard, record.xxh3_128) != record.xxh3_128:
        raise CorruptShard(
            f"{path} is damaged: its digest is not {job.known[shard]}, as in the manifest",
            hint="copy it again from where it came",
            where={"path": path, "shard": shard},
        )
    kept = _kept_index(job, place, record, bare)
    encoded = kept or encode_columns(
        keys=rows.keys,
        offset=bare.offset,
        num_bytes=bare.sample_bytes,
        labels=labels,
        part_start=bare.part_start,
        names=rows.names,
        part_offset=bare.part_offset,
        part_bytes=bare.part_sizes,
        part_xxh3_64=digests,
        source=rows.source,
        meta=index_meta("tar", "tar/1" if is_ours else FOREIGN_LAYOUT, record, found.file.blocks())
        | ({} if frames is None else {"settings": ZSTD_SETTINGS, **frames.meta()}),
    )
    temp = temp_name(place, f"index-{shard}")
    index = _put_temp(job.spool or job.out, temp, encoded)
    return BareResult(
        shard=shard,
        file=record,
        index=FileRecord(place, index.num_bytes, index.xxh3_128),
        temp=temp,
        num_samples=len(bare.keys),
        payload_bytes=int(bare.part_sizes.sum()),
        parts=part_totals(rows),
        num_members=bare.num_members,
        skipped=bare.skipped(),
        key_hashes=np.fromiter(map(xxhash.xxh3_64_intdigest, bare.keys), np.uint64, len(bare.keys)),
        raw_bytes=0 if frames is None else frames.raw_bytes,
        raw_xxh3_128=found.raw_xxh3_128 if isinstance(found, FrameDigests) else "",
    )


def _put_temp(out: str, temp: str, data: bytes) -> FileRecord:
    """Write an index that is renamed later; the folder is made durable then, once for all of them."""
    file = LocalFile(out, temp, "index")
    try:
        file.write(data)
        file.publish(durable=True)
    finally:
        file.abort()
    return file.record()


def _digests(
    path: str, raw: str, frames: Frames | None, bare: BareShard, rows: ShardRows
) -> tuple[bool, ShardDigests, UInt64Array]:
    """(whether every byte follows from names and sizes as in shards of ours, digests, those of the parts).

    `path` is the shard, `raw` the tar that it decompresses to, where it has `frames`.
    """
    layout = layout_of(rows, member_names(rows))
    is_ours = np.array_equal(layout.part_offset, bare.part_offset) and (
        int(layout.member_start[-1]) + TRAILER_BYTES == bare.num_bytes
    )
    check = HeaderCheck(rows, bare.part_offset) if is_ours else None
    places, firsts, again = np.unique(bare.part_offset, return_index=True, return_inverse=True)
    look = check.look if check else None
    if frames is None:
        found = digest_shard(path, places, bare.part_sizes[firsts], look)
    else:
        found = digest_frames(path, frames, places, bare.part_sizes[firsts], look)
    return check is not None and not check.bad_parts(raw), found, found.parts[again]


def _kept_index(job: BareJob, place: str, record: FileRecord, bare: BareShard) -> bytes | None:
    """The index that is there already, where it is one of this shard: it may know sources that the shard does not."""
    store = open_place(job.out)
    path = store.shown(place)
    if not (os.path.lexists(path) if store.is_local else exists(store, place)):
        return None
    try:
        index = read_index(job.out, place)
        if index.meta["shard"] == {"path": record.path, "bytes": record.num_bytes, "xxh3_128": record.xxh3_128} and (
            columns.to_list(index.keys) == bare.keys
        ):
            return store.read(place)
    except ShardtoolError as error:
        if job.known:
            return None  # a manifest of ours names it: damaged, and built again
        raise DestinationExists(
            f"{path} is in the way: {error.message}", hint="remove it, then repeat", where={"path": path}
        ) from error
    return None


def _labels(path: str, bare: BareShard) -> Int32Array | None:
    """int32[num_samples] from the `cls` parts; None unless every sample has one that is a number."""
    rows = [row for row, name in enumerate(bare.part_names) if name == b"cls"]
    owners = np.searchsorted(bare.part_start, rows, side="right") - 1
    if not np.array_equal(owners, np.arange(len(bare.keys))) or (bare.part_sizes[rows] > 10).any():
        return None
    with open(path, "rb", buffering=0) as file:
        texts = [_pread(file, bare.part_offset, bare.part_sizes, row) for row in rows]
    if not all(text.isdigit() for text in texts):
        return None
    return np.array(list(map(int, texts)), np.int64).astype(np.int32)


def _pread(file: Any, offsets: Int64Array, sizes: Int64Array, row: int) -> bytes:
    return os.pread(file.fileno(), int(sizes[row]), int(offsets[row]))


def is_index_whole(out: str, record: ManifestShard | Receipt) -> bool:
    """Whether the index of a shard is there with its digest."""
    wanted = record.index
    if wanted is None:
        return False
    try:
        return digest_of(open_place(out).shown(wanted.path)) == wanted.xxh3_128
    except OSError:
        return False
