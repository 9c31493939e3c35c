"""A body that goes into a buffer, over as many attempts as it takes: each goes on where the last one broke."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.errors import RemoteError
from shardtool.storage.s3.address import object_url
from shardtool.storage.s3.answers import changed
from shardtool.storage.s3.exchange import Pieces, if_match
from shardtool.storage.s3.xml import is_error

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Broken, Into, Request, Response

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_NO_RANGE = re.compile(r"bytes \*/(\d+)")  # of status 416
_CUT = b"<Error>"  # an error of which the buffer of a smaller object holds too little


class Download:
    """The state of one request between its attempts. Without a buffer every attempt starts anew."""

    def __init__(self, request: Request, into: Into | None) -> None:
        self._request = request
        self._into = into
        self._done = 0
        self._etag = request.headers.get("if-match", "").strip('"')
        self._can_resume = into is not None and request.method == "GET"
        asked = _RANGE.fullmatch(request.headers.get("range", ""))
        self._start = int(asked.group(1)) if asked else 0
        self._end = asked.group(2) if asked else ""
        self._is_ranged = asked is not None
        if "range" in request.headers and asked is None:
            self._can_resume = False  # a suffix: where it starts is the store's to say

    def next_request(self) -> Request:
        """What to ask for now: the whole, or the rest of the same object."""
        if not self._done:
            return self._request
        rest = {"range": f"bytes={self._start + self._done}-{self._end}", **if_match(self._etag)}
        return replace(self._request, headers={**self._request.headers, **rest})

    def rest(self) -> Into | None:
        """The part of the buffer that is still empty."""
        return self._into if self._into is None else self._into[self._done :]

    def unmasked(self, response: Response) -> Response:
        """The answer, with its body where that is an error which came under status 200 in the place of the object.

        What tells it from an object that is XML: no ETag, though one was asked for, or the words of an error.
        """
        kind = response.headers.get("content-type", "")
        if self._into is None or response.status != 200 or response.etag or "xml" not in kind or not self._request.key:
            return response
        buffer = self._into.buffer if isinstance(self._into, Pieces) else self._into[self._done :]
        start = bytes(buffer[: response.num_bytes])
        return replace(response, body=start if is_error(start) else _CUT) if self._etag or is_error(start) else response

    def broke(self, broken: Broken) -> bool:
        """Keep what came before the break, where it is known to be part of the same object. Whether anything is."""
        head = broken.head
        if not self._can_resume or head is None or not broken.received or not self._fits(head):
            return False
        if not head.etag:
            return False
        self._check_version(head)
        self._etag = head.etag
        self._done += broken.received
        return True

    def finish(self, response: Response) -> Response | None:
        """The answer as if one attempt had brought it; None where the store sent other bytes than those asked for.

        Raises:
            SourceChanged: it is another object than before.
            RemoteError: the store cannot read ranges.
        """
        self._check_version(response)
        if not self._fits(response):
            if not self._done:
                raise RemoteError(
                    f"{self._url()}: asked for bytes from {self._start} on, got status {response.status} "
                    f"{response.headers.get('content-range', 'without a range')}",
                    hint="the store does not serve ranges; copy the objects to one that does",
                    where={"url": self._url()},
                )
            self._done, self._can_resume = 0, False
            return None
        return replace(response, num_bytes=self._done + response.num_bytes)

    def _fits(self, head: Response) -> bool:
        """Whether the body begins at the byte that was asked for."""
        if self._request.method != "GET" or head.status not in (200, 206) or self._is_suffix():
            return True
        wanted = self._start + self._done
        if head.status == 200:
            return wanted == 0
        told = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", ""))
        return told is None or int(told.group(1)) == wanted

    def _is_suffix(self) -> bool:
        return "range" in self._request.headers and not self._is_ranged

    def _check_version(self, head: Response) -> None:
        """Some stores ignore If-Match: compare here, too."""
        is_content = self._request.method == "GET" and head.status in (200, 206)
        if is_content and self._etag and head.etag and head.etag != self._etag:
            raise changed(self._url(), f"(ETag {head.etag}, before {self._etag})")

    def _url(self) -> str:
        return object_url(self._request.bucket, self._request.key)


def object_bytes(response: Response) -> int | None:
    """Size of the whole object, as the answer to a GET or HEAD tells it; None where it tells none."""
    if response.status == 416:
        told = _NO_RANGE.fullmatch(response.headers.get("content-range", ""))
        return int(told.group(1)) if told else None
    told = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    text = told.group(3) if told else response.headers.get("content-length", "")
    return int(text) if text.isdigit() else None
