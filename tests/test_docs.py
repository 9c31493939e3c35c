"""The documentation is true: its examples run, its links lead somewhere, and nothing a user can meet is missing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click
import doc_examples
import pytest
from doc_examples import ROOT, blocks_of, matches, pages

from shardtool import errors
from shardtool.cli import cli
from shardtool.cli.command import EXIT_CODES
from shardtool.errors import ShardtoolError
from shardtool.sources.found import FAILURES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = pages()
DOCS = ROOT / "docs"
LANGUAGES = {"console", "python", "output", "text", "json", "toml"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_do_what_the_page_says(page: Path) -> None:
    found = doc_examples.check_page(page)
    assert not found, "\n\n".join([*found, f"to correct the page: scripts/docs --examples {name_of(page)}"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.start}: one of {LANGUAGES}, so that it is known what runs"
        assert block.reason != "", f"line {block.start}: say why it is not run"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in set(anchors_of(file)), target


def anchors_of(page: Path) -> Iterator[str]:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            yield words.replace(" ", "-")


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, queue = set(), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached or not page.is_file() or page.suffix != ".md":
            continue
        reached.add(page)
        targets = LINK.findall(page.read_text(encoding="utf-8"))
        queue += [(page.parent / target.partition("#")[0]).resolve() for target in targets if "://" not in target]
    fragments = set((DOCS / "changes").glob("*.md"))
    assert set(DOCS.rglob("*.md")) - fragments <= reached


def test_every_command_is_in_the_prose() -> None:
    text = prose()
    missing = [name for name in cli.list_commands(click.Context(cli)) if f"shardtool {name}" not in text]
    assert not missing


def test_every_exit_code_is_explained() -> None:
    text = (DOCS / "scripting.md").read_text(encoding="utf-8")
    assert [code for code in EXIT_CODES if f"| {code} |" not in text] == []


def test_every_error_has_its_steps() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    wanted = [name for name in errors.__all__ if getattr(errors, name) is not ShardtoolError]
    assert [name for name in wanted if f"`{name}`" not in text] == []


def test_every_json_document_is_described() -> None:
    text = prose()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "shardtool").rglob("*.py"))
    schemas = set(re.findall(r'"(shardtool/[a-z-]+/\d+)"', source))
    assert schemas
    assert {schema for schema in schemas if schema not in text} == set()


@pytest.mark.parametrize("path", sorted((DOCS / "reference" / "schemas").glob("*.json")), ids=lambda path: path.stem)
def test_every_field_of_a_json_document_is_described(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    name = schema["properties"]["schema"]["const"]
    page = DOCS / ("formats/manifest.md" if "manifest" in name else "scripting.md")
    sections = [page.read_text(encoding="utf-8")]
    if page.stem == "scripting":
        title = "## Errors" if "error" in name else "### shardtool/scan/1" if "explain" in name else f"### {name}"
        sections = [part for part in re.split(r"\n(?=#+ )", sections[0]) if part.startswith(f"{title}\n")]
    mentioned = sections[0]
    fields = [field for field in schema["properties"] if field != "schema" and not field.endswith("_b64")]
    assert [field for field in fields if f"`{field}`" not in mentioned] == []


def test_every_reason_to_fail_is_explained() -> None:
    text = (DOCS / "scripting.md").read_text(encoding="utf-8")
    assert [reason for reason in FAILURES if f"`{reason}`" not in text] == []


def test_a_masked_line_matches_another_time() -> None:
    assert matches(("1.9 GiB in 0:01.2, 1.6 GiB/s",), ("1.9 GiB in 0:00.9,   2.2 GiB/s",))
    assert not matches(("1.9 GiB",), ("1.8 GiB",))


def test_dots_match_lines_and_pieces_of_lines() -> None:
    assert matches(("first", "...", "last"), ("first", "a", "b", "last"))
    assert matches(("first", "...", "last"), ("first", "last"))
    assert matches(("id ... end",), ("id 1234 end",))
    assert not matches(("first", "..."), ("second",))
