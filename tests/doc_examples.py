"""Runs the examples of a documentation page and compares what they print with what the page says.

A page is one run in one empty folder that holds a copy of `fixtures/pets` as `pets`:

- ```` ```console ````: a line that starts with `$ ` is a command (`> ` lines below it go on with it), the rest is its
  output, stdout and stderr together. The exit code must be 0, or the one in a line `(exit N)`, or asked for by a
  following `$ echo $?`.
- ```` ```python ````: a program; it must exit with 0. An ```` ```output ```` block right below is what it prints.
- `<!-- not run: REASON -->` above a block leaves it alone.

Two lines are equal when they differ only in times, rates, needed memory and blanks. `...` matches any text, alone on a
line any lines.
`python tests/doc_examples.py --update [PAGE...]` writes what the commands print into the pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\s*$")
NOT_RUN = re.compile(r"^<!-- not run:(.*)-->$")
MARK = re.compile("\x1e(\\d+) (\\d+)\n")
PAGE_TIMEOUT_S = 100.0
SHOWN_FOLDER = "/home/you"  # stands for the folder that a page runs in
MASKS = (
    (re.compile(r"\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b"), "TIME"),
    (re.compile(r"[\d,.]+ (?:[KMGT]i)?B/s"), "RATE"),
    (re.compile(r"[\d,.]+ (files|samples|shards)/s"), "RATE"),
    (re.compile(r'("(?:seconds|\w+_s|\w+_per_s)": ?)[\d.e-]+'), r"\1N"),
    (re.compile(r"[\d,.]+ [KMGT]iB (for each|to plan)"), r"MEMORY \1"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: `lines` are those between the fences, the first of them is line `start` of the page (from 0)."""

    language: str
    start: int
    lines: tuple[str, ...]
    reason: str | None  # why it is not run

    @property
    def stop(self) -> int:
        return self.start + len(self.lines)


@dataclass(frozen=True)
class Step:
    """One command or program, and the lines of the page [start, stop) that hold its output."""

    script: str
    start: int
    stop: int
    lines: tuple[str, ...]
    shown: str  # for messages
    has_output: bool = True  # False: a program without an output block


@dataclass(frozen=True)
class Outcome:
    """What a step did."""

    step: Step
    code: int
    lines: tuple[str, ...]


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    lines, found, start = text.split("\n"), [], -1
    language, reason = "", None
    for number, line in enumerate(lines):
        if start >= 0:
            if line.rstrip() == "```":
                found.append(Block(language, start, tuple(lines[start:number]), reason))
                start = -1
        elif match := FENCE.match(line):
            language, start = match[1], number + 1
            above = lines[number - 1].strip() if number else ""
            excuse = NOT_RUN.match(above)
            reason = excuse[1].strip() if excuse else None
    if start >= 0:
        raise ValueError(f"line {start}: the block is not closed")
    return found


def steps_of(text: str, reasons: Collection[str | None] = (None,)) -> list[Step]:
    """Everything on a page that is run, in order; `reasons` not to run are those of the blocks that are wanted."""
    steps: list[Step] = []
    blocks = blocks_of(text)
    for number, block in enumerate(blocks):
        if block.reason not in reasons:
            continue
        if block.language == "console":
            steps += _commands(block)
        elif block.language == "python":
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            steps.append(_program(block, after if after and after.language == "output" else None))
    return steps


def _commands(block: Block) -> list[Step]:
    steps: list[Step] = []
    at = 0
    while at < len(block.lines):
        if not block.lines[at].startswith("$ "):
            raise ValueError(f"line {block.start + at + 1}: output without a command")
        script, shown = [block.lines[at][2:]], block.lines[at]
        at += 1
        while at < len(block.lines) and (block.lines[at].startswith("> ") or block.lines[at] == ">"):
            script.append(block.lines[at][2:])
            at += 1
        first = at
        while at < len(block.lines) and not block.lines[at].startswith("$ "):
            at += 1
        steps.append(
            Step("\n".join(script), block.start + first, block.start + at, tuple(block.lines[first:at]), shown)
        )
    return steps


def _program(block: Block, output: Block | None) -> Step:
    script = "python - <<'END_OF_PROGRAM'\n" + "\n".join(block.lines) + "\nEND_OF_PROGRAM"
    shown = f"python at line {block.start}"
    if output is None:
        return Step(script, block.stop, block.stop, (), shown, has_output=False)
    return Step(script, output.start, output.stop, output.lines, shown)


