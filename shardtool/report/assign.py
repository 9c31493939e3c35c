"""Who reads what, in words: an `Assignment` and its `Summary`, or the reading of one sample, in lines of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardtool.report.stats import filled
from shardtool.report.text import escape_key, printable, table, to_ascii
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.assignment.assignment import Assignment
    from shardtool.assignment.placement import Replication
    from shardtool.assignment.summary import Share, Summary

_INDENT = 7
_MAX_SIZES = 12  # world sizes listed


def render_assignment(
    found: Assignment, summary: Summary, shares: Sequence[tuple[int, Share]] = (), *, ascii_only: bool = False
) -> str:
    """The answer for the terminal, no line break at the end; advice is not in it.

    Args:
        found: the assignment.
        summary: its costs.
        shares: (rank, shards it opens) of ranks that get a line of their own.
        ascii_only: spell dots in ASCII.
    """
    lines = [
        *_line("order", order_fields(found)),
        *_line("data", _data_fields(found)),
        *_rank_table(found, summary, shares),
        *_line("nodes", _node_fields(found, summary)),
        *_line("copies", [_copies(summary)]),
        *_line("mixing", _shuffle_fields(found, summary)),
    ]
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def order_fields(found: Assignment) -> list[str]:
    """`plw/1`, `lanes 256`, `piece 4 samples (1 MiB)`, `window 16`, `seed 7` where it is not 0, `position 0`."""
    params = found.order.params
    fields = [f"{params.mode}/1"]
    if params.mode in ("plw", "shard"):
        fields.append(f"lanes {params.lanes:,}")
    if params.has_fixed_pieces:
        size = format_bytes(int(params.piece) * found.shards.mean_bytes)
        fields.append(f"piece {plural(int(params.piece), 'sample')} ({size})")
    elif params.mode == "plw":
        fields.append("piece shard")
    if params.has_windows:
        fields.append(f"window {params.window}")
    where = f" (epoch {found.epoch})" if found.epoch else ""
    seed = [f"seed {params.seed}"] if params.seed else []
    return [*fields, *seed, f"position {found.position:,}{where}"]


def render_reading(document: dict[str, Any], key: bytes, order: Sequence[str], *, ascii_only: bool = False) -> str:
    """What `where` found, from its JSON document."""
    sample = [printable(document["path"]), f"shard {document['shard']}", f"#{document['sample']:,}"]
    if document["offset"] is not None:
        sample.append(f"{format_bytes(document['bytes'])} at byte {document['offset']:,}")
    lines = _line("sample", [escape_key(key), document["split"], *sample]) + _line("order", order)
    lines += _line("epoch", [f"{document['epoch']}", f"position {document['position']:,}"])
    for reading in document["readings"]:
        lines += _line("read", _reading_fields(reading, document))
    if not document["readings"]:
        lines += _line("read", [f"not in this epoch: {document['reason']}"])
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def _reading_fields(reading: dict[str, Any], document: dict[str, Any]) -> list[str]:
    fields = [f"step {reading['step']:,}", f"rank {reading['rank']} of {document['world_size']:,}"]
    if document["num_nodes"] > 1:
        fields.append(f"node {reading['node']}, local rank {reading['local_rank']}")
    if document["loader_workers"]:
        fields.append(f"worker {reading['worker']}")
    return [*fields, f"slot {reading['slot']}", *([] if reading["is_valid"] else ["repeated to fill the batch"])]


def _data_fields(found: Assignment) -> list[str]:
    shards = found.shards
    sizes = [plural(shards.num_samples, "sample"), plural(len(shards.counts), "shard")]
    rest = f"{found.num_left:,} left in this epoch" if found.num_left < shards.num_samples else ""
    policy = f"batch {found.deal.batch_size:,}, tail {found.deal.policy}"
    return [shards.name, *sizes, format_bytes(int(shards.num_bytes.sum())), policy, *([rest] if rest else [])]


def _rank_table(found: Assignment, summary: Summary, shares: Sequence[tuple[int, Share]]) -> list[str]:
    rows = [_rank_row(found, str(rank), rank, rank + 1, share) for rank, share in shares]
    if not rows:
        last = found.deal.world_size - 1
        rows = [_rank_row(found, f"0 .. {last}" if last else "0", 0, last + 1, summary.rank_shards)]
    header = ["rank".ljust(_INDENT - 2), "samples", "shards", "bytes"]  # as wide as the verbs above and below
    return table(rows, header=header).split("\n")


def _rank_row(found: Assignment, name: str, first: int, stop: int, share: Share) -> list[str]:
    samples, repeats = found.rank_samples[first:stop], found.rank_repeats[first:stop]
    low, high = int(samples.min()), int(samples.max())
    counted = _counts(low, high) + (f" (+{int(repeats.max())} repeated)" if repeats.any() else "")
    return [name, counted, _counts(share.fewest, share.most), f"about {format_bytes(high * found.shards.mean_bytes)}"]


def _node_fields(found: Assignment, summary: Summary) -> list[str]:
    node, per_node = summary.node, found.deal.world_size // found.num_nodes
    fields = [
        f"{plural(found.num_nodes, 'node')} of {plural(per_node, 'rank')}",
        f"each at most {plural(node.max_shards, 'shard')}, {format_bytes(node.max_bytes)}",
    ]
    if found.num_nodes > 1 and node.is_exact and found.order.params.locality == "fixed":
        fields.append("a node keeps its shards in every epoch")
    if summary.fits_disk is not None:
        fields.append("fits its disk" if summary.fits_disk else "does not fit its disk")
    return fields


def _copies(summary: Summary) -> str:
    node = summary.node
    text = f"over {plural(node.num_nodes, 'node')} {node.byte_copies:.2f}"
    shown = [_other(other, number) for number, other in enumerate(summary.elastic[:_MAX_SIZES])]
    return f"{text} ({', '.join(shown)})" if shown else text


def _other(other: Replication, number: int) -> str:
    return f"{other.world_size}{' ranks' if not number else ''}: {other.byte_copies:.2f}"


def _shuffle_fields(found: Assignment, summary: Summary) -> list[str]:
    mixing = summary.mixing
    packed = "shuffled when packed" if found.is_packed_shuffled else "packed in source order"
    met = [f"met again next epoch {mixing.met_again:.2f} x random"] if summary.is_met_judged else []
    return [
        packed,
        f"pairs from one shard {mixing.same_shard:.3f} (random {mixing.same_shard_ideal:.3f})",
        *met,
        f"{plural(mixing.live_shards, 'shard')} at a time",
    ]


def _counts(low: int, high: int) -> str:
    return f"{high:,}" if low == high else f"{low:,} .. {high:,}"


def _line(verb: str, fields: Sequence[str]) -> list[str]:
    return filled(verb, fields, gap="  ", indent=_INDENT)
