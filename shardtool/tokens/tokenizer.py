"""Text -> token ids: the built-in byte tokenizer, or a `tokenizer.json` from disk. Nothing is ever fetched.

A `TokenizerSpec` says which ids there are and travels to workers; `encode` turns a batch of texts into ids there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import SourceNotFound, UsageProblem
from shardtool.formats.bin_index import DTYPES
from shardtool.packing.receipts import digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.model import Int64Array
    from shardtool.token_options import TokenOptions

BYTES_EOD, BYTES_VOCAB = 256, 257
FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
RECYCLE_BYTES = 256 << 20  # of text, after which a tokenizer is loaded anew: its caches never shrink
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOT>", "[EOS]", "<|im_end|>")


@dataclass(frozen=True)
class TokenizerSpec:
    """What turns text into ids, and which ids frame a document."""

    name: str  # bytes, none, or the path of a tokenizer.json
    xxh3_128: str = ""  # of that file
    vocab_size: int = 0  # largest id + 1; 0 where it is not known
    eod: int | None = None
    bos: int | None = None
    pad: int | None = None
    special_tokens: bool = False

    @property
    def is_none(self) -> bool:
        """Documents are ids already."""
        return self.name == "none"

    @property
    def largest_id(self) -> int:
        """The largest id that a document can hold, what frames it included; bytes have 256 as their end alone."""
        frame = [token for token in (self.eod, self.bos, self.pad) if token is not None]
        return max([*frame, 0xFF if self.name == "bytes" else max(self.vocab_size - 1, 0)])

    def identity(self) -> list[Any]:
        """What of it can change an id; not the place of the file."""
        kind = self.name if self.name in ("bytes", "none") else self.xxh3_128
        return [kind, self.eod, self.bos, self.pad, self.special_tokens]


def resolve_tokenizer(options: TokenOptions) -> TokenizerSpec:
    """The tokenizer that the options name, with its ids.

    Raises:
        SourceNotFound: there is no such file.
        UsageProblem: no tokenizer, an unknown token, or the extra is not installed.
    """
    name = options.tokenizer
    if name == "bytes":
        tokens = {"<eod>": BYTES_EOD}
        spec = TokenizerSpec("bytes", vocab_size=BYTES_VOCAB)
        default: int | None = BYTES_EOD
    elif name == "none":
        tokens, default, spec = {}, None, TokenizerSpec("none")
    else:
        path = _file_of(name)
        tokens, size, default = _vocabulary(path)
        spec = TokenizerSpec(path, digest_of(path), size, special_tokens=options.special_tokens)
    eod = _id(options.eod, "--eod", tokens, spec, default)
    bos = _id(options.bos, "--bos", tokens, spec, None)
    pad = _id(options.pad, "--pad", tokens, spec, eod)
    return TokenizerSpec(spec.name, spec.xxh3_128, spec.vocab_size, eod, bos, pad, spec.special_tokens)


def _file_of(name: str) -> str:
    path = os.path.join(name, FILE) if os.path.isdir(name) else name
    if not os.path.isfile(path):
        raise SourceNotFound(
            f"--tokenizer {name}: there is no file {path}",
            hint=f"give a {FILE}, a folder that holds one, bytes (built in), or none for ids; nothing is downloaded",
            where={"path": path},
        )
    return os.path.abspath(path)


def _vocabulary(path: str) -> tuple[dict[str, int], int, int | None]:
    """({token: id}, largest id + 1, id that ends documents) of a tokenizer file."""
    tokenizer = _load(path, special_tokens=False)
    tokens: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    known = [_configured_end(path), *_ENDS]
    default = next((tokens[token] for token in known if token in tokens), None)
    if default is None:
        default = -1  # asked for by name only
    return tokens, max(tokens.values()) + 1, default


def _configured_end(path: str) -> str:
    """`eos_token` of the tokenizer_config.json beside a tokenizer; "" where there is none."""
    try:
        with open(os.path.join(os.path.dirname(path), CONFIG), encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return ""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _id(text: str, option: str, tokens: dict[str, int], spec: TokenizerSpec, default: int | None) -> int | None:
    if text == "none":
        return None
    if text == "auto":
        if default == -1:
            raise UsageProblem(
                f"{spec.name} has none of the usual tokens that end a document", hint=f"{option} TOKEN, an id, or none"
            )
        return default
    if not text.isdigit():
        if text in tokens:
            return tokens[text]
        raise UsageProblem(f"{option} {text!r} is no token of {spec.name}", hint="an id, a token, or none")
    if spec.vocab_size and int(text) >= spec.vocab_size:
        raise UsageProblem(
            f"{option} {text} is beyond the vocabulary of {spec.vocab_size:,} ids", hint="ids count from 0"
        )
    return int(text)


def _load(path: str, *, special_tokens: bool) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallelism; threads of its own fight them
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageProblem(
            "--tokenizer FILE needs the package tokenizers", hint="pip install 'shardtool[tokenize]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise UsageProblem(
            f"{path} cannot be loaded: {error}",
            hint="a file saved by a newer version of tokenizers needs one at least as new: pip install -U tokenizers",
            where={"path": path},
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not special_tokens
    return tokenizer


@cache
def _loaded(path: str, special_tokens: bool) -> list[Any]:
    """[tokenizer, bytes of text it has seen] of this process."""
    return [_load(path, special_tokens=special_tokens), 0]


def encode(spec: TokenizerSpec, texts: Sequence[bytes], dtype: str) -> tuple[NDArray[Any], Int64Array]:
    """(ids one after the other, tokens of each text) of a batch of UTF-8 texts.

    Raises:
        UnicodeDecodeError: a text is no UTF-8.
    """
    if spec.name == "bytes":
        values = np.frombuffer(b"".join(texts), np.uint8)
        return values, np.fromiter(map(len, texts), np.int64, len(texts))
    state = _loaded(spec.name, spec.special_tokens)
    found = state[0].encode_batch_fast([text.decode() for text in texts], add_special_tokens=False)
    lists = [encoding.ids for encoding in found]
    state[1] += sum(map(len, texts))
    if state[1] > RECYCLE_BYTES:
        state[:] = [_load(spec.name, special_tokens=spec.special_tokens), 0]
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    ids = np.empty(int(lengths.sum()), DTYPES[dtype])
    start = 0
    for values_of_one in lists:
        ids[start : start + len(values_of_one)] = values_of_one
        start += len(values_of_one)
    return ids, lengths


def decode(spec: TokenizerSpec, ids: NDArray[Any]) -> bytes:
    """Text of `ids` as UTF-8; the tokens that frame documents are left out."""
    frame = [token for token in (spec.eod, spec.bos) if token is not None]
    kept = ids[~np.isin(ids, frame)]
    if spec.name == "bytes":
        return kept[kept < BYTES_EOD].astype(np.uint8).tobytes()
    text: str = _loaded(spec.name, spec.special_tokens)[0].decode(kept.tolist(), skip_special_tokens=False)
    return text.encode()


def framed(
    values: NDArray[Any], lengths: Int64Array, spec: TokenizerSpec, eod_pos: str, dtype: str
) -> tuple[NDArray[Any], Int64Array]:
    """(ids, lengths) with bos and eod at every document that is not empty, in the given type."""
    heads = [token for token in (spec.bos, spec.eod if eod_pos == "prepend" else None) if token is not None]
    tails = [spec.eod] if spec.eod is not None and eod_pos == "append" else []
    if not heads and not tails:
        return values.astype(DTYPES[dtype], copy=False), lengths
    added = np.where(lengths > 0, len(heads) + len(tails), 0)
    total = lengths + added
    ends = np.cumsum(total)
    starts = ends - total
    out = np.empty(int(ends[-1]) if len(ends) else 0, DTYPES[dtype])
    full = np.flatnonzero(lengths)
    for place, token in enumerate(heads):
        out[starts[full] + place] = token
    for place, token in enumerate(reversed(tails)):
        out[ends[full] - 1 - place] = token
    _spread(values, lengths[full], starts[full] + len(heads), out)
    return out, total


def _spread(values: NDArray[Any], lengths: Int64Array, places: Int64Array, out: NDArray[Any]) -> None:
    """Copy runs of `values` to their places: one by one where they are long, by index where they are short."""
    if len(lengths) == 0:
        return
    if len(values) >= 64 * len(lengths):
        start = 0
        for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
            out[place : place + length] = values[start : start + length]
            start += length
        return
    shift = places - (np.cumsum(lengths) - lengths)
    out[np.repeat(shift, lengths) + np.arange(len(values))] = values
