"""Roots on an object store: `s3://bucket/prefix` means what lies below `prefix/`, as a path means a folder's files."""

from __future__ import annotations

from shardtool.storage.s3.address import SCHEME, split_url

__all__ = ["SCHEME", "base_of", "is_s3", "normal_root"]


def is_s3(root: str) -> bool:
    """Whether a source is on an object store."""
    return root.startswith(SCHEME)


def normal_root(root: str) -> str:
    """The root without the slash at its end.

    Raises:
        UsageProblem: no URL of a bucket.
    """
    split_url(root)
    return root.removesuffix("/")


def base_of(root: str) -> tuple[str, bytes]:
    """(bucket, what every key of the root begins with: its prefix with a slash, or b"")."""
    bucket, prefix = split_url(normal_root(root))
    return bucket, f"{prefix}/".encode("utf-8", "surrogateescape") if prefix else b""
