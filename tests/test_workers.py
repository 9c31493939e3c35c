from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import DuplicateKey, ExecutorError, WorkerLost
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
BOTH = pytest.mark.parametrize("num_workers", [0, 2], ids=["in-process", "two-processes"])


def until(is_so: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Poll every few milliseconds for an event in another process."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pids(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("pid-*")]


@BOTH
def test_every_task_gives_its_result(num_workers: int) -> None:
    with WorkerPool(num_workers) as pool:
        pool.warm()
        assert sorted(pool.run("worker_tasks:times", range(50), context=3)) == [(n, 3 * n) for n in range(50)]


def test_no_tasks_start_no_process() -> None:
    with WorkerPool(2) as pool:
        assert list(pool.run("worker_tasks:times", [], context=3)) == []
        assert multiprocessing.active_children() == []


def test_workers_begun_early_are_those_that_run() -> None:
    with WorkerPool(2) as pool:
        assert not pool.is_up
        pool.begin()
        until(lambda: len(multiprocessing.active_children()) == 2)
        until(lambda: pool.is_up)
        begun = {process.pid for process in multiprocessing.active_children()}
        assert {pid for _, pid in pool.run("worker_tasks:pid", range(20))} <= begun
        pool.begin()
        assert {process.pid for process in multiprocessing.active_children()} == begun
    assert multiprocessing.active_children() == []


def test_workers_begun_and_never_used_end_with_the_pool() -> None:
    with WorkerPool(3) as pool:
        pool.begin(2)
    assert multiprocessing.active_children() == []


def test_a_worker_that_cannot_start_is_an_error_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_context: object) -> None:
        raise WorkerLost("no worker process could be started")

    monkeypatch.setattr("shardtool.workers.start_process", refuse)
    with WorkerPool(2) as pool:
        pool.begin()
        until(lambda: pool.is_up)
        with pytest.raises(WorkerLost, match="could be started"):
            list(pool.run("worker_tasks:times", range(4), context=3))


def test_workers_stay_for_the_next_run() -> None:
    with WorkerPool(2) as pool:
        first = {pid for _, pid in pool.run("worker_tasks:pid", range(20))}
        second = {pid for _, pid in pool.run("worker_tasks:pid", range(20))}
    assert first >= second
    assert os.getpid() not in first
    until(lambda: not any(map(is_running, first)))


def test_never_more_processes_than_asked() -> None:
    with WorkerPool(2) as pool:
        assert len({pid for _, pid in pool.run("worker_tasks:pid", range(100))}) <= 2


@BOTH
def test_tasks_are_taken_only_as_workers_have_room(num_workers: int) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with WorkerPool(num_workers) as pool:
        for count, _ in enumerate(pool.run("worker_tasks:times", tasks(), context=1, window=2), start=1):
            assert len(taken) <= count + 2 * 2


@BOTH
def test_a_deque_may_grow_while_the_run_goes_on(num_workers: int) -> None:
    tasks = deque([1])
    results = []
    with WorkerPool(num_workers) as pool:
        for task, result in pool.run("worker_tasks:times", tasks, context=2):
            results.append(result)
            if task < 100:
                tasks.extend([task * 2, task * 2 + 1])
    assert sorted(results) == [2 * number for number in range(1, 200)]


def test_large_tasks_and_results_do_not_block_one_another() -> None:
    with WorkerPool(2) as pool:
        for task, result in pool.run("worker_tasks:big", range(8), context=4 << 20):
            assert result == bytes([task]) * (4 << 20)
        payloads = [os.urandom(2 << 20) for _ in range(6)]
        assert len(list(pool.run("worker_tasks:pid", payloads, context=None))) == 6


@pytest.mark.parametrize("deaths", [1, 3])
def test_tasks_of_a_killed_worker_run_again(tmp_path: Path, deaths: int) -> None:
    with WorkerPool(2, retries=3) as pool:
        results = list(pool.run("worker_tasks:die_until", range(8), context=(str(tmp_path), deaths)))
    assert sorted(results) == [(number, number) for number in range(8)]
    assert (tmp_path / "try-3").stat().st_size == deaths + 1


def test_a_task_that_always_kills_its_worker_is_named(tmp_path: Path) -> None:
    with WorkerPool(2, retries=1) as pool:
        run = pool.run("worker_tasks:die_until", range(8), context=(str(tmp_path), 99), describe="shard {}".format)
        with pytest.raises(WorkerLost, match="killed by SIGKILL while working on shard 3, 2 times") as caught:
            list(run)
    assert "memory" in caught.value.hint
    assert (tmp_path / "try-3").stat().st_size == 2


