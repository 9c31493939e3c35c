"""Shard formats: a table of names, resolved when one is used, and what each has to offer.

Adding one = a module with a `Format`, a line in `FORMATS`, a conformance class, a page in docs/formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from shardtool.errors import UnknownFormat, UsageProblem
from shardtool.plugins import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows, UInt64Array
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

FORMATS = {
    "tar": "shardtool.formats.tar:TarFormat",
    "bin": "shardtool.formats.bin:BinFormat",
    "parquet": "shardtool.formats.parquet:ParquetFormat",
    "arrow": "shardtool.formats.arrow:ArrowFormat",
    "arrow-stream": "shardtool.formats.arrow_stream:ArrowStreamFormat",
    "tfrecord": "shardtool.formats.tfrecord:TFRecordFormat",
    "mds": "shardtool.formats.mds:MdsFormat",
    "litdata": "shardtool.formats.litdata:LitDataFormat",
}
MAX_SHARD_BYTES = {"mds": (1 << 32) - 1, "litdata": (1 << 32) - 1}  # their offsets have 32 bits
PARTS_READERS = {  # of formats whose addressing is ROWS: called with (dataset, shard)
    "parquet": "shardtool.formats.parquet:open_parts",
    "arrow": "shardtool.formats.arrow:open_parts",
    "arrow-stream": "shardtool.formats.arrow_stream:open_parts",
}
MEDIA_FORMATS = ("parquet", "arrow", "arrow-stream")  # whose columns can be images, audio and video

BYTES = "bytes"  # a sample is a run of bytes of the shard, its parts lie inside it
CELLS = "cells"  # a part is a run of bytes of the shard; the parts of a sample lie apart
ROWS = "rows"  # a sample is a row of a row group; the format's own reader finds its parts


@dataclass(frozen=True)
class Column:
    """One part name over a whole plan, as formats with a schema see it."""

    name: bytes
    kind: str  # "binary", "string" or "int64"; in MEDIA_FORMATS also "image", "audio" or "video"
    is_required: bool  # every sample has it


@dataclass(frozen=True)
class Settings:
    """All that decides the bytes of a shard besides its samples; stored with the plan, part of plan_id."""

    columns: tuple[Column, ...] = ()  # by name; () for formats without a schema
    compress: str = "none"  # "zstd:3"

    def document(self) -> dict[str, Any]:
        """As JSON; empty for the defaults."""
        document: dict[str, Any] = {}
        if self.columns:
            document["columns"] = [[c.name.decode("latin-1"), c.kind, c.is_required] for c in self.columns]
        if self.compress != "none":
            document["compress"] = self.compress
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Settings:
        """The inverse of `document`."""
        columns = document.get("columns", [])
        return cls(
            tuple(Column(name.encode("latin-1"), kind, bool(required)) for name, kind, required in columns),
            document.get("compress", "none"),
        )


@dataclass(frozen=True)
class WrittenShard:
    """Where everything lies in a shard that was written, in the terms of the format's addressing.

    `bytes`: bytes of the shard file (of what it decompresses to, where it is compressed). `rows`: sample_offset is the
    row group, sample_bytes the row in it, part_offset the number of the part's column. `cells`: part_offset is a byte
    of the shard file, the others as for `rows`.
    """

    sample_offset: Int64Array  # int64[num_samples]
    sample_bytes: Int64Array  # int64[num_samples]
    part_offset: Int64Array  # int64[num_parts]
    part_xxh3_64: UInt64Array  # digest of each part, uint64[num_parts]
    meta: dict[str, Any] = field(default_factory=dict)  # more for the metadata of the index, as zstd frames
    raw_bytes: int = 0  # of the shard before compression; 0 where it is not compressed
    raw_xxh3_128: str = ""


@dataclass(frozen=True)
class ShardLayout:
    """Where everything lies, for formats in which that follows from names and sizes alone; fields of WrittenShard."""

    sample_offset: Int64Array
    sample_bytes: Int64Array
    part_offset: Int64Array
    num_bytes: int  # of the shard file


class StructureCheck(Protocol):
    """Looks at the bytes of a shard that are not payload, while the whole of it passes by."""

    def look(self, base: int, piece: memoryview) -> None:
        """Take the piece of the shard that begins at byte `base`, a multiple of 512."""

    def bad_parts(self, path: str) -> list[int]:
        """Rows of the parts whose container bytes, in the file `path`, are not what they should be."""


class OpenShards(Protocol):
    """What a reader of parts needs of an open data set."""

    path: str
    manifest: Manifest

    def shard_path(self, shard: int) -> str:
        """Path or URL of the file of shard k."""

    def index(self, shard: int) -> ShardIndex:
        """The index of shard k."""


class PartsReader(Protocol):
    """Reads the parts of one open shard whose addressing is `rows`."""

    def read_parts(self, low: int, high: int) -> list[bytes]:
        """Bytes of the parts [low, high) of the index, as they were packed."""

    def close(self) -> None:
        """Let go of what is open."""


class Format(Protocol):
    """How samples become the bytes of a shard. A frozen dataclass; its first argument is `settings`."""

    settings: Settings
    name: str
    suffix: str
    layout: str  # version of the byte layout; enters plan_id
    addressing: str  # BYTES, CELLS or ROWS
    is_exact: bool  # planned sizes are the real ones; else upper bounds
    has_schema: bool  # needs the columns of the whole plan

    def check(self, table: SampleTable) -> None:
        """Refuse what the format cannot hold, all of it in one error.

        Raises:
            BadKey, PlanError: names or sizes beyond the format's limits.
        """

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: encoded bytes of each sample, exact or a proven upper bound (before compression)."""

    def shard_overhead(self, num_samples: int) -> int:
        """Header and trailer bytes of a shard with that many samples; never less for more samples."""

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write the shard and say where each part lies."""

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout | None:
        """Where everything will lie, where that follows from names and sizes; None where only writing tells."""

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck | None:
        """A check of container bytes for `verify --deep` and `index`; None where digests have to do."""

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """(first bytes, last bytes) of the shard as far as names and sizes tell them; b"" for what they do not."""

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """(path, bytes) of files that the format's own readers need beside the shards; written before the manifest."""


