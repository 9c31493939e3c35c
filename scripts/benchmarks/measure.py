"""Run one command and print its wall and CPU seconds as JSON; CPU counts every descendant, orphans included.

A fork server outlives the process that began it, so that its workers are in nobody's account: this process adopts
orphans (Linux, PR_SET_CHILD_SUBREAPER) and waits for all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    cpu, peak, status, wall = 0.0, 0, 0, 0.0
    while True:
        try:
            pid, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss)
        if pid == child:
            wall, status = time.perf_counter() - began, os.waitstatus_to_exitcode(code)
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak * 1024, "status": status}), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
