"""Real corpora that scripts/fetch-corpora unpacks: where they lie, how they are packed, and what should come out.

The reference below is written apart from shardtool: it walks a tree and says which file should be which member.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FETCH = Path(__file__).parent.parent / "scripts" / "fetch-corpora"
CACHE = Path(os.environ.get("SHARDTOOL_CACHE") or Path.home() / ".cache" / "shardtool") / "corpora"


@dataclass(frozen=True)
class Corpus:
    """One data set made of packages.

    Args:
        packages: names that scripts/fetch-corpora takes.
        below: the folder that is packed, below each package.
        rule: `--group-by`.
        links: `--links`.
        no_ext: `--no-ext`.
        shard_size: bytes.
        notices: words that a notice must have.
    """

    packages: tuple[str, ...]
    below: str
    rule: str = "first-dot"
    links: str = "follow"
    no_ext: str = ""
    shard_size: int = 16 << 20
    notices: tuple[str, ...] = ()

    @property
    def roots(self) -> list[Path]:
        """Source folders."""
        return [CACHE / package / self.below for package in self.packages]

    @property
    def versions(self) -> list[str]:
        """`package version` of each."""
        return [(CACHE / package / "version").read_text().strip() for package in self.packages]

    @property
    def options(self) -> dict[str, Any]:
        """As `pack` takes them; the first folder is the class."""
        return {
            "group_by": self.rule,
            "links": self.links,
            "no_ext": self.no_ext,
            "shard_size": self.shard_size,
            "label_from": "regex:^([^/]+)",
        }


CORPORA = {
    "tuxpaint": Corpus(("tuxpaint-stamps-default",), "usr/share/tuxpaint/stamps"),
    "papirus": Corpus(("papirus-icon-theme",), "usr/share/icons", "last-dot", "skip", notices=("case",)),
    "papirus-links": Corpus(("papirus-icon-theme",), "usr/share/icons/Papirus", "file", notices=("case",)),
    "linux-doc": Corpus(("linux-doc",), "usr/share/doc", "last-dot", no_ext="data"),
    "tzdata": Corpus(("tzdata",), "usr/share/zoneinfo", no_ext="data", shard_size=1 << 20),
    "adwaita": Corpus(("adwaita-icon-theme",), "usr/share/icons", no_ext="data", shard_size=1 << 20),
    "asterisk": Corpus(("asterisk-core-sounds-en-wav", "asterisk-core-sounds-fr-wav"), "usr/share/asterisk/sounds"),
}


def fetch(corpus: Corpus) -> str:
    """Why `corpus` cannot be had; empty where it can."""
    try:
        ran = subprocess.run([FETCH, *corpus.packages], capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        return f"{', '.join(corpus.packages)}: fetching took too long"
    return "" if all(root.is_dir() for root in corpus.roots) else ran.stderr.strip()


def reference(corpus: Corpus) -> dict[bytes, Path]:
    """{member name: file} that should come out, hidden names aside."""
    found: dict[bytes, Path] = {}
    for root in corpus.roots:
        for path in _walk(root, follow=corpus.links == "follow"):
            name = _member(corpus, path.relative_to(root))
            assert name not in found, name
            found[name] = path
    return found


def sources(corpus: Corpus) -> dict[bytes, Path]:
    """{path below its root: file}, hidden names aside."""
    return {
        os.fsencode(path.relative_to(root)): path
        for root in corpus.roots
        for path in _walk(root, follow=corpus.links == "follow")
    }


def _walk(root: Path, *, follow: bool) -> Iterator[Path]:
    for folder, names, files in os.walk(root, followlinks=follow):
        names[:] = [name for name in names if name[0] != "."]
        for name in files:
            path = Path(folder, name)
            if name[0] != "." and (follow or not path.is_symlink()):
                yield path


def _member(corpus: Corpus, path: Path) -> bytes:
    folder, name = os.path.split(path)
    if corpus.rule == "first-dot" or "." not in name:
        stem, _, extension = name.partition(".")
    else:
        stem, _, extension = name.rpartition(".")
        stem = name if corpus.rule == "file" else stem
    key = os.path.join(folder, stem.replace(".", "_"))
    return os.fsencode(f"{key}.{extension.lower() or corpus.no_ext}")
