"""One shard against what the manifest and its index say of it: the task of a worker of `verify`.

Quick: the file is there with its size, the index has its digest and fits the shard and itself, and both ends of the
file look right. Deep: every byte is read once; whole, block and part digests are compared, and every header must be
the one that the index calls for. Nothing raises for damage: each place of it is a `Fault`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard, RemoteError, ShardtoolError
from shardtool.formats import BYTES, ROWS, Settings, get_format
from shardtool.formats.frames import Frames
from shardtool.formats.tar_header import BLOCK, TRAILER_BYTES
from shardtool.formats.unpacked import fitted
from shardtool.hashing import BLOCK_BYTES, digest_chunks
from shardtool.index_file import decode_index, extent_fault, open_index
from shardtool.indexing.bare_shards import FOREIGN_LAYOUT, differences
from shardtool.indexing.raw_copy import read_shard
from shardtool.model import ShardRows
from shardtool.packing.pack import part_totals
from shardtool.packing.receipts import digest_of
from shardtool.reading.reading import Dataset
from shardtool.samples import member_names
from shardtool.storage import open_place
from shardtool.storage.files import file_size, open_stream
from shardtool.units import plural
from shardtool.verification.digest import FrameDigests, ShardDigests, digest_frames, digest_shard, distinct_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.formats import Format
    from shardtool.index_file import ShardIndex
    from shardtool.manifest import ManifestShard
    from shardtool.model import FileRecord, Int64Array, PartTotals, UInt64Array
    from shardtool.storage.base import Place

PARTS_AT_ONCE = 1024
MAX_FAULTS = 20  # of one kind in one shard; the rest is a number
SHARD_KINDS = ("missing", "truncated", "size", "altered", "structure", "unreadable")


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it should be.

    Kinds: `manifest` `labels` `side_file` `totals` `staged` (what the data set says of itself) · `missing` `truncated`
    `size` `altered` `structure` `unreadable` (a shard file) · `index` (an index file) · `duplicate_key` `not_adjacent`
    `reader` (samples) · `stranger` `partial` `renamed` (other files).
    """

    kind: str
    message: str
    path: str = ""  # file it concerns, below the data set's folder
    shard: int | None = None  # 0-based place in the manifest
    offset: int | None = None  # byte in the shard file
    key: bytes | None = None


@dataclass(frozen=True)
class VerifyJob:
    """All that a worker needs."""

    out: str
    shards: tuple[ManifestShard, ...]
    is_deep: bool


@dataclass
class ShardReport:
    """What one shard holds, and what is wrong with it."""

    shard: int
    faults: list[Fault] = field(default_factory=list)
    num_samples: int = 0
    num_parts: int = 0
    num_bytes: int = 0  # of its files that could be looked at
    key_hashes: UInt64Array | None = None  # xxh3_64 of each key; None where the index cannot be trusted
    parts: dict[str, PartTotals] = field(default_factory=dict)


def check_shard(job: VerifyJob, shard: int) -> ShardReport:
    """Everything that can be known of shard k without looking at another one."""
    record, report = job.shards[shard], ShardReport(shard)
    index = _trusted_index(job, report)
    if index is not None:
        report.num_samples, report.num_parts = index.num_samples, index.num_parts
        keys = columns.to_list(index.keys)
        report.key_hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))
        report.parts = part_totals(rows_of(index))
    try:
        if _has_its_size(job, report, index):
            report.num_bytes = record.files[0].num_bytes
            if job.is_deep:
                _read_all(job, report, index)
            elif index is not None:
                _look_at_ends(job, report, index)
        _check_siblings(job, report)
    except OSError as error:
        _add(report, record, "unreadable", f"cannot be read: {error.strerror or error}")
    return report


def rows_of(index: ShardIndex) -> ShardRows:
    """The columns of an index as plan rows; places and guards, which an index does not hold, are empty."""
    return ShardRows(
        keys=index.keys,
        labels=index.labels,
        part_start=index.part_start,
        names=index.part_names,
        source=index.part_source,
        roots=np.zeros(index.num_parts, np.uint32),
        sizes=index.part_bytes.astype(np.int64),
        mtimes_ns=np.zeros(index.num_parts, np.int64),
        data=columns.nulls(index.num_parts),
    )


