"""Arrays of numpy with token ids: a document is a row, or all of an array in one dimension. No pickle is loaded."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy

from shardtool.errors import ShardtoolError, SourceError
from shardtool.tokens.files import first_bytes, on_disk, read_into

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.tokens.files import InputFile

HELD_BYTES = 64 << 20  # of an array in one dimension that is read whole; a larger one is copied to a disk and mapped
HEAD_BYTES = 16 << 10  # numpy itself refuses headers above 10,000 characters
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class ArrayHead:
    """What the header of an `.npy` tells."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]  # F: values of a column lie together
    dtype: Any
    offset: int  # byte of the first value

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; of a value, in one dimension."""
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)


def array_head(file: InputFile) -> ArrayHead:
    """The header of an array of whole numbers in one or two dimensions.

    Raises:
        SourceError: something else, or one that is cut short.
    """
    try:
        head = _read_head(io.BytesIO(first_bytes(file, HEAD_BYTES)))
    except ShardtoolError:
        raise  # of a store
    except (OSError, ValueError, EOFError) as error:
        raise _no_array(file, error) from error
    if len(head.shape) not in (1, 2) or head.dtype.kind not in "iu":
        raise SourceError(
            f"{file.full_path} has shape {head.shape} of {head.dtype}, expected ids in one or two dimensions",
            hint="a row is a document",
            where={"path": file.full_path},
        )
    wanted = head.offset + head.shape[0] * head.row_bytes
    if wanted > file.size:
        raise _no_array(file, f"it has {file.size:,} bytes, and its header says {wanted:,}")
    return head


def _read_head(stream: io.BytesIO) -> ArrayHead:
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the header is for other values than numbers")
    shape, is_by_column, dtype = _HEADERS[version](stream)
    return ArrayHead(shape, "F" if is_by_column else "C", dtype, stream.tell())


def _no_array(file: InputFile, why: object) -> SourceError:
    return SourceError(
        f"{file.full_path} is no array of numpy: {why}",
        hint="raw ids without a header are no .npy: merge them as .bin with an .idx",
        where={"path": file.full_path},
    )


def array_rows(file: InputFile, head: ArrayHead, first: int, last: int) -> NDArray[Any]:
    """Rows [first, last) of an array; of an object by one request, and held once, or by way of a copy on a disk.

    A copy is made where its order is Fortran's, or where it has one dimension and more than `HELD_BYTES`.

    Raises:
        SourceChanged: it is not the object that was listed.
        NoSpace: the copy has no room.
    """
    num_bytes = (last - first) * head.row_bytes
    is_held = len(head.shape) > 1 or num_bytes <= HELD_BYTES
    if file.is_remote and head.order == "C" and is_held:
        data = np.empty(num_bytes, np.uint8)
        read_into(file, head.offset + first * head.row_bytes, data.data)
        rows: NDArray[Any] = data.view(head.dtype).reshape(last - first, *head.shape[1:])
        return rows
    with on_disk(file) as stream:
        mapped = np.memmap(stream, head.dtype, mode="r", offset=head.offset, shape=head.shape, order=head.order)
    return mapped[first:last]
