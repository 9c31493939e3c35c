"""Folders whose names are not UTF-8, above the files and above the data set: every command works in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from helpers import run_cli

if TYPE_CHECKING:
    from pathlib import Path

FILES = {b"cats/%d.%s" % (number, part): b"%d of %s" % (number, part) for number in range(6) for part in (b"a", b"b")}


@pytest.fixture
def top(tmp_path: Path) -> str:
    """A folder with such a name; files in another one below it."""
    top = os.fsencode(tmp_path) + b"/t\xe9l\xff"
    for name, data in FILES.items():
        path = os.path.join(top, b"s\xf6urce", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return os.fsdecode(top)


def files_below(folder: str) -> dict[bytes, bytes]:
    found, place = {}, os.fsencode(folder)
    for inside, _, names in os.walk(place):
        for name in names:
            path = os.path.join(inside, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, place)] = file.read()
    return found


@pytest.mark.parametrize("packing", ["tar", "parquet", "mds"])
def test_every_command_works_below_folders_whose_names_are_not_utf8(top: str, packing: str) -> None:
    source, out, other = os.path.join(top, os.fsdecode(b"s\xf6urce")), os.path.join(top, "out"), os.path.join(top, "o2")
    for place in (out, other):
        ran = run_cli("pack", source, place, "--format", packing, "--shards", "2", "--json")
        assert (ran.code, ran.json["samples"]) == (0, 6), ran.err
    assert run_cli("pack", source, out, "--format", packing, "--shards", "2").code == 0
    for arguments in (
        ("scan", source),
        ("verify", out, "--deep"),
        ("stats", out),
        ("ls", out, "--samples"),
        ("diff", out, other),
        ("status", out),
        ("assign", out, "--world-size", "2"),
        ("stage", out, os.path.join(top, "staged")),
    ):
        ran = run_cli(*arguments)
        assert ran.code == 0, f"{arguments[0]}: {ran.err}"
    assert run_cli("cat", out, "cats/3.a").out == "3 of a"
    assert run_cli("extract", out, os.path.join(top, "again")).code == 0
    assert files_below(os.path.join(top, "again")) == FILES
