"""Parameter types: text from the shell, the environment or a config file to checked values.

Every refusal names the nearest value or shows how to write it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.usage import BadValue, did_you_mean, nearest
from shardtool.errors import UsageProblem
from shardtool.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Param = click.Parameter | None
    Ctx = click.Context | None

SLOWEST_LINK = 1000  # bytes/s
LIMIT = 1 << 64  # of a number
SIZE_LIMIT = 1 << 62  # bytes: sums of sizes stay numbers of 64 bits
SMALLEST_SIZE_BYTES = 1024  # below it a plain integer was meant as MiB


class SizeType(click.ParamType[int]):
    """Bytes: `256MiB`, `10GB`, `268435456`."""

    name = "size"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> int:
        """Bytes meant by `value`."""
        try:
            size = parse_size(str(value))
        except UsageProblem as problem:
            raise BadValue(problem.message, hint=problem.hint, param=param, ctx=ctx) from None
        if size >= SIZE_LIMIT:
            raise BadValue(f"{value} is more than any disk holds", hint="", param=param, ctx=ctx)
        if size < SMALLEST_SIZE_BYTES:
            raise (
                BadValue(
                    f"{value} means {size} bytes, which is too small",
                    hint=f"did you mean {value}MiB?",
                    param=param,
                    ctx=ctx,
                )
                if str(value).isdigit()
                else BadValue(f"{value} is too small", param=param, ctx=ctx)
            )
        return size


class RateType(click.ParamType[int]):
    """Bytes a second: `1GB/s`, `100MiB/s`."""

    name = "rate"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> int:
        """Bytes a second meant by `value`."""
        try:
            rate = parse_size(str(value).removesuffix("/s"))
        except UsageProblem as problem:
            raise BadValue(problem.message, hint="--link 1GB/s", param=param, ctx=ctx) from None
        if rate < SLOWEST_LINK:
            raise BadValue(f"{value} is slower than any link", hint="--link 1GB/s", param=param, ctx=ctx)
        return rate


class CountType(click.ParamType[int]):
    """A whole number, `1,000` and `1_000` too.

    Args:
        minimum: the smallest that is allowed.
        slip: option that takes a size, suggested to who gives one here.
    """

    name = "n"

    def __init__(self, minimum: int = 1, slip: str = "") -> None:
        self.minimum, self.slip = minimum, slip

    def convert(self, value: Any, param: Param, ctx: Ctx) -> int:
        """The number that `value` spells."""
        text = str(value).replace(",", "").replace("_", "")
        try:
            number = int(text)
        except ValueError:
            raise BadValue(f"{value!r} is not a whole number", hint=self._hint(text), param=param, ctx=ctx) from None
        if number >= LIMIT:
            raise BadValue(f"{value} is too large", hint="", param=param, ctx=ctx)
        if number < self.minimum:
            raise BadValue(f"{value} is not at least {self.minimum}", hint="", param=param, ctx=ctx)
        return number

    def _hint(self, text: str) -> str:
        try:
            parse_size(text)
        except UsageProblem:
            return ""
        return f"for a size write {self.slip} {text}" if self.slip else ""


class DidYouMeanChoice(click.Choice[str]):
    """One of a few words; a refusal names the nearest.

    Args:
        choices: the words.
        slips: other tools' words for them.
    """

    def __init__(self, choices: Sequence[str], slips: Mapping[str, str] | None = None) -> None:
        super().__init__(choices)
        self.slips = dict(slips or {})

    def convert(self, value: Any, param: Param, ctx: Ctx) -> str:
        """The choice that `value` is."""
        if value in self.choices:
            return str(value)
        found = self.slips.get(str(value)) or nearest(str(value), self.choices)
        raise BadValue(
            f"{str(value)!r} is not one of {', '.join(self.choices)}",
            hint=f"did you mean {found}?" if found else "",
            param=param,
            ctx=ctx,
        )


class RuleType(click.ParamType[str]):
    """One of a few words, or `regex:` and a regular expression, or another prefix and a name.

    Args:
        words: the words.
        prefixes: what may stand before a name, such as `column`, and how the name is called.
    """

    name = "rule"

    def __init__(self, words: Sequence[str], prefixes: Mapping[str, str] | None = None) -> None:
        self.words, self.prefixes = tuple(words), dict(prefixes or {})

    def convert(self, value: Any, param: Param, ctx: Ctx) -> str:
        """The rule as given, once it is known to be one."""
        text = str(value)
        if text.startswith("regex:"):
            checked_regex(text.removeprefix("regex:"), param, ctx)
        elif text not in self.words and not self._has_name(text):
            found = nearest(text, self.words)
            hint = f"did you mean {found}?" if found else ""
            known = ", ".join([*self.words, *(f"{prefix}:..." for prefix in self.prefixes)])
            raise BadValue(f"{text!r} is not one of {known}, regex:...", hint=hint, param=param, ctx=ctx)
        return text

    def _has_name(self, text: str) -> bool:
        prefix, _, name = text.partition(":")
        return prefix in self.prefixes and bool(name)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """`[parent|regex:RE]`."""
        named = [f"{prefix}:{name}" for prefix, name in self.prefixes.items()]
        return f"[{'|'.join([*self.words, *named])}|regex:RE]"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """The words, and `regex:`."""
        item = click.shell_completion.CompletionItem
        words = (*self.words, *(f"{prefix}:" for prefix in self.prefixes), "regex:")
        return [item(word) for word in words if word.startswith(incomplete)]


class RegexType(click.ParamType[str]):
    """A regular expression, compiled once to see that it is one."""

    name = "regex"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> str:
        """The expression as given."""
        return checked_regex(str(value), param, ctx)


class WordsType(click.ParamType[tuple[str, ...]]):
    """Words separated by commas; in a config file also a list."""

    name = "names"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[str, ...]:
        """The words, without blanks around them."""
        words = value.split(",") if isinstance(value, str) else value
        found = tuple(str(word).strip() for word in words)
        if not all(found):
            raise BadValue(f"{value!r} has an empty name", hint="write it like jpg,txt", param=param, ctx=ctx)
        return found


class DialectsType(WordsType):
    """Names of dialects, separated by commas."""

    name = "dialect,..."

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[str, ...]:
        """The names, each once."""
        from shardtool.dialects import DIALECTS

        names = super().convert(value, param, ctx)
        for name in names:
            if name not in DIALECTS:
                found = nearest(name, DIALECTS)
                hint = f"did you mean {found}?" if found else f"one of {', '.join(DIALECTS)}"
                raise BadValue(f"{name!r} is no dialect", hint=hint, param=param, ctx=ctx)
        return tuple(dict.fromkeys(names))


class ReadersType(WordsType):
    """`all`, or names of readers, separated by commas."""

    name = "all|reader,..."

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[str, ...]:
        """The names as given."""
        from shardtool.dialects.rules import READERS

        names = super().convert(value, param, ctx)
        for name in names:
            if name not in READERS and name != "all":
                found = nearest(name, READERS)
                hint = f"did you mean {found}?" if found else f"one of all, {', '.join(READERS)}"
                raise BadValue(f"{name!r} is no reader", hint=hint, param=param, ctx=ctx)
        return names


class PairType(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`."""

    name = "name=value"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[str, str]:
        """(NAME, VALUE), both not empty."""
        if isinstance(value, tuple):
            return value
        left, _, right = str(value).partition("=")
        if not left or not right:
            raise BadValue(f"{value!r} is not NAME=VALUE", hint="write it like jpg=jpeg", param=param, ctx=ctx)
        return left, right


