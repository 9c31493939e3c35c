"""The contract with the shell: exit codes, streams, typos, config, environment, colours, errors as JSON.

A made-up command stands in for the real ones, so that only the frame is tested here.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from shardtool import errors
from shardtool.__main__ import run
from shardtool.cli import COMMANDS, LazyGroup, cli
from shardtool.cli.options import (
    OPTIONS,
    Command,
    Output,
    grouping_options,
    options,
    output_options,
    running_options,
    shard_options,
    source_options,
)
from shardtool.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ERROR_FIELDS = {"schema", "code", "exit_code", "message", "hint", "where"}


class Ran:
    """What a command line did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        assert set(document) == ERROR_FIELDS
        assert document["schema"] == "shardtool/error/1"
        assert document["exit_code"] == self.code
        return document


class Shell:
    """Runs command lines whose `pack` does what a test says, and shows its options."""

    def __init__(self) -> None:
        self.action: Callable[[Output], None] = lambda output: None
        self.chosen: dict[str, Any] = {}

    def __call__(self, *args: str) -> Ran:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(args)
            sys.stderr.flush()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
        return Ran(code, texts[0], texts[1])

    def command(self) -> click.Command:
        @click.command(cls=Command, name="pack", examples=("shardtool pack a/ out/",), exit_codes=(3, 5))
        @click.argument("sources", nargs=-1, required=True, metavar="SRC...")
        @source_options
        @grouping_options
        @shard_options
        @running_options
        @output_options
        def pack(output: Output, **chosen: Any) -> None:
            """Pack in play."""
            self.chosen = chosen
            self.action(output)

        return pack


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("SHARDTOOL_")] + ["NO_COLOR", "FORCE_COLOR"]:
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell()
    real, pack = LazyGroup.get_command, shell.command()
    monkeypatch.setattr(LazyGroup, "list_commands", lambda self, ctx: list(COMMANDS))
    monkeypatch.setattr(
        LazyGroup, "get_command", lambda self, ctx, name: pack if name == "pack" else real(self, ctx, name)
    )
    return shell


def raising(error: BaseException) -> Callable[[Output], None]:
    def action(output: Output) -> None:
        raise error

    return action


# Exit codes


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_ends_with_the_code_of_its_class(shell: Shell, name: str) -> None:
    kind = getattr(errors, name)
    shell.action = raising(kind("what happened", hint="what to do", where={"path": "x"}))
    done = shell("pack", "a")
    assert done.code == kind.exit_code
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0] == "error  what happened"
    assert lines[1].startswith("hint   what to do")
    assert lines[1].endswith(f"(exit {done.code})")
    assert len(lines[1]) == 80


def test_an_error_in_json_is_the_last_line_of_stderr(shell: Shell) -> None:
    shell.action = raising(errors.DuplicateKey("twice", hint="once", where={"path": b"a\xff", "key": "k"}))
    done = shell("pack", "a", "--json")
    assert done.out == ""
    assert done.error["code"] == "DuplicateKey"
    assert done.error["where"] == {"path": "a\\xff", "key": "k"}


def test_a_bug_exits_1_and_shows_its_traceback(shell: Shell) -> None:
    shell.action = raising(ValueError("surprise"))
    done = shell("pack", "a")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "this is a bug in shardtool" in done.err
    assert shell("pack", "a", "--json").error["code"] == "ValueError"


def test_an_error_on_purpose_shows_a_traceback_only_with_debug(shell: Shell) -> None:
    shell.action = raising(errors.SourceNotFound("no such folder"))
    assert "Traceback" not in shell("pack", "a").err
    assert "Traceback" in shell("pack", "a", "--debug").err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_exits_7(shell: Shell, number: int) -> None:
    shell.action = raising(OSError(number, "full", "/out/x"))
    error = shell("pack", "a", "--json").error
    assert (error["code"], error["exit_code"], error["where"]) == ("NoSpace", 7, {"path": "/out/x"})


