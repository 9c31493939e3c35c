"""What the tests of record formats beside their own readers share: trees, what is in them, and damage."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from corpora import CORPORA, fetch
from doc_examples import ROOT
from helpers import Said, make_tree
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from shardtool.verification.verify import verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.verification.verify import VerifyResult

STAMPS = CORPORA["tuxpaint"].roots[0] / "animals"
FEW = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TREES = st.dictionaries(
    st.tuples(st.text("abcüß_ ", min_size=1, max_size=30), st.sampled_from(["jpg", "seg.png", "bin", "X"])),
    st.one_of(st.binary(max_size=300), st.just(b""), st.just(b"x" * 20_000)),
    min_size=1,
    max_size=25,
)


def real_tree(tmp_path: Path) -> Path:
    """Stamps: pictures, sounds and texts, 36 MiB; skips where they cannot be had."""
    if reason := fetch(CORPORA["tuxpaint"]):
        pytest.skip(reason)
    folder = tmp_path / "stamps"
    folder.mkdir()
    (folder / "in").symlink_to(STAMPS, target_is_directory=True)
    return folder


def made_tree(root: Path, parts: dict[tuple[str, str], bytes]) -> Path:
    """A tree of what hypothesis made."""
    return make_tree(root, {f"{key.strip() or 'k'}.{part}": data for (key, part), data in parts.items()})


def large_tree(root: Path) -> Path:
    """Samples around the size of a slab, and one of several."""
    rng = random.Random(5)
    sizes = ((1 << 20) - 100, 1 << 20, (1 << 20) + 1, (3 << 20) + 11, 0, 1)
    return make_tree(
        root, {f"n{number}.{part}": rng.randbytes(size) for number, size in enumerate(sizes) for part in "ab"}
    )


def samples_of(tree: Path) -> dict[str, dict[str, bytes]]:
    """{key: {part: bytes}} by a walk that knows nothing of shardtool: a part is what follows the first dot."""
    found: dict[str, dict[str, bytes]] = {}
    for folder, _, names in os.walk(tree, followlinks=True):
        for name in names:
            path = Path(folder, name)
            stem, _, part = name.partition(".")
            key = os.path.relpath(os.path.join(folder, stem), tree)
            found.setdefault(key, {})[part] = path.read_bytes()
    return found


def check_damage(path: Path, read: Callable[[], Any], out: Path, *, seed: int) -> None:
    """Two wrong bytes anywhere in a shard are found by verify; the official reader must not be asked to."""
    whole, rng = path.read_bytes(), random.Random(seed)
    for _ in range(20):
        damaged = bytearray(whole)
        for place in rng.sample(range(len(whole)), 2):
            damaged[place] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        assert verify_deep(out).faults
    path.write_bytes(whole)
    assert verify_deep(out).faults == ()
    read()


def verify_deep(out: Path) -> VerifyResult:
    """`verify --deep` in this process."""
    return verify(os.fspath(out), WorkerPool(0), Said(), is_deep=True)


TREE_KINDS: dict[str, Callable[[Path], Path]] = {
    "real": real_tree,
    "pets": lambda tmp_path: ROOT / "fixtures" / "pets",
    "large": lambda tmp_path: large_tree(tmp_path / "in"),
}
tree_kinds = pytest.mark.parametrize("kind", TREE_KINDS)


def tree_of(kind: str, tmp_path: Path) -> Path:
    """The tree of a kind."""
    return TREE_KINDS[kind](tmp_path)
