"""What Parquet and Arrow shards share: a column a part and one for the key, rows in groups, parts read to their cells.

In: the rows of a shard and a reader of their bytes. Out: record batches whose buffers are the slab that was read to; no
Python object a cell. Memory: the slab of one group, which holds one sample at least.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool import columns
from shardtool.errors import BadKey, PlanError
from shardtool.keys import is_utf8
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from shardtool.formats import Column, Settings
    from shardtool.model import BinaryArray, Int32Array, Int64Array, SampleTable, ShardRows, UInt64Array
    from shardtool.sources.reader import PartReader

FEATURES = {"image": "Image", "audio": "Audio", "video": "Video"}  # kind: its feature of Hugging Face datasets
CHECKED = ("int64", "string")  # kinds of columns that do not hold just any bytes
VALUES = {"binary": pa.binary(), "string": pa.string(), "int64": pa.int64()}
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # as datasets 5.2.0 wants it, or it does not decode
MAX_CELL_BYTES = (1 << 31) - 1  # offsets of binary are int32, lengths in Parquet uint32 read as int32
MAX_DIGITS = 20  # of an int64, with its sign
CELL_BYTES = 4  # the length in Parquet, the offset in Arrow
ALIGNMENT = 64  # of columns in the slab
SLAB_BYTES = 9 << 20  # of the slab that is kept, a full row group; larger ones last for their group
SHOWN = 5


@dataclass(frozen=True)
class Layout:
    """The columns of a data set."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, settings: Settings) -> Layout:
        """The columns that the settings name."""
        return cls(settings.columns)

    @cached_property
    def key_name(self) -> str:
        """`key`, or `__key__` where a part is called so."""
        name, taken = "key", {column.name for column in self.columns}
        while name.encode() in taken:
            name = f"__{name}__"
        return name

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema, with what Hugging Face datasets wants to know in its metadata."""
        fields = [pa.field(self.key_name, pa.string())]
        features: dict[str, Any] = {self.key_name: {"dtype": "string", "_type": "Value"}}
        for column in self.columns:
            name = column.name.decode()
            fields.append(pa.field(name, VALUES.get(column.kind, MEDIA)))
            is_media = column.kind in FEATURES
            value = {"dtype": column.kind, "_type": "Value"}
            features[name] = {"_type": FEATURES[column.kind]} if is_media else value
        info = json.dumps({"info": {"features": features}}, separators=(",", ":"))
        return pa.schema(fields, metadata={"huggingface": info})

    @property
    def leaves(self) -> list[tuple[str, str]]:
        """(path, kind) of each column that holds values; a medium has two."""
        found = [(self.key_name, "string")]
        for column in self.columns:
            name = column.name.decode()
            is_media = column.kind in FEATURES
            found += [(f"{name}.bytes", column.kind), (f"{name}.path", "path")] if is_media else [(name, column.kind)]
        return found

    def codes(self, names: BinaryArray) -> Int32Array:
        """int32[num_parts]: the column of each part."""
        places = {column.name: place for place, column in enumerate(self.columns)}
        encoded = names.dictionary_encode()
        table = np.array([places[name] for name in columns.to_list(encoded.dictionary)], np.int32)
        codes: Int32Array = table[encoded.indices.to_numpy()]
        return codes


# Planning


def check_cells(table: SampleTable, columns_: tuple[Column, ...]) -> None:
    """Refuse names that are no text, cells that are too large, and numbers that are too long, before anything is read.

    Raises:
        BadKey: keys or part names that are not UTF-8.
        PlanError: parts that their column cannot hold.
    """
    _check_names(table)
    kinds = {column.name: column.kind for column in columns_}
    limits = np.array(
        [MAX_DIGITS if kinds.get(name) == "int64" else MAX_CELL_BYTES for name in table.part_names] + [0], np.int64
    )
    sizes = table.entries.sizes[table.part_entry]
    over = np.flatnonzero(sizes > limits[table.part_name])
    if len(over) == 0:
        return
    owners = np.searchsorted(table.part_start, over[:SHOWN], side="right") - 1
    names = [table.part_names[code] for code in table.part_name[over[:SHOWN]].tolist()]
    keys = keys_of(table, owners)
    lines = [
        f"  {_show(key)}.{_show(name)}: {int(size):,} bytes"
        for key, name, size in zip(keys, names, sizes[over[:SHOWN]], strict=True)
    ]
    is_number = kinds.get(names[0]) == "int64"
    what = f"numbers have {MAX_DIGITS} digits" if is_number else f"a cell holds {MAX_CELL_BYTES:,} bytes"
    raise PlanError(
        f"{len(over):,} parts do not fit their column, where {what} at most\n" + "\n".join(lines),
        hint=f"--schema {_show(names[0])}=binary keeps bytes as they are" if is_number else "--format tar holds them",
    )


def _check_names(table: SampleTable) -> None:
    parts = [*table.part_names, *(part.name for part in table.generated)]
    bad = [name for name in parts if not is_utf8(name)] or _bad_keys(table)
    if bad:
        shown = "\n".join(f"  {_show(name)}" for name in bad[:SHOWN])
        raise BadKey(
            f"{len(bad):,} names are not UTF-8, and columns are named and keyed by text\n{shown}",
            hint="--escape-names writes such bytes as %XX; --format tar holds any name",
        )


def _bad_keys(table: SampleTable) -> list[bytes]:
    """Keys that are not UTF-8. Looks at them only where a path is not, or the rule may cut inside a character."""
    if table.rule.is_contiguous:
        try:
            table.entries.names.cast(pa.large_string())
            b"\0".join(table.entries.dirs).decode()
        except (pa.ArrowInvalid, UnicodeDecodeError):
            pass
        else:
            return []
    return [key for key in keys_of(table, np.arange(table.num_samples)) if not is_utf8(key)]


def cell_bytes(table: SampleTable, columns_: tuple[Column, ...]) -> Int64Array:
    """int64[num_samples]: bytes of each sample's cells with their lengths; what groups are cut by."""
    kinds = {column.name: column.kind for column in columns_}
    is_number = np.array([kinds.get(name) == "int64" for name in table.part_names] + [False], bool)
    sizes = np.where(is_number[table.part_name], 8, table.entries.sizes[table.part_entry] + CELL_BYTES)
    total = table.sum_over_parts(sizes) + table.key_bytes + CELL_BYTES
    for part in table.generated:
        lengths = [8 if kinds.get(part.name) == "int64" else len(value) + CELL_BYTES for value in part.values]
        total = total + np.array([*lengths, 0], np.int64)[part.codes]
    return total.astype(np.int64)


