"""Files that shrink, grow, vanish or become something else while they are packed: named, never a damaged shard."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, pack, read_members, run_cli
from places import as_somebody, give_to_somebody, read_ahead
from snapshots import small_tree, temps

from shardtool.errors import SourceChanged, SourceError
from shardtool.packing import build as build_module

if TYPE_CHECKING:
    from collections.abc import Callable


def balanced(ledger: dict[str, Any]) -> bool:
    return bool(ledger["seen"] == ledger["packed"] + sum(ledger["ignored"].values()) + ledger["failed"])


def packed(tree: Path, out: Path, **options: Any) -> dict[bytes, bytes]:
    """Members of a data set, and the ledger balances."""
    result = pack(tree, out, **options)
    assert result.manifest is not None
    assert balanced(result.manifest.ledger)
    return read_members(out)


def shrink(path: Path) -> None:
    os.truncate(path, 10)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def vanish(path: Path) -> None:
    path.unlink()


def become_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


CHANGES = [shrink, grow, vanish, become_a_fifo, become_a_folder, become_a_loop]


def change_after_planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    run = build_module._run

    def changed(*args: Any) -> None:
        change()
        run(*args)

    monkeypatch.setattr(build_module, "_run", changed)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_file_that_changed_since_the_scan_stops_the_run_or_costs_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], cold: bool
) -> None:
    if cold:
        read_ahead(monkeypatch)
    tree = small_tree(tmp_path / "src")
    whole = packed(tree, tmp_path / "whole", shards=4)
    victim = tree / "b" / "010.bin"
    change_after_planning(monkeypatch, lambda: change(victim))
    with pytest.raises(SourceError, match=r"b/010.bin") as caught:
        pack(tree, tmp_path / "out", shards=4)
    assert caught.value.hint
    assert temps(tmp_path / "out") == []
    monkeypatch.undo()
    result = pack([], tmp_path / "out", on_changed="skip", on_error="skip")
    assert result.manifest is not None
    assert [key for key, _ in result.failed] == ["b/010"]
    assert balanced(result.manifest.ledger)
    assert result.manifest.ledger["failed"] == 2
    assert read_members(tmp_path / "out") == {
        name: data for name, data in whole.items() if not name.startswith(b"b/010.")
    }
    assert run_cli("verify", tmp_path / "out", "--deep").code in (0, 3)


@pytest.mark.parametrize("change", [shrink, grow], ids=["shrinks", "grows"])
def test_a_large_file_that_changes_while_it_is_read_damages_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    tree = make_tree(tmp_path / "src", {"large.bin": bytes(20 << 20), "small.bin": b"x"})
    readv, seen = os.readv, Counter[int]()

    def reading(fd: int, buffers: Any) -> int:
        got = readv(fd, buffers)
        seen["large" in os.readlink(f"/proc/self/fd/{fd}")] += 1
        if seen[True] == 1:
            change(tree / "large.bin")
        return got

    monkeypatch.setattr(os, "readv", reading)
    with pytest.raises(SourceChanged, match=r"large.bin changed while"):
        pack(tree, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.tar"))
    assert temps(tmp_path / "out") == []


def test_a_file_that_loses_its_permission_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        base.chmod(0o777)
        tree = small_tree(base / "src")
        run_cli("pack", tree, base / "warm-up")  # imports all that is needed, which somebody may not read
        give_to_somebody(base)
        change_after_planning(monkeypatch, lambda: (tree / "a" / "003.bin").chmod(0))
        with as_somebody():
            ran = run_cli("pack", tree, base / "out", "--shards", "4", "--json")
            assert (ran.code, ran.error["code"]) == (5, "AccessDenied")
            assert "a/003.bin" in ran.error["message"]
            assert "--on-error skip" in ran.error["hint"]
        (tree / "a" / "003.bin").chmod(0o644)
        monkeypatch.undo()
        assert pack(tree, base / "out", shards=4).manifest is not None


def test_max_errors_stops_a_run_that_fails_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = small_tree(tmp_path / "src")
    change_after_planning(monkeypatch, lambda: shutil.rmtree(tree / "a"))
    with pytest.raises(SourceError, match="more than 3 samples failed"):
        pack(tree, tmp_path / "out", shards=4, on_error="skip", max_errors=3)
