"""Decoders for the kinds of parts that need no codec: json, txt, cls, npy and token ids. All else stays bytes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import FormatError, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardtool.manifest import Manifest

__all__ = ["DECODERS", "TOKENS", "decoder_for", "decoders_named", "token_dtype"]


TOKENS = "tokens"  # the one part of a sequence of format bin


def _array(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


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
    known = (*DECODERS, TOKENS)
    names = known if decode is True else () if decode is False else tuple(decode)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageProblem(
            f"there is no decoder for {unknown[0]!r}",
            hint=f"decode= takes {', '.join(known)}; decode anything else in transform=",
        )
    return names


def token_dtype(manifest: Manifest) -> np.dtype[Any] | None:
    """Type of the ids where samples are sequences of tokens, from the manifest; None where they are not."""
    if manifest.format != "bin":
        return None
    dtype: str = manifest.membership.get("tokens", {}).get("dtype", "uint16")
    return np.dtype(dtype)


def decoder_for(part: str, kinds: tuple[str, ...], ids: np.dtype[Any] | None = None) -> Callable[[bytes], Any] | None:
    """The decoder of a part by what follows its last dot (`seg.npy`, `json`); None leaves it bytes.

    Args:
        part: its name.
        kinds: to decode, from `decoders_named`.
        ids: type of token ids, where the data set holds sequences of them; without it `tokens` is a name like any.
    """
    kind = part.rpartition(".")[2]
    if kind not in kinds or (kind == TOKENS and ids is None):
        return None
    # a bytearray: an array over bytes may not be written, and torch warns of it
    decode = DECODERS[kind] if ids is None or kind != TOKENS else lambda data: np.frombuffer(bytearray(data), ids)

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:  # the latter from JSON that is nested too deep
            raise FormatError(f"part {part!r} is no {kind}: {error}", hint=f"leave {kind} out of decode=") from error

    return checked
