"""The cookbook pages that need torch do what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from peer_data import complaints_about

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [
    "torch-ddp.md",
    "torchrun.md",
    "staging-torchrun.md",
    "webdataset-loader.md",
    "resume-with-fewer-nodes.md",
    "lightning.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_true(page: str, tmp_path: Path) -> None:
    found = complaints_about(page, "needs torch", tmp_path)
    assert not found, "\n".join(found)
