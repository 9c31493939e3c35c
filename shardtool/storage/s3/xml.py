"""The little XML that S3 speaks. Answers are read by pattern: flat elements, no attributes that matter, no nesting."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ERROR = re.compile(rb"\s*(?:<\?xml[^>]*\?>)?\s*<Error[\s>]")


def texts_of(body: bytes, name: str) -> list[str]:
    """The text of every element called `name`, in order."""
    pattern = re.compile(rf"<{name}(?:\s[^>]*)?>(.*?)</{name}>".encode(), re.DOTALL)
    return [unescape(text.decode("utf-8", "replace")) for text in pattern.findall(body)]


def text_of(body: bytes, name: str) -> str:
    """The text of the first element called `name`; "" where there is none."""
    found = texts_of(body, name) if f"<{name}".encode() in body else []
    return found[0] if found else ""


def elements_of(body: bytes, name: str) -> list[bytes]:
    """What stands inside each element called `name`."""
    return re.findall(rf"<{name}(?:\s[^>]*)?>(.*?)</{name}>".encode(), body, re.DOTALL)


def is_error(body: bytes) -> bool:
    """Whether a body is an error document, as answers of status 200 can be."""
    return _ERROR.match(body) is not None


def complete_upload(parts: Sequence[tuple[int, str, str]]) -> bytes:
    """Body of CompleteMultipartUpload: (number, etag, CRC32 in base64 or "") of each part."""
    rows = []
    for number, etag, crc32 in parts:
        sums = f"<ChecksumCRC32>{crc32}</ChecksumCRC32>" if crc32 else ""
        rows.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag>{sums}</Part>")
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return f"<CompleteMultipartUpload {space}>{''.join(rows)}</CompleteMultipartUpload>".encode()


def delete_objects(keys: Iterable[str]) -> bytes:
    """Body of DeleteObjects that tells failures alone."""
    rows = "".join(f"<Object><Key>{_escape_key(key)}</Key></Object>" for key in keys)
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return f"<Delete {space}>{rows}<Quiet>true</Quiet></Delete>".encode()


def can_hold(key: str) -> bool:
    """Whether XML 1.0 can name `key`: it has no character for most controls."""
    return all(char >= " " or char in "\t\n\r" for char in key) and "\ufffe" not in key and "\uffff" not in key


def _escape_key(key: str) -> str:
    return escape(key, {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
