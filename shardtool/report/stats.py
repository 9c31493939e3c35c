"""`Stats` -> text of at most 80 columns: one line a subject, every figure beside its random expectation, then advice.

An advice line starts with `!`, says what the finding costs, and ends with what to type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.report.text import escape_key, printable, sparkline, to_ascii, width
from shardtool.units import format_bytes, format_range, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.statistics.deviation import Deviation, Float64Array
    from shardtool.statistics.metrics import SampleSizes, Shuffle, Stats

COLUMNS = 80
_INDENT = 10
_MAX_PARTS = 8  # parts listed; the rest is counted
_TINY_PART_BYTES = 512  # one tar block: below it, header and padding are more than the part
_SMALL_SHARD_BYTES = 16 << 20
_NOTABLE_OVERHEAD = 0.10
_NOTABLE_SPREAD = 1.25  # largest / smallest shard of a split, in bytes


def render_stats(
    stats: Stats,
    *,
    heading: str = "",
    ascii_only: bool = False,
    more: Sequence[tuple[str, Sequence[str]]] = (),
    more_advice: Sequence[str] = (),
) -> str:
    """The figures of a data set for the terminal, lines of at most 80 columns, no line break at the end.

    Args:
        stats: from `shardtool.statistics.metrics.measure`.
        heading: what the first line says: folder, format, dataset id.
        ascii_only: spell block characters and dots in ASCII.
        more: further subjects, (verb, fields) each, put before the advice.
        more_advice: further advice, put last.
    """
    lines = _line("dataset", printable(heading).split("   ")) if heading else []
    for verb, fields in (*_subjects(stats), *more):
        lines += _line(verb, fields)
    for advice in (*advise(stats), *more_advice):
        lines += filled("!", advice.split(" "), gap=" ", indent=2)
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def advise(stats: Stats) -> list[str]:
    """What is worth changing: what it costs, then what to type. Empty for a sound data set."""
    if not stats.samples:
        return []
    return [*_order_advice(stats.shuffle), *_shard_advice(stats), *_part_advice(stats)]


def verdict(shuffle: Shuffle) -> str:
    """What the order looks like, in words; empty where it cannot be told."""
    if shuffle.neighbour_distance is None or shuffle.source_block_tv is None:
        return ""
    is_mixed = shuffle.source_block_tv.is_random
    if shuffle.is_order_random:
        return "like a uniform shuffle" if is_mixed else "shards visited at random, each a stretch of the source"
    if is_mixed and shuffle.source_block_tv.expected > 0:
        return "shards hold random samples, their order follows the source"
    if shuffle.neighbour_distance < 0.0005:
        return "source order"
    return "close to the source order"


def _subjects(stats: Stats) -> Iterator[tuple[str, list[str]]]:
    counts = plural(stats.samples, "sample") + " in " + plural(stats.shards, "shard")
    sizes = [f"payload {format_bytes(stats.payload_bytes)}", f"files {format_bytes(stats.bytes)}"]
    share = f"overhead {_percent(_overhead(stats))}"
    if stats.bytes < stats.payload_bytes:
        share = f"compressed to {_percent(stats.bytes / stats.payload_bytes)}"
    yield "samples", [counts, *sizes, *([share] if stats.bytes else [])]
    if stats.shards:
        yield "shards", _shard_fields(stats)
    if stats.samples:
        yield "sizes", _size_fields(stats.sample_bytes)
    if stats.parts:
        yield "parts", _part_fields(stats)
    if stats.labels is not None:
        yield "labels", _label_fields(stats)
    if stats.samples:
        yield "shuffle", _shuffle_fields(stats.shuffle)


def _shard_fields(stats: Stats) -> list[str]:
    sizes, fill, counts = stats.shard_bytes, stats.fill, stats.samples_per_shard
    what = f"of {format_bytes(stats.shard_size)}" if stats.is_size_given else "of the largest"
    fields = [
        format_range(int(sizes.min()), int(sizes.max())),
        f"fill {_percents(fill.min, fill.max)} {what}",
        f"{_counts(int(counts.min), int(counts.max))} samples a shard",
    ]
    return [*fields, _histogram(sizes / max(stats.shard_size, 1))] if fill.max > 1.05 * fill.min else fields


def _size_fields(sizes: SampleSizes) -> list[str]:
    quantiles = [f"p{number} {format_bytes(size)}" for number, size in ((50, sizes.p50), (95, sizes.p95))]
    largest = f"max {format_bytes(sizes.max)}"
    if sizes.largest_key is not None:
        largest += f" ({clip(escape_key(sizes.largest_key), 40)})"
    empty = [plural(sizes.zero, "empty sample")] if sizes.zero else []
    octaves = [sparkline(sizes.log2_counts[-20:])] if len(sizes.log2_counts) > 1 else []
    return [*quantiles, largest, *empty, *octaves]


def _part_fields(stats: Stats) -> list[str]:
    ranked = sorted(stats.parts.items(), key=lambda item: (-item[1].num_bytes, item[0]))
    fields = [
        f"{clip(printable(name), 30)} {_percent(part.samples / max(stats.samples, 1))} {format_bytes(part.num_bytes)}"
        for name, part in ranked[:_MAX_PARTS]
    ]
    return [*fields, f"and {len(ranked) - _MAX_PARTS:,} more"] if len(ranked) > _MAX_PARTS else fields


def _label_fields(stats: Stats) -> list[str]:
    labels = stats.labels
    if labels is None:
        return []
    counts = sorted(labels.counts.values())
    fields = [f"{plural(len(counts), 'class', 'classes')} of {_counts(counts[0], counts[-1])} samples"]
    if labels.unlabelled:
        fields.append(f"{labels.unlabelled:,} without label")
    if len(counts) > 1:
        fields.append(f"{labels.per_shard:,.0f} a shard (random {labels.per_shard_expected:,.0f})")
    if stats.shuffle.label_tv is not None:
        fields += _deviation_fields("TV", stats.shuffle.label_tv)
    return fields


def _shuffle_fields(shuffle: Shuffle) -> list[str]:
    fields = []
    if shuffle.neighbour_distance is not None:
        fields.append(f"neighbour distance {shuffle.neighbour_distance:.3f} (random 1.000)")
    if shuffle.source_block_tv is not None:
        fields += _deviation_fields("source blocks TV", shuffle.source_block_tv)
    said = verdict(shuffle)
    return [*fields, f"-> {said}"] if said else fields or ["not judged: the shards have no keys"]


def _deviation_fields(name: str, found: Deviation) -> list[str]:
    fields = [f"{name} {found.median:.3f} (random {found.expected:.3f}, p99 {found.p99:.3f})"]
    if not found.is_random:
        fields.append(f"worst shard {found.worst_shard}: {found.worst_tv:.3f}")
    return fields


def _order_advice(shuffle: Shuffle) -> Iterator[str]:
    blocks, labels, distance = shuffle.source_block_tv, shuffle.label_tv, shuffle.neighbour_distance
    if distance is not None and not shuffle.is_order_random:
        yield (
            f"consecutive samples are close in the source ({distance:.3f} of a shuffle's distance): batches are alike,"
            " and a loader's buffer hides that only as far as it reaches. Pack again with: --shuffle global"
        )
    elif blocks is not None and not blocks.is_random:
        yield (
            f"a shard holds stretches of the source (TV {blocks.median:.2f}, random {blocks.expected:.2f}): a rank sees"
            " few kinds of samples at a time, whatever order it reads in. Pack again with: --shuffle global"
        )
    if labels is not None and not labels.is_random and (blocks is None or blocks.is_random):
        yield (
            f"the class mix of a shard is {labels.median:.2f} from the whole (random {labels.expected:.2f}; worst shard"
            f" {labels.worst_shard}: {labels.worst_tv:.2f}): batches are skewed. Even it out with: --stratify label"
        )


def _shard_advice(stats: Stats) -> Iterator[str]:
    sizes = stats.shard_bytes
    over = int(np.count_nonzero(sizes > stats.shard_size)) if stats.is_size_given else 0
    if over:
        yield (
            f"{plural(over, 'shard')} above {format_bytes(stats.shard_size)}, the largest"
            f" {_percent(stats.fill.max)} of it: whoever reads it finishes last. To refuse such samples:"
            " --on-oversize error"
        )
    elif int(sizes.max()) > _NOTABLE_SPREAD * int(sizes.min()) and len(sizes) > 1:
        yield (
            f"the largest shard has {sizes.max() / max(sizes.min(), 1):.1f} times the bytes of shard"
            f" {int(sizes.argmin())}: ranks that hold large ones make the others wait. Balance them with:"
            f" --shards {len(sizes)}"
        )
    if len(sizes) > 1000 and float(np.median(sizes)) < _SMALL_SHARD_BYTES:
        yield (
            f"{len(sizes):,} shards of {format_bytes(float(np.median(sizes)))}: opening them costs more than reading"
            " them on a shared or remote store. Fewer with: --shard-size 256MiB"
        )


def _part_advice(stats: Stats) -> Iterator[str]:
    tiny = [name for name, part in stats.parts.items() if part.num_bytes < _TINY_PART_BYTES * part.samples]
    if _overhead(stats) > _NOTABLE_OVERHEAD:
        parts = f" ({_names(tiny)} below {_TINY_PART_BYTES} B on average)" if tiny else ""
        yield (
            f"{_percent(_overhead(stats))} of the bytes are headers and padding, {format_bytes(stats.overhead_bytes)}"
            f" to store and read{parts}. What each part costs: shardtool plan SRC OUT"
        )
    ragged = [name for name, part in stats.parts.items() if part.samples < stats.samples]
    if ragged:
        rarest = min(ragged, key=lambda name: stats.parts[name].samples)
        others = f" ({len(ragged) - 1} more parts are not in every sample)" if len(ragged) > 1 else ""
        yield (
            f"{plural(stats.samples - stats.parts[rarest].samples, 'sample')} without {_names([rarest])}{others}: a"
            f" loader that expects it stops there. To keep whole samples only: --require {_names([rarest])}"
        )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(clip(printable(name), 20) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _overhead(stats: Stats) -> float:
    return stats.overhead_bytes / stats.bytes if stats.bytes else 0.0


def _histogram(values: Float64Array) -> str:
    """Ten bins from the smallest to the largest value."""
    counts, _ = np.histogram(values, bins=10)
    return sparkline(counts.tolist())


def _percent(share: float) -> str:
    digits = 1 if abs(share) < 0.1 and share else 0
    return f"{100 * share:,.{digits}f} %"


def _percents(low: float, high: float) -> str:
    first, last = _percent(low), _percent(high)
    return last if first == last else f"{first.removesuffix(' %')} .. {last}"


def _counts(low: int, high: int) -> str:
    return f"{high:,}" if low == high else f"{low:,} .. {high:,}"


def clip(text: str, columns: int) -> str:
    """`text` of at most so many columns, cut in the middle: both ends of a key tell something."""
    if width(text) <= columns:
        return text
    head, tail = text[: columns // 2], text[-(columns // 2) :]
    while width(head) + width(tail) >= columns:
        head, tail = head[:-1], tail[1:]
    return f"{head}…{tail}"


def _line(verb: str, fields: Sequence[str]) -> list[str]:
    return filled(verb, fields, gap="   ", indent=_INDENT)


def advice_lines(text: str) -> list[str]:
    """`! text` broken between words; a word that is longer than a line stays whole, so that it can be pasted."""
    lines, current = [], "!"
    for word in printable(text).split():
        if width(f"{current} {word}") > COLUMNS and current not in ("!", " "):
            lines.append(current)
            current = " "
        current += " " + word
    return [*lines, current]


def filled(first: str, pieces: Sequence[str], *, gap: str, indent: int) -> list[str]:
    """`first`, then the pieces with `gap` between them; what does not fit goes to lines below, indented."""
    lines, current, is_start = [], first.ljust(indent), True
    for piece in (clip(piece, COLUMNS - indent) for piece in pieces):
        if not is_start and width(current + gap + piece) > COLUMNS:
            lines.append(current)
            current, is_start = " " * indent, True
        current += piece if is_start else gap + piece
        is_start = False
    return [*lines, current.rstrip()]