def row_bytes(rows: ShardRows, layout: Layout) -> Int64Array:
    """int64[num_samples]: `cell_bytes` of the samples of a shard."""
    is_number = np.array([column.kind == "int64" for column in layout.columns] or [False], bool)
    sizes = np.where(is_number[layout.codes(rows.names)], 8, rows.sizes + CELL_BYTES)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    total: Int64Array = np.diff(ends[rows.part_start]) + key_bytes_of(rows) + CELL_BYTES
    return total


def key_bytes_of(rows: ShardRows) -> Int64Array:
    """int64[num_samples]: length of each key."""
    lengths: Int64Array = pc.binary_length(rows.keys).to_numpy().astype(np.int64)
    return lengths


def group_bounds(sizes: Int64Array, max_bytes: int, max_rows: int) -> list[int]:
    """[0, ..., num_samples]: groups of at most `max_bytes` and `max_rows`, or of one sample, each as long as it can be.

    So two groups side by side hold more than `max_bytes` or `max_rows`: there are fewer than
    2 * bytes / max_bytes + num_samples / max_rows + 2.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    bounds, num_samples = [0], len(sizes)
    while bounds[-1] < num_samples:
        first = bounds[-1]
        stop = int(np.searchsorted(ends, ends[first] + max_bytes, side="right")) - 1
        bounds.append(min(max(stop, first + 1), first + max_rows, num_samples))
    return bounds


# Writing


@cache
def _slab() -> mmap.mmap:
    """The slab of this process; private memory, kept from shard to shard."""
    return mmap.mmap(-1, SLAB_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class CellFiller:
    """Makes the record batches of a shard. A batch is valid until the next one is made.

    Args:
        layout: its columns.
        rows: the shard.
        read: gives the bytes of its parts.
    """

    def __init__(self, layout: Layout, rows: ShardRows, read: PartReader) -> None:
        self._layout, self._rows, self._read = layout, rows, read
        self.codes, self._owners = layout.codes(rows.names), rows.owners()
        self.digests: UInt64Array = np.zeros(rows.num_parts, np.uint64)

    def batch(self, low: int, high: int) -> Any:
        """The samples [low, high) as a record batch, their parts read, checked and digested.

        Raises:
            SourceError: a part cannot be read as planned.
            PlanError: a part does not fit its column.
        """
        keys, filled = self.fill(low, high)
        return pa.record_batch([keys, *(column.array for column in filled)], schema=self._layout.schema)

    def fill(self, low: int, high: int, lead: int = 0) -> tuple[Any, list[FilledColumn]]:
        """(keys, columns) of the samples [low, high), their parts read, checked and digested.

        Args:
            low, high: samples.
            lead: bytes left free before each cell of a column that may hold anything.

        Raises:
            SourceError, PlanError: as `batch`.
        """
        rows, first, last = self._rows, int(self._rows.part_start[low]), int(self._rows.part_start[high])
        codes, owners, sizes = self.codes[first:last], self._owners[first:last] - low, rows.sizes[first:last]
        starts, cells, base = np.zeros(last - first, np.int64), [], 0
        for code, column in enumerate(self._layout.columns):
            chosen = np.flatnonzero(codes == code)
            ends = np.cumsum(sizes[chosen] + (0 if column.kind in CHECKED else lead))
            starts[chosen] = base + ends - sizes[chosen]
            num_bytes = int(ends[-1]) if len(ends) else 0
            cells.append((chosen, base, num_bytes))
            base += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        memory = _slab() if base <= SLAB_BYTES else mmap.mmap(-1, base, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if last > first:
            self.digests[first:last] = self._read.fill(first, last, starts.tolist(), memoryview(memory))
        keys, filled = _keys(rows.keys.slice(low, high - low)), []
        for column, (chosen, start, num_bytes) in zip(self._layout.columns, cells, strict=True):
            data = pa.py_buffer(memoryview(memory)[start : start + num_bytes])
            filled.append(FilledColumn(column, high - low, owners[chosen], sizes[chosen], data))
            try:
                if column.kind in CHECKED:
                    filled[-1].array  # noqa: B018
            except pa.ArrowInvalid:
                raise self._unfit(column, first + chosen, filled[-1]) from None
        return keys, filled

    def _unfit(self, column: Column, parts: Int64Array, cell: FilledColumn) -> PlanError:
        name = column.name.decode()
        found = cell.misfits()
        key = self._rows.keys[int(self._owners[parts[found[0][0]]])].as_py().decode()
        what = "a whole number in its shortest form" if column.kind == "int64" else "UTF-8 text"
        more = f", nor are {len(found) - 1:,} more near it" if len(found) > 1 else ""
        return PlanError(
            f"{key}.{name} is {_short(found[0][1])}{more}: column {name} is {column.kind}, which holds {what}",
            hint=f"--schema {name}=binary keeps the bytes as they are; with --overwrite, or to a new folder",
            where={"key": key, "part": name},
        )


@dataclass(frozen=True, eq=False)
class FilledColumn:
    """The bytes of one column of one group, side by side, or after what was left free before each."""

    column: Column
    num_rows: int
    rows: Int64Array  # of the samples that have the part
    sizes: Int64Array
    data: Any

    @cached_property
    def array(self) -> Any:
        """The Arrow array.

        Raises:
            pyarrow.ArrowInvalid: a value does not fit the kind of the column.
        """
        kind = self.column.kind
        if kind == "int64":
            return self._numbers()
        plain = self._plain(pa.string() if kind == "string" else pa.binary())
        if kind == "string":
            plain.validate(full=True)
        if kind not in FEATURES:
            return plain
        children = [plain, _no_texts(self.num_rows)]
        null_count = self.num_rows - len(self.rows)
        return pa.Array.from_buffers(
            MEDIA, self.num_rows, [plain.buffers()[0]], null_count=null_count, children=children
        )

    def _plain(self, kind: Any) -> Any:
        lengths = np.zeros(self.num_rows, np.int32)
        lengths[self.rows] = self.sizes
        offsets = np.zeros(self.num_rows + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        null_count = self.num_rows - len(self.rows)
        buffers = [self._validity(), pa.py_buffer(offsets), self.data]
        return pa.Array.from_buffers(kind, self.num_rows, buffers, null_count=null_count)

    def _validity(self) -> Any:
        if len(self.rows) == self.num_rows:
            return None
        flags = np.zeros(self.num_rows, bool)
        flags[self.rows] = True
        return pa.py_buffer(np.packbits(flags, bitorder="little"))

    def _numbers(self) -> Any:
        texts = self._plain(pa.string())
        texts.validate(full=True)
        numbers = pc.cast(texts, pa.int64())
        if pc.any(pc.not_equal(pc.cast(numbers, pa.string()), texts)).as_py():
            raise pa.ArrowInvalid("not in the shortest form")
        return numbers

    def misfits(self) -> list[tuple[int, bytes]]:
        """(which of the parts, its bytes) of each that does not fit; slow, for messages."""
        data, ends = memoryview(self.data), np.cumsum(self.sizes).tolist()
        values = [bytes(data[end - size : end]) for end, size in zip(ends, self.sizes.tolist(), strict=True)]
        fits = _is_number if self.column.kind == "int64" else is_utf8
        return [(place, value) for place, value in enumerate(values) if not fits(value)]


def _no_texts(num_rows: int) -> Any:
    """Nulls of type string; those of `pa.nulls` share one buffer, which an IPC file holds whole."""
    validity, offsets = np.zeros(-(-num_rows // 8), np.uint8), np.zeros(num_rows + 1, np.int32)
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.string(), num_rows, buffers, null_count=num_rows)


def _keys(array: BinaryArray) -> Any:
    """binary -> string, the same bytes; an array of its own, so that no more than it holds is written."""
    offsets = columns.offsets_of(array)
    data = array.buffers()[2]
    own = pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    buffers = [None, pa.py_buffer((offsets - offsets[0]).astype(np.int32)), own]
    texts = pa.Array.from_buffers(pa.string(), len(array), buffers, null_count=0)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadKey(f"a key is not UTF-8: {error}", hint="--escape-names writes such bytes as %XX") from error
    return texts


def _is_number(value: bytes) -> bool:
    try:
        number = int(value)
    except ValueError:
        return False
    return str(number).encode() == value and -(1 << 63) <= number < 1 << 63


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _short(value: bytes) -> str:
    return repr(value) if len(value) <= 40 else f"{value[:40]!r}..."
