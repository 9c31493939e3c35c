"""Every document of --json, of errors and progress, and the manifest follow the schemas in docs/reference/schemas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, pack, run_cli
from jsonschema import Draft202012Validator

from shardtool.cli import COMMANDS, cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers import Ran

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference" / "schemas"
PETS = ROOT / "fixtures" / "pets"
NAMES = sorted(path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json"))
SILENT = {"completion"}  # prints a script, whatever is asked


def validator(name: str) -> Draft202012Validator:
    document = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


def check(name: str, document: Any) -> None:
    found = [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(document)]
    assert not found, f"{name}: " + "; ".join(found[:3])
    assert document["schema"] == f"shardtool/{name}/1"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("schemas") / "out"
    pack(PETS, out, shard_size=50_000, label_from="parent", split="train=0.75,test=0.25")
    return out


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys that are no UTF-8, no labels, one shard, a file that failed."""
    root = tmp_path_factory.mktemp("odd")
    make_tree(root / "in", {b"a/\xff1.txt": "x", b"a/2.bin": bytes(range(256)), "b/.DS_Store": "", "b/README": ""})
    os.symlink("nowhere", root / "in" / "gone.txt")
    pack(root / "in", root / "out", on_error="skip")
    return root / "out"


def checked(name: str, *args: str | Path) -> Ran:
    done = run_cli(*args, "--json")
    check(name, done.json)
    return done


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_schema_and_names_what_it_describes(name: str) -> None:
    document = validator(name).schema
    assert isinstance(document, dict)
    assert document["properties"]["schema"] == {"const": f"shardtool/{name}/1"}
    assert document["title"]
    assert document["description"]
    assert not validator(name).is_valid({"schema": f"shardtool/{name}/2"})


def test_every_command_has_a_schema() -> None:
    built = {name for name in COMMANDS if cli.get_command(None, name) is not None} - SILENT  # type: ignore[arg-type]
    described = "".join((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") for name in NAMES)
    assert {name for name in built if f"shardtool {name} --json" not in described} == set()


def test_pack(tmp_path: Path) -> None:
    first = checked("pack", "pack", PETS, tmp_path / "out", "--shards", "3", "--durability", "none")
    assert first.json["resumed_shards"] == 0
    assert list(first.json["phase_seconds"]) == ["plan", "start", "pack", "publish"]
    assert sum(first.json["phase_seconds"].values()) == pytest.approx(first.json["seconds"], abs=0.005)
    again = checked("pack", "pack", PETS, tmp_path / "out", "--shards", "3")
    assert again.json["resumed_shards"] == 3
    part = checked("pack", "pack", PETS, tmp_path / "parts", "--shards", "3", "--part", "0/2", "--durability", "none")
    assert part.json["missing_shards"] > 0


def test_plan(tmp_path: Path) -> None:
    checked("plan", "plan", PETS, tmp_path / "out", "--label-from", "parent", "--split", "train=0.5,test=0.5")
    checked("plan", "pack", PETS, tmp_path / "out", "--dry-run")
    checked("plan", "plan", PETS, tmp_path / "out", "--write")
    checked("plan", "plan", PETS, tmp_path / "out", "--compat", "all")


def test_scan(tmp_path: Path) -> None:
    checked("scan", "scan", PETS)
    make_tree(tmp_path, {b"a/\xff1.txt": "x", "a/2.txt": "", "a/2.TXT": "", "x": "", "labels.csv": "", "a/._1": ""})
    os.symlink("nowhere", tmp_path / "gone.txt")
    assert checked("scan", "scan", tmp_path).code == 5
    checked("scan", "scan", tmp_path, "--on-error", "skip", "--on-duplicate", "first", "--list", "all")
    checked("scan", "scan", tmp_path, "--duplicates")
    checked("explain", "scan", "--explain", "ragged")


def test_stats(pets: Path, odd: Path) -> None:
    checked("stats", "stats", pets, "--world-size", "4")
    assert checked("stats", "stats", odd).json["labels"] is None


def test_status(pets: Path, odd: Path, tmp_path: Path) -> None:
    checked("status", "status", pets)
    checked("status", "status", odd)
    run_cli("plan", PETS, tmp_path / "out", "--write", "-q")
    checked("status", "status", tmp_path / "out")
    make_tree(tmp_path / "planning" / ".shardtool", {})
    checked("status", "status", tmp_path / "planning")


def test_ls(pets: Path, odd: Path) -> None:
    for flags in ([], ["--braces"], ["--samples"]):
        checked("ls", "ls", pets, *flags)
        checked("ls", "ls", odd, *flags)


def test_inspect(pets: Path, odd: Path) -> None:
    for out in (pets, odd):
        for words in ([], ["--compat", "all"], ["0:"], ["0:0"]):
            checked("inspect", "inspect", out, *words)


def test_cat(pets: Path, odd: Path) -> None:
    checked("cat", "cat", pets, "cats/0001.txt", "cats/0001.png")
    checked("cat", "cat", odd, r"a/\xff1")


def test_verify(pets: Path, tmp_path: Path) -> None:
    checked("verify", "verify", pets, "--deep")
    make_tree(tmp_path / "in", {b"a/\xff1.txt": "hello", "b.txt": "world"})
    pack(tmp_path / "in", tmp_path / "out")
    (shard,) = (tmp_path / "out" / "data").iterdir()
    checked("verify", "verify", shard)
    shard.write_bytes(shard.read_bytes().replace(b"hello", b"jello")[:-512])
    done = checked("verify", "verify", tmp_path / "out", "--deep")
    assert (done.code, done.json["ok"]) == (4, False)
    assert done.json["problems"]


def test_extract(pets: Path, tmp_path: Path) -> None:
    checked("extract", "extract", pets, tmp_path / "files")


def test_diff(pets: Path, odd: Path) -> None:
    checked("diff", "diff", pets, pets)
    checked("diff", "diff", pets, odd)


def test_index(tmp_path: Path) -> None:
    pack(PETS, tmp_path / "out", shards=2)
    (tmp_path / "out" / "index" / "00001.arrow").unlink()
    assert checked("index", "index", tmp_path / "out").json["made"]["indexes"] == 1
    checked("index", "index", *(tmp_path / "out" / "data").iterdir(), "--out-dir", tmp_path / "indexed")
    done = checked("index", "index", tmp_path / "out", "--emit", "wids,energon")
    assert [one["dialect"] for one in done.json["emitted"]] == ["wids", "energon"]


def test_assign_and_where(pets: Path) -> None:
    checked("assign", "assign", pets, "--world-size", "3", "--split", "train")
    checked("where", "where", pets, "cats/0001", "--world-size", "3")


def test_the_manifest(pets: Path, odd: Path) -> None:
    for out in (pets, odd):
        check("manifest", json.loads((out / "manifest.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "args",
    [["pack"], ["scan", "/nowhere"], ["stats", "/nowhere"], ["ls", "/nowhere"], ["cat", "/nowhere", "a.b"], ["pakc"]],
    ids=" ".join,
)
def test_errors(args: list[str]) -> None:
    done = run_cli(*args, "--json")
    check("error", done.error)
    assert done.error["exit_code"] == done.code != 0


def test_progress(tmp_path: Path) -> None:
    done = run_cli("pack", PETS, tmp_path / "out", "--shards", "3", "--progress", "json", "--durability", "none")
    events = list(_events(done.err))
    for event in events:
        check("progress", event)
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]
    assert events[-1]["shards"] == events[-1]["total_shards"] == 3


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
