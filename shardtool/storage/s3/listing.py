"""Every object below a prefix, as columns, by several requests at a time where that is safe on any store.

A prefix that does not fit one page is asked for its folders. Where there are enough of them, they are listed side by
side: one by one when they are few, else by the beginnings of their names, so that the number of requests stays near
that of the pages. Nothing of this depends on the order in which a store lists (SeaweedFS lists by folder).

A flat prefix is listed page after page; where the store is known to list in byte order, or its pages have shown it,
idle threads take over the upper half of what is left, again and again. A page out of order after that is an error.

Every request says max-keys=1000 and encoding-type=url. The end is what the store says it is, never a short page (Ceph
cuts pages at 991, others send 2,500 keys); a token or a page that comes twice ends the listing with an error.
"""

from __future__ import annotations

import operator
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardtool import columns
from shardtool.errors import RemoteError
from shardtool.heap import give_back
from shardtool.storage.s3.pages import Columns, Objects, Page, concat, parse_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ask: TypeAlias = "Callable[[tuple[tuple[str, str], ...]], bytes]"

THREADS = 16  # pages of 30..100 ms in flight; parsing keeps a core busy at about 5 of them
MIN_FOLDERS = 8  # fewer are not worth a request to ask for them
MAX_PROBE_PAGES = 32  # of folders and files right below a prefix; more is a flat prefix
JOBS_PER_THREAD = 4
FLAT_PROBE_PAGES = 4  # without MIN_FOLDERS among them: a flat prefix
FIRST_SHARES = 16  # of a long range: most of them are empty, until the halves meet where the keys are
LEAST_CHAR, END_CHAR = 0x20, 0x7F  # keys are halved at printable ASCII characters
MERGED_ROWS = 65_536  # rows of a chunk of the result: small pages are put together


@dataclass
class _Job:
    """Keys that begin with `prefix`, from behind `after` up to `stop`; those right in `folder` somebody has already."""

    prefix: bytes
    folder: bytes | None = None
    after: bytes = b""
    stop: bytes | None = None
    shares: int = FIRST_SHARES  # how often the rest may be halved


