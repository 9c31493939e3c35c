"""The engine of the extra `fast`: objects are read by obstore, whose work happens outside of Python's lock.

Everything else, and keys that obstore would change (`//`, `.`, anything but plain letters), goes the thin way. Its
runtime does not survive a fork: a child of a process that used it reads the thin way, too. So does who names
certificates by AWS_CA_BUNDLE: its TLS refuses the self-signed ones that private stores have (CaUsedAsEndEntity).
"""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from shardtool.errors import UsageProblem
from shardtool.storage.s3.credentials import EXPIRED
from shardtool.storage.s3.exchange import UNTRUSTED, Broken, Pieces, Response
from shardtool.storage.s3.settings import READ_BYTES
from shardtool.storage.s3.thin import ThinEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.s3.exchange import Into, Request
    from shardtool.storage.s3.settings import S3Settings

TIMEOUT_S = 200  # of a whole request; obstore's own 30 s end a large object on a slow line
KEEP_CREDENTIALS_S = 60  # how long obstore may use what it was given before it asks again
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_STATUS = re.compile(r"\b([45]\d\d)\b [A-Z]|status(?: code)?:? (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS_OF = {
    "FileNotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
    "PreconditionError": 412,
    "NotModifiedError": 304,
}

_used_in: list[int] = []  # process that started obstore's runtime first


class FastEngine:
    """Reads by obstore, the rest by the thin engine."""

    name = "obstore"

    def __init__(self, settings: S3Settings, thin: ThinEngine | None = None) -> None:
        self.settings = settings
        self._obstore = _import()
        self._thin = thin or ThinEngine(settings)
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        """One attempt; see Engine."""
        assert not isinstance(into, Pieces), "only the engine built in takes pieces"
        options = self._options(request) if into is not None and len(into) else None
        if options is None or into is None:
            return self._thin.exchange(request, into)
        received, head = 0, None
        try:
            result = self._obstore.get(self._store(request.bucket), request.key, options=options)
            head = _head(result, "range" in options)
            for piece in _pieces(result, len(into)):
                into[received : received + len(piece)] = piece
                received += len(piece)
        except (self._obstore.exceptions.BaseError, FileNotFoundError, OSError) as error:
            return _refused(error, received, head)
        return Response(head.status, head.headers, b"", received)

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        """As the thin engine; stores are made anew."""
        chain = self._thin.chain
        learned = chain.renew(chain.current()) if code in EXPIRED else self._thin.adapt(request, response, code)
        if learned:
            self._stores.clear()
        return learned

    def endpoint(self, bucket: str) -> str:
        """For messages."""
        return self._thin.endpoint(bucket)

    def close(self) -> None:
        """Close idle connections."""
        self._stores.clear()
        self._thin.close()

    def _options(self, request: Request) -> dict[str, Any] | None:
        """What obstore is asked; None where the thin engine does it."""
        key, rest = request.key, {name: value for name, value in request.headers.items() if name != "if-match"}
        asked = _RANGE.fullmatch(rest.pop("range", "bytes=0-"))
        is_plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and not self.settings.request_payer
        if request.method != "GET" or request.query or rest or not is_plain or asked is None:
            return None
        if (_used_in and _used_in[0] != os.getpid()) or os.environ.get("AWS_CA_BUNDLE"):
            return None
        options: dict[str, Any] = {}
        if "range" in request.headers:
            start, end = int(asked.group(1)), asked.group(2)
            options["range"] = (start, int(end) + 1) if end else {"offset": start}
        if "if-match" in request.headers:
            options["if_match"] = request.headers["if-match"]
        return options

    def _store(self, bucket: str) -> Any:
        with self._lock:
            found = self._stores.get(bucket)
            if found is None:
                found = self._stores[bucket] = self._make(bucket)
            return found

    def _make(self, bucket: str) -> Any:
        from obstore import store

        _used_in.append(os.getpid())
        address, settings = self._thin.address(bucket), self.settings
        make: Any = store.S3Store
        return make(
            bucket,
            config={
                "endpoint": address.url + (address.prefix.removesuffix(f"/{bucket}") if address.prefix else ""),
                "region": self._thin.region(bucket),
                "virtual_hosted_style_request": not address.prefix.endswith(f"/{bucket}"),
                "skip_signature": settings.no_sign_request,
            },
            client_options={
                "allow_http": not address.is_tls,
                "connect_timeout": timedelta(seconds=settings.connect_s),
                "read_timeout": timedelta(seconds=settings.stall_s),
                "timeout": timedelta(seconds=TIMEOUT_S),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=0)},
            credential_provider=None if settings.no_sign_request else self._credentials,
        )

    def _credentials(self) -> dict[str, Any]:
        current = self._thin.chain.current()
        assert current is not None
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token or None,
            "expires_at": datetime.now(UTC) + timedelta(seconds=KEEP_CREDENTIALS_S),
        }


def _import() -> Any:
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise UsageProblem(
            "the engine obstore is not installed", hint="pip install 'shardtool[fast]', or --s3-engine thin"
        ) from error
    return obstore


def _head(result: Any, is_ranged: bool) -> Response:
    meta, (start, stop) = result.meta, result.range
    headers = {"etag": meta.get("e_tag") or "", "content-length": str(stop - start)}
    if not headers["etag"]:
        headers["content-type"] = result.attributes.get("Content-Type", "")
    if is_ranged:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{meta['size']}"
    return Response(206 if is_ranged else 200, headers)


def _pieces(result: Any, room: int) -> Iterator[memoryview]:
    start, stop = result.range
    whole = (result.bytes(),) if stop - start <= READ_BYTES else result.stream(min_chunk_size=READ_BYTES)
    for piece in whole:
        view = memoryview(piece)[:room]
        room -= len(view)
        yield view
        if not room:
            return


def _refused(error: Exception, received: int, head: Response | None) -> Response:
    """The answer behind an error of obstore, as far as it tells one.

    Raises:
        Broken: there was none.
    """
    text = str(error)
    status = _STATUS_OF.get(type(error).__name__, 0)
    if not status and head is None and (found := _STATUS.search(text)):
        status = int(found.group(1) or found.group(2))
    if not status:
        if "InvalidCertificate" in text:
            raise Broken(UNTRUSTED, "invalid peer certificate") from error
        kind = "timeout" if "imed out" in text or "imedOut" in text else "body" if head else "connection"
        raise Broken(kind, text.splitlines()[0][:300] if text else type(error).__name__, received, head) from error
    code = _CODE.search(text)
    return Response(status, {}, f"<Error><Code>{code.group(1)}</Code></Error>".encode() if code else b"")