def test_a_mapped_file_that_was_cut_short_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(bytes(8192))
    with WorkerPool(1, retries=0) as pool, pytest.raises(WorkerLost, match="killed by SIGBUS") as caught:
        list(pool.run("worker_tasks:read_what_is_gone", [str(path)]))
    assert caught.value.hint.startswith("a mapped file was cut short while it was read")


def test_a_worker_killed_from_outside_loses_nothing(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        killed: set[int] = set()
        results = []
        for task, pid in pool.run("worker_tasks:pid", range(200)):
            results.append(task)
            if len(results) % 60 == 0 and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
    assert sorted(results) == list(range(200))
    assert killed


def test_a_worker_that_exits_is_lost_with_its_exit_code() -> None:
    with WorkerPool(1, retries=0) as pool, pytest.raises(WorkerLost, match="exit code 7"):
        list(pool.run("worker_tasks:leave", [7]))


@BOTH
def test_our_errors_keep_their_class(num_workers: int) -> None:
    with WorkerPool(num_workers) as pool, pytest.raises(DuplicateKey) as caught:
        list(pool.run("worker_tasks:fail", ["ours"]))
    assert (caught.value.message, caught.value.hint, caught.value.where) == ("twice", "rename", {"key": "a"})


@BOTH
def test_other_errors_keep_their_class_too(num_workers: int) -> None:
    with WorkerPool(num_workers) as pool, pytest.raises(FileNotFoundError) as caught:
        list(pool.run("worker_tasks:fail", ["system"]))
    assert caught.value.filename == "/x"
    assert num_workers == 0 or "in fail" in "".join(caught.value.__notes__)


def test_an_error_that_cannot_travel_arrives_as_text() -> None:
    with WorkerPool(1) as pool, pytest.raises(ExecutorError, match=r"Stubborn in a worker:\n(.|\n)*in fail"):
        list(pool.run("worker_tasks:fail", ["stubborn"]))


def test_a_function_that_is_not_there_is_an_error() -> None:
    with WorkerPool(1) as pool, pytest.raises(AttributeError, match="nothing_like_it"):
        list(pool.run("worker_tasks:nothing_like_it", [1]))


def test_the_pool_can_be_used_after_an_error() -> None:
    with WorkerPool(1) as pool:
        with pytest.raises(ValueError, match="bad"):
            list(pool.run("worker_tasks:fail", ["bad"]))
        assert list(pool.run("worker_tasks:times", [2], context=2)) == [(2, 4)]


def test_a_pool_does_one_run_at_a_time() -> None:
    with WorkerPool(1) as pool:
        first = pool.run("worker_tasks:times", range(9), context=1)
        next(first)
        with pytest.raises(ExecutorError, match="one run at a time"):
            next(pool.run("worker_tasks:times", range(9), context=1))
        assert len(list(first)) == 8


def test_an_error_of_the_tasks_themselves_ends_the_run() -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with WorkerPool(2) as pool, pytest.raises(LookupError, match="no more"):
        list(pool.run("worker_tasks:times", tasks(), context=1))


@BOTH
def test_a_future_counts_when_it_is_done_and_the_worker_goes_on(tmp_path: Path, num_workers: int) -> None:
    """Each of the two futures waits for the other task to begin: one worker must hold both."""
    with WorkerPool(min(num_workers, 1)) as pool:
        results = sorted(pool.run("worker_tasks:later", [1, 2], context=str(tmp_path), window=3))
    assert results == [(1, 10), (2, 20)]


@BOTH
def test_a_future_that_fails_is_raised(num_workers: int) -> None:
    with WorkerPool(num_workers) as pool, pytest.raises(OSError, match="No space left"):
        list(pool.run("worker_tasks:later_fails", [1]))


def test_closing_early_lets_tasks_clean_up(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        results = pool.run("worker_tasks:wait_unless_zero", range(3), context=str(tmp_path))
        assert next(results) == (0, None)
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        results.close()
        assert not any(map(is_running, pids(tmp_path)))
    assert {path.name for path in tmp_path.glob("cleaned-*")} == {"cleaned-1", "cleaned-2"}


def test_an_interrupt_lets_tasks_clean_up(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        interrupt_when_begun(tmp_path, pool.run("worker_tasks:wait_and_clean_up", range(2), context=str(tmp_path)))
        assert {path.name for path in tmp_path.glob("cleaned-*")} == {"cleaned-0", "cleaned-1"}
    assert not any(map(is_running, pids(tmp_path)))


def interrupt_when_begun(folder: Path, results: Iterator[object]) -> None:
    """Interrupt this process as Ctrl-C does once both tasks have begun."""
    watch = "import pathlib, os, signal, sys, time\nf = pathlib.Path(sys.argv[1])\n"
    watch += "while len(list(f.glob('begun-*'))) < 2: time.sleep(.005)\nos.kill(os.getppid(), signal.SIGINT)"
    watcher = subprocess.Popen([sys.executable, "-c", watch, str(folder)])
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert watcher.wait(10) == 0


def test_workers_that_do_not_leave_are_killed(tmp_path: Path) -> None:
    with WorkerPool(2, grace_s=1.0) as pool:
        interrupt_when_begun(tmp_path, pool.run("worker_tasks:refuse_to_leave", range(2), context=str(tmp_path)))
    assert (tmp_path / "asked").stat().st_size == 2
    assert len(pids(tmp_path)) == 2
    assert not any(map(is_running, pids(tmp_path)))


def script(folder: Path, body: str) -> list[str]:
    """A user's script without a main guard, and how to run it."""
    head = f"import sys, os\nsys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
    head += "open('runs', 'a').write('x')\nfrom shardtool.workers import WorkerPool\n"
    (folder / "script.py").write_text(head + body)
    return [sys.executable, str(folder / "script.py")]


def test_a_script_without_main_guard_runs_once(tmp_path: Path) -> None:
    body = "with WorkerPool(2) as pool: print(sum(r for _, r in pool.run('worker_tasks:times', range(9), context=1)))"
    done = subprocess.run(script(tmp_path, body), cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (b"36\n", b"")
    assert (tmp_path / "runs").read_text() == "x"


def test_modules_of_the_working_folder_do_not_shadow_libraries(tmp_path: Path) -> None:
    for name in ("xxhash", "numpy", "select"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    body = "with WorkerPool(1) as pool: print(list(pool.run('worker_tasks:argv', [1]))[0][1][1])"
    done = subprocess.run(script(scripts, body), cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (b"True\n", b"")


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_their_parent(tmp_path: Path, blow: signal.Signals) -> None:
    body = "with WorkerPool(2) as pool: list(pool.run('worker_tasks:refuse_to_leave', range(4), context='.'))"
    parent = subprocess.Popen(script(tmp_path, body), cwd=tmp_path)
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    assert all(map(is_running, pids(tmp_path)))
    parent.send_signal(blow)
    parent.wait(10)
    until(lambda: not any(map(is_running, pids(tmp_path))))


def test_ctrl_c_reaches_the_parent_alone(tmp_path: Path) -> None:
    body = (
        "try:\n with WorkerPool(2) as pool: list(pool.run('worker_tasks:wait_and_clean_up', range(4), context='.'))\n"
    )
    body += "except KeyboardInterrupt: print('stopped')"
    parent = subprocess.Popen(
        script(tmp_path, body),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=20) == (b"stopped\n", b"")
    assert len(list(tmp_path.glob("cleaned-*"))) == 2


def test_spawn_serves_where_there_is_no_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with WorkerPool(1) as pool:
        assert list(pool.run("worker_tasks:times", [2, 3], context=2)) == [(2, 4), (3, 6)]


def test_a_long_path_for_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    body = "with WorkerPool(1) as pool: print(list(pool.run('worker_tasks:times', [2], context=2)))"
    environment = os.environ | {"TMPDIR": str(deep)}
    done = subprocess.run(
        script(tmp_path, body), cwd=tmp_path, env=environment, capture_output=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == (b"[(2, 4)]\n", b"")


def test_the_environment_and_the_main_module_are_left_as_they_were() -> None:
    before, spec = dict(os.environ), getattr(sys.modules["__main__"], "__spec__", None)
    with WorkerPool(1) as pool:
        list(pool.run("worker_tasks:times", [1], context=1))
    assert dict(os.environ) == before
    assert getattr(sys.modules["__main__"], "__spec__", None) is spec


def test_workers_see_the_environment_of_their_pool_not_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "2", None):
        if value is None:
            monkeypatch.delenv("SHARDTOOL_TEST_VALUE")
        else:
            monkeypatch.setenv("SHARDTOOL_TEST_VALUE", value)
        with WorkerPool(1) as pool:
            assert list(pool.run("worker_tasks:variable", ["SHARDTOOL_TEST_VALUE"])) == [
                ("SHARDTOOL_TEST_VALUE", value)
            ]


def test_waiting_for_the_first_worker_is_told_apart() -> None:
    with WorkerPool(2) as pool:
        list(pool.run("worker_tasks:times", [1], context=1))
        waited = pool.start_wait_s
        assert waited > 0
        list(pool.run("worker_tasks:times", range(10), context=1))
        assert pool.start_wait_s == waited
    with WorkerPool(1) as pool:
        pool.begin()
        while not pool.is_up:
            time.sleep(0.001)
        list(pool.run("worker_tasks:times", [1], context=1))
        assert pool.start_wait_s < waited
    with WorkerPool(0) as pool:
        list(pool.run("worker_tasks:times", [1], context=1))
        assert pool.start_wait_s == 0