def test_control_c_exits_130(shell: Shell) -> None:
    shell.action = raising(KeyboardInterrupt())
    done = shell("pack", "a")
    assert done.code == 130
    assert "goes on from there" in done.err


def test_sigterm_exits_143(shell: Shell) -> None:
    def terminate(output: Output) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)

    shell.action = terminate
    assert shell("pack", "a", "--json").error["code"] == "Interrupted"
    assert shell("pack", "a").code == 143


def test_sigterm_exits_143_also_when_the_command_made_it_its_own_error(shell: Shell) -> None:
    def terminate(output: Output) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        except KeyboardInterrupt:
            raise errors.Interrupted("stopped at shard 3") from None

    shell.action = terminate
    assert shell("pack", "a").code == 143


def test_a_broken_pipe_of_a_worker_is_no_quiet_end(shell: Shell) -> None:
    shell.action = raising(BrokenPipeError(errno.EPIPE, "worker"))
    assert shell("pack", "a").code == 1


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    script = f"{sys.executable} -m shardtool completion bash | true; echo ${{PIPESTATUS[0]}}"
    slow = script.replace(
        "-m shardtool", "-c 'import time; time.sleep(0.3); from shardtool.__main__ import main; main()'"
    )
    done = subprocess.run(["bash", "-c", slow], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def shell_line(script: str, folder: Path) -> str:
    """What a line of bash prints in a folder that holds two files, `src/a.txt` and `src/b.txt`."""
    (folder / "src").mkdir()
    for name in "ab":
        (folder / "src" / f"{name}.txt").write_text(name)
    program = f'shardtool() {{ {sys.executable} -m shardtool "$@"; }}; '
    home = os.fspath(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": home}
    done = subprocess.run(
        ["bash", "-c", program + script], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def test_a_reader_of_steps_that_leaves_ends_no_work(tmp_path: Path) -> None:
    script = "{ sleep 0.5; shardtool pack src out -v; echo $? >&3; } 3>&1 2>&1 >/dev/null | true; ls out"
    said = shell_line(f"exec 4>&1; {script.replace('3>&1', '3>&4')}", tmp_path).split()
    assert said == ["0", "data", "index", "manifest.json"]


def test_a_full_disk_behind_stderr_changes_no_exit_code(tmp_path: Path) -> None:
    assert shell_line("shardtool pakc 2>/dev/full; echo $?", tmp_path) == "2"


def test_closed_streams_are_streams_that_nobody_reads(tmp_path: Path) -> None:
    script = "shardtool pack src out <&- 2>&- >&-; echo $?; shardtool pakc 2>&-; echo $?; shardtool verify out -q"
    said = shell_line(script, tmp_path).splitlines()
    assert said[:2] == ["0", "2"]
    assert said[2].startswith("ok ")


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.EACCES, "AccessDenied", "chmod"),
        (errno.ENOENT, "SourceNotFound", "repeat"),
        (errno.EIO, "SourceError", "storage"),
        (errno.ELOOP, "SourceError", "path"),
        (errno.EMFILE, "SourceError", "ulimit -n"),
    ],
)
def test_what_the_system_says_of_a_path_is_no_bug(shell: Shell, number: int, code: str, hint: str) -> None:
    shell.action = raising(OSError(number, "it will not do", "/out/x"))
    done = shell("pack", "a", "--json")
    assert "Traceback" not in done.err
    assert (done.error["code"], done.error["exit_code"], done.error["where"]) == (code, 5, {"path": "/out/x"})
    assert "/out/x cannot be used: it will not do" in done.error["message"]
    assert hint in done.error["hint"]


