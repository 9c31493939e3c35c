"""Imports point downwards: a module may use its own layer and those below (design, section 6)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "shardtool"
LAYERS = (
    "errors plugins model token_options token_lengths units names hashing keys heap columns samples sniff "
    "worker workers",
    "storage",
    "sources formats index_file",
    "scan grouping order planning",
    "manifest emitted compat dialects packing assignment verification indexing reading statistics shard_sources "
    "tokens staging loading bench doctor checkpoint",
    "executors",
    "report",
    "cli torch grain __main__",
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names.split()}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name != "__init__.py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("shardtool.")} - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in LAYER_OF, f"give {own} a layer"
    upwards = {name for name in imports_of(path) if LAYER_OF.get(name, 0) > LAYER_OF[own]}
    assert not upwards, f"{own} is layer {LAYER_OF[own]} and imports {upwards}"
