"""Peak memory of every process of a command, from /proc while it runs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

_EVERY_S = 0.05
_FIELDS = re.compile(r"^(PPid|VmHWM|RssAnon):\s+(\d+)", re.MULTILINE)


def peaks(command: list[str]) -> dict[str, Any]:
    """{wall_s, processes: [{is_main, peak_bytes, anonymous_bytes}]} of a command, the largest process first.

    peak_bytes is what the kernel noted (VmHWM), pages of mapped files included; anonymous_bytes is the most that was
    seen every 50 ms.
    """
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    seen: dict[int, list[int]] = {}
    while child.poll() is None:
        for pid, (peak, anonymous) in _family(child.pid).items():
            old = seen.get(pid, [0, 0])
            seen[pid] = [max(old[0], peak), max(old[1], anonymous)]
        time.sleep(_EVERY_S)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    found = [
        {"is_main": pid == child.pid, "peak_bytes": peak << 10, "anonymous_bytes": anonymous << 10}
        for pid, (peak, anonymous) in seen.items()
    ]
    return {
        "wall_s": round(time.perf_counter() - began, 1),
        "processes": sorted(found, key=lambda process: -process["peak_bytes"]),
    }


def _family(root: int) -> dict[int, tuple[int, int]]:
    """{pid: (VmHWM, RssAnon)} in KiB of a process and its descendants."""
    processes: dict[int, dict[str, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/status").read_text()
            except OSError:  # it has ended
                continue
            processes[int(name)] = {field: int(value) for field, value in _FIELDS.findall(text)}
    family, added = {root}, True
    while added:
        more = {pid for pid, fields in processes.items() if fields.get("PPid") in family} - family
        family, added = family | more, bool(more)
    return {
        pid: (processes[pid]["VmHWM"], processes[pid]["RssAnon"])
        for pid in family & processes.keys()
        if "VmHWM" in processes[pid]
    }
