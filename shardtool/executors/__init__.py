"""Engines that call `pack_shard` in many places: a table of names, resolved when one is used."""

from __future__ import annotations

EXECUTORS = {"local": "shardtool.executors.local:LocalExecutor"}
