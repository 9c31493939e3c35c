"""Hard places: small or read-only file systems, low limits, and being somebody without rights."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IS_ROOT = os.geteuid() == 0
NOBODY = 65534


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A small file system of its own; skips where none may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", os.fspath(place)]
    ran = subprocess.run(command, capture_output=True, check=False) if IS_ROOT else None
    if ran is None or ran.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", os.fspath(place)], check=True)


@contextlib.contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """A lower soft limit of this process."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Without the rights of root."""
    if IS_ROOT:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if IS_ROOT:
            os.seteuid(0)


def give_to_somebody(folder: Path) -> None:
    """Let them own all of it."""
    if IS_ROOT:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, -1, follow_symlinks=False)


def read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as from a device that is waited for."""
    monkeypatch.setattr("shardtool.sources.medium.MEDIUM.is_cold", True)
    monkeypatch.setattr("shardtool.sources.medium.JUDGED_FILES", 1 << 62)
    monkeypatch.setattr("shardtool.sources.medium.JUDGED_BYTES", 1 << 62)
