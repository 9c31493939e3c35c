"""Samples with names on which readers of tar shards differ, and a tar of them; for the tests of `compat`."""

from __future__ import annotations

import io
import tarfile
from typing import TypeAlias

from hypothesis import strategies as st

Babel: TypeAlias = list[tuple[bytes, list[bytes]]]  # key and part names of each sample

_FOLDERS = st.sampled_from([b"", b"a/", b"b/", b"d.v1/", b"__m__/", b"a/__m__/", b"_/", b"a b/", b"x" * 97 + b"/"])
_STEMS = st.sampled_from([b"1", b"2", b"img", b"__x", b"__y__", b"a b", b"\xc3\xa4", b"\xff", b"q\\r", b"n\nm", b"U"])
_PARTS = st.sampled_from([b"txt", b"TXT", b"seg.png", b"jpg", b"JPG", b"x__", b"a b", b"\xc3\x84", b"__key__", b"dat"])
_KEYS = st.builds(lambda folder, stem: folder + stem, _FOLDERS, _STEMS)
SAMPLES: st.SearchStrategy[Babel] = st.lists(
    st.tuples(_KEYS, st.lists(_PARTS, min_size=1, max_size=3, unique=True)),
    min_size=1,
    max_size=8,
    unique_by=lambda sample: sample[0],
)


def member_names(samples: Babel) -> list[bytes]:
    """key.part for each part."""
    return [key + b"." + part for key, parts in samples for part in parts]


def packed(samples: Babel) -> bytes:
    """A tar with these members, in ustar headers where they fit."""
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for name in member_names(samples):
            info = tarfile.TarInfo(_text(name))
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name))
    return stream.getvalue()


def names_in(samples: Babel) -> list[tuple[str, set[str]]]:
    """The samples as a reader should give them: key, and part names."""
    return [(_text(key), set(map(_text, parts))) for key, parts in samples]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
