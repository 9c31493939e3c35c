from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import write_csv
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import SourceError, SourceNotFound, UsageProblem
from shardtool.sources.table import read_table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["key", "file_name", "filename", "file", "path", "image", "id", "Image"])
def test_usual_names_of_the_key_column_are_known(tmp_path: Path, name: str) -> None:
    assert read_table(os.fspath(write_csv(tmp_path / "t.csv", [{"a": 1, name: "x"}]))).key_name == name


def test_a_table_without_such_a_column_is_refused(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [{"name": "x", "text": "y"}])
    with pytest.raises(UsageProblem, match="it has name, text") as caught:
        read_table(os.fspath(table))
    assert "--join-key name" in caught.value.hint
    with pytest.raises(UsageProblem, match="no column 'nam'") as caught:
        read_table(os.fspath(table), "nam")
    assert caught.value.hint == "did you mean name?"
    (tmp_path / "s.csv").write_text("file;text\na;b\n")
    with pytest.raises(UsageProblem) as caught:
        read_table(os.fspath(tmp_path / "s.csv"))
    assert "separated" in caught.value.hint


BAD_TABLES = {
    "t.csv": [
        (b"", "is empty"),
        (b"key,a\n1,x\n2,y,z\n", r"t\.csv:3: 2 columns expected, 3 found"),
        (b'key,a\n1,"x\ny"\n\n2\n', r"t\.csv:5: 2 columns expected, 1 found"),
        (b"key,a\n1,x\n2,caf\xe9\n", r"t\.csv:3: not UTF-8"),
        (b"key,caf\xe9\n1,x\n", r"t\.csv:1: not UTF-8"),
        ("key,a\n1,x\n".encode("utf-16"), "UTF-16"),
        (b"key,a,a\n1,2,3\n", r"t\.csv:1: the header has column 'a' twice"),
        (b"key,\n1,2\n", r"t\.csv:1: the header has a column without a name"),
        (b'key,a\n1,x\n2,"y\n3,z\n', r"t\.csv:3: a quote is opened and never closed"),
    ],
    "t.jsonl": [
        (b"", "is empty"),
        (b'{"key": "1"}\n\n{"key": "2"\n', r"t\.jsonl:3: no JSON"),
        (b'{"key": "1"}\n[1]\n', r"t\.jsonl:2: no JSON object"),
        (b'{"key": "1"}\n{"kex": "1"}\n', r"t\.jsonl:2: no text in 'key'"),
        (b'{"key": "1"}\n{"key": 1.5}\n', r"t\.jsonl:2: no text in 'key'"),
        (b'{"key": "1"}\n{"key": "\xff"}\n', r"t\.jsonl:2: no JSON"),
    ],
    "t.parquet": [(b"PAR1", "is no Parquet file"), (b"key,a\n", "is no Parquet file")],
}


@pytest.mark.parametrize(
    ("name", "data", "message"), [(name, *case) for name, cases in BAD_TABLES.items() for case in cases]
)
def test_a_malformed_table_is_refused_by_file_and_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        read_table(os.fspath(tmp_path / name))
    assert caught.value.exit_code == 5
    assert caught.value.where["path"] == os.fspath(tmp_path / name)


def test_a_table_that_is_not_there_or_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="cannot be opened"):
        read_table(os.fspath(tmp_path / "no.csv"))
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UsageProblem, match="is no table") as caught:
        read_table(os.fspath(tmp_path / "a.json"))
    assert "jq" in caught.value.hint
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(UsageProblem, match="is a folder"):
        read_table(os.fspath(tmp_path / "d.csv"))


@given(st.lists(st.tuples(st.text("ab,\"\n é'\\", max_size=6), st.text('xy \t\r\n,"', max_size=6)), max_size=8))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_csv_cells_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, cells: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("csv", numbered=True)
    rows = [{"id": f"k{number}", "a": a, "b": b} for number, (a, b) in enumerate(cells)]
    table = read_table(os.fspath(write_csv(folder / "t.csv", [{"id": "first", "a": "1", "b": "2"}, *rows])))
    found = table.records(np.arange(1, len(rows) + 1), ["a", "b"])
    assert found == [{"a": row["a"], "b": row["b"]} for row in rows]
    lines = [table.place(row) for row in range(table.num_rows)]
    assert len(set(lines)) == len(lines)
