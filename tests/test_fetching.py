"""Calls that are made ahead by threads: whoever waits for one gets an answer, also when it is closed meanwhile."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, cast

import pytest
from test_remote_files import OneObject

from shardtool.loading.remote import RemoteShardFiles
from shardtool.storage.fetching import Fetcher
from shardtool.storage.files import RemoteStream

if TYPE_CHECKING:
    from shardtool.reading.remote import RemoteDataset
    from shardtool.storage.base import Place

WAIT_S = 30


class Busy(Fetcher):
    """One thread, which is kept busy until `go` is set."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go, begun = Event(), Event()

        def wait() -> str:
            begun.set()
            self.go.wait(WAIT_S)
            return "done"

        self.first = self.submit(wait)
        assert begun.wait(WAIT_S)


def test_closing_cancels_what_no_thread_has_come_to_and_lets_the_rest_end() -> None:
    fetcher = Busy()
    waiting = fetcher.submit(lambda: "never")
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(waiting.result, WAIT_S)
        fetcher.close()
        with pytest.raises(CancelledError):
            waiter.result(WAIT_S)
    assert not fetcher.first.done()
    fetcher.go.set()
    assert fetcher.first.result(WAIT_S) == "done"


def test_a_call_after_closing_is_made_by_another_thread() -> None:
    fetcher = Busy()
    fetcher.close()
    assert fetcher.submit(lambda: 2).result(WAIT_S) == 2  # although the first thread is still busy
    fetcher.go.set()
    fetcher.close()


def test_calls_from_many_threads_while_it_is_closed_again_and_again_all_end() -> None:
    fetcher = Fetcher(2)

    def answers(number: int) -> int:
        try:
            return fetcher.submit(lambda: number).result(WAIT_S)
        except CancelledError:
            return -1

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(answers, number) for number in range(400)]
        for _ in range(50):
            fetcher.close()
        assert all(one.result(WAIT_S) in (number, -1) for number, one in enumerate(results))
    fetcher.close()


class Bytes:
    """The part of a `RemoteDataset` that a read needs."""

    data = bytes(range(100))

    def local_path(self, _shard: int) -> str:
        return ""

    def read_file(self, _shard: int, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def test_a_read_that_waits_for_a_range_on_its_way_ends_when_another_thread_closes() -> None:
    files = RemoteShardFiles(cast("RemoteDataset", Bytes()))
    files._fetcher = busy = Busy()
    files.will_need(0, 10, 20)  # behind the call that keeps the thread busy
    assert len(files._of_shard[0]) == 1
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(files.read, 0, 12, 5)
        files.close()
        assert read.result(WAIT_S) == Bytes.data[12:17]
    busy.go.set()


def test_a_stream_that_is_closed_while_it_is_read_says_so() -> None:
    stream = RemoteStream(cast("Place", OneObject(b"x" * 100)), "a.jsonl")
    stream._fetcher = busy = Busy()
    stream._ask()
    busy.close()
    with pytest.raises(ValueError, match=r"s3://bucket/a\.jsonl was closed while it was read"):
        stream.readinto(bytearray(10))
    busy.go.set()
