"""A watch on the speed of a body: some servers say a byte now and then, and never reach a timeout."""

from __future__ import annotations

import time

from shardtool.storage.s3.settings import STALL_BYTES_PER_S


class SpeedWatch:
    """Notices a body that comes slower than STALL_BYTES_PER_S for `stall_s` seconds."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since, self._before = time.monotonic(), 0

    def check(self, received: int) -> None:
        """Tell how many bytes there are by now.

        Raises:
            TimeoutError: too few since the last look.
        """
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed < self._stall_s:
            return
        if received - self._before < STALL_BYTES_PER_S * elapsed:
            raise TimeoutError(f"only {received - self._before} bytes in {elapsed:.0f} s")
        self._since, self._before = now, received
