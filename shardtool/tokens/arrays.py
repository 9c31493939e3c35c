"""Arrays of numpy with token ids: a document is a row, or all of an array in one dimension. No pickle is loaded."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy

from shardtool.errors import ShardtoolError, SourceError
from shardtool.tokens.files import first_bytes, on_disk, stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.tokens.files import InputFile

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
    """Rows [first, last) of an array; of an object one request, or by way of a copy where its order is Fortran's.

    Raises:
        SourceChanged: it is not the object that was listed.
    """
    if file.is_remote and head.order == "C":
        data = stretch(file, head.offset + first * head.row_bytes, (last - first) * head.row_bytes)
        return np.frombuffer(data, head.dtype).reshape(last - first, *head.shape[1:])
    with on_disk(file) as stream:
        rows: NDArray[Any] = np.memmap(
            stream, head.dtype, mode="r", offset=head.offset, shape=head.shape, order=head.order
        )[first:last]
    return rows
