"""Sources of `bench tokens`: ids in Parquet and Arrow files, small pairs, lines of JSON."""

from __future__ import annotations

import json
import os
import random
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

MEDIAN_TOKENS, SPREAD = (
    400,
    1.0,
)  # of a document, log-normal: a mean of 660, as FineWeb's
VOCABULARY = 50_000
TEXT_STEP = 1_150  # characters from one document of 3,000 to the next
ARROW_ROWS = 1000  # a record batch, as Hugging Face `datasets` writes


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def ids_data(work: Path, documents: int, files: int = 2) -> tuple[dict[str, Path], int]:
    """({kind: folder}, tokens): the same lists of int32 as Parquet with pyarrow's defaults, and as Arrow streams."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folders = {kind: fresh(work / f"ids-{kind}") for kind in ("parquet", "arrow")}
    rng = np.random.default_rng(0)
    total = 0
    for number in range(files):
        lengths = np.clip(rng.lognormal(np.log(MEDIAN_TOKENS), SPREAD, documents // files).astype(np.int64), 16, None)
        count = int(lengths.sum())
        ids = (rng.zipf(1.3, count) % VOCABULARY).astype(np.int32)  # as skewed as those of text
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))})
        pq.write_table(table, folders["parquet"] / f"{number}.parquet", row_group_size=10_000)
        write_arrow(table, folders["arrow"] / f"{number}.arrow")
        total += count
    return folders, total


def write_arrow(table: Any, path: Path) -> None:
    """An Arrow stream of small record batches."""
    import pyarrow as pa

    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=ARROW_ROWS)


def few_ids(folders: dict[str, Path], work: Path) -> dict[str, Path]:
    """{kind: folder} with the first ten documents, for start-up times."""
    import pyarrow.parquet as pq

    few = {kind: fresh(work / f"few-{kind}") for kind in folders}
    table = pq.read_table(folders["parquet"] / "0.parquet").slice(0, 10)
    pq.write_table(table, few["parquet"] / "0.parquet")
    write_arrow(table, few["arrow"] / "0.arrow")
    return few


def pairs_data(work: Path, pairs: int, documents: int) -> Path:
    """Many small pairs, uint16."""
    from shardtool.formats.bin_index import encode_idx

    folder = fresh(work / "pairs")
    rng = np.random.default_rng(1)
    for number in range(pairs):
        lengths = rng.integers(50, 1000, documents)
        ids = rng.integers(0, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
        (folder / f"p{number:05d}.bin").write_bytes(ids.tobytes())
        (folder / f"p{number:05d}.idx").write_bytes(b"".join(encode_idx(lengths, "uint16")))
    return folder


def some_pairs(folder: Path, target: Path, count: int) -> Path:
    """A folder with links to the first pairs of another."""
    fresh(target)
    for path in sorted(folder.glob("*.bin"))[:count]:
        for suffix in (".bin", ".idx"):
            os.link(path.with_suffix(suffix), target / f"{path.stem}{suffix}")
    return target


def library_texts(step: int) -> list[str]:
    """Pieces of 3,000 characters of the standard library's sources, one every `step` characters, shuffled."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    for path in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        content = path.read_text(encoding="utf-8", errors="ignore")
        texts += [content[at : at + 3000] for at in range(0, len(content), step)]
    random.Random(0).shuffle(texts)
    return texts


def write_lines(path: Path, texts: list[str]) -> None:
    """Texts as lines of JSON."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def text_data(work: Path) -> Path:
    """Two files of lines of JSON, about 70 MB together: most of the sources is in two or three texts."""
    folder = fresh(work / "text")
    texts = library_texts(TEXT_STEP)
    for number in range(2):
        write_lines(folder / f"{number}.jsonl", texts[number::2])
    return folder


def large_text(work: Path, gigabytes: int) -> Path:
    """So many files of 1 GB of lines of JSON, links to one and the same file."""
    one = work / "large-1.jsonl"
    if not one.exists() or one.stat().st_size < 10**9:
        block = work / "block.jsonl"
        write_lines(block, library_texts(12_000))
        data = block.read_bytes()
        with one.open("wb") as file:
            for _ in range(-(-(10**9) // len(data))):
                file.write(data)
    folder = fresh(work / f"large-{gigabytes}")
    for number in range(gigabytes):
        os.link(one, folder / f"{number}.jsonl")
    return folder
