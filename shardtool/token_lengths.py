"""Lengths of the sequences of token shards: quantiles and a histogram in powers of two, from the indexes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Manifest

_QUANTILES = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class TokenLengths:
    """Counts sequences by length. Memory: a number for each length there is."""

    def __init__(self, manifest: Manifest) -> None:
        self.facts = dict(manifest.membership.get("tokens", {}))
        self._itemsize = np.dtype(self.facts.get("dtype", "uint16")).itemsize
        self._lengths = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)

    def add(self, num_bytes: Any) -> None:
        """Take the sequences of a shard.

        Args:
            num_bytes: of each, uint64[n].
        """
        lengths, counts = np.unique(num_bytes.astype(np.int64) // self._itemsize, return_counts=True)
        both = np.concatenate([self._lengths, lengths])
        self._lengths, places = np.unique(both, return_inverse=True)
        self._counts = np.bincount(places, np.concatenate([self._counts, counts])).astype(np.int64)

    def document(self) -> dict[str, Any]:
        """The facts of the manifest, `sequences`, `length` {min, p5, p50, p95, p99, max, mean} and `histogram`.

        The histogram is [[low, high, sequences]]: lengths from low to below high, high = 2 * low.
        """
        total = int(self._counts.sum())
        ends = np.cumsum(self._counts)
        at = {name: int(np.searchsorted(ends, max(1, np.ceil(q * total)))) for name, q in _QUANTILES.items()}
        length: dict[str, Any] = {name: int(self._lengths[place]) for name, place in at.items()} if total else {}
        tokens = int((self._lengths * self._counts).sum())
        length["mean"] = round(tokens / max(total, 1), 2)
        bins = np.where(self._lengths > 0, np.floor(np.log2(np.maximum(self._lengths, 1))), -1).astype(np.int64)
        histogram = [
            [0 if power < 0 else 1 << power, 1 << (power + 1), int(self._counts[bins == power].sum())]
            for power in np.unique(bins).tolist()
        ]
        return {**self.facts, "count": tokens, "sequences": total, "length": length, "histogram": histogram}


def shown_lengths(found: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Lines for the terminal."""
    length = found["length"]
    kind = [str(found.get("dtype", "")), f"tokenizer {found.get('tokenizer', '')}"]
    yield "tokens", [f"{found['count']:,} in {found['sequences']:,} sequences", *kind]
    if found["sequences"]:
        yield (
            "lengths",
            [*(f"{name} {length[name]:,}" for name in ("p5", "p50", "p95", "max")), f"mean {length['mean']:,}"],
        )
        most = max(count for _, _, count in found["histogram"])
        shown = "".join("▁▂▃▄▅▆▇█"[min(7, 8 * count // (most + 1))] for _, _, count in found["histogram"])
        yield "", [f"{shown}   from {found['histogram'][0][0]:,} to {found['histogram'][-1][1]:,} tokens, doubling"]
