"""Which names of a source are left out, and why: junk, hidden names, and the user's globs. Names are bytes.

Junk is what operating systems, editors and tools leave among the files. A folder that is left out is not walked and
counts as one ignored entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from shardtool.errors import UsageProblem

JUNK: dict[bytes, str] = {
    # names
    b".DS_Store": "Finder settings",
    b".AppleDouble": "macOS resource forks",
    b".LSOverride": "Finder settings",
    b".Spotlight-V100": "macOS search index",
    b".fseventsd": "macOS file system log",
    b".TemporaryItems": "macOS temporary files",
    b".DocumentRevisions-V100": "macOS document versions",
    b".apdisk": "macOS network share settings",
    b"Icon\r": "Finder folder icon",
    b"__MACOSX": "resource forks of a zip file made on macOS",
    b"Thumbs.db": "Windows thumbnails",
    b"ehthumbs.db": "Windows thumbnails",
    b"desktop.ini": "Windows folder settings",
    b"Desktop.ini": "Windows folder settings",
    b"$RECYCLE.BIN": "Windows trash",
    b"System Volume Information": "Windows system folder",
    b".directory": "KDE folder settings",
    b"@eaDir": "NAS thumbnails and index",
    b"lost+found": "file system check leftovers",
    b".git": "version control",
    b".hg": "version control",
    b".svn": "version control",
    b".bzr": "version control",
    b".ipynb_checkpoints": "notebook checkpoints",
    b"__pycache__": "Python byte code",
    b".shardtool": "shardtool's own files",
    # beginnings
    b"._*": "macOS resource fork",
    b".nfs*": "file deleted while open on NFS",
    b".fuse_hidden*": "file deleted while open on FUSE",
    b".Trash*": "trash",
    b"~$*": "office lock file",
    b".~lock.*": "office lock file",
}

_EXACT = frozenset(name for name in JUNK if not name.endswith(b"*"))
_BEGINNINGS = tuple(name[:-1] for name in JUNK if name.endswith(b"*"))
ODD_LETTERS = tuple(sorted({begin[:1] for begin in (b".", *_BEGINNINGS)}))  # names that begin so need a look
ODD_NAMES = frozenset(name for name in _EXACT if not name.startswith(ODD_LETTERS))  # so do these


def junk_reason(name: bytes) -> str | None:
    """Why a file or folder called `name` is junk; None where it is not."""
    if name in _EXACT:
        return JUNK[name]
    for begin in _BEGINNINGS:
        if name.startswith(begin):
            return JUNK[begin + b"*"]
    return None


@dataclass(frozen=True)
class NameRules:
    """What to leave out by name.

    Args:
        hidden: keep names that begin with a dot.
        include: globs; where there are any, a file that matches none is left out.
        exclude: globs; a file or a whole folder that matches one is left out.
    """

    hidden: bool = False
    include: tuple[bytes, ...] = ()
    exclude: tuple[bytes, ...] = ()

    @property
    def has_globs(self) -> bool:
        """Whether paths must be looked at, not only names."""
        return bool(self.include or self.exclude)

    def folder(self, name: bytes, path: bytes) -> tuple[str, str] | None:
        """(reason, detail) for a folder that is left out whole."""
        return self._by_name(name) or self._excluded(name, path, is_folder=True)

    def file(self, name: bytes, path: bytes) -> tuple[str, str] | None:
        """(reason, detail) for a file that is left out."""
        found = self._by_name(name) or self._excluded(name, path, is_folder=False)
        if found is None and self.include and not any(glob.matches(name, path) for glob in self._includes):
            return "not_included", ""
        return found

    def _by_name(self, name: bytes) -> tuple[str, str] | None:
        if (detail := junk_reason(name)) is not None:
            return "junk", detail
        return ("hidden", "") if name.startswith(b".") and not self.hidden else None

    def _excluded(self, name: bytes, path: bytes, *, is_folder: bool) -> tuple[str, str] | None:
        for glob in self._excludes:
            if glob.matches(name, path, is_folder=is_folder):
                return "excluded", glob.pattern.decode("utf-8", "backslashreplace")
        return None

    @cached_property
    def _includes(self) -> list[Glob]:
        return [Glob(pattern) for pattern in self.include]

    @cached_property
    def _excludes(self) -> list[Glob]:
        return [Glob(pattern) for pattern in self.exclude]

    def used_includes(self) -> set[bytes]:
        """Include patterns that matched a file so far, in this process."""
        return {glob.pattern for glob in self._includes if glob.was_used}

    def __getstate__(self) -> dict[str, object]:
        return {"hidden": self.hidden, "include": self.include, "exclude": self.exclude}


class Glob:
    """One pattern on paths below a root: `*` and `?` stay inside a name, `**` crosses folders, `[a-z]` is a class.

    Without a slash it is matched against the last name, at any depth; with one against the whole path. A slash at the
    end means folders only.
    """

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.was_used = False
        body = pattern.rstrip(b"/")
        self._folders_only = body != pattern
        self._whole_path = b"/" in body
        try:
            self._match = re.compile(_regex(body.lstrip(b"/")), re.DOTALL).fullmatch
        except re.error as error:
            shown = pattern.decode("utf-8", "backslashreplace")
            raise UsageProblem(f"{shown!r} is not a pattern: {error}", hint="write ranges like [a-z]") from None

    def matches(self, name: bytes, path: bytes, *, is_folder: bool = False) -> bool:
        """Whether a file, or a folder, is meant."""
        if self._folders_only and not is_folder:
            return False
        found = self._match(path if self._whole_path else name) is not None
        self.was_used = self.was_used or found
        return found


def _regex(glob: bytes) -> bytes:
    out, at = b"", 0
    while at < len(glob):
        piece, width = _token(glob, at)
        out, at = out + piece, at + width
    return out


def _token(glob: bytes, at: int) -> tuple[bytes, int]:
    """The regular expression of one token of a glob, and how many bytes it takes."""
    at_name_start = at == 0 or glob[at - 1 : at] == b"/"
    if at_name_start and glob.startswith(b"**/", at):
        return rb"(?:.*/)?", 3
    if glob.startswith(b"**", at):
        return rb".*", 2
    letter = glob[at : at + 1]
    if letter == b"*":
        return rb"[^/]*", 1
    if letter == b"?":
        return rb"[^/]", 1
    if letter == b"[" and (end := glob.find(b"]", at + 2)) > 0:
        return _letters(glob[at + 1 : end]), end + 1 - at
    return re.escape(letter), 1


def _letters(inside: bytes) -> bytes:
    """`[abc]`, `[!a-z]`: a class of bytes, never the slash."""
    negate, inside = inside[:1] in (b"!", b"^"), inside[1:] if inside[:1] in (b"!", b"^") else inside
    body = inside.replace(b"\\", b"\\\\").replace(b"[", b"\\[").replace(b"]", b"\\]").replace(b"^", b"\\^")
    body = body.replace(b"&&", b"&\\&").replace(b"||", b"|\\|").replace(b"~~", b"~\\~").replace(b"--", b"-\\-")
    return b"(?!/)[" + (b"^" if negate else b"") + body + b"]"
