"""Stage 2, decided: from the runs of stage 1 to shards with exact sizes. Lengths and hashes are read, no token is.

A shard is a range of the final order: of key hashes, or of places in the source with `--shuffle none`. Memory: 20 bytes
a document, in columns, and tables of 2^16 documents at a time.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardtool.errors import PlanError, SampleTooLarge, SourceError, UsageProblem
from shardtool.formats.bin import LAYOUT
from shardtool.formats.bin_index import dtype_for, idx_bytes
from shardtool.hashing import digest_chunks
from shardtool.model import ShardSpec
from shardtool.names import shard_path
from shardtool.planning import cuts
from shardtool.planning.plan import DEFAULT_BIN_BYTES
from shardtool.planning.splits import parse_shares
from shardtool.storage.pages import Column
from shardtool.tokens.packing import best_fit, blocks_of
from shardtool.tokens.repeats import find_duplicates, refuse_keys_repeated_in, refuse_repeated_keys
from shardtool.tokens.runs import FOLDER, itemsize_of, open_run, sorted_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import Int64Array, UInt64Array
    from shardtool.planning.plan import PlanOptions
    from shardtool.tokens.runs import Run, RunInfo
    from shardtool.tokens.tokenizer import TokenizerSpec

SEQUENCE_BYTES = idx_bytes(1, 1) - idx_bytes(0, 0)
BUCKET_DOCUMENTS = 1 << 16
BLOCKS_A_SHARD = 8  # best fit packs in blocks, so that a shard can be packed without the others
MAX_BLOCK_TOKENS = 4 << 20
MANY_SHARDS = 500  # NVIDIA/Megatron-LM#795, NVIDIA-NeMo/Megatron-Bridge#3968: hours of start-up, maps that fail


@dataclass(frozen=True)
class TokenShard:
    """Documents of one shard: those of its split whose place is in [first, last].

    With a context, `skip` tokens of the first document belong to the shard before, `sequences` sequences follow.
    """

    split: int
    first: int
    last: int
    tokens: int  # in the .bin, padding included
    sequences: int
    skip: int = 0
    first_sequence: int = 0  # of the split
    blocks: tuple[int, ...] = ()  # documents of each block of a best fit


@dataclass(frozen=True)
class Selection:
    """Which documents belong to which split, and which to none."""

    names: tuple[str, ...]
    thresholds: tuple[int, ...]  # split k has the split hashes below thresholds[k], and not below those before
    dropped: Any  # uint64[n, 2]: (hash, split hash) of duplicates, sorted

    def splits_of(self, hashes: UInt64Array, split: UInt64Array) -> Int64Array:
        """int64[n]: split of each document; -1 where it is dropped."""
        edges = np.array(self.thresholds, np.uint64)
        found = np.searchsorted(edges, split, side="right").astype(np.int64)
        if len(self.dropped):
            found[is_dropped(self.dropped, hashes, split)] = -1
        return found


@dataclass
class TokenPlan:
    """The decision, ready to be stored."""

    plan_id: str
    specs: tuple[ShardSpec, ...]
    shards: tuple[TokenShard, ...]
    selection: Selection
    dtype: str
    num_tokens: int
    duplicates: int
    documents: int
    notices: tuple[str, ...] = ()


def is_dropped(dropped: Any, hashes: UInt64Array, split: UInt64Array) -> Any:
    """bool[n]: whether a document is in the table of duplicates."""
    first = np.searchsorted(dropped[:, 0], hashes)
    last = np.minimum(first, len(dropped) - 1)
    found = (dropped[last, 0] == hashes) & (dropped[last, 1] == split)
    for row in np.flatnonzero((dropped[last, 0] == hashes) & ~found).tolist():  # two keys of one hash
        same = dropped[dropped[:, 0] == hashes[row]]
        found[row] = bool((same[:, 1] == split[row]).any())
    return found


def make_token_plan(
    work: str,
    infos: Sequence[RunInfo],
    options: PlanOptions,
    spec: TokenizerSpec,
    *,
    dtype: str = "",
    splits: tuple[str, ...] = (),
) -> TokenPlan:
    """Order, split and cut all documents of the runs.

    Args:
        dtype: of the ids; "" follows the rule of the options.
        splits: names of the splits that documents are in already.

    Raises:
        SourceError: there is not one token.
        DuplicateKey: two documents have one key.
        PlanError: no cut satisfies the options.
    """
    tokens = options.tokens
    assert tokens is not None
    runs = [open_run(work, info) for info in infos]
    if not sum(info.tokens for info in infos):
        raise SourceError("not one token in the source", hint="--text-field and --ids-field say where the text is")
    largest = max(info.largest_id for info in infos)
    if tokens.context and spec.pad is not None:
        largest = max(largest, spec.pad)
    dtype = dtype_for(largest, dtype or tokens.dtype, vocab_size=spec.vocab_size)
    is_sorted = options.shuffle == "global"
    dropped, duplicates = find_duplicates(runs) if tokens.dedup == "exact" else (np.zeros((0, 2), np.uint64), 0)
    selection = _selection(runs, options.split, dropped) if not splits else _kept(splits, dropped)
    content, ordered = _ordered(work, runs, selection, is_sorted=is_sorted)
    shards: list[TokenShard] = []
    notices: list[str] = []
    for number, (places, lengths) in enumerate(ordered):
        if not len(lengths) or not int(lengths.sum()):
            notices.append(f"split {selection.names[number]!r} gets no document")
            continue
        shards += _cut(number, places, lengths, options, itemsize_of(dtype), notices)
    if len(shards) > MANY_SHARDS:
        notices.append(
            f"{len(shards):,} pairs: trainers open each of them before they begin, and a few large ones start "
            "faster: --shard-size 10GB"
        )
    specs = _specs(shards, selection.names, itemsize_of(dtype))
    num_tokens = sum(shard.tokens for shard in shards)
    identity = [LAYOUT, dtype, spec.identity(), [[s.split, s.path, s.start, s.stop, s.num_bytes] for s in specs]]
    chosen = [tokens.context, tokens.packing, tokens.eod_pos, tokens.max_doc_tokens, options.shuffle, options.seed]
    plan_id = digest_chunks([json.dumps([content, identity, chosen], separators=(",", ":")).encode()])
    documents = sum(len(lengths) for _, lengths in ordered)
    return TokenPlan(
        plan_id,
        specs,
        tuple(shards),
        selection,
        dtype,
        num_tokens,
        duplicates,
        documents,
        tuple(notices),
    )


def _kept(names: tuple[str, ...], dropped: Any) -> Selection:
    """Splits that documents are in: numbers stand in the place of hashes."""
    return Selection(names, tuple(range(1, len(names))), dropped)


def _selection(runs: list[Run], shares: str, dropped: Any) -> Selection:
    """Splits by hash of the key: the counts come as near to the shares as whole documents allow."""
    if not shares:
        return Selection(("train",), (), dropped)
    parsed = parse_shares(shares)
    parts = []
    for run in runs:
        parts.append(run.split[~is_dropped(dropped, run.hash, run.split)] if len(dropped) else run.split.copy())
        run.forget()
    split = np.concatenate(parts)
    del parts
    split.sort()
    ends = np.cumsum(cuts.apportion(len(split), list(parsed.values())))[:-1].tolist()
    thresholds = [int(split[end]) if end < len(split) else (1 << 64) - 1 for end in ends]
    return Selection(tuple(parsed), tuple(thresholds), dropped)


def _ordered(
    work: str, runs: list[Run], selection: Selection, *, is_sorted: bool
) -> tuple[list[str], list[tuple[UInt64Array, Any]]]:
    """(digests of all keys, lengths and ids in final order, (places, tokens as uint32) of each split's documents).

    Places are looked at where shards begin and end; until then they lie in an unnamed file.
    """
    digests = [xxhash.xxh3_128() for _ in range(3)]
    total = sum(len(run.hash) for run in runs)
    places = [Column(os.path.join(work, FOLDER), "<u8") for _ in selection.names]
    tokens = [np.empty(total, np.uint32) for _ in selection.names]  # what is not filled takes no memory
    try:
        for found, hashes, split, lengths, content in _buckets(runs) if is_sorted else _in_source_order(runs):
            for digest, column in zip(digests, (hashes, lengths, content), strict=True):
                digest.update(np.ascontiguousarray(column).data)
            owners = selection.splits_of(hashes, split)
            for number, kept in enumerate(places):
                rows = owners == number
                first = len(kept)
                kept.append(found[rows])
                tokens[number][first : len(kept)] = lengths[rows]
        ordered = [(kept.values, lengths[: len(kept)]) for kept, lengths in zip(places, tokens, strict=True)]
    finally:
        for kept in places:
            kept.close()
    return [digest.hexdigest() for digest in digests], ordered


Columns = tuple[Any, Any, Any, Any, Any]  # place, hash, split hash, tokens, content digest


def _buckets(runs: list[Run]) -> Iterator[Columns]:
    """Columns of all documents by key hash, about 2^16 documents at a time."""
    count = max(1, sum(len(run.hash) for run in runs) // BUCKET_DOCUMENTS)
    edges = bucket_edges(0, (1 << 64) - 1, count)
    bounds = [bounds_of(run, edges, 0, len(run.hash)) for run in runs]
    for bucket in range(count):
        spans = [(run, int(b[bucket]), int(b[bucket + 1])) for run, b in zip(runs, bounds, strict=True)]
        parts = [run.rows(first, last) for run, first, last in spans if first < last]
        if not parts:
            continue
        columns = [
            np.concatenate([getattr(part, name) for part in parts]) for name in ("hash", "split", "tokens", "xxh3_64")
        ]
        keys = pa.chunked_array([part.keys for part in parts])
        order = sorted_order(columns[0], keys)
        refuse_repeated_keys(columns[0], keys, order)
        hashes, split, tokens, content = (column[order] for column in columns)
        yield hashes, hashes, split, tokens, content


def bounds_of(run: Run, edges: UInt64Array, first: int, last: int) -> Int64Array:
    """int64[len(edges) + 1]: where the hashes of documents [first, last) reach each edge, and the end."""
    found = np.append(first + np.searchsorted(run.hash[first:last], edges), last)
    run.forget()
    return found


def bucket_edges(first: int, last: int, count: int) -> UInt64Array:
    """uint64[count]: lower edges of equal parts of the hashes [first, last]."""
    width = last - first + 1
    return np.array([first + width * number // count for number in range(count)], np.uint64)


def _in_source_order(runs: list[Run]) -> Iterator[Columns]:
    refuse_keys_repeated_in(runs)
    base = 0
    for run in runs:
        for first in range(0, len(run.hash), BUCKET_DOCUMENTS):
            rows = slice(first, min(first + BUCKET_DOCUMENTS, len(run.hash)))
            places = np.arange(base + rows.start, base + rows.stop, dtype=np.uint64)
            yield places, run.hash[rows], run.split[rows], run.tokens[rows], run.xxh3_64[rows]
        base += len(run.hash)
        run.forget()


def _cut(
    split: int, places: UInt64Array, lengths: Int64Array, options: PlanOptions, itemsize: int, notices: list[str]
) -> list[TokenShard]:
    tokens = options.tokens
    assert tokens is not None
    if not tokens.context:
        return _cut_documents(split, places, lengths, options, itemsize, notices)
    if tokens.packing == "concat":
        return _cut_stream(split, places, lengths, options, itemsize)
    return _cut_blocks(split, places, lengths, options, itemsize, notices)


def _cut_documents(
    split: int, places: UInt64Array, lengths: Int64Array, options: PlanOptions, itemsize: int, notices: list[str]
) -> list[TokenShard]:
    sizes, capacity = _sizes(lengths, 1, options, itemsize)
    _check_large(int((sizes > capacity).sum()) if capacity else 0, lengths, options, notices)
    bounds = _bounds(sizes, capacity, options).tolist()
    shards = []
    for low, high in pairwise(bounds):
        count = int(lengths[low:high].sum(dtype=np.int64))
        if count == 0:
            raise PlanError("a shard would hold no token, and readers cannot open an empty .bin", hint="fewer --shards")
        shards.append(TokenShard(split, int(places[low]), int(places[high - 1]), count, high - low))
    return shards


def _check_large(count: int, lengths: Int64Array, options: PlanOptions, notices: list[str]) -> None:
    """What --on-oversize says about documents that no shard can hold."""
    if not count:
        return
    text = f"{count:,} documents are larger than a shard; the longest has {int(lengths.max()):,} tokens"
    if options.on_oversize != "own-shard":
        raise SampleTooLarge(text, hint="raise --shard-size, --max-doc-tokens N, or --on-oversize own-shard")
    notices.append(f"{text}: each gets a shard of its own")


def _sizes(lengths: Any, sequences: Any, options: PlanOptions, itemsize: int) -> tuple[Int64Array, int]:
    """(what counts against the limit of a shard, the limit): bytes of both files, or tokens.

    Args:
        sequences: that the lengths are those of, a number for each of them or one for all.
    """
    assert options.tokens is not None
    if options.tokens.shard_tokens:
        if options.shard_size:
            raise UsageProblem("--shard-tokens and --shard-size exclude one another", hint="choose one")
        return lengths.astype(np.int64, copy=False), options.tokens.shard_tokens
    sizes = lengths.astype(np.int64)
    sizes *= itemsize
    sizes += sequences * SEQUENCE_BYTES
    if not options.shard_size and (options.shards or options.samples_per_shard):
        return sizes, 0
    capacity = (options.shard_size or DEFAULT_BIN_BYTES) - idx_bytes(0, 0)
    if capacity <= 0:
        raise PlanError(f"a shard of {options.shard_size:,} bytes holds no document", hint="10GB is the default")
    return sizes, capacity


def _bounds(sizes: Int64Array, capacity: int, options: PlanOptions) -> Int64Array:
    """Where the units are cut into shards: by count, by number of shards, or by the limit."""
    if options.samples_per_shard:
        bounds = cuts.cut_by_count(len(sizes), options.samples_per_shard)
        loads = np.add.reduceat(sizes, bounds[:-1])
        if capacity and (loads > capacity).any():
            raise PlanError(
                f"{options.samples_per_shard:,} sequences a shard make some larger than the limit",
                hint="fewer --samples-per-shard, or leave the limit out",
            )
        return bounds
    wanted = options.shards
    if not wanted and options.shards_multiple_of > 1:
        least = len(cuts.cut_by_bytes(sizes, capacity)) - 1
        wanted = -(-least // options.shards_multiple_of) * options.shards_multiple_of
    if capacity:
        return cuts.cut_by_bytes(sizes, capacity, num_shards=wanted)
    return cuts.cut_evenly(sizes, wanted)


def _cut_stream(
    split: int, places: UInt64Array, lengths: Int64Array, options: PlanOptions, itemsize: int
) -> list[TokenShard]:
    """Sequences of S tokens of the documents one after the other; the last one is padded."""
    assert options.tokens is not None
    context = options.tokens.context
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1])
    count = -(-total // context)
    sizes, capacity = _sizes(np.full(count, context), 1, options, itemsize)
    _check_context(sizes, capacity, context)
    bounds = _bounds(sizes, capacity, options).tolist()
    shards = []
    for low, high in pairwise(bounds):
        start, stop = low * context, min(high * context, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop - 1, side="right"))
        skip = start - (int(ends[first - 1]) if first else 0)
        tokens = (high - low) * context
        shards.append(TokenShard(split, int(places[first]), int(places[last]), tokens, high - low, skip, low))
    return shards


def _check_context(sizes: Int64Array, capacity: int, context: int) -> None:
    if capacity and int(sizes.max()) > capacity:
        raise PlanError(f"a shard is smaller than a sequence of {context:,} tokens", hint="raise --shard-size")


def _cut_blocks(
    split: int, places: UInt64Array, lengths: Int64Array, options: PlanOptions, itemsize: int, notices: list[str]
) -> list[TokenShard]:
    """Best fit in blocks; a shard is some whole blocks."""
    assert options.tokens is not None
    context, lengths = options.tokens.context, lengths.astype(np.int64)
    one, capacity = _sizes(np.array([context]), 1, options, itemsize)
    _check_context(one, capacity, context)
    per_shard = capacity // int(one[0]) * context if capacity else int(lengths.sum()) // max(options.shards, 1)
    block_tokens = max(context, min(MAX_BLOCK_TOKENS, per_shard // BLOCKS_A_SHARD))
    blocks = blocks_of(lengths, block_tokens)
    starts = blocks[:-1].tolist()
    counts = np.array(
        [best_fit(lengths[a:b], context).num_sequences for a, b in zip(starts, blocks[1:].tolist(), strict=True)],
        np.int64,
    )
    sizes, capacity = _sizes(counts * context, counts, options, itemsize)
    _check_large(int((sizes > capacity).sum()) if capacity else 0, lengths, options, notices)
    if options.samples_per_shard:
        raise UsageProblem("--samples-per-shard goes with --pack concat", hint="--shards N, or --shard-tokens N")
    bounds = _bounds(sizes, capacity, options).tolist()
    ends = np.concatenate([[0], np.cumsum(counts)]).tolist()
    shards = []
    for low, high in pairwise(bounds):
        number = ends[high] - ends[low]
        first, last = int(places[starts[low]]), int(places[int(blocks[high]) - 1])
        sizes_of_blocks = tuple(np.diff(blocks[low : high + 1]).tolist())
        shards.append(TokenShard(split, first, last, number * context, number, 0, ends[low], sizes_of_blocks))
    return shards


def _specs(shards: list[TokenShard], names: tuple[str, ...], itemsize: int) -> tuple[ShardSpec, ...]:
    counts = {number: sum(shard.split == number for shard in shards) for number in range(len(names))}
    specs: list[ShardSpec] = []
    start, numbers = 0, dict.fromkeys(counts, 0)
    for shard in shards:
        path = shard_path(names[shard.split], numbers[shard.split], counts[shard.split], ".bin", total=len(shards))
        numbers[shard.split] += 1
        payload = shard.tokens * itemsize
        stop = start + shard.sequences
        size = payload + idx_bytes(shard.sequences, shard.sequences)
        specs.append(ShardSpec(names[shard.split], path, start, stop, size, payload))
        start = stop
    return tuple(specs)
