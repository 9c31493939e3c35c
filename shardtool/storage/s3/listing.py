"""Every object below a prefix, as columns, by several requests at a time where that is safe on any store.

A prefix that does not fit one page is asked for its folders. Where there are enough of them, they are listed side by
side: one by one when they are few, else by the beginnings of their names, so that the number of requests stays near
that of the pages. Nothing of this depends on the order in which a store lists (SeaweedFS lists by folder). A flat
prefix is listed page after page.

Every request says max-keys=1000 and encoding-type=url. The end is what the store says it is, never a short page (Ceph
cuts pages at 991, others send 2,500 keys); a token or a page that comes twice ends the listing with an error.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardtool import columns
from shardtool.errors import RemoteError
from shardtool.storage.s3.pages import Columns, Objects, Page, concat, parse_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ask: TypeAlias = "Callable[[tuple[tuple[str, str], ...]], bytes]"

THREADS = 16  # pages of 30..100 ms in flight; parsing keeps a core busy at about 5 of them
MIN_FOLDERS = 8  # fewer are not worth a request to ask for them
MAX_PROBE_PAGES = 32  # of folders and files right below a prefix; more is a flat prefix
JOBS_PER_THREAD = 4
MERGED_ROWS = 65_536  # rows of a chunk of the result: small pages are put together


@dataclass(frozen=True)
class _Job:
    """Keys that begin with `prefix`; those right in `folder` are left out, somebody has them already."""

    prefix: bytes
    folder: bytes | None = None


class Listing:
    """Lists prefixes of one bucket.

    Args:
        ask: sends a query to the bucket, answers the body. Raises PermissionError where that is denied.
        store: how messages call the store.
        threads: requests at a time.
        progress: told the number of objects so far, from any thread.
    """

    def __init__(
        self,
        ask: Ask,
        store: str,
        *,
        threads: int = THREADS,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._ask, self._store, self._threads, self._progress = ask, store, threads, progress
        self._lock = threading.Lock()
        self._small: list[Objects] = []
        self._small_rows = 0
        self._chunks = Columns()
        self._num_rows = 0
        self._num_waiting = 0

    def objects(self, prefix: bytes) -> Objects:
        """All objects whose key begins with `prefix`, in no particular order.

        Raises:
            RemoteError: the store does not list as it should, or fails.
            PermissionError, FileNotFoundError: listing is denied; there is no such bucket.
        """
        with ThreadPoolExecutor(self._threads, thread_name_prefix="list") as pool:
            running: set[Future[list[_Job]]] = set()
            try:
                jobs = self._list(_Job(prefix))  # here: a small prefix needs no thread
                while jobs or running:
                    running |= {pool.submit(self._list, job) for job in jobs}
                    self._num_waiting = len(running)
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    jobs = [job for future in done for job in future.result()]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        self._merge()
        return self._chunks.take()

    def _list(self, job: _Job) -> list[_Job]:
        """Take all keys of a job, or some of them and hand back jobs for the rest."""
        pages = self._pages(job.prefix)
        first = next(pages)
        if first.token and self._num_waiting < self._threads and (jobs := self._split(job)) is not None:
            return jobs
        self._take(first, job.folder)
        for page in pages:
            self._take(page, job.folder)
        return []

    def _split(self, job: _Job) -> list[_Job] | None:
        """Jobs for the folders right below a prefix, its files being taken; None where it is better listed flat."""
        probed: list[Page] = []
        folders: list[bytes] = []
        try:
            for page in self._pages(job.prefix, delimiter="/"):
                probed.append(page)
                folders += page.prefixes
                if len(probed) == MAX_PROBE_PAGES and page.token:
                    return None
        except PermissionError:  # a policy may allow this very prefix and no delimiter
            return None
        if len(folders) < MIN_FOLDERS:
            return None
        for page in probed:
            self._take(page, job.folder)
        base = job.prefix[: job.prefix.rfind(b"/") + 1]
        most = max(1, len(folders) // (JOBS_PER_THREAD * self._threads))
        covers = _beginnings(sorted(set(folders)), len(job.prefix), most)
        return [_Job(beginning, None if beginning.endswith(b"/") else base) for beginning in covers]

    def _pages(self, prefix: bytes, delimiter: str = "") -> Iterator[Page]:
        query = [("list-type", "2"), ("max-keys", "1000"), ("encoding-type", "url")]
        query.append(("prefix", prefix.decode("utf-8", "surrogateescape")))
        query += [("delimiter", delimiter)] if delimiter else []
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

    def _take(self, page: Page, folder: bytes | None) -> None:
        objects = page.objects
        if folder is not None and objects.num_rows:
            width = len(folder)
            deeper = [key.find(b"/", width) >= 0 for key in columns.to_list(objects.keys)]
            objects = objects if all(deeper) else objects.where(np.array(deeper, bool))
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
