"""Prefixes of an object store as sources: `s3://bucket/prefix` is all that lies below `prefix/`, with size and ETag.

Keys come from the store's listing, from a list of the user's, from an S3 Inventory, or from a listing stored earlier;
what they name is sorted and selected by the same rules as files are, so that a copied tree gives the same plan.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.errors import RemoteError, SourceNotFound, UsageProblem
from shardtool.model import Problem, ScanResult, Tally
from shardtool.sources import s3_cache, s3_inventory
from shardtool.sources.found import failure_problems, show_path, unused_includes
from shardtool.sources.junk import NameRules
from shardtool.sources.s3_rows import cut, repeated, rows_of, table_of, taken_apart
from shardtool.sources.s3_url import SCHEME, base_of, normal_root
from shardtool.storage.s3.client import S3Client, client_for
from shardtool.storage.s3.listing import Listing
from shardtool.storage.s3.pages import Objects, no_objects, parse_page
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.sources.s3_rows import Rows

MAX_HEADS = 10_000  # a longer list is looked up in a listing, which tells 1,000 keys a request
HEAD_THREADS = 64
IN_BYTE_ORDER = (".amazonaws.com", ".amazonaws.com.cn")  # Amazon S3 User Guide, "Listing object keys programmatically"
DIRECTORY_BUCKET = "--x-s3"  # these list in no order


@dataclass(frozen=True)
class S3Source:
    """All objects below some prefixes.

    Args:
        roots: URLs.
        names: what to leave out by name.
        skip_errors: objects that cannot be had are counted as failed, and are no fatal problem.
        keys: these keys below the only root instead of all; full URLs are taken, too.
        inventory: manifest.json of an S3 Inventory, a URL or a path, instead of a listing.
        list_cache: a file that keeps the listing, and is used instead of one where it is there already.
    """

    roots: tuple[str, ...]
    names: NameRules = field(default_factory=NameRules)
    skip_errors: bool = False
    keys: list[bytes] | None = None
    inventory: str = ""
    list_cache: str = ""

    def scan(self) -> ScanResult:
        """Every object met, sorted.

        Raises:
            SourceNotFound: there is no such bucket, or nothing below a prefix.
            AccessDenied: a prefix may not be listed.
            RemoteError: the store fails, or lists what cannot be.
        """
        roots = tuple(map(normal_root, self.roots))
        if self.list_cache and len(roots) > 1:
            raise UsageProblem(
                f"--list-cache {self.list_cache} holds the list of one source, not of {len(roots)}",
                hint="pack the prefix that holds them all",
            )
        client = client_for(S3Settings.from_environ())
        ignored, failed = Tally(), Tally()
        names = self.names if self.keys is None else replace(self.names, hidden=True)
        parts: list[Rows] = []
        notices: list[Problem] = []
        for root in roots:
            keys, others = taken_apart(self._objects(client, root, failed, notices))
            shown = root.encode("utf-8", "surrogateescape")
            rows = rows_of(cut(keys, len(base_of(root)[1])), others, shown, names, ignored)
            self._check_repeated(rows, root)
            parts.append(rows)
        for tally in (ignored, failed):
            tally.entries.sort(key=lambda entry: (entry[1], entry[0]))
        problems = failure_problems(failed, is_fatal=not self.skip_errors)
        problems += unused_includes(names.include, names.used_includes())
        return ScanResult(table_of(roots, parts), ignored, failed, (*problems, *notices))

    def _objects(self, client: S3Client, root: str, failed: Tally, notices: list[Problem]) -> Objects:
        if self.inventory:
            objects = self._inventory(client, root, notices)
        elif self.keys is not None and len(self.keys) <= MAX_HEADS:
            return _looked_up(client, root, _unique(self.keys, root, failed), failed)
        else:
            objects = self._listed(client, root, notices)
        if self.keys is not None:
            return _selected(objects, root, _unique(self.keys, root, failed), failed)
        if not objects.num_rows:
            raise _nothing_there(client, root)
        return objects

    def _listed(self, client: S3Client, root: str, notices: list[Problem]) -> Objects:
        bucket, base = base_of(root)
        endpoint = client.engine.endpoint(bucket)
        if self.list_cache and (known := s3_cache.load(self.list_cache, root, endpoint)) is not None:
            notices.append(_age(f"{self.list_cache} lists {known.objects.num_rows:,} objects of {root}", known.time_s))
            return known.objects
        now = time.time()
        objects = list_bucket(client, bucket, base)
        if self.list_cache:
            s3_cache.store(self.list_cache, root, endpoint, objects, now)
        return objects

    def _inventory(self, client: S3Client, root: str, notices: list[Problem]) -> Objects:
        bucket, base = base_of(root)
        found = s3_inventory.load(client, self.inventory, bucket, base)
        text = f"inventory {self.inventory} lists {found.objects.num_rows:,} objects of {root}"
        notices.append(_age(text, found.time_s))
        return found.objects

    def _check_repeated(self, rows: Rows, root: str) -> None:
        twice = next(repeated(rows), None)
        if twice is not None:
            raise RemoteError(
                f"{root} cannot be listed: the store names {show_path(twice)} more than once",
                hint="try again when nothing writes there; or name the objects: --files-from FILE",
                where={"url": root},
            )


def _age(text: str, time_s: float) -> Problem:
    """A notice: the list is so old."""
    hours = max(0.0, time.time() - time_s) / 3600
    age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.1f} hours"
    return Problem("listing_age", 1, (), f"{text} and is {age} old: what was written since is not seen", is_fatal=False)


def list_bucket(client: S3Client, bucket: str, prefix: bytes) -> Objects:
    """All objects of a bucket whose key begins with `prefix`, in no particular order.

    Raises:
        SourceNotFound, AccessDenied, RemoteError: as S3Client.request.
    """
    endpoint = client.engine.endpoint(bucket)
    is_ordered = endpoint.endswith(IN_BYTE_ORDER) and not bucket.endswith(DIRECTORY_BUCKET)
    store = f"s3://{bucket} at {endpoint}"
    ask = partial(_ask, client, bucket)
    return Listing(ask, store, is_ordered=is_ordered).objects(prefix)


def _ask(client: S3Client, bucket: str, query: tuple[tuple[str, str], ...]) -> bytes:
    body: bytes = client.request("GET", bucket, query=query).body
    return body


def _nothing_there(client: S3Client, root: str) -> SourceNotFound | UsageProblem:
    """The error for a prefix that holds nothing: what lies beside it, where something does."""
    bucket, base = base_of(root)
    hint = "check the URL; s3://BUCKET/PREFIX means what lies below PREFIX/"
    if base:
        query = (("list-type", "2"), ("max-keys", "1000"), ("encoding-type", "url"))
        near = base.rstrip(b"/").decode("utf-8", "surrogateescape")
        page = parse_page(client.request("GET", bucket, query=(*query, ("prefix", near), ("delimiter", "/"))).body)
        keys = page.objects.keys.to_pylist()
        if near.encode("utf-8", "surrogateescape") in keys:
            return UsageProblem(
                f"source {root} is an object, not a prefix",
                hint="give the prefix that holds it, with --include or --files-from to choose",
                where={"url": root},
            )
        if beside := [*page.prefixes, *keys]:
            hint = f"did you mean s3://{bucket}/{show_path(beside[0])}?"
    return SourceNotFound(f"source {root} holds no object", hint=hint, where={"url": root})


def _unique(keys: list[bytes], root: str, failed: Tally) -> list[bytes]:
    """Keys below the base of `root`, each once; repeated and foreign ones are counted."""
    bucket, base = base_of(root)
    url = f"s3://{bucket}/".encode()
    whole: dict[bytes, None] = {}
    for key in keys:
        if key.startswith(SCHEME.encode()):
            if not key.startswith(url + base):
                failed.add("outside_root", key, "")
                continue
            key = key[len(url) + len(base) :]
        if key in whole:
            failed.add("listed_twice", url + base + key, "")
        whole[key] = None
    return list(whole)


def _looked_up(client: S3Client, root: str, keys: list[bytes], failed: Tally) -> Objects:
    """One HEAD a key."""
    bucket, base = base_of(root)

    def look(key: bytes) -> tuple[int, int, bytes] | str:
        response = client.request("HEAD", bucket, base + key, allow=(403, 404))
        if response.status in (403, 404):
            return "not_found" if response.status == 404 else "access_denied"
        return int(response.headers["content-length"]), _time_ns(response.headers), response.etag.strip('"').encode()

    with ThreadPoolExecutor(HEAD_THREADS, thread_name_prefix="head") as pool:
        answers = list(pool.map(look, keys))
    found = []
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, str):
            failed.add(answer, root.encode("utf-8", "surrogateescape") + b"/" + key, "")
        else:
            found.append((base + key, *answer))
    if not found:
        return no_objects()
    names, sizes, times, etags = zip(*found, strict=True)
    return Objects(
        pa.array(names, pa.large_binary()),
        np.array(sizes, np.int64),
        np.array(times, np.int64),
        pa.array(etags, pa.binary()),
    )


def _time_ns(headers: Mapping[str, str]) -> int:
    text = headers.get("last-modified", "")
    return int(parsedate_to_datetime(text).timestamp()) * 1_000_000_000 if text else 0


def _selected(objects: Objects, root: str, keys: list[bytes], failed: Tally) -> Objects:
    """The rows of these keys."""
    base = base_of(root)[1]
    wanted = pa.array([base + key for key in keys], pa.large_binary())
    missing = pc.invert(pc.is_in(wanted, value_set=objects.keys))
    for key in wanted.filter(missing).to_pylist():
        failed.add("not_found", root.encode("utf-8", "surrogateescape") + b"/" + key[len(base) :], "")
    return objects.where(pc.is_in(objects.keys, value_set=wanted).to_numpy(zero_copy_only=False))
