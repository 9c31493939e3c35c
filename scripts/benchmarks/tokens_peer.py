"""What the peers of `bench tokens` run, each in its own environment: tokens_peer.py TASK ARGUMENTS.

The last line on stdout is wall and CPU seconds of the task as JSON, imports left out: torch alone takes seconds.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")


ROWS = 512  # of Parquet at a time, which stay in the cache: larger batches make every peer slower


def rows(source: Path) -> Any:
    """Columns of lists, some documents each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted(source.iterdir()):
        if path.suffix == ".parquet":
            with pq.ParquetFile(path, memory_map=True) as opened:
                for batch in opened.iter_batches(ROWS, columns=["input_ids"], use_threads=False):
                    yield batch.column(0)
        else:
            with pa.memory_map(str(path)) as mapped:
                for batch in pa.ipc.open_stream(mapped):
                    yield batch.column("input_ids")


def decode(source: Path, _out: Path) -> None:
    """Only read the ids: what every side has to do."""
    for _ in rows(source):
        pass


def megatron(source: Path, out: Path) -> None:
    """Its builder as tools/preprocess_data.py calls it: a list of Python ids a document."""
    _build(out, (ids for column in rows(source) for ids in column.to_pylist()))


def megatron_arrays(source: Path, out: Path) -> None:
    """Its builder, arrays of numpy handed to it, views of what was read: faster than any tool of its own calls it."""
    _build(out, (row.values.to_numpy() for column in rows(source) for row in column))


def _build(out: Path, documents: Any) -> None:
    import numpy as np
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    out.mkdir(parents=True)
    builder = IndexedDatasetBuilder(str(out / "x.bin"), dtype=np.uint16)
    for ids in documents:
        builder.add_document(ids, [len(ids)])
    builder.finalize(str(out / "x.idx"))


def datatrove(source: Path, out: Path) -> None:
    """Its Megatron writer, as its tokenizer step calls it: a list of Python ids a document."""
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile

    out.mkdir(parents=True)
    writer = MegatronTokenizedFile(str(out), "x", token_size=2)
    for column in rows(source):
        for ids in column.to_pylist():
            writer.write(ids)
    writer.close()


def merge(source: Path, out: Path) -> None:
    """Megatron's tools/merge_datasets.py without its command line."""
    import numpy as np
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{out}.bin", dtype=np.uint16)
    for path in sorted(source.glob("*.bin")):
        builder.add_index(str(path.with_suffix("")))
    builder.finalize(f"{out}.idx")


def text(source: Path, out: Path, tokenizer: str, workers: str) -> None:
    """datatrove from lines of JSON to a Megatron pair a task."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    steps = [
        JsonlReader(str(source), glob_pattern="*.jsonl"),
        MegatronDocumentTokenizer(
            str(out), tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", batch_size=1000
        ),
    ]
    LocalPipelineExecutor(steps, tasks=int(workers), workers=int(workers), logging_dir=f"{out}-logs").run()


def bare(source: Path, _out: Path, tokenizer: str, threads: str) -> None:
    """encode_batch of the tokenizer on the same texts, with so many threads; ids are thrown away."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads == "1" else "true"
    os.environ["RAYON_NUM_THREADS"] = threads
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    held: list[str] = []
    for path in sorted(source.glob("*.jsonl")):
        for line in path.open():
            held.append(json.loads(line)["text"])
            if len(held) == 1000:
                loaded.encode_batch(held, add_special_tokens=False)
                held = []
    if held:
        loaded.encode_batch(held, add_special_tokens=False)


PACKAGES = {
    "decode": "pyarrow.parquet",
    "megatron": "megatron.core.datasets.indexed_dataset",
    "megatron_arrays": "megatron.core.datasets.indexed_dataset",
    "merge": "megatron.core.datasets.indexed_dataset",
    "datatrove": "datatrove.pipeline.tokens.megatron_tokenizer",
}


def main(task: str, source: str, out: str, *arguments: str) -> None:
    if task in PACKAGES:
        importlib.import_module("pyarrow.parquet")
        importlib.import_module(PACKAGES[task])
    wall, cpu = time.perf_counter(), time.process_time()
    globals()[task](Path(source), Path(out), *arguments)
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
