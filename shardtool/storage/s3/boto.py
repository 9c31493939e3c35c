"""The engine for what the thin one cannot do: proxies, access points, S3 Express, FIPS endpoints. Classic boto3 only.

Requests become operations of a botocore client, which finds the endpoint and signs; our headers and bodies are put in
before it signs, and the raw answer is taken before it parses. Its own retries are off, and so are its checksums. Never
the CRT: that ignores endpoint_url and would talk to AWS (boto/boto3#4839); only transfers of boto3 would use it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from shardtool.errors import AccessDenied
from shardtool.storage.s3.credentials import EXPIRED, HINT, CredentialChain
from shardtool.storage.s3.exchange import UNTRUSTED, Broken, Pieces, Response
from shardtool.storage.s3.watch import SpeedWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.s3.exchange import Into, Request
    from shardtool.storage.s3.settings import S3Settings

MAX_CONNECTIONS = 256
READ_BYTES = 128 << 10  # urllib3 gives nothing of a piece that breaks

# Operation by method, whether there is a key, and the word of the query that tells it.
OPERATIONS = {
    ("GET", True, ""): "get_object",
    ("HEAD", True, ""): "head_object",
    ("PUT", True, ""): "put_object",
    ("DELETE", True, ""): "delete_object",
    ("POST", True, "uploads"): "create_multipart_upload",
    ("PUT", True, "partNumber"): "upload_part",
    ("POST", True, "uploadId"): "complete_multipart_upload",
    ("DELETE", True, "uploadId"): "abort_multipart_upload",
    ("GET", False, "list-type"): "list_objects_v2",
    ("GET", False, "uploads"): "list_multipart_uploads",
    ("POST", False, "delete"): "delete_objects",
    ("PUT", False, ""): "create_bucket",
    ("HEAD", False, ""): "head_bucket",
    ("DELETE", False, ""): "delete_bucket",
}
PARAMETERS = {
    "prefix": "Prefix",
    "delimiter": "Delimiter",
    "max-keys": "MaxKeys",
    "max-uploads": "MaxUploads",
    "encoding-type": "EncodingType",
    "start-after": "StartAfter",
    "continuation-token": "ContinuationToken",
    "key-marker": "KeyMarker",
    "upload-id-marker": "UploadIdMarker",
    "uploadId": "UploadId",
    "partNumber": "PartNumber",
    "versionId": "VersionId",
}
_NUMBERS = ("MaxKeys", "MaxUploads", "PartNumber")
_EXTRA: dict[str, dict[str, Any]] = {  # bodies that are replaced before they are signed
    "put_object": {"Body": b""},
    "upload_part": {"Body": b""},
    "complete_multipart_upload": {"MultipartUpload": {"Parts": []}},
    "delete_objects": {"Delete": {"Objects": [{"Key": "-"}]}},
}


class Boto3Engine:
    """Requests sent by botocore."""

    name = "boto3"

    def __init__(self, settings: S3Settings, chain: CredentialChain | None = None) -> None:
        self.settings = settings
        self.chain = chain or CredentialChain(settings)
        self._client: Any = None
        self._lock = threading.Lock()
        self._now = threading.local()

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        """One attempt; see Engine."""
        assert not isinstance(into, Pieces), "only the engine built in takes pieces"
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        operation, parameters = operation_of(request)
        client = self._current()
        self._now.request = request
        try:
            parsed = getattr(client, operation)(**parameters)
        except ClientError as error:
            return _response(error.response)
        except NoCredentialsError as error:
            raise AccessDenied("no AWS credentials found", hint=HINT) from error
        except BotoCoreError as error:
            name = type(error).__name__
            kind = UNTRUSTED if name == "SSLError" else "timeout" if "Timeout" in name else "connection"
            raise Broken(kind, str(error)) from error
        if "Body" in parsed:
            return self._receive(parsed, into)
        return _response(parsed)

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        """Newer credentials; botocore follows a bucket to its region by itself."""
        if code not in EXPIRED or not self.chain.renew(self.chain.current()):
            return False
        self.close()
        return True

    def endpoint(self, bucket: str) -> str:
        """For messages."""
        return str(self._current().meta.endpoint_url)

    def close(self) -> None:
        """Close idle connections; the next request makes another client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _current(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        settings = self.settings
        config = Config(
            connect_timeout=settings.connect_s,
            read_timeout=settings.read_s,
            max_pool_connections=MAX_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": settings.addressing},
            **({"signature_version": UNSIGNED} if settings.no_sign_request else {}),
        )
        client = self.chain.session().create_client(
            "s3", region_name=self.chain.region(), endpoint_url=settings.endpoint_url or None, config=config
        )
        client.meta.events.register("before-call.s3", self._complete)
        client.meta.events.register("before-parse.s3", _keep_body)
        return client

    def _complete(self, params: dict[str, Any], **_: Any) -> None:
        """Put headers and body of our request into botocore's."""
        request: Request = self._now.request
        params["headers"].update(request.headers)
        if self.settings.request_payer:
            params["headers"]["x-amz-request-payer"] = "requester"
        if len(request.body):
            params["body"] = bytes(request.body)

    def _receive(self, parsed: dict[str, Any], into: memoryview | None) -> Response:
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        head = _response(parsed)
        received, pieces = 0, []
        try:
            for piece in _pieces(parsed["Body"], None if into is None else len(into), self.settings.stall_s):
                if into is None:
                    pieces.append(piece)
                else:
                    into[received : received + len(piece)] = piece
                received += len(piece)
        except (OSError, BotoCoreError, HTTPError) as error:
            kind = "stall" if "imeout" in type(error).__name__ else "body"
            raise Broken(kind, str(error), received if into is not None else 0, head) from error
        finally:
            parsed["Body"].close()
        return Response(head.status, head.headers, b"".join(pieces), received)


def operation_of(request: Request) -> tuple[str, dict[str, Any]]:
    """The botocore operation for a request, and its parameters; headers and bodies come later."""
    query = dict(request.query)
    word = next((name for name in ("partNumber", "uploadId", "uploads", "list-type", "delete") if name in query), "")
    operation = OPERATIONS[request.method, bool(request.key), word]
    parameters: dict[str, Any] = {"Bucket": request.bucket, **_EXTRA.get(operation, {})}
    if request.key:
        parameters["Key"] = request.key.decode() if isinstance(request.key, bytes) else request.key
    for name, value in query.items():
        if name in PARAMETERS:
            word = PARAMETERS[name]
            parameters[word] = int(value) if word in _NUMBERS else value
    return operation, parameters


def _keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if isinstance(response_dict["body"], bytes):
        customized_response_dict["RawBody"] = response_dict["body"]


def _response(parsed: dict[str, Any]) -> Response:
    meta, body = parsed["ResponseMetadata"], parsed.get("RawBody", b"")
    headers = {name.lower(): value for name, value in meta.get("HTTPHeaders", {}).items()}
    return Response(meta["HTTPStatusCode"], headers, body, len(body))


def _pieces(stream: Any, limit: int | None, stall_s: float) -> Iterator[bytes]:
    watch, received = SpeedWatch(stall_s), 0
    while limit is None or received < limit:
        piece = stream.read(READ_BYTES if limit is None else min(READ_BYTES, limit - received))
        if not piece:
            return
        received += len(piece)
        watch.check(received)
        yield piece
