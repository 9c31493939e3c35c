"""A compressed shard that has arrived becomes the raw one: frame by frame, its digest compared before it gets its name.

Memory: one frame and what it decompresses to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

from shardtool.errors import CorruptShard
from shardtool.formats.frames import Frames
from shardtool.index_file import read_index_meta
from shardtool.staging.arriving import give_name
from shardtool.staging.disk import allocate, open_part, write_at

if TYPE_CHECKING:
    from shardtool.model import FileRecord, ManifestShard
    from shardtool.staging.arriving import Arrival


def unpack(arrival: Arrival, shard: ManifestShard) -> None:
    """Write the raw file of a shard beside the compressed one, whose blocks are all there; the latter goes, or stays.

    Raises:
        CorruptShard: what it decompresses to is not what was packed.
        NoSpace: the target is full.
    """
    route, raw = arrival.route, shard.files[0]
    part, final = route.target.part(raw.path), route.target.final(raw.path)
    fd = open_part(part)
    try:
        if os.fstat(fd).st_size != raw.num_bytes:
            allocate(fd, raw.num_bytes, part)
        found = _write_raw(arrival, shard, fd, part)
        if found != raw.xxh3_128:
            raise _other_bytes(arrival, raw, found)
        give_name(fd, part, final, route.options)
    finally:
        os.close(fd)
    route.vouch(raw)
    if route.options.decompress == "keep":
        arrival.publish()
    else:
        arrival.discard()


def _write_raw(arrival: Arrival, shard: ManifestShard, fd: int, part: str) -> str:
    """The xxh3_128 of what was written."""
    assert shard.index is not None
    path = arrival.route.target.final(shard.index.path)
    digest = xxhash.xxh3_128()
    try:
        frames = Frames.from_meta(read_index_meta(path))
        for frame in range(frames.num_frames):
            begin, end = frames.offsets[frame : frame + 2]
            data = frames.decode(frame, arrival.pread(end - begin, begin))
            digest.update(data)
            write_at(fd, memoryview(data), frame * frames.frame_bytes, part)
    except CorruptShard as error:
        shown = arrival.route.place.shown(arrival.record.path)
        raise CorruptShard(f"{shown}: {error.message}", hint=_hint(arrival), where={"path": shown}) from error
    return digest.hexdigest()


def _other_bytes(arrival: Arrival, raw: FileRecord, found: str) -> CorruptShard:
    shown = arrival.route.place.shown(arrival.record.path)
    return CorruptShard(
        f"{shown} should decompress to bytes of digest {raw.xxh3_128}, found {found}",
        hint=_hint(arrival),
        where={"path": shown, "expected": raw.xxh3_128, "found": found},
    )


def _hint(arrival: Arrival) -> str:
    return (
        f"it was packed so: shardtool verify {arrival.route.place.url} --deep tells more; without --decompress it comes"
    )
