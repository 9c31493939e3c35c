"""Credentials, region and endpoint as botocore finds them: environment, profiles, SSO, roles, instance metadata.

Resolved once a process, at the first request. Keys in the environment come first, as they do in botocore, which is not
imported for them (0.2 s of CPU), nor to learn that there are no profiles; it is for all else. Temporary credentials are
renewed by botocore before they expire. `renew` runs the whole chain again, where the store calls them expired.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardtool.errors import AccessDenied
from shardtool.storage.s3.settings import checked_endpoint
from shardtool.storage.s3.signing import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.storage.s3.settings import S3Settings

DEFAULT_REGION = "us-east-1"
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
HINT = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a public bucket needs --no-sign-request"


class CredentialChain:
    """The credentials of this process; thread-safe."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._session: Any = None
        self._found: Any = None

    def current(self) -> Credentials | None:
        """What to sign with now; None where requests go unsigned.

        Raises:
            AccessDenied: the chain ends without credentials.
        """
        if self.settings.no_sign_request:
            return None
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = self._resolve()
        if isinstance(self._found, Credentials):
            return self._found
        with _readable():
            frozen = self._found.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")

    def renew(self, refused: Credentials | None) -> bool:
        """Run the chain again after the store refused `refused` as expired. Whether there are others now."""
        if refused is None:
            return False
        with self._lock:
            if self._found is not None and _same(self._found, refused):
                self._session = None
                self._found = self._resolve()
            return not _same(self._found, refused)

    def region(self) -> str:
        """From the settings, else from the AWS profile, else us-east-1."""
        return self.settings.region or str(self._profile().get("region") or DEFAULT_REGION)

    def endpoint_url(self) -> str:
        """From the settings, else from the AWS profile; "" for AWS itself."""
        if self.settings.endpoint_url or os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            return self.settings.endpoint_url
        profile = self._profile()
        if not profile:
            return ""
        services = self.session().full_config.get("services", {}).get(profile.get("services", ""), {})
        url = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url") or ""
        return checked_endpoint(str(url))

    def session(self) -> Any:
        """The botocore session that all of this comes from."""
        if self._session is None:
            import botocore.session

            self._session = botocore.session.Session()
        return self._session

    def _profile(self) -> dict[str, Any]:
        if not has_profiles(os.environ):
            return {}
        with _readable():
            profile: dict[str, Any] = self.session().get_scoped_config()
            return profile

    def _resolve(self) -> Any:
        """Our credentials from the environment, or what botocore finds."""
        found = credentials_in(os.environ)
        if found is not None:
            return found
        with _readable():
            found = self.session().get_credentials()
        if found is None:
            raise AccessDenied("no AWS credentials found", hint=HINT)
        return found


def credentials_in(environment: Mapping[str, str]) -> Credentials | None:
    """Keys that the environment gives whole; None where it gives none, a part, or such as expire by themselves."""
    key, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not key or not secret or environment.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    token = environment.get("AWS_SECURITY_TOKEN") or environment.get("AWS_SESSION_TOKEN") or ""
    return Credentials(key, secret, token)


def has_profiles(environment: Mapping[str, str]) -> bool:
    """Whether there may be a profile: one is named, or a file of profiles is there and not empty."""
    if environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE"):
        return True
    names = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    return any(_is_filled(environment.get(name) or default) for name, default in names.items())


def _is_filled(path: str) -> bool:
    try:
        found = os.stat(os.path.expanduser(os.path.expandvars(path)))
    except OSError:
        return False
    return found.st_size > 0 or not (stat.S_ISREG(found.st_mode) or path == os.devnull)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn what botocore says about files and services of credentials into our error."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        raise AccessDenied(f"the AWS credentials cannot be read: {error}", hint=HINT) from error


def _same(found: Any, credentials: Credentials) -> bool:
    if isinstance(found, Credentials):
        return (found.access_key, found.token) == (credentials.access_key, credentials.token)
    frozen = found.get_frozen_credentials()
    return (frozen.access_key, frozen.token or "") == (credentials.access_key, credentials.token)
