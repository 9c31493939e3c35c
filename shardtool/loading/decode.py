"""Decoders for the four kinds of parts that need no codec: json, txt, cls and npy. Everything else stays bytes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from shardtool.errors import FormatError, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DECODERS", "decoder_for", "decoders_named"]


def _array(data: bytes) -> Any:
    import numpy as np

    return np.load(io.BytesIO(data), allow_pickle=False)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "txt": bytes.decode,  # UTF-8
    "cls": int,
    "npy": _array,  # never a pickle
}


def decoders_named(decode: bool | Iterable[str]) -> tuple[str, ...]:
    """The kinds to decode: all for True, none for False, or those named.

    Raises:
        UsageProblem: a kind that has no decoder here.
    """
    names = tuple(DECODERS) if decode is True else () if decode is False else tuple(decode)
    unknown = [name for name in names if name not in DECODERS]
    if unknown:
        raise UsageProblem(
            f"there is no decoder for {unknown[0]!r}",
            hint=f"decode= takes {', '.join(DECODERS)}; decode anything else in transform=",
        )
    return names


def decoder_for(part: str, kinds: tuple[str, ...]) -> Callable[[bytes], Any] | None:
    """The decoder of a part by what follows its last dot (`seg.npy`, `json`); None leaves it bytes."""
    kind = part.rpartition(".")[2]
    if kind not in kinds:
        return None
    decode = DECODERS[kind]

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except ValueError as error:
            raise FormatError(f"part {part!r} is no {kind}: {error}", hint=f"leave {kind} out of decode=") from error

    return checked
