"""The objects below a prefix, a page after the other, in bounded memory; `listing` is for sources, this for places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import RemoteError
from shardtool.storage.s3.address import object_url
from shardtool.storage.s3.pages import parse_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.s3.client import S3Client


def walk(client: S3Client, bucket: str, prefix: str) -> Iterator[tuple[str, int, str]]:
    """(key, bytes, ETag) of every object whose key begins with `prefix`, in the order of the store.

    Raises:
        RemoteError: the store gives the same token twice, which would never end.
    """
    query = (("list-type", "2"), ("prefix", prefix), ("max-keys", "1000"), ("encoding-type", "url"))
    token = ""
    while True:
        more = (("continuation-token", token),) if token else ()
        response = client.request("GET", bucket, query=query + more)
        page = parse_page(response.body)
        objects = page.objects
        keys = (key.decode("utf-8", "surrogateescape") for key in objects.keys.to_pylist())
        etags = (etag.decode() for etag in objects.etags.to_pylist())
        yield from zip(keys, objects.sizes.tolist(), etags, strict=True)
        last, token = token, page.token
        if not token:
            return
        if token == last:
            store = f"{response.headers.get('server', 'the server')} at {client.engine.endpoint(bucket)}"
            raise RemoteError(
                f"{object_url(bucket, prefix)}: {store} repeats a page of its list",
                hint="this store cannot be listed; give the keys by --files-from",
            )
