"""Places that hold data sets: local folders and object stores behave alike. The interface is `base.Place`.

place = open_place("s3://bucket/out")       or open_place("out")
place.read("manifest.json")
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.storage.base import Place
    from shardtool.storage.s3.settings import S3Settings

__all__ = ["REMOTE_SCHEME", "is_remote", "open_place"]

REMOTE_SCHEME = "s3://"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://|s3:/", re.IGNORECASE)


def is_remote(url: str) -> bool:
    """Whether `url` names a prefix of an object store, not a local folder."""
    return url.startswith(REMOTE_SCHEME)


def open_place(url: str) -> Place:
    """The place that `url` names: a local folder, or a prefix of an object store as the environment says to reach it.

    Cheap: nothing is looked up yet, and the object is the same as long as the environment is.

    Raises:
        UsageProblem: an s3 URL without a bucket, or a URL of another kind of store.
    """
    if is_remote(url):
        from shardtool.storage.s3.settings import S3Settings

        return _store(url, S3Settings.from_environ())
    return _folder(url)


@lru_cache(maxsize=256)
def _store(url: str, settings: S3Settings) -> Place:
    from shardtool.storage.s3.place import S3Place

    return S3Place(url, settings)


@lru_cache(maxsize=256)
def _folder(url: str) -> Place:
    if _SCHEME.match(url) and not os.path.lexists(url):
        raise UsageProblem(f"{url} is neither a folder nor an s3:// URL", hint="write s3://BUCKET/PREFIX, or a path")
    from shardtool.storage.local import LocalPlace

    return LocalPlace(url)
