"""Where a bucket lives: URLs taken apart, hosts and paths of requests, and what needs more than the thin client."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Key

SCHEME = "s3://"
_ARN = re.compile(r"(arn:[^/]*:(?:accesspoint|outpost)/[^/]+(?:/accesspoint/[^/]+)?)(?:/(.*))?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9._:$/-]+")  # `:` and `$` in those of Ceph's tenants and in ARNs, `/` in ARNs alone
_UNDECODED = re.compile("[\udc80-\udcff]")  # bytes of the command line that are not UTF-8
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class Address:
    """Host and path prefix of the requests for one bucket."""

    is_tls: bool
    host: str  # as in the Host header, with a port that is not the usual one
    prefix: str  # "/bucket" in path style, "" where the host names the bucket

    @property
    def url(self) -> str:
        """For messages."""
        return f"{'https' if self.is_tls else 'http'}://{self.host}"


def split_url(url: str) -> tuple[str, str]:
    """(bucket, key) of `s3://bucket/key`; the key may be empty, hold `//`, `..`, `?`, `#` or any other character.

    Raises:
        UsageProblem: no s3 URL, or one without a bucket, or with a name that no store has.
    """
    rest = url.removeprefix(SCHEME)
    if rest == url:
        raise UsageProblem(f"{url!r} is no URL of an object store", hint="write s3://BUCKET/PREFIX")
    found = _ARN.fullmatch(rest)
    bucket, key = (found.group(1), found.group(2) or "") if found else _halves(rest)
    if not bucket:
        raise UsageProblem(f"{url!r} names no bucket", hint="write s3://BUCKET/PREFIX")
    if not _BUCKET.fullmatch(bucket):
        raise UsageProblem(
            f"{url!r}: no bucket is called {bucket!r}", hint="names of buckets have letters, digits, dots and hyphens"
        )
    if _UNDECODED.search(key):
        raise UsageProblem(f"{url!a} is not UTF-8, as all names in an object store are", hint="check the spelling")
    return bucket, key


def _halves(text: str) -> tuple[str, str]:
    bucket, _, key = text.partition("/")
    return bucket, key


def address_of(bucket: str, *, endpoint_url: str, region: str, addressing: str) -> Address:
    """Where requests for `bucket` go.

    AWS is addressed by host where the name allows it; any other store by path, which all of them understand.
    """
    parts = urlsplit(endpoint_url or aws_endpoint(region))
    is_tls = parts.scheme != "http"
    base = parts.path.rstrip("/")
    if _is_virtual(bucket, addressing, is_aws=not endpoint_url, is_tls=is_tls):
        return Address(is_tls, f"{bucket}.{parts.netloc}", base)
    return Address(is_tls, parts.netloc, f"{base}/{bucket}" if bucket else base)


def aws_endpoint(region: str) -> str:
    """The AWS endpoint of `region`."""
    tail = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://s3.{region}.{tail}"


def _is_virtual(bucket: str, addressing: str, *, is_aws: bool, is_tls: bool) -> bool:
    if not bucket or addressing == "path":
        return False
    if addressing == "virtual":
        return True
    return is_aws and bool(_HOST_LABEL.fullmatch(bucket)) and is_tls


def needs_boto3(bucket: str, address: Address) -> str:
    """Why the thin client cannot serve `bucket`, in a few words; "" where it can."""
    if bucket.startswith("arn:"):
        return "an access point"
    if bucket.endswith("--x-s3"):
        return "an S3 Express bucket"
    if any(
        os.environ.get(name, "").lower() == "true" for name in ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
    ):
        return "a FIPS or dual-stack endpoint"
    scheme = "https" if address.is_tls else "http"
    host = urlsplit(address.url).hostname or ""
    from urllib.request import getproxies, proxy_bypass  # 25 ms that no local run should pay

    if scheme in getproxies() and not proxy_bypass(host):
        return "a proxy"
    return ""


def object_url(bucket: str, key: Key = "") -> str:
    """`s3://bucket/key` for messages; characters that would garble a terminal are escaped."""
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return f"{SCHEME}{bucket}/{shown}"
