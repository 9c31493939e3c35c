"""A new object: invisible while it is written, complete when it is published, gone when it is aborted.

Up to 16 MiB are kept and sent by one PUT. More becomes a multipart upload whose parts are the digest blocks of the
file, sent by a few threads while the next block is written: at most PARTS_IN_FLIGHT + 1 blocks of memory.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, DestinationError, RemoteError, ShardtoolError, SourceNotFound
from shardtool.hashing import BLOCK_BYTES, FileDigest
from shardtool.model import FileRecord
from shardtool.storage.s3.checksums import ALGORITHM, body_headers, is_altered, is_doubtful
from shardtool.storage.s3.download import object_bytes
from shardtool.storage.s3.journal import abort_upload, entry, entry_path, open_uploads, writer_name
from shardtool.storage.s3.xml import complete_upload, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.s3.client import S3Client
    from shardtool.storage.s3.exchange import Response
    from shardtool.storage.s3.place import S3Place

PARTS_IN_FLIGHT = 4
MAX_PARTS = 10_000  # of one upload, by S3's own rule
DIGEST_HEADER = "x-amz-meta-shardtool-xxh3"
WRITER_HEADER = "x-amz-meta-shardtool-writer"


class NewObject:
    """An object being written, with its digests; the NewFile of an object store."""

    def __init__(self, place: S3Place, path: str, tag: str) -> None:
        self.place, self.path = place, path
        self.digest = FileDigest()
        self._writer = writer_name(tag)
        self._block = bytearray(BLOCK_BYTES)
        self._filled = 0
        self._upload: Multipart | None = None
        self._is_over = False

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self.digest.num_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; a full block is on its way when this returns.

        Raises:
            DestinationError: the store refuses the object.
            RemoteError: a part could not be sent.
        """
        view = memoryview(data).cast("B")
        self.digest.update(view)
        while len(view):
            if self._filled == BLOCK_BYTES:
                self._send_block()
            count = min(len(view), BLOCK_BYTES - self._filled)
            self._block[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]

    def record(self) -> FileRecord:
        """Path, size and digest of what was written."""
        return FileRecord(self.path, self.position, self.digest.hexdigest())

    def publish(self, *, durable: bool) -> None:
        """Make the object visible, whole; a store that has answered keeps it, so `durable` changes nothing.

        Raises:
            RemoteError: the store kept another number of bytes than it was sent.
        """
        if self._upload is None:
            put_object(self.place, self.path, memoryview(self._block)[: self._filled], self.digest.hexdigest())
        else:
            if self._filled:
                self._send_block()
            with _as_destination(self.place.shown(self.path)):
                self._upload.complete(self.position)
        self._is_over = True
        self._block = bytearray()

    def abort(self) -> None:
        """Give up the upload; harmless after `publish`."""
        if not self._is_over and self._upload is not None:
            self._upload.abort()
        self._is_over = True
        self._block = bytearray()

    def _send_block(self) -> None:
        with _as_destination(self.place.shown(self.path)):
            if self._upload is None:
                self._upload = Multipart(self.place, self.path, self._writer)
            self._block = self._upload.send(self._block, self._filled)
        self._filled = 0


