"""Arrow shards as `save_to_disk` of Hugging Face datasets lays them out: an IPC stream a shard, files of state beside.

The record batches are those of `--format arrow`; what differs lies around them. A stream has no table of its batches:
they are found by their heads, one small read each. Byte layout: docs/formats/arrow.md.
Source: huggingface/datasets:src/datasets/{arrow_dataset,dataset_dict}.py, release 5.2; apache/arrow:format/Message.fbs.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import xxhash

from shardtool.formats import arrow
from shardtool.formats.offset_table import below_split, json_file, shards_by_split
from shardtool.names import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import OpenShards
    from shardtool.formats.cells import RowParts
    from shardtool.model import Manifest, ManifestShard, ShardRows

CONTINUATION = b"\xff\xff\xff\xff"  # before the length of every head
END = CONTINUATION + bytes(4)
PREFIX_BYTES = 8
HEAD_BYTES = 4096  # read at once: a head of many columns takes a second read
MAX_HEAD_BYTES = 16 << 20
BODY_LENGTH = 3  # field of a Message


class StreamBatches:
    """The record batches of an IPC stream, in the order of the stream; none is read before it is asked for.

    Args:
        source: a pyarrow file to seek in.

    Raises:
        ValueError: it is no stream, or it is cut short.
    """

    def __init__(self, source: Any) -> None:
        self._source, size, place = source, source.size(), 0
        self._places: list[tuple[int, int]] = []  # first byte and size of each message
        while place < size:
            head_bytes, body_bytes = _sizes(source, place)
            if head_bytes == PREFIX_BYTES:
                break
            self._places.append((place, head_bytes + body_bytes))
            place += head_bytes + body_bytes
        if place + len(END) != size or not self._places:
            raise ValueError("the stream has no end where it should")
        self._schema = pa.ipc.read_schema(self._message(0))

    @property
    def num_record_batches(self) -> int:
        """Batches of the stream."""
        return len(self._places) - 1

    def get_batch(self, number: int) -> Any:
        """One of them, out of the map where the file is mapped."""
        return pa.ipc.read_record_batch(self._message(number + 1), self._schema)

    def _message(self, number: int) -> Any:
        place, size = self._places[number]
        self._source.seek(place)
        return self._source.read_buffer(size)


def _sizes(source: Any, place: int) -> tuple[int, int]:
    """(bytes of the head with its prefix, bytes of the body) of the message at `place`; 8 and 0 at the end."""
    source.seek(place)
    head = source.read(HEAD_BYTES)
    try:
        marker, length = struct.unpack_from("<4si", head)
        if marker != CONTINUATION or not 0 <= length <= MAX_HEAD_BYTES:
            raise ValueError(f"no head of a message at byte {place:,}")
        if length == 0:
            return PREFIX_BYTES, 0
        if len(head) < PREFIX_BYTES + length:
            source.seek(place)
            head = source.read(PREFIX_BYTES + length)
        body = _body_bytes(head[PREFIX_BYTES:])
    except struct.error as error:
        raise ValueError(f"the head of a message at byte {place:,} is cut short") from error
    if body < 0:
        raise ValueError(f"the message at byte {place:,} has a size below zero")
    return PREFIX_BYTES + length, body


def _body_bytes(message: bytes) -> int:
    """The field bodyLength of a Message; absent where it is 0. How tables lie: flatbuffers.dev/internals."""
    (table,) = struct.unpack_from("<I", message)
    (back,) = struct.unpack_from("<i", message, table)
    fields = table - back
    if fields < 0:
        raise struct.error
    (fields_bytes,) = struct.unpack_from("<H", message, fields)
    slot = 4 + 2 * BODY_LENGTH
    if fields_bytes < slot + 2:
        return 0
    (place,) = struct.unpack_from("<H", message, fields + slot)
    return int(struct.unpack_from("<q", message, table + place)[0]) if place else 0


STREAM = arrow.Container(head=b"", end=END, block_bytes=0, writer=pa.ipc.new_stream, batches=StreamBatches)


@dataclass(frozen=True)
class ArrowStreamFormat(arrow.ArrowFormat):
    """Arrow IPC streams that `datasets.load_from_disk` maps, a folder a split."""

    name: str = "arrow-stream"
    layout: str = f"arrow-stream/1 pyarrow/{pa.__version__}"
    container: ClassVar[arrow.Container] = STREAM

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """What stands before every head, and the end of the stream."""
        return CONTINUATION, END

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """dataset_dict.json, and dataset_info.json and state.json of each split."""
        by_split = shards_by_split(manifest)
        features = json.loads(self.columns.schema.metadata[b"huggingface"])["info"]["features"]
        yield f"{DATA}/dataset_dict.json", json_file({"splits": list(by_split)})
        for split, shards in by_split.items():
            yield f"{DATA}/{split}/dataset_info.json", json_file({"features": features})
            yield f"{DATA}/{split}/state.json", json_file(_state(split, shards))


def _state(split: str, shards: list[ManifestShard]) -> dict[str, Any]:
    """state.json; the fingerprint, which datasets keys its caches by, follows from the digests of the shards."""
    digests = "".join(shard.files[0].xxh3_128 for shard in shards)
    return {
        "_data_files": [{"filename": below_split(shard.path)} for shard in shards],
        "_fingerprint": xxhash.xxh3_64_hexdigest(digests.encode()),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }


def open_parts(dataset: OpenShards, shard: int) -> RowParts:
    """A reader of the parts of shard k."""
    return arrow.open_parts(dataset, shard, STREAM)
