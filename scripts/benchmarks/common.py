"""What all benchmarks share: sides that run in turn, ratios of medians, the environment, JSON results."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
RESULTS = REPOSITORY / "docs" / "results"
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
SHARDTOOL = [sys.executable, "-m", "shardtool"]


@dataclass
class Side:
    """One of the things compared: a command, and what to clear before each run of it."""

    name: str
    command: list[str]
    clear: list[Path] = field(default_factory=list)
    before: Callable[[], None] | None = None
    startup: list[str] | None = None  # the same command on next to nothing; its time is subtracted
    environment: dict[str, str] = field(default_factory=dict)
    wall_of: Callable[[str], float] | None = None  # seconds that the command itself says on stdout, to use instead
    cpu_of: Callable[[str], float] | None = None  # the same of CPU seconds; such a side needs no `startup`


def say(text: str) -> None:
    """Progress goes to stderr, results to stdout."""
    print(text, file=sys.stderr, flush=True)


def can_drop_caches() -> bool:
    return os.access(DROP_CACHES, os.W_OK)


def drop_caches() -> None:
    """Forget cached pages, names and inodes, then warm the interpreter again."""
    os.sync()
    DROP_CACHES.write_text("3")
    modules = "import numpy, pyarrow.compute, click, xxhash, shardtool.packing.pack, shardtool.packing.build"
    subprocess.run([sys.executable, "-c", modules], check=True)
    subprocess.run(["tar", "--version"], check=True, stdout=subprocess.DEVNULL)


def run_once(
    command: list[str],
    environment: dict[str, str] | None = None,
    wall_of: Callable[[str], float] | None = None,
    cpu_of: Callable[[str], float] | None = None,
) -> dict[str, float]:
    """Wall and CPU seconds of one command with all its descendants."""
    full = [sys.executable, str(HERE / "measure.py"), *command]
    done = subprocess.run(full, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    line = done.stderr.strip().rsplit("\n", 1)[-1]
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    measured: dict[str, float] = json.loads(line)
    if wall_of is not None:
        measured["wall_s"] = wall_of(done.stdout)
    if cpu_of is not None:
        measured["cpu_s"] = cpu_of(done.stdout)
    return measured


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_side(side: Side, *, is_cold: bool) -> dict[str, float]:
    for path in side.clear:
        remove(path)
    if side.before:
        side.before()
    if is_cold:
        drop_caches()
    return run_once(side.command, side.environment, side.wall_of, side.cpu_of)


def startup_of(side: Side, rounds: int = 5) -> dict[str, float]:
    """Median seconds of the side's start-up command; none where there is none; wall: nor where it times itself."""
    if side.startup is None:
        return {"wall_s": 0.0, "cpu_s": 0.0}
    runs = []
    for _ in range(rounds):
        for path in side.clear:
            remove(path)
        if side.before:
            side.before()
        runs.append(run_once(side.startup, side.environment))
    found = {key: statistics.median(run[key] for run in runs) for key in ("wall_s", "cpu_s")}
    return found if side.wall_of is None else {**found, "wall_s": 0.0}


def compare(sides: list[Side], *, rounds: int, is_cold: bool = False) -> dict[str, Any]:
    """Runs all sides in turn, A B C C B A …; medians, net of start-up, and ratios to the first side.

    ratio = other / first, so above 1 the first is faster.
    """
    for side in sides:  # one untimed run each warms what can be warmed
        if not is_cold:
            run_side(side, is_cold=False)
    startup = {side.name: startup_of(side, min(rounds, 5)) for side in sides}
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            runs[side.name].append(run_side(side, is_cold=is_cold))
        say(
            f"  round {number + 1}: "
            + "  ".join(f"{n} {r[-1]['wall_s']:.2f}/{r[-1]['cpu_s']:.2f}" for n, r in runs.items())
        )
    first = sides[0].name
    report: dict[str, Any] = {"rounds": rounds, "is_cold": is_cold, "sides": {}}
    for side in sides:
        net = {
            key: [max(run[key] - startup[side.name][key], 1e-3) for run in runs[side.name]]
            for key in ("wall_s", "cpu_s")
        }
        base = {key: [max(run[key] - startup[first][key], 1e-3) for run in runs[first]] for key in ("wall_s", "cpu_s")}
        report["sides"][side.name] = {
            "wall_s": round(statistics.median(run["wall_s"] for run in runs[side.name]), 3),
            "best_wall_s": round(min(run["wall_s"] for run in runs[side.name]), 3),
            "cpu_s": round(statistics.median(run["cpu_s"] for run in runs[side.name]), 3),
            "startup_wall_s": round(startup[side.name]["wall_s"], 3),
            "startup_cpu_s": round(startup[side.name]["cpu_s"], 3),
            "peak_bytes": int(max(run["peak_bytes"] for run in runs[side.name])),
            "wall_ratio": round(
                statistics.median(a / b for a, b in zip(net["wall_s"], base["wall_s"], strict=True)), 2
            ),
            "best_wall_ratio": round(min(net["wall_s"]) / min(base["wall_s"]), 2),
            "cpu_ratio": round(statistics.median(a / b for a, b in zip(net["cpu_s"], base["cpu_s"], strict=True)), 2),
        }
    for side in sides:
        remove_all(side)
    return report


def remove_all(side: Side) -> None:
    for path in side.clear:
        remove(path)


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    import numpy
    import pyarrow

    import shardtool

    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pyarrow": pyarrow.__version__,
        "shardtool": shardtool.__version__,
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def save_rows(name: str, results: dict[str, Any]) -> None:
    """As `save`, of some rows of a table: the others stay as they are; each tells when, and how busy it was."""
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text())["results"] if path.exists() else {}
    here = environment()
    measured = {row: {"date": here["date"], "load_before": here["load_before"], **r} for row, r in results.items()}
    save(name, {"environment": here, "results": {**known, **measured}})


def save(name: str, document: dict[str, Any]) -> None:
    """Print a result and keep it under docs/results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": "shardtool/bench-result/1", "name": name, **document}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)
