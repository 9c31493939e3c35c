"""The engine built in: Signature V4 on http.client, a fifth of the CPU time that boto3 takes for a small object."""

from __future__ import annotations

import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from shardtool.storage.s3.address import Address, address_of
from shardtool.storage.s3.connections import Connections
from shardtool.storage.s3.credentials import EXPIRED, CredentialChain
from shardtool.storage.s3.signing import encode_path, encode_query, payload_hash, signed_headers
from shardtool.storage.s3.xml import text_of

if TYPE_CHECKING:
    from shardtool.storage.s3.exchange import Into, Request, Response
    from shardtool.storage.s3.settings import S3Settings
    from shardtool.storage.s3.signing import Credentials

USER_AGENT = "shardtool"
MIN_SKEW_S = 60.0  # less than this is no reason for a refusal


class ThinEngine:
    """Requests signed here and sent over connections of this process."""

    name = "thin"

    def __init__(self, settings: S3Settings, chain: CredentialChain | None = None) -> None:
        self.settings = settings
        self.chain = chain or CredentialChain(settings)
        self._connections = Connections(settings)
        self._regions: dict[str, str] = {}
        self._addresses: dict[str, Address] = {}
        self._skew_s = 0.0
        self._used = threading.local()

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        """One attempt; see Engine."""
        address = self.address(request.bucket)
        headers = self._headers(request, address)
        path = address.prefix + encode_path(b"/" + request.key if isinstance(request.key, bytes) else "/" + request.key)
        query = encode_query(request.query)
        credentials = self._used.credentials = self.chain.current()
        if credentials is not None:
            headers = signed_headers(
                request.method,
                path,
                query,
                headers,
                payload_hash(request.body, is_private=address.is_tls),
                credentials=credentials,
                region=self.region(request.bucket),
                now=time.time() + self._skew_s,
            )
        headers["user-agent"] = USER_AGENT  # last: proxies may change it, so it is not signed
        target = f"{path}?{query}" if query else path
        return self._connections.exchange(address, request.method, target, headers, request.body, into)

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        """Learn the region of a bucket, the clock of the store, or newer credentials."""
        region = response.headers.get("x-amz-bucket-region", "") or text_of(response.body, "Region")
        if response.status in (301, 307, 400) and region and region != self.region(request.bucket):
            self._regions[request.bucket] = region
            self._addresses.pop(request.bucket, None)
            return True
        if code in EXPIRED:
            used: Credentials | None = getattr(self._used, "credentials", None)
            return self.chain.renew(used)
        return response.status == 403 and self._learn_time(response, code)

    def endpoint(self, bucket: str) -> str:
        """For messages."""
        return self.address(bucket).url

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def region(self, bucket: str) -> str:
        """What requests for `bucket` are signed for."""
        return self._regions.get(bucket) or self.chain.region()

    def address(self, bucket: str) -> Address:
        """Where requests for `bucket` go."""
        found = self._addresses.get(bucket)
        if found is None:
            found = self._addresses[bucket] = address_of(
                bucket,
                endpoint_url=self.chain.endpoint_url(),
                region=self.region(bucket),
                addressing=self.settings.addressing,
            )
        return found

    def _headers(self, request: Request, address: Address) -> dict[str, str]:
        headers = {"host": address.host, **request.headers}
        if self.settings.request_payer:
            headers["x-amz-request-payer"] = "requester"
        return headers

    def _learn_time(self, response: Response, code: str) -> bool:
        """Take the store's clock where ours is why it refused; a HEAD has no code, its date must do."""
        if code not in ("RequestTimeTooSkewed", "") or "date" not in response.headers:
            return False
        try:
            skew = parsedate_to_datetime(response.headers["date"]).timestamp() - time.time()
        except ValueError:
            return False
        is_news = abs(skew - self._skew_s) > MIN_SKEW_S
        if is_news:
            self._skew_s = skew
        return is_news
