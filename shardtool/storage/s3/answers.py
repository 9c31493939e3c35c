"""What an answer of a store means: fine, worth another try, or an error and which."""

from __future__ import annotations

import errno
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from shardtool.errors import (
    AccessDenied,
    NoSpace,
    RemoteError,
    ShardtoolError,
    SourceChanged,
    SourceNotFound,
)
from shardtool.storage.s3.address import object_url
from shardtool.storage.s3.retry import THROTTLED
from shardtool.storage.s3.xml import is_error, text_of

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Request, Response

OK, PERMANENT = "ok", "permanent"  # the other verdicts are kinds of retries
ASKS_FOR_LESS = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
        "RequestThrottled",
    }
)
TRANSIENT = frozenset({"InternalError", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
DAMAGED = frozenset({"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"})
FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityQuotaExceeded"})

_DENIED_HINTS = {
    "SignatureDoesNotMatch": "the secret key is not that of this access key, or something on the way alters requests",
    "InvalidAccessKeyId": "the store does not know this access key: check AWS_PROFILE and --endpoint-url",
    "ExpiredToken": "renew the credentials (aws sso login) and run the same command again",
    "InvalidObjectState": "the object is in an archive: restore it first (aws s3api restore-object)",
    "RequestTimeTooSkewed": "set the clock of this machine",
}


def code_of(response: Response) -> str:
    """The code of an error document: `NoSuchKey`; "" where there is none."""
    if response.status < 300 and not is_error(response.body):
        return ""
    return text_of(response.body, "Code")


def judge(response: Response, code: str) -> str:
    """OK, PERMANENT, or the kind of trouble that another try may overcome."""
    if code in ASKS_FOR_LESS or response.status in (429, 503):
        return THROTTLED
    if code in DAMAGED:
        return "checksum"
    if code in TRANSIENT or response.status in (408, 500, 502, 504):
        return "server"
    if response.status < 300:
        return "server" if code or is_error(response.body) else OK
    return PERMANENT


def patience_of(response: Response, now: float) -> float:
    """Seconds that the store asks to wait, by Retry-After (seconds or a date) or x-amz-retry-after (milliseconds).

    Args:
        now: seconds since 1970.
    """
    text, millis = response.headers.get("retry-after", ""), response.headers.get("x-amz-retry-after", "")
    if millis.isdigit():
        return int(millis) / 1000
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now) if text else 0.0
    except ValueError:
        return 0.0


def refusal(request: Request, response: Response, code: str, endpoint: str) -> ShardtoolError:
    """The error for an answer that no further try will change."""
    url = object_url(request.bucket, request.key)
    told = _told(response, code)
    where = {"url": url, "request_id": response.headers.get("x-amz-request-id", "")}
    if response.status == 507 or code in FULL:
        return _with_errno(
            NoSpace(f"no space left at {endpoint} for {url} {told}", hint="free some space and rerun", where=where),
            errno.ENOSPC,
        )
    if code == "NoSuchBucket" or (response.status == 404 and not request.key):
        return _with_errno(
            SourceNotFound(
                f"bucket {request.bucket!r} does not exist at {endpoint} {told}",
                hint="check the name, and --endpoint-url where the store is not AWS",
                where=where,
            ),
            errno.ENOENT,
        )
    if response.status == 404:
        return _with_errno(SourceNotFound(f"{url} does not exist {told}", where=where), errno.ENOENT)
    if response.status in (401, 403) or code == "ExpiredToken":
        hint = _DENIED_HINTS.get(code, "check the permissions of these credentials, or choose others by AWS_PROFILE")
        return _with_errno(
            AccessDenied(f"{url}: {request.method} refused {told}", hint=hint, where=where), errno.EACCES
        )
    if response.status == 412:
        return changed(url, told)
    return RemoteError(f"{request.method} {url} at {endpoint} refused {told}", hint=_hint(response, code), where=where)


def changed(url: str, told: str) -> SourceChanged:
    """The error for an object that was replaced while it was read, or since it was listed."""
    return SourceChanged(
        f"{url} is not the object that it was {told}".rstrip(),
        hint="run the command again when nothing writes there; --rescan takes the source as it is now",
        where={"url": url},
    )


def _told(response: Response, code: str) -> str:
    message = text_of(response.body, "Message")
    request_id = response.headers.get("x-amz-request-id", "") or text_of(response.body, "RequestId")
    words = [" ".join(filter(None, (str(response.status), code)))]
    words += [message.strip()[:200]] if message and message != code else []
    words += [f"request {request_id}"] if request_id else []
    return f"({', '.join(words)})"


def _hint(response: Response, code: str) -> str:
    if response.status in (301, 307):
        return "the bucket lives elsewhere: give its region by AWS_REGION, or its store by --endpoint-url"
    if response.status in (411, 501) or code in ("NotImplemented", "InvalidRequest"):
        return "the store may not know checksums of today: --s3-checksums required"
    return ""


def _with_errno(error: ShardtoolError, number: int) -> ShardtoolError:
    assert isinstance(error, OSError)
    error.errno = number
    return error
