"""Runs the examples that are marked `<!-- not run: needs a store -->`, on a real one.

The blocks of a page are one run, as with `doc_examples`, in a folder and with a bucket `lab` that hold what the page
speaks of. What a page shows for all (an endpoint, a disk of a node) stands for the server and the folder of the test.
`python tests/store_examples.py [--update]` checks them, or writes what they print into the pages.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from doc_examples import ROOT, SHOWN_FOLDER, complaints, run_steps, steps_of, updated
from helpers import pack
from s3_servers import Bucket, running
from snapshots import files_below

if TYPE_CHECKING:
    from collections.abc import Callable

    from doc_examples import Outcome
    from s3_servers import S3Server

REASON = "needs a store"
BUCKET = "lab"
SHOWN_ENDPOINT, SHOWN_DISK = "https://store.example:9000", "/nvme"
PETS = ROOT / "fixtures" / "pets"


def prepare_pets(folder: Path, bucket: Bucket) -> None:
    """`pets` as objects, and packed at `out`."""
    pack(PETS, folder / "packed", shard_size=64 << 10, label_from="parent")
    upload(bucket, "pets", PETS)
    upload(bucket, "out", folder / "packed")
    shutil.rmtree(folder / "packed")


def prepare_corpus(folder: Path, bucket: Bucket) -> None:
    """Lines of JSON at `corpus` and, others, in the folder `more`."""
    lines = [json.dumps({"text": f"Document {n} has {'many ' * (n % 9)}words."}) + "\n" for n in range(1500)]
    bucket.put({"corpus/a.jsonl": "".join(lines[:1000]).encode()})
    (folder / "more").mkdir()
    (folder / "more" / "b.jsonl").write_text("".join(lines[1000:]))


PAGES: dict[str, Callable[[Path, Bucket], None]] = {"object-storage.md": prepare_pets, "tokens.md": prepare_corpus}


def upload(bucket: Bucket, prefix: str, folder: Path) -> None:
    """Every file of a folder as an object."""
    bucket.put({f"{prefix}/{path.relative_to(folder)}": path.read_bytes() for path in files_below(folder)})


def run_page(name: str, server: S3Server, *reasons: str) -> tuple[str, list[Outcome]]:
    """(text of the page, what the steps did that are not run for one of the reasons, REASON by default)."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    client = server.client()
    client.create_bucket(Bucket=BUCKET)
    bucket = Bucket(server, BUCKET)
    try:
        with tempfile.TemporaryDirectory(prefix="docs-") as top:
            folder = Path(top).resolve() / "page"
            folder.mkdir()
            PAGES[name](folder, bucket)
            here = {SHOWN_ENDPOINT: server.endpoint, SHOWN_DISK: f"{folder}{SHOWN_DISK}"}
            steps = [replace(step, script=replaced(step.script, here)) for step in steps_of(text, reasons or (REASON,))]
            cache = {"SHARDTOOL_CACHE": os.fspath(folder.parent / "cache")}
            outcomes = run_steps(steps, folder, {**server.environment(), **cache})
    finally:
        for key in bucket.keys():  # noqa: SIM118 - no dict
            client.delete_object(Bucket=BUCKET, Key=key)
        client.delete_bucket(Bucket=BUCKET)
    shown = {server.endpoint: SHOWN_ENDPOINT, f"{SHOWN_FOLDER}{SHOWN_DISK}": SHOWN_DISK}
    return text, [
        replace(outcome, lines=tuple(replaced(line, shown) for line in outcome.lines)) for outcome in outcomes
    ]


def replaced(text: str, words: dict[str, str]) -> str:
    """`text` with each of the words put in the place of another."""
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def main() -> int:
    """Check all pages; with --update correct them."""
    found: list[str] = []
    with running("seaweedfs", "s3-server") as server:
        for name in PAGES:
            text, outcomes = run_page(name, server)
            if "--update" in sys.argv:
                (ROOT / "docs" / name).write_text(updated(text, outcomes), encoding="utf-8")
            else:
                found += [f"{name}: {complaint}" for complaint in complaints(outcomes)]
    sys.stderr.write("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