class Multipart:
    """One multipart upload, journalled before it begins."""

    def __init__(self, place: S3Place, path: str, writer: str) -> None:
        self.place, self.path, self.writer = place, path, writer
        self._client: S3Client = place.client
        self._key = place.key(path)
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="s3-part")
        self._in_flight: deque[Future[bytearray]] = deque()
        self._parts: dict[int, tuple[int, str, str]] = {}
        self._num_parts = 0
        self._upload_id = ""
        self._note()
        created = self._create()
        self._was_repeated = created.attempts > 1
        self._upload_id = text_of(created.body, "UploadId")
        self._note()

    def send(self, block: bytearray, num_bytes: int) -> bytearray:
        """Send the first bytes of `block` as the next part; gives a block to fill meanwhile.

        Raises:
            RemoteError, DestinationError: an earlier part failed, or there are too many.
        """
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise DestinationError(
                f"{self.place.shown(self.path)} cannot grow beyond {MAX_PARTS * BLOCK_BYTES >> 30} GiB",
                hint="a smaller --shard-size makes smaller objects",
            )
        free = self._in_flight.popleft().result() if len(self._in_flight) == PARTS_IN_FLIGHT else None
        self._in_flight.append(self._threads.submit(self._send_part, self._num_parts, block, num_bytes))
        return free or bytearray(BLOCK_BYTES)

    def complete(self, num_bytes: int) -> None:
        """Join the parts to the object and check its size."""
        while self._in_flight:
            self._in_flight.popleft().result()
        self._threads.shutdown()
        body = complete_upload([self._parts[number] for number in sorted(self._parts)])
        query = (("uploadId", self._upload_id),)
        self._client.request("POST", self.place.bucket, self._key, query=query, body=body, allow=(404,))
        self._check(num_bytes)
        if self._was_repeated:
            self._abort_others()
        self.place.remove([entry_path(self.writer)])

    def abort(self) -> None:
        """Give up the upload and the note about it. Trouble is left to the next run, which finds the note.

        Where the process is being stopped, nobody waits for a store that does not answer.
        """
        if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)):
            self._client.leave()
        for future in self._in_flight:
            future.cancel()
        with suppress(ShardtoolError):
            if self._upload_id:
                self._abort()
                wait(self._in_flight)
                self._abort()  # parts that were on their way may have come after the first
                self.place.remove([entry_path(self.writer)])
        self._threads.shutdown()

    def _abort(self) -> None:
        abort_upload(self._client, self.place.bucket, self._key, self._upload_id)

    def _note(self) -> None:
        put_object(self.place, entry_path(self.writer), entry(self.path, self._upload_id))

    def _create(self) -> Response:
        """Begin the upload; the answer tells whether the store knows checksums."""
        query = (("uploads", ""),)
        own = {WRITER_HEADER: self.writer}
        if self._client.takes_crc32 is not False:
            asked = self._client.request(
                "POST", self.place.bucket, self._key, query=query, headers={**own, **ALGORITHM}, allow=(400, 501)
            )
            if asked.status == 200:
                self._client.learn_crc32("x-amz-checksum-algorithm" in asked.headers)
                return asked
        created = self._client.request("POST", self.place.bucket, self._key, query=query, headers=own)
        self._client.learn_crc32(False)
        return created

    def _send_part(self, number: int, block: bytearray, num_bytes: int) -> bytearray:
        body = memoryview(block)[:num_bytes]
        headers = body_headers(body, crc32=bool(self._client.takes_crc32))
        query = (("partNumber", str(number)), ("uploadId", self._upload_id))
        response = self._client.request("PUT", self.place.bucket, self._key, query=query, headers=headers, body=body)
        if is_altered(headers, response):
            raise _altered(self.place.shown(self.path), f"part {number}")
        self._parts[number] = (number, response.etag, headers.get("x-amz-checksum-crc32", ""))
        return block

    def _check(self, num_bytes: int) -> None:
        """That the object is ours and whole; an answer that was lost on its way is made up for by this, too."""
        stored = self._client.request("HEAD", self.place.bucket, self._key, allow=(404,))
        url = self.place.shown(self.path)
        if stored.status == 404 or stored.headers.get(WRITER_HEADER, self.writer) != self.writer:
            raise RemoteError(
                f"{url}: the store lost its parts before they were joined",
                hint="another run, or a lifecycle rule of the bucket, aborts uploads; run the same command again",
                where={"url": url},
            )
        size = object_bytes(stored)
        if size != num_bytes:
            raise _altered(url, f"{size} bytes instead of {num_bytes}")

    def _abort_others(self) -> None:
        """A request for an upload that was sent twice may have begun two."""
        for upload_id in list(open_uploads(self._client, self.place.bucket, self._key)):
            abort_upload(self._client, self.place.bucket, self._key, upload_id)


def put_object(place: S3Place, path: str, data: bytes | memoryview, digest: str = "") -> None:
    """Write a small object by one request, checked by the store while it takes it."""
    headers = {DIGEST_HEADER: digest} if digest else {}
    sums = body_headers(data, crc32=bool(place.client.takes_crc32))
    with _as_destination(place.shown(path)):
        response = place.client.request("PUT", place.bucket, place.key(path), headers={**headers, **sums}, body=data)
    if is_altered(sums, response) or (is_doubtful(sums, response) and place.read(path) != data):
        raise _altered(place.shown(path), "another checksum")


def _altered(url: str, what: str) -> RemoteError:
    return RemoteError(
        f"{url}: the store kept something else than it was sent: {what}",
        hint="run the same command again; if it stays so, the store or something before it alters data",
        where={"url": url},
    )


@contextmanager
def _as_destination(url: str) -> Iterator[None]:
    """What is no fault of a source must not be called one."""
    try:
        yield
    except (AccessDenied, SourceNotFound) as error:
        raise DestinationError(
            f"{url} cannot be written: {error.message}",
            hint=error.hint or "choose a bucket and prefix that you may write to",
            where=error.where,
        ) from error