class Listing:
    """Lists prefixes of one bucket.

    Args:
        ask: sends a query to the bucket, answers the body. Raises PermissionError where that is denied.
        store: how messages call the store.
        threads: requests at a time.
        is_ordered: the store is known to list in the order of UTF-8 bytes.
        progress: told the number of objects so far, from any thread.
    """

    def __init__(
        self,
        ask: Ask,
        store: str,
        *,
        threads: int = THREADS,
        is_ordered: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._ask, self._store, self._threads, self._progress = ask, store, threads, progress
        self._lock = threading.Lock()
        self._small: list[Objects] = []
        self._small_rows = 0
        self._chunks = Columns()
        self._num_rows = 0
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._helpers: list[threading.Thread] = []
        self._num_busy = 0
        self._error: BaseException | None = None
        self._is_ordered = is_ordered
        self._was_shared = False

    def objects(self, prefix: bytes) -> Objects:
        """All objects whose key begins with `prefix`, in no particular order.

        Raises:
            RemoteError: the store does not list as it should, or fails.
            PermissionError, FileNotFoundError: listing is denied; there is no such bucket.
        """
        self._queue.append(_Job(prefix))
        try:
            self._work()  # here: a small prefix needs no other thread
        except BaseException as error:  # Ctrl-C
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        for helper in self._helpers:
            helper.join()
        if self._error is not None:
            raise self._error
        self._merge()
        return self._chunks.take()

    def _work(self) -> None:
        """Do jobs until there are none and nobody is left who could make one."""
        while (job := self._next_job()) is not None:
            try:
                self._list(job)
            except Exception as error:
                self._error = self._error or error
            with self._changed:
                self._num_busy -= 1
                self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        with self._changed:
            while not self._queue and self._num_busy and self._error is None:
                self._changed.wait()
            if not self._queue or self._error is not None:
                return None
            self._num_busy += 1
            return self._queue.popleft()

    def _add_jobs(self, jobs: list[_Job]) -> None:
        with self._changed:
            self._queue.extend(jobs)
            self._changed.notify_all()
            while len(self._helpers) + 1 < min(self._threads, self._num_busy + len(self._queue)):
                self._helpers.append(threading.Thread(target=self._work, name="list", daemon=True))
                self._helpers[-1].start()

    def _num_idle(self) -> int:
        """Threads that have nothing to do."""
        return self._threads - self._num_busy - len(self._queue)

    def _list(self, job: _Job) -> None:
        """Take all keys of a job, or some of them and make jobs of the rest."""
        last = job.after
        for number, page in enumerate(self._pages(job.prefix, after=job.after)):
            if number == 0 and page.token and not job.after and self._num_idle() > 0 and self._split(job):
                return
            keys = columns.to_list(page.objects.keys)
            self._note_order(keys, last)
            last = keys[-1] if keys else last
            is_over = job.stop is not None and last > job.stop
            self._take(page.objects, keys, job)
            if is_over or self._error is not None:
                return
            if page.token and self._is_ordered:
                self._share(job, last)

    def _share(self, job: _Job, last: bytes) -> None:
        """Let idle threads have the upper half of what is left of a job, the upper half of the rest, and so on."""
        shared: list[_Job] = []
        while job.shares and len(shared) < self._num_idle() and (middle := _between(last, job.stop, job.prefix)):
            shared.append(_Job(job.prefix, job.folder, middle, job.stop, shares=1))
            job.stop = middle
            job.shares -= 1
        job.shares += 1
        if shared:
            self._was_shared = True
            self._add_jobs(shared[::-1])

    def _note_order(self, keys: list[bytes], last: bytes) -> None:
        """Learn from a page whether the store lists by bytes: listed by folder, some keys would be in another order."""
        if not keys or (self._is_ordered and not self._was_shared):
            return
        is_sorted = keys[0] > last and all(map(operator.lt, keys, keys[1:]))
        if not is_sorted and self._was_shared:
            raise self._broken("its list is not in byte order, though it was at first")
        if is_sorted and not self._was_shared:
            by_folder = [key.replace(b"/", b"\0") for key in keys]
            self._is_ordered = not all(map(operator.lt, by_folder, by_folder[1:]))

    def _split(self, job: _Job) -> bool:
        """Make jobs of the folders right below a prefix and take its files; False where it is better listed flat."""
        probed: list[Page] = []
        folders: list[bytes] = []
        try:
            for page in self._pages(job.prefix, delimiter="/"):
                probed.append(page)
                folders += page.prefixes
                most_pages = MAX_PROBE_PAGES if len(folders) >= MIN_FOLDERS else FLAT_PROBE_PAGES
                if len(probed) >= most_pages and page.token:
                    return False
        except PermissionError:  # a policy may allow this very prefix and no delimiter
            return False
        if len(folders) < MIN_FOLDERS:
            return False
        for page in probed:
            self._take(page.objects, columns.to_list(page.objects.keys), job)
        base = job.prefix[: job.prefix.rfind(b"/") + 1]
        most = max(1, len(folders) // (JOBS_PER_THREAD * self._threads))
        covers = _beginnings(sorted(set(folders)), len(job.prefix), most)
        self._add_jobs([_Job(beginning, None if beginning.endswith(b"/") else base) for beginning in covers])
        return True

    def _pages(self, prefix: bytes, delimiter: str = "", after: bytes = b"") -> Iterator[Page]:
        query = [("list-type", "2"), ("max-keys", "1000"), ("encoding-type", "url")]
        query.append(("prefix", prefix.decode("utf-8", "surrogateescape")))
        query += [("delimiter", delimiter)] if delimiter else []
        query += [("start-after", after.decode("utf-8"))] if after else []
        token, met, before = "", set[str](), b""
        while True:
            page = self._page((*query, ("continuation-token", token)) if token else tuple(query))
            token = page.token if page.is_truncated else ""
            if page.is_truncated and not token:
                raise self._broken("it says that a page is not the last, and not how to get the next")
            if token in met or (page.first and page.first == before):
                raise self._broken("it sends the same page again instead of the next")
            met.add(token)
            before = page.first
            yield page if page.is_truncated else Page(page.objects, page.prefixes, "", False, page.first)
            if not token:
                return

    def _page(self, query: tuple[tuple[str, str], ...]) -> Page:
        body = self._ask(query)
        try:
            return parse_page(body)
        except ValueError as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> RemoteError:
        return RemoteError(
            f"{self._store} cannot be listed: {why}",
            hint="name the objects instead: --files-from FILE with a key a line, or --inventory URL",
            where={"url": self._store},
        )

    def _take(self, objects: Objects, keys: list[bytes], job: _Job) -> None:
        """Keep those objects of a page that are the job's."""
        if job.folder is not None or job.stop is not None or job.after:
            width, stop = len(job.folder or b""), job.stop
            is_mine = [
                (job.folder is None or key.find(b"/", width) >= 0) and key > job.after and (stop is None or key <= stop)
                for key in keys
            ]
            objects = objects if all(is_mine) else objects.where(np.array(is_mine, bool))
        with self._lock:
            self._small.append(objects)
            self._small_rows += objects.num_rows
            self._num_rows += objects.num_rows
            if self._small_rows >= MERGED_ROWS:
                self._merge()
        if self._progress:
            self._progress(self._num_rows)

    def _merge(self) -> None:
        if self._small:
            self._chunks.add(concat(self._small))
            self._small, self._small_rows = [], 0
            give_back()  # the pages: what stays lies behind them


def _between(low: bytes, high: bytes | None, prefix: bytes) -> bytes | None:
    """A key between two others, in the middle as far as one character tells; None where there is no room for one.

    Args:
        high: None for the end of the prefix.
        prefix: what both begin with.
    """
    for at in range(len(prefix), len(low) + 1):
        first = low[at] if at < len(low) else LEAST_CHAR - 1
        second = high[at] if high is not None and at < len(high) else END_CHAR
        if first >= END_CHAR or second > END_CHAR:
            return None
        if second - first >= 2:
            middle = low[:at] + bytes([max((first + second) // 2, LEAST_CHAR)])
            return middle if low < middle and (high is None or middle < high) else None
        if second > first:
            high = None  # from here on only `low` bounds the key
    return None


def _beginnings(names: list[bytes], width: int, most: int) -> Iterator[bytes]:
    """Beginnings, each longer than `width`, that cover all `names`: none of them covers more than `most`, where the
    names differ at all. Sorted names in, sorted beginnings out; no name is covered twice.
    """
    groups: dict[bytes, list[bytes]] = defaultdict(list)
    for name in names:
        groups[name[: width + 1]].append(name)
    for beginning, members in groups.items():
        if len(members) == 1:
            yield members[0]
        elif len(members) <= most and not _splits_a_letter(beginning):
            yield beginning
        else:
            yield from _beginnings(members, width + 1, most)


def _splits_a_letter(beginning: bytes) -> bool:
    """Whether a cut behind `beginning` lies inside a UTF-8 sequence."""
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False