# Usage errors


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["pakc", "a"], "no such command: pakc", "did you mean shardtool pack?"),
        (["validate", "a"], "no such command: validate", "did you mean shardtool verify?"),
        (["photos/", "out"], "no such command: photos/", "shardtool pack photos/ OUT"),
        (["--seed", "1", "pack"], "no such option: --seed", "behind the command"),
        (["--versoin"], "no such option: --versoin", "did you mean --version?"),
        (["pack"], "SRC... is missing", "shardtool pack --help"),
        (["pack", "a", "--shard-sze", "1MiB"], "no such option: --shard-sze", "did you mean --shard-size?"),
        (["pack", "a", "--num-workers", "3"], "no such option: --num-workers", "it is called --workers"),
        (["pack", "a", "--shuffle", "gobal"], "--shuffle: 'gobal' is not one of global, none", "did you mean global?"),
        (["pack", "a", "--format", "webdataset"], "--format: 'webdataset'", "did you mean tar?"),
        (["pack", "a", "--format", "tar.zst"], "--format: 'tar.zst'", "did you mean tar --compress zstd?"),
        (["pack", "a", "--shards", "1GB"], "--shards: '1GB' is not a whole number", "--shard-size 1GB"),
        (["pack", "a", "--shards", "0"], "--shards: 0 is not at least 1", ""),
        (["pack", "a", "--shards", "9" * 30], f"--shards: {'9' * 30} is too large", ""),
        (["pack", "a", "--shard-size", "256"], "256 means 256 bytes", "did you mean 256MiB?"),
        (["pack", "a", "--shard-size", "99999999EiB"], "99999999EiB is more than any disk holds", ""),
        (["pack", "a", "--shard-size", "big"], "--shard-size: 'big' is not a size", "256MiB"),
        (["pack", "a", "--group-by", "fist-dot"], "--group-by: 'fist-dot' is not one of", "did you mean first-dot?"),
        (["pack", "a", "--group-by", "regex:("], "is not a regular expression", "quote it"),
        (["pack", "a", "--part", "8/8"], "there is no part 8 of 8", "0/8 .. 7/8"),
        (["pack", "a", "--alias", "jpg"], "is not NAME=VALUE", "jpg=jpeg"),
        (["pack", "a", "--workers", "0"], "is not auto or a number", ""),
        (["pack", "a", "--require", "jpg,,txt"], "has an empty name", "jpg,txt"),
        (["pack", "a", "--seed"], "--seed", ""),
        (["completion", "bsh"], "is not one of bash, zsh, fish", "did you mean bash?"),
    ],
)
def test_usage_errors_say_what_to_type(shell: Shell, args: list[str], message: str, hint: str) -> None:
    done = shell(*args)
    assert done.code == 2
    assert done.out == ""
    text, _, rest = done.err.partition("\nhint   ")
    assert text.startswith("error  ")
    assert message in text
    assert hint in rest
    assert "(exit 2)" in rest
    error = shell(*args, "--json").error
    assert (error["code"], error["exit_code"]) == ("UsageProblem", 2)


def test_no_command_shows_the_help_on_stderr(shell: Shell) -> None:
    done = shell()
    assert (done.code, done.out) == (2, "")
    assert "shardtool pack photos/ out/" in done.err


# Where values come from