def run_steps(steps: list[Step], folder: Path, variables: Mapping[str, str] | None = None) -> list[Outcome]:
    """Run the steps in one shell in `folder`, with some more environment variables."""
    shutil.copytree(ROOT / "fixtures" / "pets", folder / "pets")
    script = folder.parent / f"{folder.name}.sh"
    # The subshell gives back $?, which printf took.
    script.write_text(
        "".join(
            f"{step.script}\n_code=$?; printf '\\036%d %d\\n' {at} $_code; (exit $_code)\n"
            for at, step in enumerate(steps)
        )
    )
    ran = subprocess.run(
        ["bash", str(script)],
        cwd=folder,
        env={**_environment(folder), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    text = ran.stdout.decode("utf-8", "replace").replace(str(folder), SHOWN_FOLDER).replace(f"{script}: ", "bash: ")
    pieces = MARK.split(text)
    if len(pieces) != 3 * len(steps) + 1:
        raise AssertionError(f"the shell ended early, after:\n{pieces[-1]}")
    return [
        Outcome(step, int(pieces[3 * at + 2]), tuple(pieces[3 * at].rstrip("\n").split("\n") if pieces[3 * at] else ()))
        for at, step in enumerate(steps)
    ]


def _environment(folder: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name] for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG") if name in os.environ
    }
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),  # the package beside these pages, whatever is installed
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TZ": "UTC",
        **{f"SHARDTOOL_{name}_WORKERS": "1" for name in ("SCAN", "PACK", "VERIFY", "INDEX", "EXTRACT")},  # small inputs
        "SHARDTOOL_PLAN_WORKERS": "2",
        "SHARDTOOL_PACK_DURABILITY": "none",
    }


def complaints(outcomes: list[Outcome]) -> list[str]:
    """What is not as the page says."""
    found = []
    for at, outcome in enumerate(outcomes):
        follower = outcomes[at + 1].step.script if at + 1 < len(outcomes) else ""
        wanted = _wanted_code(outcome.step)
        where = f"line {outcome.step.start}: {outcome.step.shown}"
        if outcome.code != wanted and not follower.startswith("echo $?"):
            found.append(f"{where}\n  exits {outcome.code}, expected {wanted}\n" + _indented(outcome.lines))
        elif outcome.step.has_output and not matches(outcome.step.lines, outcome.lines):
            found.append(f"{where}\n  prints\n{_indented(outcome.lines)}\n  expected\n{_indented(outcome.step.lines)}")
    return found


def _wanted_code(step: Step) -> int:
    codes = re.findall(r"\(exit (\d+)\)$", "\n".join(step.lines), re.MULTILINE)
    return int(codes[-1]) if codes else 0


def _indented(lines: tuple[str, ...]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def matches(expected: tuple[str, ...], found: tuple[str, ...]) -> bool:
    """Whether a page that says `expected` is right about output `found`."""
    pattern = ""
    for line in map(masked, expected):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(piece) for piece in line.split("...")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{masked(line)}\n" for line in found)) is not None


def masked(line: str) -> str:
    """`line` without what differs from run to run."""
    for mask, word in MASKS:
        line = mask.sub(word, line)
    return line.strip()


def updated(text: str, outcomes: list[Outcome]) -> str:
    """The page with the output that was found, wherever it does not match."""
    lines = text.split("\n")
    for outcome in reversed(outcomes):
        step = outcome.step
        if step.has_output and not matches(step.lines, outcome.lines):
            lines[step.start : step.stop] = _merged(step.lines, outcome.lines)
    return "\n".join(lines)


def _merged(expected: tuple[str, ...], found: tuple[str, ...]) -> list[str]:
    """`found`, with the lines of the page that still hold, where each line has its counterpart."""
    if len(expected) != len(found):
        return list(found)
    return [old if old != "..." and matches((old,), (new,)) else new for old, new in zip(expected, found, strict=True)]


def pages() -> list[Path]:
    """README and all pages under docs that are written by hand."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if page.relative_to(ROOT).parts[1] != "reference")]


def check_page(page: Path, *, update: bool = False) -> list[str]:
    """Run a page; with `update` correct it first."""
    text = page.read_text(encoding="utf-8")
    steps = steps_of(text)
    if not steps:
        return []
    with tempfile.TemporaryDirectory(prefix="docs-") as top:
        folder = Path(top).resolve() / "page"
        folder.mkdir()
        outcomes = run_steps(steps, folder)
    if update:
        page.write_text(updated(text, outcomes), encoding="utf-8")
        return [line for line in complaints(outcomes) if "  exits " in line]
    return complaints(outcomes)


def main() -> int:
    """Check the pages given, or all; with --update correct them."""
    arguments = sys.argv[1:]
    update = "--update" in arguments
    chosen = [Path(name).resolve() for name in arguments if name != "--update"] or pages()
    failed = False
    for page in chosen:
        for text in check_page(page, update=update):
            failed = True
            sys.stderr.write(f"{page.relative_to(ROOT)}: {text}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
