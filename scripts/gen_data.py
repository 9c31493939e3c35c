#!/usr/bin/env python3
"""Write a benchmark data set: seeded, the same bytes every time, from one pool of random bytes.

scripts/gen_data.py tiny DIR --count 300000    200,000 x log-normal 0.5-8 KiB, a .cls of 1-3 bytes beside every second
scripts/gen_data.py photo DIR --count 20000    log-normal around 110 KiB, .jpg, 200 in a class folder
scripts/gen_data.py large DIR --count 200      8 MiB each, one folder
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL_BYTES = 16 << 20
DEFAULT_COUNTS = {"tiny": 300_000, "photo": 20_000, "large": 500}
SAMPLES_PER_FOLDER = 133  # tiny: 300,000 files in about 1,500 folders

File = tuple[str, bytes | memoryview]


def tiny(count: int, rng: random.Random, pool: memoryview) -> Iterator[File]:
    """`count` files: two in three are samples, one in three is the class of the sample beside it."""
    written = number = 0
    while written < count:
        folder = number // SAMPLES_PER_FOLDER
        stem = f"p{folder // 100:02d}/d{folder:05d}/sample_{number:08d}"
        yield f"{stem}.bin", piece(rng, pool, log_normal(rng, 2048, 0.5, 512, 8192))
        written += 1
        if number % 2 and written < count:
            yield f"{stem}.cls", b"%d" % (number % 1000)
            written += 1
        number += 1


def photo(count: int, rng: random.Random, pool: memoryview) -> Iterator[File]:
    """`count` incompressible files of about 110 KiB between the two markers of a JPEG file."""
    for number in range(count):
        data = piece(rng, pool, log_normal(rng, 110 << 10, 0.35, 8192, 1 << 20))
        yield f"n{number // 200:05d}/img_{number:07d}.jpg", b"\xff\xd8\xff\xe0" + data[6:] + b"\xff\xd9"


def large(count: int, rng: random.Random, pool: memoryview) -> Iterator[File]:
    """`count` incompressible files of 8 MiB."""
    for number in range(count):
        yield f"blob_{number:05d}.npy", piece(rng, pool, 8 << 20)


MAKERS = {"tiny": tiny, "photo": photo, "large": large}


def log_normal(rng: random.Random, median: int, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, int(rng.lognormvariate(math.log(median), sigma))))


def piece(rng: random.Random, pool: memoryview, size: int) -> memoryview:
    start = rng.randrange(POOL_BYTES - size)
    return pool[start : start + size]


def write(name: str, target: Path, count: int, seed: int) -> tuple[int, int]:
    """(files, bytes) written below `target`."""
    rng = random.Random(f"{name}/{seed}")
    pool = memoryview(rng.randbytes(POOL_BYTES))
    last, files, num_bytes = "", 0, 0
    for path, data in MAKERS[name](count, rng, pool):
        folder = path.rpartition("/")[0]
        if folder != last or not files:
            (target / folder).mkdir(parents=True, exist_ok=True)
            last = folder
        fd = os.open(f"{target}/{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(fd, data)
        os.close(fd)
        files, num_bytes = files + 1, num_bytes + len(data)
    return files, num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MAKERS), metavar="NAME", help="tiny, photo or large")
    parser.add_argument("dir", type=Path, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--count", type=int, help="files; default: tiny 300000, photo 20000, large 500")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.dir.exists() and any(options.dir.iterdir()):
        sys.exit(f"{options.dir} is not empty")
    begin = time.monotonic()
    count = DEFAULT_COUNTS[options.name] if options.count is None else options.count
    files, num_bytes = write(options.name, options.dir, count, options.seed)
    print(f"{files:,} files, {num_bytes:,} bytes in {time.monotonic() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
