"""How often and how long a request is tried again, and how many at once a store is asked to bear.

Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter") from 0.1 to 20 s. Ten attempts without progress
end a request, or `retry_s` seconds; answers that ask for patience (429, 503, SlowDown) count against the seconds alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.storage.s3.exchange import UNKNOWN_HOST, UNTRUSTED

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_DELAY_S, LAST_DELAY_S = 0.1, 20.0
MAX_ATTEMPTS = 10
MAX_LOOKUPS = 4
THROTTLED = "throttled"

_counts: Counter[str] = Counter()
_counts_lock = threading.Lock()


def retries_so_far() -> dict[str, int]:
    """Requests that this process sent again, by kind: throttled, server, connection, timeout, stall, body, ..."""
    with _counts_lock:
        return dict(_counts)


def count_retry(kind: str) -> None:
    """Note one more."""
    with _counts_lock:
        _counts[kind] += 1


@dataclass(frozen=True)
class Pace:
    """Time and chance, given so that tests need neither."""

    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random  # in [0, 1)


class Attempts:
    """The attempts at one request."""

    def __init__(self, budget_s: float, pace: Pace) -> None:
        self.budget_s = budget_s
        self.total = 1
        self._pace = pace
        self._since = pace.now()  # of the last progress
        self._in_row = 0

    def progress(self) -> None:
        """Bytes came: patience starts anew."""
        self._since = self._pace.now()
        self._in_row = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the last progress."""
        return self._pace.now() - self._since

    def wait(self, kind: str, at_least_s: float = 0.0) -> bool:
        """Sleep before the next attempt; False, at once, where there shall be none.

        Args:
            kind: of the trouble, for the counters.
            at_least_s: what the store asked for.
        """
        delay = max(at_least_s, self._pace.draw() * min(LAST_DELAY_S, FIRST_DELAY_S * 2 ** min(self._in_row, 16)))
        if kind == UNTRUSTED or self.elapsed_s + delay > self.budget_s:
            return False
        most = MAX_LOOKUPS if kind == UNKNOWN_HOST else MAX_ATTEMPTS
        if kind != THROTTLED and self._in_row + 1 >= most:
            return False
        self._in_row += 1
        self.total += 1
        count_retry(kind)
        self._pace.sleep(delay)
        return True


class Limiter:
    """Requests in flight, of all threads of a process: halved when the store asks for less, one more each second.

    Used as a context around each attempt.
    """

    MOST = 1024.0
    CALM_S = 1.0  # answers that were on their way when the limit fell say nothing new

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._free = threading.Condition()
        self._in_flight = 0
        self._limit = self.MOST
        self._changed = -self.CALM_S

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    def __enter__(self) -> None:
        with self._free:
            while self._in_flight >= self._grown():
                self._free.wait(timeout=1.0)  # the limit grows with time alone
            self._in_flight += 1

    def __exit__(self, *_: object) -> None:
        with self._free:
            self._in_flight -= 1
            if self._limit < self.MOST:
                self._free.notify()

    def slow_down(self) -> None:
        """The store answered that it is asked too much."""
        with self._free:
            now = self._pace.now()
            if now - self._changed >= self.CALM_S or self._limit >= self.MOST:
                self._limit = max(1.0, min(self._grown(), self._in_flight + 1) / 2)
                self._changed = now

    def _grown(self) -> float:
        if self._limit < self.MOST:
            now = self._pace.now()
            if now - self._changed >= self.CALM_S:
                self._limit = min(self.MOST, self._limit + now - self._changed)
                self._changed = now
        return self._limit