class CompressType(click.ParamType[str]):
    """`none`, `auto`, `zstd` or `zstd:LEVEL`."""

    name = "codec"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> str:
        """The value itself, where it is one of these."""
        from shardtool.formats.compression import settled

        try:
            settled(str(value))
        except UsageProblem as problem:
            is_level = str(value).startswith("zstd:")
            hint = (not is_level and did_you_mean(str(value), ["none", "auto", "zstd"])) or problem.hint
            raise BadValue(f"{value!r} is none of those known", hint=hint, param=param, ctx=ctx) from None
        return str(value)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """`[none|auto|zstd[:L]]`."""
        return "[none|auto|zstd[:L]]"


class WorkersType(click.ParamType[int]):
    """`auto`, which is 0 to the program, or a number of processes."""

    name = "workers"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> int:
        """Processes to use, 0 for as many as make sense here."""
        if str(value) == "auto" or (value == 0 and param is None):
            return 0
        if not str(value).isdecimal() or int(value) < 1:
            raise BadValue(f"{value!r} is not auto or a number above 0", param=param, ctx=ctx)
        return int(value)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """`[auto|N]`."""
        return "[auto|N]"


class PartType(click.ParamType[tuple[int, int]]):
    """`i/n`: part i of n, counted from 0, so that rank and size of a batch job can be pasted in."""

    name = "i/n"

    def convert(self, value: Any, param: Param, ctx: Ctx) -> tuple[int, int]:
        """(i, n) with 0 <= i < n."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)/(\d+)", str(value))
        if match is None:
            raise BadValue(f"{value!r} is not i/n", hint="write it like 0/8", param=param, ctx=ctx)
        part, parts = int(match[1]), int(match[2])
        if part >= parts:
            hint = f"parts count from 0: 0/{parts} .. {parts - 1}/{parts}" if parts else "write it like 0/8"
            raise BadValue(f"there is no part {part} of {parts}", hint=hint, param=param, ctx=ctx)
        return part, parts


def checked_regex(text: str, param: Param, ctx: Ctx) -> str:
    """`text`, when Python's `re` takes it."""
    try:
        re.compile(text)
    except re.error as error:
        hint = "quote it for the shell: 'regex:(.*)-.*'"
        raise BadValue(f"{text!r} is not a regular expression: {error}", hint=hint, param=param, ctx=ctx) from None
    return text
