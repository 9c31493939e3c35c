"""A limit on bytes a second that threads share: a token bucket whose clock and sleep are arguments."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Throttle:
    """Lets `take` through at a rate. What was not used for up to a second may be used at once.

    Args:
        bytes_per_s: the rate; 0 limits nothing.
        clock: seconds, monotonic.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        bytes_per_s: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._lock = threading.Lock()
        self._free_s = clock()  # when all that was taken is paid for

    def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` may be moved."""
        if self.rate <= 0:
            return
        with self._lock:
            now = self._clock()
            begin = max(self._free_s, now - 1.0)
            self._free_s = begin + num_bytes / self.rate
            wait_s = self._free_s - now
        if wait_s > 0:
            self._sleep(wait_s)