def get_format(name: str, settings: Settings | None = None) -> Format:
    """The format called `name`.

    Raises:
        UnknownFormat: no such name.
    """
    if name not in FORMATS:
        raise UnknownFormat(f"{name!r} is no format", hint=f"one of: {', '.join(FORMATS)}")
    make = cast("Callable[[Settings], Format]", resolve(FORMATS[name]))
    return make(settings or Settings())


def open_parts(dataset: OpenShards, shard: int) -> PartsReader:
    """A reader of the parts of shard k of a data set whose addressing is ROWS."""
    return cast("PartsReader", resolve(PARTS_READERS[dataset.manifest.format])(dataset, shard))


def columns_of(table: SampleTable, schema: dict[str, str], *, has_media: bool = False) -> tuple[Column, ...]:
    """The columns that the samples of a plan need: one a part name, by name.

    Raises:
        UsageProblem: `schema` names a part that no sample has, or a medium where the format has none.
    """
    import numpy as np

    names = dict.fromkeys(table.part_names, 0)
    counts = np.bincount(table.part_name, minlength=len(table.part_names)).tolist()
    for name, count in zip(table.part_names, counts, strict=True):
        names[name] += count
    for part in table.generated:
        names[part.name] = names.get(part.name, 0) + int((part.codes >= 0).sum())
    used = sorted(name for name, count in names.items() if count)
    _check_schema(schema, used, has_media=has_media)
    kinds = column_kinds(used, schema, has_media=has_media)
    return tuple(Column(name, kind, names[name] == table.num_samples) for name, kind in zip(used, kinds, strict=True))


def _check_schema(schema: dict[str, str], used: list[bytes], *, has_media: bool) -> None:
    names = [_shown(name) for name in used]
    for name, kind in schema.items():
        if name not in names:
            raise UsageProblem(f"--schema names {name!r}, which no sample has", hint=f"there are: {', '.join(names)}")
        if kind in MEDIA and not has_media:
            raise UsageProblem(
                f"--schema {name}={kind}: only {', '.join(MEDIA_FORMATS)} have columns of {kind}", hint="take binary"
            )


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def column_kinds(names: Sequence[bytes], schema: dict[str, str], *, has_media: bool = False) -> list[str]:
    """Kind of each part name: as `schema` says, else by name.

    `cls` is int64, text and JSON string, pictures, sounds and films are media where the format has them, the rest is
    binary.
    """
    found = []
    for name in names:
        last = _shown(name).rpartition(".")[2].lower()
        default = "int64" if last in _NUMBERS else "string" if last in _TEXTS else "binary"
        if has_media:
            default = next((kind for kind, suffixes in MEDIA.items() if last in suffixes), default)
        found.append(schema.get(_shown(name), default))
    return found


MEDIA = {
    "image": ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"),
    "audio": ("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"),
    "video": ("mp4", "webm", "mkv", "mov", "avi"),
}
KINDS = ("binary", "string", "int64", *MEDIA)


def parse_schema(texts: Sequence[str]) -> dict[str, str]:
    """{part name: kind} from `NAME=KIND` texts.

    Raises:
        UsageProblem: one of them is something else.
    """
    found = {}
    for text in texts:
        name, separator, kind = text.rpartition("=")
        if not separator or not name or kind not in KINDS:
            raise UsageProblem(f"--schema {text!r} is not PART=KIND", hint=f"KIND is one of {', '.join(KINDS)}")
        found[name] = kind
    return found


_NUMBERS = ("cls", "index", "inx", "id")
_TEXTS = ("txt", "text", "json", "jsonl", "caption", "transcript", "csv", "tsv", "md", "xml", "html", "yaml", "yml")
