"""Offline data set sharding: many small files in, few big shuffled and indexed shards out."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
