"""Requests to an object store that succeed, or fail for a reason worth telling: one engine, many attempts.

client = client_for(S3Settings.from_environ())
client.request("GET", "bucket", "key", headers={"range": "bytes=0-99"}, into=memoryview(buffer)).num_bytes
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.errors import RemoteError
from shardtool.storage.s3.address import object_url
from shardtool.storage.s3.answers import OK, PERMANENT, code_of, judge, patience_of, refusal
from shardtool.storage.s3.download import Download
from shardtool.storage.s3.engines import engine_for
from shardtool.storage.s3.exchange import UNKNOWN_HOST, UNTRUSTED, Broken, Request, Response
from shardtool.storage.s3.retry import THROTTLED, Attempts, Limiter, Pace, count_retry
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.storage.s3.exchange import Engine, Into, Key, Query
    from shardtool.storage.s3.settings import S3Settings

ATTEMPTS_ON_LEAVING = 2
MAX_LESSONS = 3  # a region, newer credentials, a clock


class S3Client:
    """A store as seen by this process. Safe to use from many threads, not across a fork: ask `client_for` again."""

    def __init__(self, settings: S3Settings, engine: Engine | None = None, pace: Pace | None = None) -> None:
        self.settings = settings
        self.engine = engine or engine_for(settings)
        self._leaving = threading.Event()
        self.pace = pace or Pace(sleep=self._sleep)
        self.limiter = Limiter(self.pace)
        self.takes_crc32 = _TAKES_CRC32[settings.checksums]  # None: not known yet; see checksums.py

    def learn_crc32(self, takes_crc32: bool) -> None:
        """Note what the store told about checksums, where the user has not."""
        if self.settings.checksums == "auto":
            self.takes_crc32 = takes_crc32

    def leave(self) -> None:
        """The process is about to end: waits end at once, and no request is tried long. `client_for` gives another."""
        self._leaving.set()
        if _clients.get(self.settings) is self:
            del _clients[self.settings]

    def request(
        self,
        method: str,
        bucket: str,
        key: Key = "",
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        into: Into | None = None,
        allow: Collection[int] = (),
    ) -> Response:
        """The answer of the store, after as many attempts as it takes.

        Args:
            key: not encoded; "" for requests to the bucket.
            query: names and values, not encoded; (("uploads", ""),) for a bare word.
            headers: lower-case names. A Range of the form bytes=A-B or bytes=A- goes on after a break.
            into: takes the body of a GET; fewer bytes than fit are no error, see `num_bytes` of the answer.
            allow: statuses that are given back instead of raised.

        Raises:
            SourceNotFound, AccessDenied, SourceChanged, NoSpace: the store says so (404, 403, 412, 507).
            RemoteError: any other refusal; or trouble that outlasts all attempts.
        """
        request = Request(method, bucket, key, query, headers or {}, body)
        download = Download(request, into)
        attempts = Attempts(self.settings.retry_s, self.pace)
        lessons = 0
        while True:
            try:
                with self.limiter:
                    response = download.unmasked(self.engine.exchange(download.next_request(), download.rest()))
            except Broken as broken:
                if download.broke(broken):
                    attempts.progress()
                self._wait(attempts, request, broken.kind, str(broken))
                continue
            code = code_of(response)
            verdict = OK if response.status in allow else judge(response, code)
            if verdict == OK:
                whole = download.finish(response)
                if whole is not None:
                    return replace(whole, attempts=attempts.total)
                count_retry("body")
            elif verdict == PERMANENT:
                if lessons == MAX_LESSONS or not self.engine.adapt(request, response, code):
                    raise refusal(request, response, code, self.engine.endpoint(bucket))
                lessons += 1
                count_retry("refused")
            else:
                if verdict == THROTTLED:
                    self.limiter.slow_down()
                told = f"{response.status} {code}".rstrip()
                self._wait(attempts, request, verdict, told, patience_of(response, time.time()))

    def _wait(self, attempts: Attempts, request: Request, kind: str, told: str, at_least_s: float = 0.0) -> None:
        elapsed = attempts.elapsed_s
        is_too_late = self._leaving.is_set() and attempts.total >= ATTEMPTS_ON_LEAVING
        if not is_too_late and attempts.wait(kind, at_least_s):
            return
        url = object_url(request.bucket, request.key)
        asked = f", which asks to wait {at_least_s:.0f} s" if at_least_s else ""
        raise RemoteError(
            f"{request.method} {url} at {self.engine.endpoint(request.bucket)}: "
            f"{plural(attempts.total, 'attempt')} in {elapsed:.0f} s failed, the last: {told}{asked}",
            hint=_HINTS.get(kind, _HINTS[""]),
            where={"url": url, "attempts": attempts.total},
        )

    def _sleep(self, seconds: float) -> None:
        self._leaving.wait(seconds)


_TAKES_CRC32 = {"auto": None, "supported": True, "required": False}
_HINTS = {
    UNTRUSTED: "name the certificates that this machine shall trust: AWS_CA_BUNDLE=FILE.pem",
    UNKNOWN_HOST: "no host has this name: check --endpoint-url, and the bucket",
    THROTTLED: "the store asks for fewer requests: run the same command again later, or with fewer --workers",
    "": "check the network and --endpoint-url, then run the same command again: what is finished stays; "
    "SHARDTOOL_S3_RETRY_SECONDS sets how long to try",
}

_clients: dict[S3Settings, S3Client] = {}
_clients_lock = threading.Lock()


def client_for(settings: S3Settings) -> S3Client:
    """The client of this process for `settings`; a child after a fork gets its own."""
    found = _clients.get(settings)
    if found is None:
        with _clients_lock:
            found = _clients.setdefault(settings, S3Client(settings))
    return found


def forget_clients() -> None:
    """Let the next request begin anew, with the credentials and the environment of then."""
    while _clients:
        _clients.popitem()[1].engine.close()


def _begin_in_child() -> None:
    """After a fork: connections, locks and runtimes belong to the parent; nothing is touched, not even freed."""
    global _clients_lock
    _clients_lock = threading.Lock()
    _abandoned.append(dict(_clients))
    _clients.clear()


_abandoned: list[dict[S3Settings, S3Client]] = []
os.register_at_fork(after_in_child=_begin_in_child)
