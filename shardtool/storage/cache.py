"""The folder of this machine for what can be fetched or made again."""

from __future__ import annotations

import os


def cache_folder() -> str:
    """`$SHARDTOOL_CACHE`, by default `~/.cache/shardtool`; not made yet."""
    return os.environ.get("SHARDTOOL_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "shardtool")
