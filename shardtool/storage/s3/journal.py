"""Multipart uploads that were begun, written down so that a later run can abort them and no others.

`.shardtool/uploads/TAG-HOST-PROCESS-NUMBER.json` below the place holds `schema`, `path` and `upload_id`. It is written
twice, before the store is asked for an upload and when the store has told its id; so a run that is killed between the
two leaves a note by which the upload is found.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from datetime import datetime
from typing import TYPE_CHECKING

from shardtool.names import HIDDEN
from shardtool.storage.s3.xml import elements_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.s3.client import S3Client

UPLOADS = f"{HIDDEN}/uploads"
SCHEMA = "shardtool/upload/1"
CLOCK_S = 5.0  # stores stamp journal and upload by clocks of different machines

_numbers = itertools.count()


def writer_name(tag: str) -> str:
    """A name for one upload of this process; tags tell plan and shard."""
    host = zlib.crc32(os.uname().nodename.encode())
    return f"{tag}-{host:08x}-{os.getpid()}-{next(_numbers)}"


def entry_path(writer: str) -> str:
    """Where the note about an upload lies, below the place."""
    return f"{UPLOADS}/{writer}.json"


def entry(path: str, upload_id: str = "") -> bytes:
    """The note itself."""
    return json.dumps({"schema": SCHEMA, "path": path, "upload_id": upload_id}).encode()


def read_entry(data: bytes) -> tuple[str, str]:
    """(path, upload id) of a note; empty where it is none of ours."""
    try:
        note = json.loads(data)
    except ValueError:
        return "", ""
    if not isinstance(note, dict) or note.get("schema") != SCHEMA:
        return "", ""
    return str(note.get("path", "")), str(note.get("upload_id", ""))


def open_uploads(client: S3Client, bucket: str, key: str, since: float = 0.0) -> Iterator[str]:
    """Ids of the unfinished uploads of exactly `key` that began at or after `since` (seconds since 1970)."""
    query = (("uploads", ""), ("prefix", key), ("max-uploads", "1000"))
    marker: tuple[tuple[str, str], ...] = ()
    while True:
        body = client.request("GET", bucket, query=query + marker).body
        for upload in elements_of(body, "Upload"):
            if text_of(upload, "Key") == key and _time_of(upload) >= since - CLOCK_S:
                yield text_of(upload, "UploadId")
        next_key, next_id = text_of(body, "NextKeyMarker"), text_of(body, "NextUploadIdMarker")
        following = (("key-marker", next_key), ("upload-id-marker", next_id))
        if text_of(body, "IsTruncated") != "true" or following == marker:
            return
        marker = following


def abort_upload(client: S3Client, bucket: str, key: str, upload_id: str) -> None:
    """Give up an upload; one that is gone already is no trouble."""
    client.request("DELETE", bucket, key, query=(("uploadId", upload_id),), allow=(404,))


def _time_of(upload: bytes) -> float:
    try:
        return datetime.fromisoformat(text_of(upload, "Initiated")).timestamp()
    except ValueError:
        return float("inf")
