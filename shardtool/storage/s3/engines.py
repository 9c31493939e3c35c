"""Which engine talks to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.storage.s3.thin import ThinEngine

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Engine
    from shardtool.storage.s3.settings import S3Settings


def engine_for(settings: S3Settings) -> Engine:
    """The engine that `settings` ask for; `auto` is the thin one."""
    return ThinEngine(settings)
