"""Signatures equal those of botocore, for any key, query, header and token."""

from __future__ import annotations

import calendar
import time
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.storage.s3.signing import Credentials, encode_path, encode_query, payload_hash, signed_headers

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
TOKENS = st.text("abcXYZ0189+/=", min_size=1, max_size=60)


def oracle(method: str, url: str, headers: dict[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """The headers that botocore sends, names in lower case; its date is the time of the call."""
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    request.context["payload_signing_enabled"] = True
    known = BotocoreCredentials(credentials.access_key, credentials.secret_key, credentials.token or None)
    S3SigV4Auth(known, "s3", "eu-west-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def assert_equal_signatures(
    key: str, query: tuple[tuple[str, str], ...], headers: dict[str, str], token: str, method: str, body: bytes
) -> None:
    path, words = encode_path("/bucket/" + key), encode_query(query)
    url = f"https://store.example{path}" + (f"?{words}" if words else "")
    assert urlsplit(url).path == path
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    theirs = oracle(method, url, headers, body, credentials)
    ours = signed_headers(
        method,
        path,
        words,
        {"host": "store.example", **headers},
        payload_hash(body, is_private=False),
        credentials=credentials,
        region="eu-west-1",
        now=calendar.timegm(time.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ")),
    )
    assert ours["x-amz-content-sha256"] == theirs["x-amz-content-sha256"]
    assert ours["authorization"] == theirs["authorization"]


@given(KEYS, st.sampled_from(["", "AQoDYXdz/+token=="]) | TOKENS)
@example("a//b", "")
@example("../up/./here/..", "")
@example("100%/50%25+more plus", "")
@example("été/日本/😀~-_.!*'()", "token")
@example("trailing/ ", "")
@example("?query#fragment&a=b;c", "")
@example("\n\t\r\\", "")
def test_any_key_is_signed_as_botocore_signs_it(key: str, token: str) -> None:
    assert_equal_signatures(key, (), {}, token, "GET", b"")


@given(
    st.lists(st.tuples(st.sampled_from(["prefix", "uploads", "x", "partNumber", "Z"]), WORDS), unique_by=lambda p: p[0])
)
@example([("uploads", "")])
@example([("prefix", "a b/+%~é"), ("list-type", "2")])
def test_any_query_is_signed_as_botocore_signs_it(query: list[tuple[str, str]]) -> None:
    assert_equal_signatures("key", tuple(query), {}, "", "GET", b"")


@given(st.integers(0, 1 << 40), st.text("0123456789abcdef", min_size=1), st.binary(max_size=100))
def test_headers_and_bodies_are_signed_as_botocore_signs_them(start: int, etag: str, body: bytes) -> None:
    headers = {
        "range": f"bytes={start}-",
        "if-match": f'"{etag}"',
        "x-amz-meta-note": "two  blanks",
        "content-md5": "q2hl",
        "x-amz-checksum-algorithm": "CRC32",
    }
    assert_equal_signatures("k", (), headers, "tok", "PUT", body)


def test_over_tls_a_body_is_not_hashed() -> None:
    assert payload_hash(b"body", is_private=True) == "UNSIGNED-PAYLOAD"
    assert payload_hash(b"", is_private=True) == payload_hash(b"", is_private=False)


@pytest.mark.parametrize("shown", [repr, str])
def test_credentials_never_show_their_secret(shown: type) -> None:
    text = str(shown(Credentials("AKIDEXAMPLE", "secret-key", "session-token")))
    assert "secret-key" not in text
    assert "session-token" not in text


def test_keys_may_be_given_as_bytes() -> None:
    assert encode_path("/é x".encode()) == encode_path("/é x") == "/%C3%A9%20x"
