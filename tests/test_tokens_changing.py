"""Sources of token data that change while their documents are read: an error that says so, never a mixture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import make_tree
from test_tokens_pack import jsonl, pack_tokens

from shardtool.errors import SourceChanged, SourceError
from shardtool.tokens import documents, stage
from shardtool.tokens.files import InputFile
from shardtool.tokens.inputs import COLUMNS, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LINE = jsonl(["x" * 1000])
LINES = 40


def cut_short(path: Path) -> None:
    os.truncate(path, len(LINE) * (LINES // 2))


def cut_inside_a_line(path: Path) -> None:
    os.truncate(path, len(LINE) * (LINES // 2) + 100)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(len(LINE) * (LINES // 2))
        file.write(jsonl(["y" * 1000]) * (LINES // 2))


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(jsonl(["y" * 1000]) * LINES)
    other.replace(path)


def vanish(path: Path) -> None:
    path.unlink()


def change_after_the_first_batch(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    def read(*args: Any, **options: Any) -> Iterator[documents.Batch]:
        for number, batch in enumerate(documents.read_documents(*args, **options)):
            yield batch
            if number == 0:
                change()

    monkeypatch.setattr(stage, "read_documents", read)


@pytest.mark.parametrize("change", [cut_short, cut_inside_a_line, rewrite, replace, vanish], ids=lambda c: c.__name__)
@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_lines_that_change_while_they_are_read_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], on_error: str
) -> None:
    source = make_tree(tmp_path / "in", {"a.jsonl": LINE * LINES})
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 4000)
    monkeypatch.setattr("shardtool.tokens.files.BUFFER_BYTES", 4000)
    change_after_the_first_batch(monkeypatch, lambda: change(source / "a.jsonl"))
    with pytest.raises(SourceError, match=r"a\.jsonl (changed since it was listed|cannot be read)") as raised:
        pack_tokens(source, tmp_path / "out", on_error=on_error)
    assert raised.value.exit_code == 5
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out" / ".shardtool" / "parts").glob("*.json")), "a receipt of a mixture"


def test_texts_that_change_while_others_are_read_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_tree(tmp_path / "in", {f"{number}.txt": "text " * 400 for number in range(9)})
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 4000)
    change_after_the_first_batch(monkeypatch, lambda: (source / "8.txt").write_text("another"))
    with pytest.raises(SourceChanged, match=r"8\.txt changed since it was listed: 2,000 bytes then, 7 now"):
        pack_tokens(source, tmp_path / "out")


def test_parquet_that_is_cut_short_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    values = np.random.default_rng(1).integers(0, 1 << 31, (4000, 4000), np.int32)  # 64 MB: eight reads
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 4000)
    pq.write_table(pa.table({"input_ids": lists}), path, use_dictionary=False, compression="none")
    file = InputFile(str(path.parent), b"a.parquet", path.stat().st_size, path.stat().st_mtime_ns, COLUMNS)
    batches = documents.read_documents(Task(0, (file,), (0, 1)), "text", "input_ids", wants_ids=True)
    next(batches)
    os.truncate(path, 4096)
    with pytest.raises(SourceError, match=r"a\.parquet is damaged"):
        list(batches)
