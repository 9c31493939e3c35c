"""How other readers of tar shards cut a member name into key and part: one pure function a reader.

Each follows its reader's own source, read in the versions named below; `cut` of a reader gives the key and part that
the reader sees, or why the member never reaches a sample. Names are bytes; a reader sees them as Python's tarfile
decodes them (UTF-8, surrogateescape).

    webdataset 1.0.2    webdataset/tariterators.py
    hf 5.2.0            datasets/packaged_modules/webdataset, utils/file_utils.py (ArchiveIterable)
    energon 7.4.1       megatron/energon/flavors/webdataset/prepare.py, config.py
    dali                tools/wds2idx.py
    wids 0.2.111        wids/wids.py, wids_mmtar.py
    litdata 0.2.76      litdata/processing/media_folder.py
    tarp                dpipes (one regular expression; its misses are not checked for)
    ray                 ray/data/_internal/datasource/webdataset_datasource.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

NAME_FIELD_BYTES = 100  # of a ustar header; wids reads no more of a name
HF_FIRST = 5  # samples whose parts must agree: NUM_EXAMPLES_FOR_FEATURES_INFERENCE
_FIRST_DOT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # webdataset, datasets, energon and ray share it
_WIDS = re.compile(r"^((?:.*/)?.*?)(\..*)$")
_META = re.compile(r"__[^/]*__($|/)")
_NOT_IN_IDX = re.compile(r"[^\x21-\x7e]")
NOT_UTF8 = "names that are not UTF-8 stop it"
NOT_ARROW = "names that are not UTF-8: Arrow strings cannot hold them"
NOT_TEXT = "names that are not UTF-8: its index holds text"
_ENERGON_OWN = ("__key__", "__shard__", "__restore_key__", "__sources__")


class Cut(NamedTuple):
    """Where a member goes."""

    key: str
    part: str


class Loss(NamedTuple):
    """Why a member reaches no sample."""

    kind: str  # "dropped": in silence; "rejected": the reader stops
    why: str


@dataclass(frozen=True)
class Reader:
    """One reader.

    Args:
        cut: name of a member -> its key and part, or why it is lost.
        repeats: what a part that a sample has already does: `rejected`, or `dropped` where the last one wins.
        wants_unique: whether a key may occur once in the whole data set only.
        wants_even: whether the first samples must have the same parts.
        reserved: part names that the reader gives its own fields.
    """

    name: str
    cut: Callable[[bytes], Cut | Loss]
    repeats: str = "rejected"
    wants_unique: bool = False
    wants_even: bool = False
    reserved: tuple[str, ...] = ()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _first_dot(text: str) -> Cut | Loss:
    found = _FIRST_DOT.match(text)
    if found is None:
        return Loss("dropped", "no dot in the file name, or nothing before it")
    return Cut(found.group(1), found.group(2))


def cut_webdataset(name: bytes) -> Cut | Loss:
    """First dot of the file name; part names in lower case."""
    text = _text(name)
    if _META.match(text) or ("/" not in text and text.startswith("__") and text.endswith("__")):
        return Loss("dropped", "the top folder or the name is __like_this__")
    found = _first_dot(text)
    return Cut(found.key, found.part.lower()) if isinstance(found, Cut) else found


def cut_hf(name: bytes) -> Cut | Loss:
    """First dot of the file name; files that begin with a dot or two underscores are left out."""
    text = _text(name)
    if text.rpartition("/")[2].startswith((".", "__")):
        return Loss("dropped", "the file name begins with . or __")
    return _as_utf8(text, _first_dot(text), NOT_ARROW)


def cut_energon(name: bytes) -> Cut | Loss:
    """First dot of the file name."""
    text = _text(name)
    if _META.match(text):
        return Loss("dropped", "the top folder or the name is __like_this__")
    found = _first_dot(text)
    if isinstance(found, Cut) and found.part in _ENERGON_OWN:
        return Loss("rejected", "the part has the name of a field of its own")
    return _as_utf8(text, found, NOT_TEXT)


def cut_ray(name: bytes) -> Cut | Loss:
    """First dot of the file name."""
    return _first_dot(_text(name))


def cut_dali(name: bytes) -> Cut | Loss:
    """First dot of the file name, as its indexer cuts; a name without a dot loses its last character."""
    text = _text(name)
    if _NOT_IN_IDX.search(text):
        return Loss("rejected", "blanks and characters that are not ASCII cannot stand in its index")
    dot = text.find(".", text.rfind("/") + 1)
    key, part = text[:dot], text[dot + 1 :]
    if not key or key.endswith("/"):
        return Loss("dropped", "a hidden file")
    return Cut(key, part)


def cut_wids(name: bytes) -> Cut | Loss:
    """First dot of the file name; only the first 100 bytes of a name are read."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return Loss("rejected", NOT_UTF8)
    if len(name) > NAME_FIELD_BYTES:
        return Loss("rejected", "names of more than 100 bytes are cut short")
    if "." not in text:
        return Loss("dropped", "no dot in the name")
    found = _WIDS.match(text)
    if found is None:
        return Loss("rejected", "a line break in the name stops it")
    return Cut(found.group(1), found.group(2)[1:])


def cut_litdata(name: bytes) -> Cut | Loss:
    """First dot of the file name; folders are no part of the key."""
    base = _text(name).replace("\\", "/").rpartition("/")[2]
    if "." not in base:
        return Loss("dropped", "no dot in the file name")
    key, _, part = base.partition(".")
    return Cut(key, part)


def cut_tarp(name: bytes) -> Cut | Loss:
    """First dot of the file name."""
    found = _first_dot(_text(name))
    return found if isinstance(found, Cut) else Loss("rejected", "a name without a key stops it")


def _as_utf8(text: str, found: Cut | Loss, why: str) -> Cut | Loss:
    if isinstance(found, Cut) and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return Loss("rejected", why)
    return found


_OWN = ("__key__", "__url__")
READERS = {
    reader.name: reader
    for reader in (
        Reader("webdataset", cut_webdataset, reserved=_OWN),
        Reader("hf", cut_hf, wants_even=True, reserved=_OWN),
        Reader("energon", cut_energon, repeats="dropped", wants_unique=True),
        Reader("dali", cut_dali),
        Reader("wids", cut_wids, repeats="dropped"),
        Reader("litdata", cut_litdata, repeats="dropped", reserved=_OWN),
        Reader("tarp", cut_tarp, repeats="dropped"),
        Reader("ray", cut_ray, reserved=_OWN[:1]),
    )
}


def reads_as_packed(reader: Reader, key: bytes, part: bytes) -> bool:
    """Whether `reader` sees the member `key.part` as this part of this sample."""
    found = reader.cut(key + b"." + part)
    return isinstance(found, Cut) and found == (_text(key), _text(part))