def test_flag_beats_environment_beats_config_beats_default(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("seed = 3\n")
    assert shell("pack", "a").code == 0
    assert shell.chosen["seed"] == 0
    shell("pack", "a", "--config", str(config))
    assert shell.chosen["seed"] == 3
    monkeypatch.setenv("SHARDTOOL_PACK_SEED", "2")
    shell("pack", "a", "--config", str(config))
    assert shell.chosen["seed"] == 2
    shell("pack", "a", "--config", str(config), "--seed", "1")
    assert shell.chosen["seed"] == 1


def test_a_config_file_takes_every_kind_of_option(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'seed = 1\nexclude = "*.tmp"\n[verify]\nnonsense = 1\n'
        '[pack]\nseed = 5\nshard-size = "1MiB"\nshard_size = 65536\n'
        'require = ["jpg", "txt"]\nalias = ["jpg=jpeg"]\nhidden = true\nworkers = 2\n'
    )
    assert shell("pack", "a", "--config", str(config)).err == ""
    chosen = shell.chosen
    assert (chosen["seed"], chosen["shard_size"], chosen["workers"], chosen["hidden"]) == (5, 65536, 2, True)
    assert (chosen["require"], chosen["alias"], chosen["exclude"]) == (("jpg", "txt"), (("jpg", "jpeg"),), ("*.tmp",))


def test_a_config_file_may_be_json(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"pack": {"split": "train=0.9,validation=0.1", "seed": null, "json": true}}')
    shell.action = lambda output: output.result({"seed": shell.chosen["seed"]}, "text")
    assert json.loads(shell("pack", "a", "--config", str(config)).out) == {"seed": 0}
    assert shell.chosen["split"] == "train=0.9,validation=0.1"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("shard-sise = 1", "no such option: shard-sise", "did you mean shard-size?"),
        ("[pakc]\nseed = 1", "no such option: pakc", "did you mean pack?"),
        ("[pack]\nzzz = 1", "no such option: zzz", "long names"),
        ("seed = ", "--config", ""),
        ("hidden = 3", "expected true or false", "--hidden"),
        ("seed = true", "expected a value", "--seed"),
        ("seed = [1, 2]", "takes one value", "--seed"),
        ('seed = "x"', "--seed: 'x' is not a whole number (from the --config file)", ""),
    ],
)
def test_a_bad_config_file_exits_2(shell: Shell, tmp_path: Path, text: str, message: str, hint: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    error = shell("pack", "a", "--config", str(config), "--json").error
    assert error["exit_code"] == 2
    assert message in error["message"]
    assert hint in error["hint"]


def test_a_missing_config_file_exits_2(shell: Shell, tmp_path: Path) -> None:
    assert shell("pack", "a", "--config", str(tmp_path / "no.toml")).code == 2


def test_a_bad_environment_variable_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_PACK_SHARD_SIZE", "big")
    done = shell("pack", "a")
    assert done.code == 2
    assert "(from SHARDTOOL_PACK_SHARD_SIZE)" in done.err


def test_json_may_come_from_the_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_PACK_JSON", "1")
    shell.action = raising(errors.NoSpace("full"))
    assert shell("pack", "a").error["exit_code"] == 7


def test_a_version_in_the_environment_does_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_VERSION", "1")
    monkeypatch.setenv("SHARDTOOL_HELP", "1")
    assert shell("pack", "a").out == ""


# Streams


def say_everything(output: Output) -> None:
    output.step("plan", "7 samples\n10 inodes")
    output.detail("more")
    output.warn("careful")
    output.hint("shardtool verify out/")
    output.result({"a": 1, "path": "x\udcff\\"}, "text ▁▂ x\udcff", brief="short")


def test_stdout_has_the_result_and_nothing_else(shell: Shell) -> None:
    shell.action = say_everything
    done = shell("pack", "a")
    assert done.out == "text ▁▂ x\\xff\n"
    assert done.err == "plan   7 samples\n       10 inodes\n! careful\nnext   shardtool verify out/\n"
    assert "       more\n" in shell("pack", "a", "-v").err


def test_quiet_keeps_results_and_warnings(shell: Shell) -> None:
    shell.action = say_everything
    done = shell("pack", "a", "-q")
    assert (done.out, done.err) == ("short\n", "! careful\n")


def test_json_is_one_document(shell: Shell) -> None:
    shell.action = say_everything
    done = shell("pack", "a", "--json", "-v")
    assert json.loads(done.out) == {"a": 1, "path": "x\\xff\\"}
    assert done.err == "! careful\n"


def test_json_takes_numpy_numbers_and_bytes(shell: Shell) -> None:
    numpy = pytest.importorskip("numpy")
    document = {"n": numpy.int64(3), "a": numpy.arange(2), "b": b"\xff", "p": Path("/x"), "s": {2, 1}}
    shell.action = lambda output: output.result(document, "")
    assert json.loads(shell("pack", "a", "--json").out) == {"n": 3, "a": [0, 1], "b": "\\xff", "p": "/x", "s": [1, 2]}


def test_a_stream_that_cannot_encode_gets_ascii() -> None:
    code = "from shardtool.cli.output import Output; Output().result({}, 'a · ▁█ ü')"
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "a | _# \\xfc\n"


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_follows_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_coloured: bool
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    shell.action = raising(errors.BadKey("a\x1b[31mb"))
    err = shell("pack", "a").err
    assert ("\x1b[31m" in err) == is_coloured
    assert "a\\x1b[31mb" in err


# Progress


def three_steps(output: Output) -> None:
    with output.progress(3, 30, 6) as progress:
        for _ in range(3):
            progress.advance(1, 10, 2)


def test_progress_events_are_json_lines_on_stderr(shell: Shell) -> None:
    shell.action = three_steps
    events = [json.loads(line) for line in shell("pack", "a", "--progress", "json").err.splitlines()]
    assert [event["event"] for event in events] == ["start", "end"]
    last = events[-1]
    assert (last["shards"], last["bytes"], last["samples"], last["total_bytes"]) == (3, 30, 6, 30)


@pytest.mark.parametrize("mode", [[], ["--progress", "none"], ["--progress", "lines"], ["--json"], ["-q"]])
def test_a_short_run_in_a_log_says_nothing_about_progress(shell: Shell, mode: list[str]) -> None:
    shell.action = three_steps
    assert shell("pack", "a", *mode).err == ""


def test_a_long_run_in_a_log_shows_life(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(output: Output) -> None:
        with output.progress(2, 0, 0) as progress:
            progress.advance(1)
            time.sleep(0.1)

    monkeypatch.setenv("SHARDTOOL_PROGRESS_S", "0.02")
    shell.action = wait
    assert "pack   1/2  ETA " in shell("pack", "a").err


def test_a_bad_interval_is_a_usage_error(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_PROGRESS_S", "soon")
    shell.action = three_steps
    assert shell("pack", "a").code == 2


def test_a_bar_on_demand(shell: Shell) -> None:
    shell.action = three_steps
    err = shell("pack", "a", "--progress", "bar").err
    assert "pack " in err
    assert "3/3" in err


def test_figures_tell_rate_and_time_left() -> None:
    now = iter([0.0, 2.0, 2.0])
    progress = Progress("pack", 4, 4 << 20, 0, clock=lambda: next(now))
    progress.advance(1, 1 << 20, 100)
    assert progress.figures() == "1/4  1.00 MiB  512 KiB/s  100 samples  ETA 0:06.0"


# Help


def test_help_of_a_command_has_examples_groups_and_exit_codes(shell: Shell) -> None:
    text = shell("pack", "--help").out
    headings = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Examples", "Source", "Grouping", "Shards", "Order", "Running", "Output", "Exit codes"]
    assert "  130  interrupted" in text
    assert "  4  " not in text
    assert max(map(len, text.splitlines())) <= 80
    assert shell("pack", "-h").out == text


def test_every_option_has_a_text_of_its_own() -> None:
    texts = [settings["help"] for _, settings in OPTIONS.values()]
    assert all(text[0].isupper() or text.startswith("auto") for text in texts)
    assert len(set(texts)) == len(texts)


def test_options_are_picked_by_name() -> None:
    @click.command()
    @options("deep", "dry-run")
    def command(**chosen: Any) -> None:
        """Nothing."""

    assert [param.name for param in command.params] == ["deep", "dry_run"]


def test_every_command_that_is_built_has_help_and_examples() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert isinstance(command, Command), name
        assert command.help, name
        assert len(command.examples) == 3, name


def test_version(shell: Shell) -> None:
    assert shell("--version").out == "shardtool 0.1.0\n"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: Shell, name: str) -> None:
    assert "_SHARDTOOL_COMPLETE" in shell("completion", name).out


def test_completion_offers_commands_and_values(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SHARDTOOL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "shardtool pack --links f")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert shell().out == "plain,follow\n"
    monkeypatch.setenv("COMP_WORDS", "shardtool pa")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert shell().out == "plain,pack\n"


def test_python_dash_m_works() -> None:
    done = subprocess.run([sys.executable, "-m", "shardtool", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "shardtool 0.1.0\n"
