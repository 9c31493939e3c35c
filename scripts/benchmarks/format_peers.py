"""Other writers of the same formats over listed files, as several processes that share the list; peers of `pack`.

usage: format_peers.py WRITER LIST ROOT OUT PROCESSES; LIST has "size path" lines, the parts of a sample side by side.
Prints the seconds of the slowest process, imports not counted. A writer is a function below; it is called in each
process with its share of the samples, (key, [path, ...]) each, in the order of the list. One that starts processes by
itself is called once, with all of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Samples = list[tuple[str, list[str]]]
GROUP_BYTES = 16 << 20
LENT: list[Any] = []  # kept, or they go again


def groups_of(samples: Samples, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """Columns of about GROUP_BYTES."""
    columns: dict[str, list[Any]] = {name: [] for name in ("key", *names)}
    size = 0
    for key, paths in samples:
        found = {path.partition(".")[2]: Path(path).read_bytes() for path in paths}
        columns["key"].append(key)
        for name in names:
            columns[name].append(found.get(name))
        size += sum(map(len, found.values()))
        if size >= GROUP_BYTES:
            yield columns
            columns, size = {name: [] for name in columns}, 0
    if columns["key"]:
        yield columns


def part_names(samples: Samples) -> list[str]:
    """Part names of all samples."""
    return sorted({path.partition(".")[2] for _, paths in samples for path in paths})


def plain_parquet(samples: Samples, out: str) -> None:
    """A loop over pyarrow's ParquetWriter: no digest, no shuffle, no index."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = part_names(samples)
    schema = pa.schema([("key", pa.string()), *((name, pa.binary()) for name in names)])
    with pq.ParquetWriter(f"{out}.parquet", schema, compression="none", use_dictionary=False) as writer:
        for columns in groups_of(samples, names):
            table = pa.table(columns, schema=schema)
            writer.write_table(table, row_group_size=table.num_rows)


def plain_arrow(samples: Samples, out: str) -> None:
    """A loop over pyarrow's IPC file writer."""
    import pyarrow as pa

    names = part_names(samples)
    schema = pa.schema([("key", pa.string()), *((name, pa.binary()) for name in names)])
    with pa.ipc.new_file(f"{out}.arrow", schema) as writer:
        for columns in groups_of(samples, names):
            writer.write_batch(pa.record_batch(columns, schema=schema))


def datasets_parquet(samples: Samples, out: str) -> None:
    """Hugging Face datasets: from_generator, then to_parquet."""
    import datasets

    datasets.disable_progress_bars()
    names = part_names(samples)

    def rows() -> Iterator[dict[str, Any]]:
        for key, paths in samples:
            found = {path.partition(".")[2]: Path(path).read_bytes() for path in paths}
            yield {"key": key, **{name: found.get(name) for name in names}}

    features = datasets.Features(
        {name: datasets.Value("binary" if name != "key" else "string") for name in ["key", *names]}
    )
    made = datasets.Dataset.from_generator(rows, features=features, cache_dir=f"{out}-cache")
    made.to_parquet(f"{out}.parquet")


def loop_tfrecord(samples: Samples, out: str) -> None:
    """A loop over records, checksums by google-crc32c in hardware."""
    import struct

    import google_crc32c

    def varint(value: int) -> bytes:
        found = bytearray()
        while value > 127:
            found.append(value & 127 | 128)
            value >>= 7
        return bytes([*found, value])

    def field(tag: bytes, data: bytes) -> bytes:
        return tag + varint(len(data)) + data

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    with open(f"{out}.tfrecord", "wb") as file:
        for key, paths in samples:
            values = {b"__key__": key.encode()}
            for path in paths:
                with open(path, "rb") as source:
                    values[path.partition(".")[2].encode()] = source.read()
            entries = [
                field(b"\n", field(b"\n", name) + field(b"\x12", field(b"\n", field(b"\n", value))))
                for name, value in values.items()
            ]
            example = field(b"\n", b"".join(entries))
            size = struct.pack("<Q", len(example))
            file.write(size + masked(size) + example + masked(example))


def lend_operators() -> None:
    """streaming imports torchvision, whose CUDA build beside a CPU torch lacks operators that it wants to register."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LENT.append(library)


def mds_writer(samples: Samples, out: str) -> None:
    """mosaicml-streaming's MDSWriter; each process makes a data set of its own, as its guide says."""
    from streaming import MDSWriter

    names = part_names(samples)
    columns = {"__key__": "str", **dict.fromkeys(names, "bytes")}
    with MDSWriter(out=out, columns=columns, hashes=["xxh3_128"], size_limit=64 << 20) as writer:
        for key, paths in samples:
            found = {path.partition(".")[2]: Path(path).read_bytes() for path in paths}
            writer.write({"__key__": key, **{name: found.get(name, b"") for name in names}})


def litdata_optimize(samples: Samples, out: str) -> None:
    """litdata's optimize, which starts its two workers by itself."""
    import litdata

    names, root = part_names(samples), Path.cwd()

    def read(sample: tuple[str, list[str]]) -> dict[str, Any]:
        key, paths = sample
        found = {path.partition(".")[2]: (root / path).read_bytes() for path in paths}
        return {"__key__": key, **{name: found.get(name, b"") for name in names}}

    with contextlib.redirect_stdout(sys.stderr):
        litdata.optimize(read, samples, out, num_workers=2, chunk_bytes="64MB", start_method="fork", verbose=False)


WRITERS: dict[str, Callable[[Samples, str], None]] = {
    "plain-parquet": plain_parquet,
    "plain-arrow": plain_arrow,
    "datasets-parquet": datasets_parquet,
    "loop-tfrecord": loop_tfrecord,
    "mds-writer": mds_writer,
    "litdata-optimize": litdata_optimize,
}
STARTS_PROCESSES = ("litdata-optimize",)
IMPORTS = {"plain-parquet": "pyarrow.parquet", "plain-arrow": "pyarrow", "datasets-parquet": "datasets"}
IMPORTS |= {"loop-tfrecord": "google_crc32c", "mds-writer": "streaming", "litdata-optimize": "litdata"}


def share(listing: str, number: int, count: int) -> Samples:
    """The samples of one process."""
    samples: Samples = []
    for line in Path(listing).read_text().splitlines():
        path = line.partition(" ")[2]
        key = path.partition(".")[0]
        if samples and samples[-1][0] == key:
            samples[-1][1].append(path)
        else:
            samples.append((key, [path]))
    return samples[len(samples) * number // count : len(samples) * (number + 1) // count]


def main() -> int:
    writer, listing, root, out, count = sys.argv[1:6]
    if len(sys.argv) == 7:
        number = int(sys.argv[6])
        samples = share(listing, number, int(count))
        if writer == "mds-writer":
            lend_operators()
        __import__(IMPORTS[writer])
        os.chdir(root)
        began = time.perf_counter()
        WRITERS[writer](samples, f"{out}/{number}")
        print(time.perf_counter() - began)
        return 0
    os.makedirs(out, exist_ok=True)
    command = [sys.executable, *sys.argv]
    if writer in STARTS_PROCESSES:
        command[-1] = count = "1"
    running = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(int(count))]
    seconds = [float(process.communicate()[0]) for process in running]
    print(max(seconds))
    return max(process.returncode for process in running)


if __name__ == "__main__":
    sys.exit(main())
