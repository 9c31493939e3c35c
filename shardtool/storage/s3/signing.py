"""AWS Signature Version 4 for S3 requests: pure functions of request, credentials and time.

Source: AWS documentation "Signature Calculations for the Authorization Header"; botocore.auth.S3SigV4Auth is the
oracle of the tests. Keys are encoded once and never normalised: `a//b`, `.`, `..`, `%` and `+` are names like others.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.s3.exchange import Key, Query

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    """An access key with its secret; neither is ever shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


def encode_path(path: Key) -> str:
    """`path` as it stands in a request line: UTF-8, percent-encoded, slashes kept."""
    return quote(path, safe="/~")


def encode_query(query: Query) -> str:
    """Names and values percent-encoded and sorted, as they are signed and sent."""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def payload_hash(body: bytes | memoryview, *, is_private: bool) -> str:
    """What stands for the body in the signature: its SHA-256, or nothing where TLS keeps the body whole."""
    if not len(body):
        return EMPTY_SHA256
    return UNSIGNED_PAYLOAD if is_private else hashlib.sha256(body).hexdigest()


def signed_headers(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    content_hash: str,
    *,
    credentials: Credentials,
    region: str,
    now: float,
) -> dict[str, str]:
    """`headers` with date, hash, token and authorization: all that a request needs.

    Args:
        path: encoded, as sent.
        query: encoded and sorted, as sent.
        headers: lower-case names; `host` among them.
        content_hash: what `payload_hash` gives.
        now: seconds since 1970, by the clock of the store.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    full = {**headers, "x-amz-content-sha256": content_hash, "x-amz-date": stamp}
    if credentials.token:
        full["x-amz-security-token"] = credentials.token
    names = sorted(full)
    canonical = "\n".join(f"{name}:{' '.join(full[name].split())}" for name in names)
    signed = ";".join(names)
    request = f"{method}\n{path}\n{query}\n{canonical}\n\n{signed}\n{content_hash}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(_signing_key(credentials.secret_key, stamp[:8], region), text.encode(), "sha256").hex()
    full["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    return full


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    """The key of one day: four rounds of HMAC, done once."""
    key = f"AWS4{secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return key
