"""The plan on disk: `.shardtool/plan.json` and `.shardtool/plan/000.arrow…`, a record batch a shard.

plan.json is written last, so that a plan that can be read is whole. Byte layout: docs/formats/plan.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardtool import __version__
from shardtool.errors import FormatError
from shardtool.formats import Settings
from shardtool.model import ShardRows, ShardSpec
from shardtool.names import HIDDEN
from shardtool.planning.plan import PlanOptions
from shardtool.planning.plan_rows import canonical_rows, guarding_rows, shard_rows
from shardtool.storage import open_place
from shardtool.storage.files import arrow_file
from shardtool.storage.shard_file import ShardFile, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import EntryTable
    from shardtool.planning.plan import Plan

SCHEMA = "shardtool/plan-file/1"
PLAN_JSON = f"{HIDDEN}/plan.json"
SHARDS_A_FILE = 1_000
_PART = [
    pa.field("name", pa.binary(), nullable=False),
    pa.field("source", pa.binary()),
    pa.field("root", pa.uint32(), nullable=False),
    pa.field("bytes", pa.int64(), nullable=False),
    pa.field("mtime_ns", pa.int64(), nullable=False),
    pa.field("data", pa.binary()),
]
_DEFAULTS = PlanOptions()
_DIGEST = b"xxh3_64"  # of a batch, in its metadata
_VERSION, _OFFSET = pa.field("version", pa.binary()), pa.field("offset", pa.int64())


@dataclass(frozen=True)
class Ledger:
    """seen = packed + ignored + failed, in entries (files, objects, rows)."""

    seen: int
    ignored: dict[str, int]
    failed: int

    @property
    def packed(self) -> int:
        """Entries that are in shards."""
        return self.seen - sum(self.ignored.values()) - self.failed

    def document(self) -> dict[str, Any]:
        """As JSON."""
        ignored = dict(sorted(self.ignored.items()))
        return {"seen": self.seen, "packed": self.packed, "ignored": ignored, "failed": self.failed}


@dataclass(frozen=True)
class StoredPlan:
    """A plan without its rows: what the executor, the resume and the manifest need."""

    plan_id: str
    options: PlanOptions
    roots: tuple[str, ...]
    shards: tuple[ShardSpec, ...]
    ledger: Ledger
    label_names: tuple[str, ...] = ()
    membership: dict[str, Any] | None = None
    settings: Settings = field(default_factory=Settings)
    given: tuple[str, ...] = ()  # sources as they were named, where `roots` are something else
    scanned_at: float = field(default=0.0, compare=False)  # time.monotonic() of the scan; not stored

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return self.shards[-1].stop if self.shards else 0


def plan_identity(plan: Plan) -> str:
    """plan_id: xxh3_128 over all that can change an output byte, 32 hex digits. Guards and places do not enter."""
    digest = _begin_identity(plan)
    for shard in range(len(plan.shards)):
        for chunk in canonical_rows(shard_rows(plan.samples, plan.samples_of(shard))):
            digest.update(chunk)
    identity: str = digest.hexdigest()
    return identity


def write_plan(out: str, plan: Plan, ledger: Ledger, *, durable: bool) -> StoredPlan:
    """Store `plan` in the folder `out`; plan.json last.

    Raises:
        NoSpace, DestinationError: it cannot be written.
    """
    digest = _begin_identity(plan)
    for number, first in enumerate(range(0, len(plan.shards), SHARDS_A_FILE)):
        last = min(first + SHARDS_A_FILE, len(plan.shards))
        schema = _schema(plan.samples.entries)
        _write_rows(out, number, schema, _hashed(plan, range(first, last), digest), durable=durable)
    stored = StoredPlan(
        plan_id=digest.hexdigest(),
        options=plan.options,
        roots=plan.samples.entries.roots,
        shards=plan.shards,
        ledger=ledger,
        label_names=tuple(plan.samples.label_names),
        membership=membership_of(plan.options),
        settings=plan.settings,
        given=plan.samples.entries.given,
    )
    open_place(out).put(PLAN_JSON, encode_plan(stored), tag="plan", durable=durable)
    return stored


def membership_of(options: PlanOptions) -> dict[str, Any]:
    """How samples were dealt to shards, for the manifest."""
    shuffled = options.shuffle == "global"
    return {
        "shuffled": shuffled,
        "algorithm": "xxh3-key/1" if shuffled else "source-order/1",
        "seed": options.seed,
        "stratified": bool(options.stratify),
    }


def _begin_identity(plan: Plan) -> Any:
    digest = xxhash.xxh3_128()
    head = {
        "schema": SCHEMA,
        "layout": plan.format.layout,
        "shards": [[spec.split, spec.path, spec.start, spec.stop, spec.num_bytes] for spec in plan.shards],
        "labels": plan.samples.label_names,
        "membership": membership_of(plan.options),
    }
    if settings := plan.settings.document():
        head["settings"] = settings
    digest.update(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
    return digest


def _hashed(plan: Plan, shards: range, digest: Any) -> Iterator[tuple[ShardRows, str]]:
    """(rows of each shard, their digest); `digest` takes in those that make the identity."""
    for shard in shards:
        rows = shard_rows(plan.samples, plan.samples_of(shard))
        own = xxhash.xxh3_64()
        for chunk in canonical_rows(rows):
            digest.update(chunk)
            own.update(chunk)
        yield rows, _digest_of(rows, own)


def _digest_of(rows: ShardRows, canonical: Any = None) -> str:
    """xxh3_64 over all of `rows`, 16 hex digits; `canonical` has taken in `canonical_rows` where it is given."""
    if canonical is None:
        canonical = xxhash.xxh3_64()
        for chunk in canonical_rows(rows):
            canonical.update(chunk)
    for chunk in guarding_rows(rows):
        canonical.update(chunk)
    digest: str = canonical.hexdigest()
    return digest


def _rows_path(number: int) -> str:
    return f"{HIDDEN}/plan/{number:03d}.arrow"


def _schema(entries: EntryTable) -> Any:
    """The columns of a plan file; versions and offsets only where the source has them."""
    places = [
        *([] if entries.versions is None else [_VERSION]),
        *([] if entries.offsets is None else [_OFFSET]),
    ]
    part = pa.field("item", pa.struct([*_PART, *places]), nullable=False)
    return pa.schema(
        [
            pa.field("key", pa.binary(), nullable=False),
            pa.field("label", pa.int32()),
            pa.field("parts", pa.list_(part), nullable=False),
        ]
    )


def _write_rows(out: str, number: int, schema: Any, batches: Iterator[tuple[ShardRows, str]], *, durable: bool) -> None:
    file = ShardFile(out, _rows_path(number), "plan")
    try:
        with pa.PythonFile(Sink(file), mode="w") as sink, pa.ipc.new_file(sink, schema) as writer:
            for rows, digest in batches:
                writer.write_batch(_to_batch(rows, schema), custom_metadata={_DIGEST: digest})
        file.publish(durable=durable)
    finally:
        file.abort()


def _to_batch(rows: ShardRows, schema: Any) -> Any:
    lists_type = schema.field("parts").type
    values = [rows.names, rows.source, *map(pa.array, (rows.roots, rows.sizes, rows.mtimes_ns)), rows.data]
    values += [] if rows.versions is None else [rows.versions]
    values += [] if rows.offsets is None else [pa.array(rows.offsets)]
    parts = pa.StructArray.from_arrays(values, fields=list(lists_type.value_type))
    lists = pa.ListArray.from_arrays(pa.array(rows.part_start.astype(np.int32)), parts, type=lists_type)
    labels = pa.nulls(rows.num_samples, pa.int32()) if rows.labels is None else pa.array(rows.labels)
    return pa.record_batch([rows.keys, labels, lists], schema=schema)


def read_rows(out: str, shard: int) -> ShardRows:
    """The rows of planned shard k from the plan file in `out`: mapped, or read by ranges from an object store.

    Raises:
        FormatError: the plan file is gone or damaged.
    """
    number, place = divmod(shard, SHARDS_A_FILE)
    path = open_place(out).shown(_rows_path(number))
    try:
        with arrow_file(path) as source:
            batch, meta = pa.ipc.open_file(source).get_batch_with_custom_metadata(place)
        batch.validate(full=True)  # or damage becomes a crash
        rows = _from_batch(batch)
        if meta and _DIGEST in meta and meta[_DIGEST].decode("ascii", "replace") != _digest_of(rows):
            raise ValueError(f"the rows of shard {shard} are not those that were stored")
    except (OSError, pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"the stored plan {path} cannot be read: {error}",
            hint=f"shardtool pack SRC {out} --rescan plans again from the source, and keeps the shards that are packed",
            where={"path": path, "shard": shard},
        ) from error
    return rows


def _from_batch(batch: Any) -> ShardRows:
    parts = batch.column("parts")
    fields = parts.values
    labels, names = batch.column("label"), [field.name for field in fields.type]
    return ShardRows(
        keys=batch.column("key"),
        labels=None if labels.null_count == len(labels) else labels.to_numpy(zero_copy_only=False).astype(np.int32),
        part_start=parts.offsets.to_numpy().astype(np.int64),
        names=fields.field("name"),
        source=fields.field("source"),
        roots=fields.field("root").to_numpy(),
        sizes=fields.field("bytes").to_numpy(),
        mtimes_ns=fields.field("mtime_ns").to_numpy(),
        data=fields.field("data"),
        versions=fields.field("version") if _VERSION.name in names else None,
        offsets=fields.field("offset").to_numpy() if _OFFSET.name in names else None,
    )


def encode_plan(stored: StoredPlan) -> bytes:
    """plan.json: head first, then one shard a line."""
    head = {
        "schema": SCHEMA,
        "plan_id": stored.plan_id,
        "created_by": f"shardtool {__version__}",
        "options": stored.options.document(),
        "sources": list(stored.roots),
        "membership": stored.membership,
        "ledger": stored.ledger.document(),
        "labels": list(stored.label_names),
        "settings": stored.settings.document(),
        **({"given": list(stored.given)} if stored.given else {}),
    }
    lines = [
        json.dumps([spec.split, spec.path, spec.start, spec.stop, spec.num_bytes, spec.payload_bytes])
        for spec in stored.shards
    ]
    text = json.dumps(head, indent=1)
    return (text[:-2] + ',\n "shards": [\n' + ",\n".join(f"  {line}" for line in lines) + "\n ]\n}\n").encode()


def load_plan(out: str) -> StoredPlan | None:
    """The plan stored in `out`, a folder or URL; None where none is, or where planning was killed.

    Raises:
        FormatError: plan.json is there and no plan of ours.
    """
    path = open_place(out).shown(PLAN_JSON)
    try:
        data = open_place(out).read(PLAN_JSON)
    except FileNotFoundError:
        return None
    try:
        return _decode(json.loads(data))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is no plan of this version: {error}",
            hint="--overwrite plans and packs again",
            where={"path": path},
        ) from error


def _decode(document: dict[str, Any]) -> StoredPlan:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    ledger = document["ledger"]
    ignored = {reason: int(count) for reason, count in ledger["ignored"].items()}
    return StoredPlan(
        plan_id=str(document["plan_id"]),
        options=_options(document["options"]),
        roots=_texts(document["sources"]),
        shards=tuple(_decode_spec(*fields) for fields in document["shards"]),
        ledger=Ledger(int(ledger["seen"]), ignored, int(ledger["failed"])),
        label_names=_texts(document["labels"]),
        membership=document["membership"],
        settings=Settings.from_document(document["settings"]),
        given=_texts(document.get("given", [])),
    )


def _options(document: dict[str, Any]) -> PlanOptions:
    """The options, where each has a value of its type."""
    options = PlanOptions.from_document(document)
    for name, value in vars(options).items():
        if name != "tokens" and type(value) is not type(vars(_DEFAULTS)[name]):
            raise TypeError(f"option {name} is {value!r}")
    return options


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} where texts should be")
    return tuple(values)


def _decode_spec(split: str, path: str, start: int, stop: int, num_bytes: int, payload_bytes: int) -> ShardSpec:
    """One planned shard, where its path stays inside the folder."""
    split, path = _texts([split, path])
    numbers = (start, stop, num_bytes, payload_bytes)
    if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers) or stop < start:
        raise ValueError(f"shard {path!r} with numbers {numbers}")
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"path {path!r} leads out of the folder, or is none")
    return ShardSpec(split, path, start, stop, num_bytes, payload_bytes)
