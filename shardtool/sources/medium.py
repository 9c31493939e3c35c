"""Whether reads come from memory or wait for a device: judged while packing, for each process by itself."""

from __future__ import annotations

import resource
import time
from typing import Final, NamedTuple

COLD_FILE_SECONDS = 40e-6  # a warm open-read-close of a small file takes 5-10 us, a cold one 80 us and more
COLD_BYTE_SECONDS = 1 / 1.5e9  # warm reads run at 4 GB/s and more
JUDGED_FILES, JUDGED_BYTES = 64, 16 << 20  # read before the medium is judged
FILES_A_WAIT = 32  # of a device at most; inodes come sixteen at a time, data with what lies beside it
_THREAD: Final[int] = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Mark(NamedTuple):
    """A moment of this thread."""

    seconds: float
    waits: int  # for a device, a lock, another process: switches that the thread itself asked for

    @classmethod
    def now(cls) -> Mark:
        """About 1 us."""
        return cls(time.monotonic(), resource.getrusage(_THREAD).ru_nvcsw)


class Medium:
    """What reads come from; kept from shard to shard.

    Reads from a device take long, and the thread sleeps meanwhile. On a busy machine reads from memory take long, too:
    then it is others that have the processor.
    """

    def __init__(self) -> None:
        self.is_cold = False
        self._reset()

    def _reset(self) -> None:
        self._files, self._bytes, self._seconds, self._waits = 0, 0, 0.0, 0

    def note(self, num_files: int, num_bytes: int, since: Mark, now: Mark | None = None) -> None:
        """Take account of files that were read from `since` until now; every so often, decide."""
        now = now or Mark.now()
        self._files += num_files
        self._bytes += num_bytes
        self._seconds += now.seconds - since.seconds
        self._waits += now.waits - since.waits
        if self._files >= JUDGED_FILES or self._bytes >= JUDGED_BYTES:
            warm = self._files * COLD_FILE_SECONDS + self._bytes * COLD_BYTE_SECONDS
            is_slow = self._seconds > (warm / 2 if self.is_cold else warm)
            self.is_cold = is_slow and self._waits * FILES_A_WAIT >= self._files
            self._reset()


MEDIUM = Medium()  # of this process