def _add(report: ShardReport, record: ManifestShard, kind: str, message: str, **place: Any) -> None:
    report.faults.append(Fault(kind, f"{record.path}: {message}", record.path, report.shard, **place))


def _trusted_index(job: VerifyJob, report: ShardReport) -> ShardIndex | None:
    """The index, where it has its digest; None after a fault. What is inconsistent in it is a fault too."""
    record = job.shards[report.shard]
    wanted = record.index
    if wanted is None:
        _add(report, record, "index", "has no index")
        return None
    message, index = "", None
    try:
        message, index = _read_index(open_place(job.out), wanted)
        if index is not None:
            index = fitted(index, record)
            message = index_fault(index, record)
    except FileNotFoundError:
        message = "missing"
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    except RemoteError:
        raise  # the store fails, which says nothing of the index
    except ShardtoolError as error:
        message, index = f"damaged: {error.message}", None
    if message:
        report.faults.append(Fault("index", f"{wanted.path}: {message}", wanted.path, report.shard))
    return None if message else index


def _read_index(place: Place, wanted: FileRecord) -> tuple[str, ShardIndex | None]:
    """(what is wrong with the file, the index where nothing is); of a store the object itself, never a kept copy."""
    path = place.shown(wanted.path)
    data = None if place.is_local else place.read(wanted.path)
    size = os.stat(path).st_size if data is None else len(data)
    if size != wanted.num_bytes:
        return f"{size:,} bytes where the manifest has {wanted.num_bytes:,}", None
    if (digest_of(path) if data is None else digest_chunks([data])) != wanted.xxh3_128:
        return "its digest is not that of the manifest", None
    return "", open_index(path) if data is None else decode_index(data, path)


