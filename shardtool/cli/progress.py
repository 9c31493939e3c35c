"""How far a run is: a bar on a terminal, a status line now and then in a log, or events for programs.

A `Progress` counts what is done; a display shows it. All of it goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn, Protocol

from shardtool.errors import UsageProblem
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tqdm import tqdm

MODES = ("auto", "bar", "lines", "json", "none")
LINE_INTERVAL_S = 30.0  # default of SHARDTOOL_PROGRESS_S; 0 = never
EVENT_INTERVAL_S = 1.0  # JSON events come no faster than this, but for the first and the last


class Display(Protocol):
    """Shows a `Progress` as it moves."""

    def update(self, progress: Progress) -> None:
        """Called after every step."""

    def close(self, progress: Progress) -> None:
        """Called once, at the end."""


class Progress:
    """What is done of what there is to do; a context manager that ends its display.

    Args:
        verb: the step it counts, shown in front.
        total_shards: shards to do; 0 when unknown, as for the other two.
        total_bytes: bytes to do.
        total_samples: samples to do.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        verb: str,
        total_shards: int,
        total_bytes: int,
        total_samples: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verb = verb
        self.total_shards, self.total_bytes, self.total_samples = total_shards, total_bytes, total_samples
        self.shards = self.num_bytes = self.samples = 0
        self.display: Display | None = None
        self._clock, self._began = clock, clock()

    def advance(self, shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
        """Add what was just done."""
        self.shards += shards
        self.num_bytes += nbytes
        self.samples += samples
        if self.display:
            self.display.update(self)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def figures(self) -> str:
        """`40/61  9.9 GiB  1.1 GiB/s  7,034 samples  ETA 0:05`, without what is unknown."""
        seconds = max(self.elapsed_s, 1e-9)
        parts = [f"{self.shards:,}/{self.total_shards:,}"] if self.total_shards else []
        if self.num_bytes:
            parts += [format_bytes(self.num_bytes), format_bytes(self.num_bytes / seconds) + "/s"]
        if self.samples:
            parts.append(plural(self.samples, "sample"))
        return "  ".join([*parts, self._time_left(seconds)])

    def _time_left(self, seconds: float) -> str:
        done, total = (self.num_bytes, self.total_bytes) if self.total_bytes else (self.shards, self.total_shards)
        if 0 < done < total:
            return f"ETA {format_duration(seconds / done * (total - done))}"
        return format_duration(seconds)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.display:
            self.display.close(self)
            self.display = None


class Bar:
    """tqdm's bar, filled by bytes where they are known, by shards where not."""

    def __init__(self, progress: Progress, ascii_only: bool) -> None:
        from tqdm import tqdm

        self._counts_bytes = progress.total_bytes > 0
        self._shown = 0
        self.bar: tqdm[NoReturn] = tqdm(
            total=progress.total_bytes or progress.total_shards or None,
            bar_format=f"{progress.verb:<7}{{bar}}  {{desc}}",
            file=sys.stderr,
            ascii=ascii_only or None,
            dynamic_ncols=True,
        )
        self.update(progress)

    def update(self, progress: Progress) -> None:
        """Fill the bar as far as `progress` says."""
        done = progress.num_bytes if self._counts_bytes else progress.shards
        self.bar.set_description_str(progress.figures(), refresh=False)
        self.bar.update(done - self._shown)
        self._shown = done

    def close(self, progress: Progress) -> None:
        """Leave the bar as it stands."""
        self.bar.set_description_str(progress.figures(), refresh=True)
        self.bar.close()


class Lines:
    """One plain status line every `interval_s` seconds, also while nothing advances."""

    def __init__(self, progress: Progress, write: Callable[[str], None], interval_s: float) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, args=(progress, write, interval_s), daemon=True)
        if interval_s > 0:
            self._thread.start()

    def _tick(self, progress: Progress, write: Callable[[str], None], interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            write(f"{progress.verb:<7}{progress.figures()}")

    def update(self, progress: Progress) -> None:
        """Nothing: the clock decides when a line is due."""

    def close(self, progress: Progress) -> None:
        """Stop; the step's own last line follows."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()


class Events:
    """One JSON object a line: `start`, `progress` at most once a second, `end`."""

    def __init__(self, progress: Progress, write: Callable[[str], None]) -> None:
        self._write, self._last_s = write, 0.0
        self._send("start", progress)

    def update(self, progress: Progress) -> None:
        """Send an event unless one was sent just now."""
        if progress.elapsed_s - self._last_s >= EVENT_INTERVAL_S:
            self._last_s = progress.elapsed_s
            self._send("progress", progress)

    def close(self, progress: Progress) -> None:
        """Send the last event."""
        self._send("end", progress)

    def _send(self, event: str, progress: Progress) -> None:
        document = {
            "schema": "shardtool/progress/1",
            "event": event,
            "step": progress.verb,
            "shards": progress.shards,
            "total_shards": progress.total_shards,
            "bytes": progress.num_bytes,
            "total_bytes": progress.total_bytes,
            "samples": progress.samples,
            "total_samples": progress.total_samples,
            "seconds": round(progress.elapsed_s, 3),
        }
        self._write(json.dumps(document))


def line_interval_s() -> float:
    """Seconds between status lines: SHARDTOOL_PROGRESS_S, or 30."""
    text = os.environ.get("SHARDTOOL_PROGRESS_S", "")
    try:
        return float(text) if text else LINE_INTERVAL_S
    except ValueError:
        raise UsageProblem(
            f"SHARDTOOL_PROGRESS_S: {text!r} is not a number", hint="seconds between status lines, 0 for none"
        ) from None
