"""A prefix of an object store as a Place: the same calls as for a folder, with ETags for versions."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardtool.errors import RemoteError
from shardtool.storage.base import PIECE_BYTES, Stat, Stretch
from shardtool.storage.s3.address import SCHEME, object_url, split_url
from shardtool.storage.s3.checksums import body_headers
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.download import object_bytes
from shardtool.storage.s3.engines import RoutedEngine
from shardtool.storage.s3.exchange import NotTaken, Pieces, if_match
from shardtool.storage.s3.journal import UPLOADS
from shardtool.storage.s3.settings import S3Settings
from shardtool.storage.s3.sweep import YOUNG_S, sweep_uploads
from shardtool.storage.s3.upload import NewObject
from shardtool.storage.s3.walk import walk
from shardtool.storage.s3.xml import can_hold, delete_objects, elements_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.model import FileRecord
    from shardtool.storage.base import Take
    from shardtool.storage.s3.client import S3Client
    from shardtool.storage.s3.exchange import Into

DELETE_AT_ONCE = 1000
_NO_BULK_DELETE = (400, 405, 411, 501)


class S3Place:
    """The objects below `s3://bucket/prefix/`. Cheap to make and to pickle; connections belong to the process.

    Args:
        url: `s3://bucket/prefix`, with or without a slash at its end.
        settings: how to reach the store; what the environment says at each call where None.
    """

    is_local = False

    def __init__(self, url: str, settings: S3Settings | None = None) -> None:
        self.bucket, key = split_url(url)
        self.prefix = key if not key or key.endswith("/") else key + "/"
        self.url = url.removesuffix("/")
        self._settings = settings

    @property
    def client(self) -> S3Client:
        """The client of this process."""
        return client_for(self._settings or S3Settings.from_environ())

    def key(self, path: str) -> str:
        """The object that `path` names."""
        return self.prefix + path

    def shown(self, path: str) -> str:
        """`s3://bucket/prefix/path`, as it can be opened; whoever prints it escapes what would garble a terminal."""
        return f"{SCHEME}{self.bucket}/{self.key(path)}"

    def stat(self, path: str) -> Stat:
        """Size and ETag of one object."""
        response = self.client.request("HEAD", self.bucket, self.key(path))
        return Stat(path, object_bytes(response) or 0, response.etag)

    def read(self, path: str) -> bytes:
        """A whole small object."""
        return self.client.request("GET", self.bucket, self.key(path)).body

    def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
        """Fill `view` from `offset` on; see Place. A break on the way is mended by asking for the rest."""
        return self._fill(path, offset, view, version).num_bytes

    def _fill(self, path: str, offset: int, view: memoryview, version: str) -> Stretch:
        return self._read_on(path, offset, len(view), version, lambda done: view[done:])

    def _read_on(
        self, path: str, offset: int, num_bytes: int, version: str, rest_from: Callable[[int], Into]
    ) -> Stretch:
        """Ask until all is there: an answer may hold less than was asked for. `rest_from(n)` takes all but n bytes."""
        done, size = 0, None
        while done < num_bytes:
            headers = {"range": f"bytes={offset + done}-{offset + num_bytes - 1}", **if_match(version)}
            response = self.client.request(
                "GET", self.bucket, self.key(path), headers=headers, into=rest_from(done), allow=(416,)
            )
            size = object_bytes(response)
            if response.status == 416:
                break
            done += response.num_bytes
            version = version or response.etag
            if size is None or offset + done >= size or not response.num_bytes:
                break
        return Stretch(done, version, size)

    def buffer_bytes(self, num_bytes: int) -> int:
        """Memory that `read_through` needs to bring so many bytes."""
        return min(num_bytes, PIECE_BYTES) if self._takes_pieces() else num_bytes

    def _takes_pieces(self) -> bool:
        engine = self.client.engine
        return isinstance(engine, RoutedEngine) and engine.takes_pieces(self.bucket)

    def read_through(
        self, path: str, offset: int, num_bytes: int, take: Take, buffer: memoryview, *, version: str = ""
    ) -> Stretch:
        """As `read_into`, but bytes are given to `take` piece by piece; see Place."""
        if not self._takes_pieces():
            found = self._fill(path, offset, buffer[:num_bytes], version)
            for start in range(0, found.num_bytes, PIECE_BYTES):
                take(buffer[start : min(start + PIECE_BYTES, found.num_bytes)], start)
            return found
        pieces = Pieces(buffer[:PIECE_BYTES], num_bytes, take)
        try:
            return self._read_on(path, offset, num_bytes, version, lambda done: pieces[done:])
        except NotTaken as failed:
            raise failed.error from None

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """All objects whose path begins with `prefix`, in the order of the store; not the notes about uploads."""
        for found in self.walk(prefix):
            if not found.path.startswith(f"{UPLOADS}/"):
                yield found

    def create(self, path: str, tag: str) -> NewObject:
        """Begin to write an object; nothing is sent before it has 16 MiB or is published."""
        return NewObject(self, path, tag)

    def put(self, path: str, data: bytes, *, tag: str, durable: bool) -> FileRecord:
        """Write a small object; an object store makes it visible whole or not at all."""
        new = NewObject(self, path, tag)
        try:
            new.write(data)
            new.publish(durable=durable)
        finally:
            new.abort()
        return new.record()

    def remove(self, paths: Iterable[str]) -> None:
        """Delete objects, a thousand a request where the store can do that; those that are gone are no trouble."""
        keys = iter([self.key(path) for path in paths])
        while batch := list(islice(keys, DELETE_AT_ONCE)):
            bulk = [key for key in batch if can_hold(key)] if len(batch) > 1 else []
            if bulk and not self._delete_together(*bulk):
                bulk = []
            for key in set(batch).difference(bulk):
                self.client.request("DELETE", self.bucket, key, allow=(404,))

    def sync(self, paths: Iterable[str]) -> None:
        """Nothing: what a store has answered to, it keeps."""

    def sweep(self, tag: str, paths: Iterable[str]) -> None:
        """Abort the uploads of `paths` that a killed attempt of `tag` left behind: those in the journal, no others."""
        wanted = set(paths)
        sweep_uploads(self, f"{tag}-", lambda path: path in wanted, young_s=YOUNG_S)

    def num_unfinished(self) -> int:
        """Uploads in the journal."""
        return sum(1 for _ in self.walk(f"{UPLOADS}/"))

    def sweep_all(self) -> None:
        """Abort every upload that is in the journal: no other run may be writing here."""
        sweep_uploads(self, "", lambda _: True, young_s=0.0)

    def walk(self, prefix: str) -> Iterator[Stat]:
        """As `list`, with the notes about uploads."""
        for key, num_bytes, etag in walk(self.client, self.bucket, self.key(prefix)):
            yield Stat(key[len(self.prefix) :], num_bytes, etag)

    def _delete_together(self, *keys: str) -> bool:
        """Whether the store took one request for all."""
        body = delete_objects(keys)
        response = self.client.request(
            "POST",
            self.bucket,
            query=(("delete", ""),),
            headers=body_headers(body, crc32=False),
            body=body,
            allow=_NO_BULK_DELETE,
        )
        if response.status in _NO_BULK_DELETE:
            return False
        for error in elements_of(response.body, "Error"):
            code = text_of(error, "Code")
            if code != "NoSuchKey":
                url = object_url(self.bucket, text_of(error, "Key"))
                raise RemoteError(
                    f"{url} cannot be deleted: {code} {text_of(error, 'Message')}",
                    hint="check that these credentials may delete there",
                )
        return True
