"""Samples -> shards: order, splits, cuts, exact sizes. Pure; not a payload byte is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import PlanError, SampleTooLarge, UsageProblem
from shardtool.formats import MAX_SHARD_BYTES, MEDIA_FORMATS, Settings, columns_of, get_format, parse_schema
from shardtool.formats.compression import settled
from shardtool.model import ShardSpec, Tally
from shardtool.names import shard_path
from shardtool.planning import cuts
from shardtool.planning.splits import assign_splits
from shardtool.samples import keys_of
from shardtool.token_options import TokenOptions

if TYPE_CHECKING:
    from shardtool.formats import Column, Format
    from shardtool.model import Int64Array, SampleTable

ALGORITHM = "xxh3-key/1"
DEFAULT_SHARD_BYTES = 256 << 20
DEFAULT_BIN_BYTES = 10_000_000_000  # Megatron's authors advise 10 GB a file (docs/user-guide/data-loading.md)


@dataclass(frozen=True)
class PlanOptions:
    """Every option that can change a planned byte; stored in the plan and compared on a rerun."""

    format: str = "tar"
    compress: str = "none"
    link: int = 0  # bytes/s that `compress` auto reckons with; 0: it assumes one
    schema: tuple[str, ...] = ()  # NAME=KIND of columns
    shard_size: int = 0  # bytes; 0: the default, unless shards or samples_per_shard decide
    shards: int = 0
    samples_per_shard: int = 0
    shards_multiple_of: int = 1
    seed: int = 0
    shuffle: str = "global"
    stratify: str = ""
    split: str = ""
    split_by: str = ""
    split_group: str = ""
    on_oversize: str = "own-shard"
    group_by: str = "first-dot"
    no_ext: str = ""
    alias: tuple[str, ...] = ()
    keep_case: bool = False
    escape_names: bool = False
    require: tuple[str, ...] = ()
    on_missing: str = "error"
    on_duplicate: str = "error"
    label_from: str = ""
    join: str = ""
    join_key: str = ""
    join_columns: tuple[str, ...] = ()
    join_part: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    links: str = "follow"
    hidden: bool = False
    files_from: str = ""
    inventory: str = ""
    source: str = "files"  # or "shards": what the sources are
    key_column: str = ""
    tokens: TokenOptions | None = None  # of --format bin alone

    def document(self) -> dict[str, Any]:
        """The options as JSON, in the order of this class; those of tokens only where they count."""
        document = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if self.tokens is None:
            del document["tokens"]
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> PlanOptions:
        """The inverse of `document`; names that this version does not know are left out."""
        known = {name: value for name, value in document.items() if name in cls.__dataclass_fields__}
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in known.items()}
        if tokens := values.get("tokens"):
            values["tokens"] = TokenOptions.from_document(tokens)
        return cls(**values)


@dataclass(frozen=True)
class Plan:
    """The decision: which samples, in which order, cut where."""

    samples: SampleTable
    options: PlanOptions
    order: Int64Array  # int64[n], rows of samples, shard after shard
    shards: tuple[ShardSpec, ...]
    failed: Tally = field(default_factory=Tally)
    notices: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def format(self) -> Format:
        """The format with its settings."""
        return get_format(self.options.format, self.settings)

    def samples_of(self, shard: int) -> Int64Array:
        """Rows of the samples in shard k, in final order."""
        spec = self.shards[shard]
        return self.order[spec.start : spec.stop]

    @property
    def num_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(spec.num_bytes for spec in self.shards)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(spec.payload_bytes for spec in self.shards)


def make_plan(table: SampleTable, options: PlanOptions, compress: str = "") -> Plan:
    """Order, split and cut the samples.

    Args:
        table: all samples.
        options: what decides.
        compress: what `auto` came to.

    Raises:
        PlanError: no number of shards satisfies the options.
        SampleTooLarge: a sample larger than a shard, and `on_oversize` is `error`.
    """
    _check_options(options)
    if options.stratify and table.labels is None:
        raise UsageProblem("--stratify label needs labels", hint="add --label-from parent, or a table with --join")
    shard_format = format_for(table, options, compress)
    shard_format.check(table)
    sizes = shard_format.sizes(table)
    names, splits = assign_splits(
        table,
        seed=options.seed,
        shares=options.split,
        split_by=options.split_by,
        split_group=options.split_group,
        stratify=bool(options.stratify),
    )
    order = global_order(table) if options.shuffle == "global" else np.arange(table.num_samples)
    order, failed, notices = _apply_oversize(table, options, shard_format, order, sizes)
    pieces, bounds = [], []
    for number in range(len(names)):
        rows = order[splits[order] == number]
        if len(rows) == 0:
            notices = (*notices, f"split {names[number]!r} gets no sample")
            continue
        rows, cut = _cut_split(table, options, shard_format, rows, sizes)
        pieces.append(rows)
        bounds.append((names[number], cut))
    payload = table.payload_bytes()
    final = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    specs = _specs(shard_format, final, bounds, sizes, payload)
    _check_format_limit(shard_format.name, specs)
    return Plan(table, options, final, specs, failed, notices, shard_format.settings)


def format_for(table: SampleTable, options: PlanOptions, compress: str = "") -> Format:
    """The format that the options name, with the settings that these samples call for.

    Raises:
        UsageProblem: `schema` names a part that no sample has, or no kind of column.
    """
    columns: tuple[Column, ...] = ()
    if get_format(options.format).has_schema:
        columns = columns_of(table, parse_schema(options.schema), has_media=options.format in MEDIA_FORMATS)
    elif options.schema:
        raise UsageProblem(f"--schema is for formats with columns, and {options.format} has none", hint="leave it out")
    return get_format(options.format, Settings(columns, settled(compress or options.compress)))


def global_order(table: SampleTable) -> Int64Array:
    """Rows by xxh3_64(key, seed), ties by key bytes: a uniform shuffle that depends on keys and seed alone."""
    order = np.argsort(table.key_hash, kind="stable")
    hashes = table.key_hash[order]
    ties = np.flatnonzero(hashes[1:] == hashes[:-1])
    for place in ties.tolist():
        pair = order[place : place + 2]
        first, second = keys_of(table, pair)
        if second < first:
            order[place : place + 2] = pair[::-1]
    return order


def _check_options(options: PlanOptions) -> None:
    given = [
        name
        for name, value in (("--shards", options.shards), ("--samples-per-shard", options.samples_per_shard))
        if value
    ]
    if len(given) > 1:
        raise UsageProblem(
            f"{' and '.join(given)} exclude one another", hint="choose one; --shard-size goes with either"
        )
    if options.shards % options.shards_multiple_of:
        raise UsageProblem(
            f"--shards {options.shards:,} is no multiple of {options.shards_multiple_of:,}",
            hint="leave one of --shards and --shards-multiple-of out",
        )
    if options.samples_per_shard and options.shards_multiple_of > 1:
        raise UsageProblem("--samples-per-shard and --shards-multiple-of exclude one another", hint="choose one")
    if options.stratify and options.shuffle == "none":
        raise UsageProblem("--stratify needs the shuffle", hint="leave --shuffle none out")
    if options.samples_per_shard and options.stratify:
        raise UsageProblem("--samples-per-shard and --stratify exclude one another", hint="use --shards N")


def shard_limit(options: PlanOptions) -> int:
    """Bytes that no shard may exceed; 0 where no limit was asked for because a number was."""
    if options.shard_size:
        return options.shard_size
    if options.tokens is not None:
        decided = options.tokens.shard_tokens or options.shards or options.samples_per_shard
        return 0 if decided else DEFAULT_BIN_BYTES
    return 0 if options.shards or options.samples_per_shard else DEFAULT_SHARD_BYTES


def _capacity(options: PlanOptions, shard_format: Format) -> int:
    limit = shard_limit(options)
    if not limit:
        return 0
    capacity = limit - shard_format.shard_overhead(1)
    if capacity <= 0:
        raise PlanError(f"a shard of {limit:,} bytes holds no sample", hint="--shard-size 256MiB is the default")
    return capacity


def _apply_oversize(
    table: SampleTable, options: PlanOptions, shard_format: Format, order: Int64Array, sizes: Int64Array
) -> tuple[Int64Array, Tally, tuple[str, ...]]:
    failed = Tally()
    capacity = _capacity(options, shard_format)
    large = np.flatnonzero(sizes > capacity) if capacity else np.zeros(0, np.int64)
    if len(large) == 0:
        return order, failed, ()
    keys = [key.decode("utf-8", "backslashreplace") for key in keys_of(table, large[:5])]
    shown = ", ".join(f"{key} ({int(size):,} bytes)" for key, size in zip(keys, sizes[large[:5]], strict=True))
    text = f"{len(large):,} samples are larger than a shard of {shard_limit(options):,} bytes: {shown}"
    if options.on_oversize == "error" or (options.on_oversize == "skip" and len(large) == table.num_samples):
        raise SampleTooLarge(text, hint="raise --shard-size, or --on-oversize own-shard")
    if options.on_oversize == "skip":
        for row in large.tolist():
            for part in range(int(table.part_start[row]), int(table.part_start[row + 1])):
                failed.add("oversize", table.entries.full_path(int(table.part_entry[part])))
        return order[sizes[order] <= capacity], failed, ()
    return order, failed, (f"{text}: each gets a shard of its own",)


def _check_format_limit(shard_format: str, specs: tuple[ShardSpec, ...]) -> None:
    """Shards whose end the format's offsets do not reach would be broken for its readers."""
    limit = MAX_SHARD_BYTES.get(shard_format, 0)
    over = [spec for spec in specs if spec.num_bytes > limit] if limit else []
    if over:
        raise PlanError(
            f"{len(over):,} {shard_format} shards would be larger than {limit:,} bytes, which its 32-bit offsets reach:"
            f" {over[0].path} of {over[0].num_bytes:,} bytes, {over[0].num_samples:,} samples",
            hint="--shard-size 256MiB makes smaller ones; for a single sample of that size, --format tar",
        )


