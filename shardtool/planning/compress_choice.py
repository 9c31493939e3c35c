"""What compression would give: a few samples are packed into memory, compressed, and the rest is arithmetic.

`--compress auto` takes the level that costs least over the life of a data set:

    seconds a byte = 1 / (PROCESSES x speed of the level) + READS x (size ratio / link + 1 / (PROCESSES x DECODE))

Speeds are constants, so that the same samples and the same link give the same choice on any machine. What hardly
shrinks, pictures say, is not compressed twice. Memory: 4 MiB of samples, or one sample that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import zstandard

from shardtool.errors import SourceError
from shardtool.formats import Settings, get_format
from shardtool.formats.frames import FRAME_BYTES
from shardtool.planning.plan_rows import shard_rows
from shardtool.samples import member_names
from shardtool.sources.opening import open_reader
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.formats import Format
    from shardtool.model import SampleTable

SAMPLE_BYTES = 4 << 20
MAX_SAMPLES = 512
MAX_ONE = 64 << 20  # a sample larger than this is not read to plan
NOT_WORTH = 0.95  # of the size: readers would decompress for nothing
HOPED_GAIN = 0.8  # of the best ratio so far: more than a higher level ever gained here
SPEEDS = {1: 350e6, 3: 220e6, 6: 120e6, 9: 60e6, 12: 25e6, 19: 2e6}  # bytes/s of one core, texts, libzstd 1.5
DECODE = 800e6
PROCESSES, READS = 8, 10  # that pack and load; epochs
LINK = 10**9  # bytes/s, where none is given
FRAMED = ("tar", "mds")  # formats whose shards are compressed whole


@dataclass(frozen=True)
class Choice:
    """A compression, and what is known of it."""

    compress: str  # "none" or "zstd:6"
    ratio: float | None  # compressed / raw bytes of the samples looked at; None where none could be read
    why: tuple[str, ...] = ()  # in words; () where the user chose


def choose(table: SampleTable, plain: Format, link: int = 0) -> Choice:
    """The compression that suits these samples.

    Args:
        table: all samples.
        plain: one of FRAMED, uncompressed.
        link: bytes/s between shards and readers; 0 takes 1 GB/s.
    """
    raw = _packed_sample(table, plain)
    if raw is None:
        return Choice("none", None, ("no sample could be read to judge by", "not compressed"))
    speed = f"at {(link or LINK) / 1e9:g} GB/s" + ("" if link else " (assumed; --link tells)")
    seen = f"{format_bytes(len(raw))} of samples"
    best, found, rate = 0, {0: 1.0}, link or LINK
    for level in SPEEDS:
        hoped = HOPED_GAIN * min(found.values()) if len(found) > 1 else 0.0
        if seconds_a_byte(level, hoped, rate) >= seconds_a_byte(best, found[best], rate):
            continue  # not even a lucky one would pay
        found[level] = _ratio(raw, level)
        if level == 1 and found[1] > NOT_WORTH:
            why = f"{seen} keep {100 * found[1]:.0f} % of their size"
            return Choice("none", 1.0, (why, "not compressed twice"))
        if seconds_a_byte(level, found[level], rate) < seconds_a_byte(best, found[best], rate):
            best = level
    kept = f"{seen} become {100 * found[best or 1]:.0f} %" if len(found) > 1 else f"{seen} looked at"
    if not best:
        return Choice("none", 1.0, (kept, "not compressed", f"it does not pay {speed}"))
    return Choice(f"zstd:{best}", found[best], (f"level {best}", kept, f"cheapest for {READS} readings {speed}"))


def seconds_a_byte(level: int, ratio: float, link: float) -> float:
    """What a raw byte costs from packing to the last reading; level 0 is no compression."""
    if not level:
        return READS / link
    return 1 / (PROCESSES * SPEEDS[level]) + READS * (ratio / link + 1 / (PROCESSES * DECODE))


def estimated_ratio(table: SampleTable, shard_format: Format) -> float | None:
    """Compressed / raw bytes by a few samples; None where they cannot be read, or nothing is compressed in frames."""
    codec, _, level = shard_format.settings.compress.partition(":")
    if codec == "none" or shard_format.name not in FRAMED:
        return None
    raw = _packed_sample(table, get_format(shard_format.name, Settings(shard_format.settings.columns)))
    return None if raw is None else _ratio(raw, int(level))


def _ratio(raw: bytes, level: int) -> float:
    encoder = zstandard.ZstdCompressor(level=level)
    frames = range(0, len(raw), FRAME_BYTES)
    return sum(len(encoder.compress(raw[begin : begin + FRAME_BYTES])) for begin in frames) / len(raw)


class _Memory:
    """What a shard would be, in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data


def _packed_sample(table: SampleTable, shard_format: Format) -> bytes | None:
    """An uncompressed shard of a few samples, chosen by the hash of their keys."""
    few = _few(table)
    if not few:
        return None
    rows, out = shard_rows(table, np.array(few, np.int64)), cast("Any", _Memory())
    members = member_names(rows)
    try:
        reader = open_reader(table.entries.roots, rows, members)
        try:
            shard_format.write(rows, members, reader, out)
        finally:
            reader.close()
    except SourceError:
        return None  # packing will say what is wrong
    return bytes(out.data)


def _few(table: SampleTable) -> Sequence[int]:
    chosen: list[int] = []
    sizes, total = table.payload_bytes(), 0
    order = np.argsort(table.key_hash, kind="stable")
    for row in order[: 8 * MAX_SAMPLES].tolist():
        size = int(sizes[row])
        if len(chosen) == MAX_SAMPLES or (chosen and total + size > SAMPLE_BYTES) or size > MAX_ONE:
            continue
        chosen.append(row)
        total += size
    return sorted(chosen)
