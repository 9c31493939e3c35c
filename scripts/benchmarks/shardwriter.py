"""webdataset's ShardWriter over listed files, as several processes that share the list; a peer of `shardtool pack`.

usage: shardwriter.py LIST ROOT OUT PROCESSES; LIST has "size path" lines, the parts of a sample side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def pack(listing: str, root: str, out: str, number: int, count: int) -> None:
    import webdataset as wds

    paths = [line.partition(" ")[2] for line in Path(listing).read_text().splitlines()]
    groups: list[list[str]] = []
    for path in paths:
        if groups and groups[-1][0].partition(".")[0] == path.partition(".")[0]:
            groups[-1].append(path)
        else:
            groups.append([path])
    first, last = len(groups) * number // count, len(groups) * (number + 1) // count
    os.chdir(root)
    with wds.ShardWriter(f"{out}/{number}-%05d.tar", maxsize=256 << 20, maxcount=10**9, verbose=0) as sink:
        for group in groups[first:last]:
            sample: dict[str, str | bytes] = {"__key__": group[0].partition(".")[0]}
            for path in group:
                sample[path.partition(".")[2]] = Path(path).read_bytes()
            sink.write(sample)


def main() -> int:
    listing, root, out, count = sys.argv[1:5]
    if len(sys.argv) == 6:
        pack(listing, root, out, int(sys.argv[5]), int(count))
        return 0
    os.makedirs(out, exist_ok=True)
    running = [subprocess.Popen([sys.executable, *sys.argv, str(number)]) for number in range(int(count))]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main())
