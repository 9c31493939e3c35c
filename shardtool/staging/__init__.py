"""Bringing a node's share of a data set to its own disk, verified. See docs/staging.md.

`wait`, `lease` and `reached` are for programs that read while the rest is still coming.
"""

from __future__ import annotations

from shardtool.staging.waiting import lease, reached, wait

__all__ = ["lease", "reached", "wait"]
