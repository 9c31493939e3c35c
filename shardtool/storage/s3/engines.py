"""Which engine talks to a store."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from typing import TYPE_CHECKING

from shardtool.storage.s3.address import needs_boto3
from shardtool.storage.s3.thin import ThinEngine

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Engine, Into, Request, Response
    from shardtool.storage.s3.settings import S3Settings


def engine_for(settings: S3Settings) -> Engine:
    """The engine that `settings` ask for.

    Raises:
        UsageProblem: it is not installed.
    """
    if settings.engine == "boto3":
        from shardtool.storage.s3.boto import Boto3Engine

        return Boto3Engine(settings)
    if settings.engine == "obstore":
        from shardtool.storage.s3.fast import FastEngine

        thin = ThinEngine(settings)
        return RoutedEngine(FastEngine(settings, thin), thin)
    thin = ThinEngine(settings)
    return RoutedEngine(thin, thin)


class RoutedEngine:
    """An engine of ours, and boto3 for the buckets that need more; which goes where is decided once, and said."""

    def __init__(self, engine: Engine, thin: ThinEngine) -> None:
        self.name = engine.name
        self._engine, self._thin = engine, thin
        self._routes: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        """One attempt; see Engine."""
        return self._route(request.bucket).exchange(request, into)

    def takes_pieces(self, bucket: str) -> bool:
        """Whether the engine of that bucket is the one built in."""
        return self._route(bucket) is self._thin

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        """As the engine of that bucket."""
        return self._route(request.bucket).adapt(request, response, code)

    def endpoint(self, bucket: str) -> str:
        """For messages."""
        return self._route(bucket).endpoint(bucket)

    def close(self) -> None:
        """Close idle connections."""
        for engine in {id(engine): engine for engine in (self._thin, *self._routes.values())}.values():
            engine.close()

    def _route(self, bucket: str) -> Engine:
        found = self._routes.get(bucket)
        if found is None:
            with self._lock:
                found = self._routes.get(bucket) or self._choose(bucket)
                self._routes[bucket] = found
        return found

    def _choose(self, bucket: str) -> Engine:
        why = needs_boto3(bucket, self._thin.address(bucket))
        if not why:
            return self._engine
        from shardtool.storage.s3.boto import Boto3Engine

        if multiprocessing.parent_process() is None:
            logging.getLogger("shardtool.s3").warning("note: %s is read by boto3, because of %s", bucket, why)
        return Boto3Engine(self._thin.settings, self._thin.chain)