def index_fault(index: ShardIndex, record: ManifestShard) -> str:
    """The first thing in which an index contradicts the manifest or itself; "" where all agrees."""
    stated = index.meta["shard"]
    file = record.files[0]
    if (stated["path"], stated["bytes"], stated["xxh3_128"]) != (file.path, file.num_bytes, file.xxh3_128):
        return f"belongs to {stated['path']} with digest {stated['xxh3_128']}, not to {file.path}"
    if index.num_samples != record.num_samples:
        return f"{index.num_samples:,} samples where the manifest has {record.num_samples:,}"
    if int(index.part_bytes.sum()) != record.payload_bytes:
        return f"{int(index.part_bytes.sum()):,} bytes of payload where the manifest has {record.payload_bytes:,}"
    if record.packed is None and len(index.meta["blocks"]) != -(-file.num_bytes // BLOCK_BYTES):
        return f"{len(index.meta['blocks'])} block digests for {file.num_bytes:,} bytes"
    return (
        _part_fault(index)
        or extent_fault(index)
        or _frames_fault(index, file.num_bytes)
        or _layout_fault(index, file.num_bytes)
    )


def _part_fault(index: ShardIndex) -> str:
    counts = np.diff(index.part_start)
    if index.num_samples == 0:
        return "it has no samples"
    if len(index.part_start) == 0 or index.part_start[0] != 0 or index.part_start[-1] != index.num_parts:
        return "its lists of parts do not cover its parts"
    if (counts < 1).any():
        return f"sample {_shown(index, int(np.argmax(counts < 1)))} has no parts"
    if pc.count_distinct(index.keys).as_py() != index.num_samples:
        return "a key occurs twice"
    names = index.part_names.dictionary_encode()
    codes = index.owners() * max(len(names.dictionary), 1) + names.indices.to_numpy()
    if len(np.unique(codes)) != index.num_parts:
        return "a sample has two parts of one name"
    return ""


def _frames_fault(index: ShardIndex, num_bytes: int) -> str:
    if "frames" not in index.meta:
        return ""
    try:
        frames = Frames.from_meta(index.meta)
    except CorruptShard as error:
        return error.message
    return "" if frames.offsets[-1] <= num_bytes else "its frames go beyond the end of the shard"


def _layout_fault(index: ShardIndex, num_bytes: int) -> str:
    """In shards of ours every offset follows from names and sizes."""
    if index.meta["layout"] == FOREIGN_LAYOUT:
        return ""
    rows = rows_of(index)
    shard_format = format_of(index)
    if shard_format.layout != index.meta["layout"]:
        return ""  # another version of the format, or of the library that it writes with
    layout = shard_format.layout_of(rows, member_names(rows))
    if layout is None:
        return ""
    same = (
        np.array_equal(layout.part_offset, index.part_offset.astype(np.int64))
        and np.array_equal(layout.sample_offset, index.offset.astype(np.int64))
        and np.array_equal(layout.sample_bytes, index.num_bytes.astype(np.int64))
    )
    if not same or (index.raw_bytes == num_bytes and layout.num_bytes != num_bytes):
        return "its offsets do not follow from its names and sizes"
    return ""


def format_of(index: ShardIndex) -> Format:
    """The format of a shard of ours, with the settings that its index tells."""
    return get_format(str(index.meta["format"]), Settings.from_document(index.meta.get("settings", {})))


def _has_its_size(job: VerifyJob, report: ShardReport, index: ShardIndex | None) -> bool:
    record = job.shards[report.shard]
    path, wanted = os.path.join(job.out, record.path), record.files[0].num_bytes
    try:
        size = file_size(path)
    except FileNotFoundError:
        _add(report, record, "missing", "is missing")
        return False
    if size < wanted:
        last, key = _last_whole(index, size)
        _add(report, record, "truncated", f"{wanted - size:,} bytes short of {wanted:,}{last}", offset=size, key=key)
    elif size > wanted:
        _add(report, record, "size", f"{size - wanted:,} bytes more than {wanted:,}", offset=wanted)
    return size == wanted


def _check_siblings(job: VerifyJob, report: ShardReport) -> None:
    """Other files of the shard, such as an .idx: there, of their size, and where everything is read, unaltered."""
    for wanted in job.shards[report.shard].files[1:]:
        path = os.path.join(job.out, wanted.path)
        try:
            size = file_size(path)
        except FileNotFoundError:
            kind, text = "missing", "is missing"
        else:
            kind, text = "size", f"{size:,} bytes where the manifest has {wanted.num_bytes:,}"
            if size == wanted.num_bytes:
                if not job.is_deep or digest_of(path) == wanted.xxh3_128:
                    report.num_bytes += wanted.num_bytes
                    continue
                kind, text = "altered", "its digest is not that of the manifest"
        report.faults.append(Fault(kind, f"{wanted.path}: {text}", wanted.path, report.shard))


def _last_whole(index: ShardIndex | None, size: int) -> tuple[str, bytes | None]:
    if index is None:
        return "", None
    if index.addressing != BYTES or "raw_bytes" in index.meta:
        return "", None
    whole = int(np.searchsorted(index.offset + index.num_bytes, np.uint64(size), side="right"))
    if whole == 0:
        return f"; not one of {index.num_samples:,} samples is whole", None
    return f"; the last whole sample is #{whole:,} of {index.num_samples:,} ({_shown(index, whole - 1)})", index.key(
        whole - 1
    )


def _look_at_ends(job: VerifyJob, report: ShardReport, index: ShardIndex) -> None:
    """Both ends of the file, as far as names and sizes tell them: enough to notice a file of other content."""
    record, rows = job.shards[report.shard], rows_of(index)
    is_ours = index.meta["layout"] != FOREIGN_LAYOUT
    if record.packed is None:
        first, last = format_of(index).ends(rows, member_names(rows)) if is_ours else (b"", _foreign_end(index))
    elif index.meta["format"] == "tar":
        first, last = get_format("tar").ends(rows, member_names(rows))
    else:
        return  # what a raw shard looks like follows from settings of the compressed one: `is_deep` reads it
    offset = record.files[0].num_bytes - len(last)
    with open_stream(os.path.join(job.out, record.path)) as file:
        head, tail = file.pread(len(first), 0), file.pread(len(last), offset)
    if head != first:
        _add(report, record, "structure", f"does not begin with {_shown(index, 0)}", offset=0, key=index.key(0))
    if tail != last:
        _add(report, record, "structure", f"does not end as {index.meta['format']} shards do", offset=offset)


def _foreign_end(index: ShardIndex) -> bytes:
    return b"" if "frames" in index.meta else bytes(TRAILER_BYTES)


def _read_all(job: VerifyJob, report: ShardReport, index: ShardIndex | None) -> None:
    record = job.shards[report.shard]
    path, wanted = os.path.join(job.out, record.path), record.files[0].xxh3_128
    if index is None:
        if digest_of(path) != wanted:
            _add(report, record, "altered", "its digest is not that of the manifest")
        return
    if index.addressing == ROWS:
        _read_rows(job, report, index)
        return
    is_ours = index.meta["layout"] != FOREIGN_LAYOUT
    check = format_of(index).structure(rows_of(index), index.part_offset.astype(np.int64)) if is_ours else None
    found, differing = _digests(path, index, check.look if check else None)
    bad_headers = check.bad_parts("" if isinstance(found, FrameDigests) else path) if check else []
    if found.file.hexdigest() != wanted:
        if isinstance(found, FrameDigests):
            _report_frames(report, record, index, found)
        else:
            _report_altered(report, record, index, np.flatnonzero(differing), bad_headers)
        if not report.faults:
            _report_blocks(report, record, index, found.file.blocks())
    elif problem := _index_problem(path, record, index, found, differing, bad_headers):
        index_path = record.index.path if record.index else ""
        report.faults.append(Fault("index", f"{index_path}: {problem}", index_path, report.shard))


def _digests(path: str, index: ShardIndex, look: Callable[[int, memoryview], None] | None) -> tuple[ShardDigests, Any]:
    """(digests of the shard, bool[num_parts]: those that are not as in the index)."""
    offsets, sizes, rows = distinct_parts(index.part_offset.astype(np.int64), index.part_bytes.astype(np.int64))
    if "frames" in index.meta:
        found: ShardDigests = digest_frames(path, Frames.from_meta(index.meta), offsets, sizes, look)
    else:
        found = digest_shard(path, offsets, sizes, look)
    return found, found.parts[rows] != index.part_xxh3_64


def _index_problem(
    path: str, record: ManifestShard, index: ShardIndex, found: ShardDigests, differing: Any, bad_headers: list[int]
) -> str:
    """What the index says wrongly of a shard that is as it was packed; "" where all agrees."""
    if differing.any():
        return f"the digest of {_member(index, int(np.argmax(differing)))} is not that of its bytes"
    if bad_headers:
        return f"the header of {_member(index, bad_headers[0])} is another one in the shard"
    if record.packed is None and found.file.blocks() != index.block_digests:
        return "its block digests are not those of the shard"
    if isinstance(found, FrameDigests) and (found.bad_frames or found.raw_xxh3_128 != record.raw_xxh3_128):
        return "its frames do not decompress to the bytes that were packed"
    if index.meta["layout"] != FOREIGN_LAYOUT:
        return ""
    return differences(read_shard(path), index)


def _read_rows(job: VerifyJob, report: ShardReport, index: ShardIndex) -> None:
    """A shard whose parts are no runs of its bytes: its digests, then every part as the format's reader gives it."""
    record = job.shards[report.shard]
    path, nothing = os.path.join(job.out, record.path), np.zeros(0, np.int64)
    found = digest_shard(path, nothing, nothing)
    if found.file.hexdigest() != record.files[0].xxh3_128:
        _report_blocks(report, record, index, found.file.blocks())
    else:
        _compare_parts(job, report, index)


def _compare_parts(job: VerifyJob, report: ShardReport, index: ShardIndex) -> None:
    """Parts against their digests, in a shard that is what was written."""
    record, bad = job.shards[report.shard], []
    with Dataset.open(job.out) as dataset:
        for low in range(0, index.num_parts, PARTS_AT_ONCE):
            high = min(low + PARTS_AT_ONCE, index.num_parts)
            digests = list(map(xxhash.xxh3_64_intdigest, dataset.read_parts(report.shard, low, high, check=False)))
            differing = np.array(digests, np.uint64) != index.part_xxh3_64[low:high]
            bad += (low + np.flatnonzero(differing)).tolist()
    for row in bad[:MAX_FAULTS]:
        message = f"{_member(index, row)} is not what was packed: its digest differs"
        _add(report, record, "altered", message, key=index.key(_owner(index, row)))
    if len(bad) > MAX_FAULTS:
        _add(report, record, "altered", f"and {len(bad) - MAX_FAULTS:,} more parts are damaged")


def _report_altered(
    report: ShardReport, record: ManifestShard, index: ShardIndex, parts: Int64Array, headers_: list[int]
) -> None:
    is_tar = index.meta["format"] == "tar"
    for row in headers_[:MAX_FAULTS]:
        offset = int(index.part_offset[row]) - (BLOCK if is_tar else 0)
        sample = _owner(index, row)
        what = "header of" if is_tar else "record around"
        message = f"the {what} {_member(index, row)} at byte {offset:,} is damaged"
        _add(report, record, "structure", message, offset=offset, key=index.key(sample))
    for row in parts[:MAX_FAULTS].tolist():
        offset, sample = int(index.part_offset[row]), _owner(index, row)
        message = f"{_member(index, row)} at byte {offset:,} is not what was packed: its digest differs"
        _add(report, record, "altered", message, offset=offset, key=index.key(sample))
    rest = max(len(parts) - MAX_FAULTS, 0) + max(len(headers_) - MAX_FAULTS, 0)
    if rest:
        _add(report, record, "altered", f"and {rest:,} more parts are damaged")


def _report_frames(report: ShardReport, record: ManifestShard, index: ShardIndex, found: FrameDigests) -> None:
    """Damage in a compressed shard: the frames that cannot be decompressed, with the first sample in each."""
    frames = Frames.from_meta(index.meta)
    for frame in found.bad_frames[:MAX_FAULTS]:
        base, offset = frame * frames.frame_bytes, frames.offsets[frame]
        first = min(int(np.searchsorted(index.offset + index.num_bytes, base, side="right")), index.num_samples - 1)
        last = max(int(np.searchsorted(index.offset, base + frames.raw_size(frame))) - 1, first)
        message = (
            f"the frame at byte {offset:,} is damaged, and with it {plural(last - first + 1, 'sample')}:"
            f" #{first + 1:,} {_shown(index, first)} .. #{last + 1:,} {_shown(index, last)}"
        )
        _add(report, record, "altered", message, offset=offset, key=index.key(first))
    if len(found.bad_frames) > MAX_FAULTS:
        _add(report, record, "altered", f"and {len(found.bad_frames) - MAX_FAULTS:,} more frames are damaged")


def _report_blocks(report: ShardReport, record: ManifestShard, index: ShardIndex, blocks: list[int]) -> None:
    """Damage that is in no part and in no header: padding, end-of-archive blocks."""
    for number, pair in enumerate(zip(blocks, index.block_digests, strict=False)):
        if pair[0] != pair[1]:
            start = number * BLOCK_BYTES
            end = min(start + BLOCK_BYTES, record.files[0].num_bytes)
            message = f"bytes {start:,} .. {end:,} are altered, between the parts: padding, or the end of the archive"
            _add(report, record, "altered", message, offset=start)
    if not report.faults:
        _add(report, record, "altered", "its digest is not that of the manifest, though those of its blocks are")


def _owner(index: ShardIndex, part: int) -> int:
    return int(np.searchsorted(index.part_start, part, side="right")) - 1


def _member(index: ShardIndex, part: int) -> str:
    name: bytes = index.part_names[part].as_py()
    return repr((index.key(_owner(index, part)) + b"." + name).decode("utf-8", "backslashreplace"))


def _shown(index: ShardIndex, sample: int) -> str:
    return index.key(sample).decode("utf-8", "backslashreplace")
