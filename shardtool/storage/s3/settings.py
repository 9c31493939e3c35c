"""How to reach an object store, read from the environment so that every process of a run sees the same.

| variable | meaning |
|---|---|
| AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL | the store, where it is not AWS |
| AWS_REGION, AWS_DEFAULT_REGION | region that requests are signed for |
| SHARDTOOL_S3_ENGINE | `auto`, `thin`, `boto3` or `obstore` |
| SHARDTOOL_S3_CHECKSUMS | `auto`, `supported` (CRC32 headers) or `required` (MD5 alone) |
| SHARDTOOL_S3_ADDRESSING | `auto`, `path` or `virtual` |
| SHARDTOOL_S3_RETRY_SECONDS | how long a request is tried again, 300 |
| SHARDTOOL_NO_SIGN_REQUEST | 1: anonymous |
| SHARDTOOL_REQUEST_PAYER | 1: this side pays for requests and traffic |
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

ENGINES = ("auto", "thin", "boto3", "obstore")
CHECKSUMS = ("auto", "required", "supported")
ADDRESSING = ("auto", "path", "virtual")

RETRY_SECONDS = 300.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0  # to the first byte of an answer
STALL_SECONDS = 15.0  # a body slower than STALL_BYTES_PER_S for so long is asked for anew
STALL_BYTES_PER_S = 64 << 10
READ_BYTES = 1 << 20  # of a body at once

_HOST = re.compile(r"[!-~]+")
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class S3Settings:
    """What decides where requests go and how. Hashable: clients are kept by it. Credentials are not in here."""

    endpoint_url: str = ""  # "" for AWS, or what the AWS profile says
    region: str = ""  # "" for what the AWS profile says, else us-east-1
    engine: str = "auto"
    checksums: str = "auto"
    addressing: str = "auto"
    no_sign_request: bool = False
    request_payer: bool = False
    retry_s: float = RETRY_SECONDS
    connect_s: float = CONNECT_SECONDS
    read_s: float = READ_SECONDS
    stall_s: float = STALL_SECONDS

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> S3Settings:
        """The settings of this process.

        Raises:
            UsageProblem: a variable holds a word that is not in its list.
        """
        env = os.environ if environ is None else environ
        return cls(
            endpoint_url=checked_endpoint(env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""),
            region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "",
            engine=_choice(env, "SHARDTOOL_S3_ENGINE", ENGINES),
            checksums=_choice(env, "SHARDTOOL_S3_CHECKSUMS", CHECKSUMS),
            addressing=_choice(env, "SHARDTOOL_S3_ADDRESSING", ADDRESSING),
            no_sign_request=_is_on(env, "SHARDTOOL_NO_SIGN_REQUEST"),
            request_payer=_is_on(env, "SHARDTOOL_REQUEST_PAYER"),
            retry_s=_seconds(env, "SHARDTOOL_S3_RETRY_SECONDS", RETRY_SECONDS),
        )


def apply_s3_options(
    *,
    endpoint_url: str | None = None,
    no_sign_request: bool = False,
    s3_engine: str | None = None,
    s3_checksums: str | None = None,
    environ: MutableMapping[str, str] | None = None,
    **_: Any,
) -> None:
    """Turn the options of a command into variables. Call it before worker processes start: they inherit them.

    Options that were not given leave the environment as it is. Takes and leaves alone every other option.

    Raises:
        UsageProblem: the endpoint is no http or https URL, or a variable is wrong.
    """
    env = os.environ if environ is None else environ
    if endpoint_url:
        env["AWS_ENDPOINT_URL_S3"] = checked_endpoint(endpoint_url)
    if no_sign_request:
        env["SHARDTOOL_NO_SIGN_REQUEST"] = "1"
    if s3_engine:
        env["SHARDTOOL_S3_ENGINE"] = s3_engine
    if s3_checksums:
        env["SHARDTOOL_S3_CHECKSUMS"] = s3_checksums
    S3Settings.from_environ(env)


def checked_endpoint(url: str) -> str:
    """`url` without a slash at its end; "" stays.

    Raises:
        UsageProblem: it is no http or https URL of a host.
    """
    if "@" in url:  # never echoed: what stands before the @ may be a secret
        raise UsageProblem("the endpoint URL holds a user name or an @", hint="give credentials by AWS_* variables")
    if url and not url.startswith(("http://", "https://")):
        raise UsageProblem(
            f"endpoint {url!r} is no URL: expected http:// or https://", hint=f"--endpoint-url https://{url}"
        )
    if url and (wrong := _what_is_wrong(url)):
        raise UsageProblem(f"endpoint {url!r}: {wrong}", hint="write it like https://store.example.org:9000")
    return url.rstrip("/")


def _what_is_wrong(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")  # as the socket will: an empty or overlong label is an error
    except ValueError as error:
        return str(error)
    if not _HOST.fullmatch(host):
        return "it names no host"
    return "a ? or # has no place in it" if parts.query or parts.fragment else ""


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = env.get(name) or choices[0]
    if value not in choices:
        raise UsageProblem(f"{name}={value}: expected one of {', '.join(choices)}", hint=f"unset {name} or correct it")
    return value


def _is_on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() not in _FALSE


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageProblem(f"{name}={text}: expected seconds, 0 or more", hint=f"{name}={default:.0f}")
    return value
