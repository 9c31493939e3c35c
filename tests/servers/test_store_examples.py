"""The examples that need a store do what their pages say, on SeaweedFS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import store_examples
from doc_examples import ROOT, blocks_of, complaints, pages
from store_examples import PAGES, REASON

if TYPE_CHECKING:
    from s3_servers import S3Server


@pytest.mark.parametrize("name", PAGES)
def test_examples_on_a_store_do_what_the_page_says(seaweedfs: S3Server, name: str) -> None:
    _, outcomes = store_examples.run_page(name, seaweedfs)
    assert outcomes
    found = complaints(outcomes)
    assert not found, "\n\n".join([*found, "to correct the pages: python tests/store_examples.py --update"])


def test_every_page_with_such_examples_is_run() -> None:
    marked = {
        str(page.relative_to(ROOT / "docs"))
        for page in pages()
        if any(block.reason == REASON for block in blocks_of(page.read_text(encoding="utf-8")))
    }
    assert marked == set(PAGES)