def _cut_split(
    table: SampleTable, options: PlanOptions, shard_format: Format, rows: Int64Array, sizes: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(rows in final order, bounds) of one split."""
    capacity = _capacity(options, shard_format)
    encoded = sizes[rows]
    if options.samples_per_shard:
        bounds = cuts.cut_by_count(len(rows), options.samples_per_shard)
        _check_limit(encoded, bounds, capacity, options)
        return rows, bounds
    wanted = options.shards
    if options.stratify and table.labels is not None:
        return _cut_stratified(table, rows, encoded, capacity, wanted, options)
    if not wanted and options.shards_multiple_of > 1:
        least = len(cuts.cut_by_bytes(encoded, capacity)) - 1
        wanted = -(-least // options.shards_multiple_of) * options.shards_multiple_of
    if capacity:
        return rows, cuts.cut_by_bytes(encoded, capacity, num_shards=wanted)
    return rows, cuts.cut_evenly(encoded, wanted)


def _cut_stratified(
    table: SampleTable, rows: Int64Array, encoded: Int64Array, capacity: int, wanted: int, options: PlanOptions
) -> tuple[Int64Array, Int64Array]:
    labels = table.labels[rows] if table.labels is not None else np.zeros(len(rows), np.int32)
    positions = cuts.stratified_positions(labels, len(table.label_names))
    step = 0 if options.shards else options.shards_multiple_of
    shard = cuts.cut_stratified(positions, encoded, capacity or int(encoded.sum()), wanted, step=step)
    order = np.argsort(shard, kind="stable")  # inside a shard the order of the shuffle stays
    return rows[order], np.concatenate([[0], np.cumsum(np.bincount(shard))]).astype(np.int64)


def _check_limit(encoded: Int64Array, bounds: Int64Array, capacity: int, options: PlanOptions) -> None:
    if not capacity:
        return
    loads = np.add.reduceat(encoded, bounds[:-1])
    over = np.flatnonzero((loads > capacity) & (np.diff(bounds) > 1))
    if len(over):
        raise PlanError(
            f"{options.samples_per_shard:,} samples a shard make {len(over):,} shards larger than "
            f"{options.shard_size:,} bytes (the largest {int(loads.max()):,})",
            hint="fewer --samples-per-shard, or leave --shard-size out",
        )


def _specs(
    shard_format: Format,
    order: Int64Array,
    bounds: list[tuple[str, Int64Array]],
    sizes: Int64Array,
    payload: Int64Array,
) -> tuple[ShardSpec, ...]:
    total = sum(len(cut) - 1 for _, cut in bounds)
    specs: list[ShardSpec] = []
    base = 0
    for split, cut in bounds:
        rows = order[base : base + int(cut[-1])]
        loads = np.add.reduceat(sizes[rows], cut[:-1]).tolist()
        payloads = np.add.reduceat(payload[rows], cut[:-1]).tolist()
        count = len(cut) - 1
        for number in range(count):
            start, stop = base + int(cut[number]), base + int(cut[number + 1])
            path = shard_path(split, number, count, shard_format.suffix, total=total, shard_format=shard_format.name)
            num_bytes = int(loads[number]) + shard_format.shard_overhead(stop - start)
            specs.append(ShardSpec(split, path, start, stop, num_bytes, int(payloads[number])))
        base += int(cut[-1])
    return tuple(specs)
