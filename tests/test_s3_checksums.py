"""Checksums of uploads: the headers, and what the store's answer tells about them."""

from __future__ import annotations

import hashlib

import pytest
from botocore.httpchecksum import Crc32Checksum
from hypothesis import given
from hypothesis import strategies as st

from shardtool.storage.s3.checksums import body_headers, crc32_of, is_altered, is_doubtful
from shardtool.storage.s3.exchange import Response
from shardtool.storage.s3.xml import can_hold, complete_upload, delete_objects, elements_of, is_error, text_of, texts_of

DATA = b"some bytes"
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
OTHER = "0123456789abcdef0123456789abcdef"


@given(st.binary())
def test_crc32_is_written_as_botocore_writes_it(data: bytes) -> None:
    assert crc32_of(data) == Crc32Checksum().handle(data)


def test_a_body_has_one_checksum() -> None:
    assert list(body_headers(DATA, crc32=True)) == ["x-amz-checksum-crc32"]
    assert list(body_headers(DATA, crc32=False)) == ["content-md5"]


def test_another_crc32_than_was_sent_is_an_alteration() -> None:
    sent = body_headers(DATA, crc32=True)
    assert is_altered(sent, Response(200, {"x-amz-checksum-crc32": crc32_of(b"other")}))
    assert not is_altered(sent, Response(200, sent))
    assert not is_altered(sent, Response(200, {}))


@pytest.mark.parametrize(
    ("headers", "doubtful"),
    [
        ({"etag": f'"{MD5}"'}, False),
        ({"etag": f'"{MD5.upper()}"'}, False),
        ({"etag": f'"{OTHER}"'}, True),
        ({"etag": f'"{OTHER}"', "x-amz-server-side-encryption": "aws:kms"}, False),
        ({"etag": f'"{OTHER}"', "x-amz-server-side-encryption": "AES256"}, True),
        ({"etag": f'"{OTHER}-3"'}, False),
        ({"etag": '"0x8DC"'}, False),
        ({}, False),
    ],
)
def test_an_etag_that_should_be_the_md5_and_is_not_is_doubtful(headers: dict[str, str], doubtful: bool) -> None:
    assert is_doubtful(body_headers(DATA, crc32=False), Response(200, headers)) is doubtful
    assert not is_doubtful(body_headers(DATA, crc32=True), Response(200, headers))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(can_hold), max_size=5))
def test_keys_survive_the_xml_of_a_bulk_delete(keys: list[str]) -> None:
    """Read by the parser that stores use, which folds line ends unless they are escaped."""
    from xml.etree import ElementTree as ET

    space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
    tree = ET.fromstring(delete_objects(keys))
    assert [found.text for found in tree.iter(f"{space}Key")] == keys
    assert tree.findtext(f"{space}Quiet") == "true"


def test_parts_are_told_with_their_checksums() -> None:
    body = complete_upload([(1, '"a&b"', "AAAAAA=="), (2, "e", "")])
    assert texts_of(body, "PartNumber") == ["1", "2"]
    assert texts_of(body, "ETag") == ['"a&b"', "e"]
    assert texts_of(body, "ChecksumCRC32") == ["AAAAAA=="]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"<Error><Code>X</Code></Error>", True),
        (b'<?xml version="1.0" encoding="UTF-8"?>\n<Error xmlns="u"><Code>X</Code></Error>', True),
        (b"   \n\n<Error>", True),
        (b"<CompleteMultipartUploadResult/>", False),
        (b"<Errors/>", False),
        (b"", False),
    ],
)
def test_error_documents_are_known_whatever_stands_before_them(body: bytes, expected: bool) -> None:
    assert is_error(body) is expected


def test_elements_are_found_with_their_entities() -> None:
    body = b"<A><B>x &amp; &#34;y&#34;</B></A><A><B>2</B></A>"
    assert text_of(body, "B") == 'x & "y"'
    assert [text_of(row, "B") for row in elements_of(body, "A")] == ['x & "y"', "2"]
    assert text_of(body, "C") == ""
