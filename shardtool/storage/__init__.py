"""Places that hold data sets: local folders and object stores behave alike. The interface is `base.Place`.

place = open_place("s3://bucket/out")      or open_place("out")
place.read("manifest.json")
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.storage.base import Place

__all__ = ["REMOTE_SCHEME", "is_remote", "open_place"]

REMOTE_SCHEME = "s3://"


def is_remote(url: str) -> bool:
    """Whether `url` names a prefix of an object store, not a local folder."""
    return url.startswith(REMOTE_SCHEME)


@lru_cache(maxsize=256)
def open_place(url: str) -> Place:
    """The place that `url` names, the same object each time: a local folder, or a prefix of an object store.

    Nothing is looked up yet, and a place holds no connection of its own.

    Raises:
        UsageProblem: an s3 URL without a bucket.
    """
    if is_remote(url):
        from shardtool.storage.s3.place import S3Place

        return S3Place(url)
    from shardtool.storage.local import LocalPlace

    return LocalPlace(url)
