"""Names of files -> keys and part names. One rule for the whole data set; pure functions of folder and name.

A key has no dot in its last component, so that every reader cuts a member name where we did. Rules that leave a dot
there (`last-dot`, `file`, a hidden file) write it as `_`; `group` checks that no two samples meet that way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardtool.errors import UsageProblem

RULES = ("first-dot", "last-dot", "file", "dir")


@dataclass(frozen=True)
class KeyRule:
    """How a path becomes a key and a part name.

    Args:
        kind: one of `RULES`, or `regex`.
        pattern: for `regex`: matched against the whole path; groups named `key` and `part`, or numbered 1 and 2.
        keep_case: leave upper-case letters in part names.
        aliases: part name -> part name, applied after lower-casing.
        default_part: part name of files without extension; None leaves them out.
        escape_names: write bytes that are not UTF-8 as %XX.
    """

    kind: str = "first-dot"
    pattern: re.Pattern[bytes] | None = None
    keep_case: bool = False
    aliases: dict[bytes, bytes] = field(default_factory=dict)
    default_part: bytes | None = None
    escape_names: bool = False

    @property
    def is_contiguous(self) -> bool:
        """True where the parts of a sample are neighbours in a sorted folder, so that grouping compares neighbours."""
        return self.kind == "first-dot"

    def split(self, folder: bytes, name: bytes) -> tuple[bytes, bytes] | None:
        """(identity, extension) of a file: equal identities are one sample; None where a regex does not match."""
        if self.kind == "regex":
            return self._match(join(folder, name))
        if self.kind == "dir":
            return folder, name
        if self.kind == "first-dot":
            stem, _, extension = name.partition(b".") if name[:1] != b"." else _hidden(name)
            return join(folder, stem), extension
        stem, dot, extension = name.rpartition(b".")
        if not dot or not stem:
            stem, extension = name, b""
        return join(folder, name if self.kind == "file" else stem), extension

    def key(self, identity: bytes) -> bytes:
        """The key written to shards: `identity` with the dots of its last component as `_`."""
        head, slash, last = identity.rpartition(b"/")
        if b"." in last:
            identity = head + slash + last.replace(b".", b"_")
        return escape_bytes(identity) if self.escape_names else identity

    def part(self, extension: bytes) -> bytes | None:
        """The part name for an extension; None for a file that has none and no `default_part`."""
        if not extension:
            return self.default_part
        name = extension if self.keep_case else extension.lower()
        name = self.aliases.get(name, name)
        return escape_bytes(name) if self.escape_names else name

    def _match(self, path: bytes) -> tuple[bytes, bytes] | None:
        found = self.pattern.fullmatch(path) if self.pattern else None
        if found is None:
            return None
        named = found.groupdict()
        if "key" in named:
            return named["key"] or b"", named.get("part") or b""
        return found.group(1) or b"", (found.group(2) or b"") if (found.re.groups > 1) else b""


def _hidden(name: bytes) -> tuple[bytes, bytes, bytes]:
    stem, dot, extension = name[1:].partition(b".")
    return b"." + stem, dot, extension


def join(folder: bytes, name: bytes) -> bytes:
    """Path of `name` in `folder`; the root folder is b""."""
    return folder + b"/" + name if folder else name


def escape_bytes(name: bytes) -> bytes:
    """`name` with every byte that does not belong to valid UTF-8, and `%` itself, as `%XX`; reversible."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        text = name.decode("utf-8", "surrogateescape").replace("%", "%25")
        escaped = "".join(f"%{ord(char) - 0xDC00:02X}" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in text)
        return escaped.encode("utf-8")
    return name


def is_utf8(name: bytes) -> bool:
    """Whether `name` is UTF-8 text."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_rule(
    group_by: str = "first-dot",
    *,
    keep_case: bool = False,
    aliases: tuple[str, ...] = (),
    no_ext: str | None = None,
    escape_names: bool = False,
) -> KeyRule:
    """The rule meant by the grouping options.

    Args:
        group_by: one of `RULES`, or `regex:PATTERN`.
        aliases: `part=extension` each; several extensions may be given: `image=jpg,jpeg,png`.
        no_ext: part name for files without extension.

    Raises:
        UsageProblem: unknown rule, broken pattern, malformed alias.
    """
    kind, pattern = group_by, None
    if group_by.startswith("regex:"):
        kind, pattern = "regex", compile_pattern(group_by[len("regex:") :], "--group-by")
        if pattern.groups == 0:
            raise UsageProblem(
                f"--group-by {group_by!r} has no group",
                hint=r"name the key and the part: --group-by 'regex:(?P<key>.+)_(?P<part>left|right)\.png'",
            )
    elif group_by not in RULES:
        raise UsageProblem(f"--group-by {group_by!r} is no rule", hint=f"one of {', '.join(RULES)}, regex:PATTERN")
    return KeyRule(kind, pattern, keep_case, _aliases(aliases), no_ext.encode() if no_ext else None, escape_names)


def compile_pattern(text: str, option: str) -> re.Pattern[bytes]:
    """A regular expression over path bytes.

    Raises:
        UsageProblem: the expression does not compile; names `option`.
    """
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageProblem(
            f"{option}: {text!r} is no regular expression: {error}",
            hint="put a backslash before . ( ) [ ] where they are meant literally",
        ) from error


def _aliases(pairs: tuple[str, ...]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for pair in pairs:
        target, equals, names = pair.partition("=")
        if not equals or not target or not names:
            raise UsageProblem(f"--alias {pair!r} is not PART=EXTENSION", hint="write --alias jpg=jpeg")
        for name in names.split(","):
            table[name.strip().encode()] = target.strip().encode()
    return table
