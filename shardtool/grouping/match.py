"""Which sample a row of a table belongs to: the one whose key it gives, or whose file.

In this order, the first that fits: the key; the path of a file below the source folder, as the key rule cuts it; the
same behind the source folder's own path or name; the same behind leading folders that all rows share, where no row fits
as it stands; the end of a path, where only one sample has it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardtool.columns import to_list
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.model import BinaryArray, Int64Array, SampleTable, UInt64Array

CHUNK = 1 << 14  # keys held as Python objects at a time
MAX_FOLDERS = 32  # of a row that is looked for by the end of a path
NOWHERE, SEVERAL = -1, -2  # in the place of a row's sample


def match_rows(samples: SampleTable, seed: int, names: BinaryArray) -> Int64Array:
    """int64[num_rows]: the sample of each row, NOWHERE, or SEVERAL where the end of a path is not unique."""
    finder = Finder(samples, seed)
    texts = [plain_path(text) for text in to_list(names)]
    found = finder.find(texts)
    left = np.flatnonzero(found < 0)
    if len(left):
        found[left] = finder.find([finder.below_root(texts[row]) for row in left.tolist()])
    if len(left) == len(texts):
        found = _behind_shared_folders(finder, texts, found)
    left = np.flatnonzero(found < 0)
    if len(left):
        found[left] = finder.find_by_end([texts[row] for row in left.tolist()])
    return found


def _behind_shared_folders(finder: Finder, texts: list[bytes], found: Int64Array) -> Int64Array:
    """Leading folders that all rows share, taken off one by one until a row is found."""
    folders = [text.split(b"/")[:-1] for text in (min(texts, default=b""), max(texts, default=b""))]
    cut = 0
    for folder, other in zip(*folders, strict=False):
        if folder != other or (found >= 0).any():
            break
        cut += len(folder) + 1
        found = finder.find([text[cut:] for text in texts])
    return found


def plain_path(text: bytes) -> bytes:
    """`text` without blanks around it, `.` steps and empty steps; an absolute path stays one."""
    text = text.strip()
    if b"//" in text or b"./" in text:
        steps = [step for step in text.split(b"/") if step not in (b"", b".")]
        text = (b"/" if text[:1] == b"/" else b"") + b"/".join(steps)
    return text


class Finder:
    """Samples by key, found through the hashes that the table has already; two keys share one once in 2^64 pairs."""

    def __init__(self, samples: SampleTable, seed: int) -> None:
        self._samples, self._rule, self._seed = samples, samples.rule, seed
        self._order = np.argsort(samples.key_hash, kind="stable")
        self._hashes = samples.key_hash[self._order]
        roots = [os.fsencode(root) for root in samples.entries.roots]
        self._heads = [root.rstrip(b"/") + b"/" for root in roots] + [os.path.basename(root) + b"/" for root in roots]
        self._parts = {name: number for number, name in enumerate(samples.part_names)}
        self._has = self._sample_parts()

    def find(self, texts: list[bytes]) -> Int64Array:
        """int64[n]: the sample that each text names, or NOWHERE."""
        return self._try_all(texts, lambda keys: self._lookup(self._hash(keys), self._hashes, self._order))

    def find_by_end(self, texts: list[bytes]) -> Int64Array:
        """int64[n]: the only sample whose key ends in what each text names, NOWHERE, or SEVERAL."""
        found = np.full(len(texts), NOWHERE, np.int64)
        depths = np.array([text.count(b"/") + 1 for text in texts])
        for depth in range(1, min(int(depths.max(initial=0)), MAX_FOLDERS) + 1):
            rows = np.flatnonzero(depths == depth)
            if len(rows):
                found[rows] = self._find_ends([texts[row] for row in rows.tolist()], depth)
        return found

    def below_root(self, text: bytes) -> bytes:
        """`text` without the path or the name of a source folder in front; b"" where none is."""
        return next((text[len(head) :] for head in self._heads if text.startswith(head)), b"")

    def sample_without(self, text: bytes) -> bytes:
        """The key of the sample that a row would name if it had such a file; b"" where there is none."""
        folder, _, name = text.rpartition(b"/")
        cut = self._rule.split(folder, name)
        key = self._rule.key(cut[0]) if cut else b""
        return key if self._lookup(self._hash([key]), self._hashes, self._order)[0] >= 0 else b""

    def _try_all(self, texts: list[bytes], look: Callable[[list[bytes]], Int64Array]) -> Int64Array:
        """As a key, as a file that is there, as a key before its dots were replaced: the first that is found."""
        found = look(texts)
        left = np.flatnonzero(found == NOWHERE)
        cuts = [self._cut(texts[row]) for row in left.tolist()]
        files = np.flatnonzero([cut is not None for cut in cuts])
        named = [cut for cut in cuts if cut is not None]
        hits = look([self._rule.key(identity) for identity, _ in named]) if named else np.zeros(0, np.int64)
        wanted = np.array([part for _, part in named], np.int64)
        is_there = np.isin(hits * len(self._parts) + wanted, self._has) | (hits == SEVERAL)
        found[left[files]] = np.where(is_there, hits, NOWHERE)
        left = np.flatnonzero(found == NOWHERE)
        if len(left):
            found[left] = look([self._rule.key(texts[row]) for row in left.tolist()])
        return found

    def _cut(self, text: bytes) -> tuple[bytes, int] | None:
        """(identity, number of the part name) of a file; None where the rule does not take it."""
        folder, _, name = text.rpartition(b"/")
        cut = self._rule.split(folder, name) if name else None
        part = self._rule.part(cut[1]) if cut else None
        return (cut[0], self._parts[part]) if cut and part in self._parts else None

    def _sample_parts(self) -> Int64Array:
        """int64[num_parts]: sample * number of part names + part name, sorted."""
        owners = np.repeat(np.arange(self._samples.num_samples), self._samples.parts_per_sample())
        return np.sort(owners * len(self._parts) + self._samples.part_name)

    def _hash(self, keys: Sequence[bytes]) -> UInt64Array:
        digest, seed = xxhash.xxh3_64_intdigest, self._seed
        return np.fromiter((digest(key, seed) for key in keys), np.uint64, len(keys))

    def _lookup(self, wanted: UInt64Array, hashes: UInt64Array, owners: Int64Array) -> Int64Array:
        """int64[n]: the owner of each hash, NOWHERE, or SEVERAL; `hashes` are sorted."""
        first = np.searchsorted(hashes, wanted, side="left")
        last = np.searchsorted(hashes, wanted, side="right")
        if len(hashes) == 0:
            return np.full(len(wanted), NOWHERE, np.int64)
        owner = owners[np.minimum(first, len(hashes) - 1)]
        return np.where(last == first, NOWHERE, np.where(last - first > 1, SEVERAL, owner)).astype(np.int64)

    def _find_ends(self, texts: list[bytes], depth: int) -> Int64Array:
        ends = np.concatenate([self._hash(chunk) for chunk in self._ends(depth)] or [np.zeros(0, np.uint64)])
        order = np.argsort(ends, kind="stable")
        hashes = ends[order]
        return self._try_all(texts, lambda keys: self._lookup(self._hash(keys), hashes, order))

    def _ends(self, depth: int) -> Iterator[list[bytes]]:
        """The last `depth` components of all keys, a chunk at a time."""
        for start in range(0, self._samples.num_samples, CHUNK):
            rows = np.arange(start, min(start + CHUNK, self._samples.num_samples))
            yield [b"/".join(key.rsplit(b"/", depth)[-depth:]) for key in keys_of(self._samples, rows)]
