"""How a store proves that what it stored is what was sent: CRC32 headers where it knows them, else Content-MD5.

Never a trailer: stores that are a few years old answer 411, or store the trailer inside the object. Whether a store
knows CRC32 is read from its answer to the first CreateMultipartUpload, so that no probe object is ever written.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Response

_MD5 = re.compile(r"[0-9A-Fa-f]{32}")
ALGORITHM = {"x-amz-checksum-algorithm": "CRC32"}


def crc32_of(data: bytes | memoryview) -> str:
    """CRC32, big-endian, in base64."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def body_headers(data: bytes | memoryview, *, crc32: bool) -> dict[str, str]:
    """The header by which the store checks a body; it answers 400 BadDigest where one does not fit the other."""
    if crc32:
        return {"x-amz-checksum-crc32": crc32_of(data)}
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return {"content-md5": base64.b64encode(digest).decode()}


def is_altered(sent: dict[str, str], response: Response) -> bool:
    """Whether the store tells another CRC32 than that which was sent."""
    crc32, told = sent.get("x-amz-checksum-crc32"), response.headers.get("x-amz-checksum-crc32")
    return bool(crc32 and told and crc32 != told)


def is_doubtful(sent: dict[str, str], response: Response) -> bool:
    """Whether the ETag of a whole object looks like an MD5 and is not the one that was sent.

    Proves nothing: encryption by KMS, and some stores, make ETags of their own. Worth a second look.
    """
    etag, md5 = response.etag, sent.get("content-md5", "")
    if not md5 or not _MD5.fullmatch(etag) or "kms" in response.headers.get("x-amz-server-side-encryption", ""):
        return False
    return base64.b64decode(md5).hex() != etag.lower()
