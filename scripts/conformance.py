"""What an object store does, and what shardtool does about it: `scripts/test-s3` runs this.

Some thirty small objects and one of 5 MiB are written below PREFIX/shardtool-test-.../ and removed. Exit 0: everything
that shardtool needs works; 1: something does not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import ShardtoolError
from shardtool.sources.s3 import list_bucket
from shardtool.storage.s3.address import split_url
from shardtool.storage.s3.checksums import body_headers
from shardtool.storage.s3.client import S3Client
from shardtool.storage.s3.pages import parse_page
from shardtool.storage.s3.settings import S3Settings, apply_s3_options
from shardtool.storage.s3.xml import complete_upload, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.storage.s3.exchange import Response

BODY = bytes(range(256)) * 8
PART = os.urandom(5 << 20)  # the least that S3 allows for a part that is not the last
ODD = (
    "a b",
    "a//b",
    "a/./b",
    "a/../b",
    "back\\slash",
    "new\nline",
    "ä/ö",
    "日本",
    "k",
    "k/x",
    "p+%25",
    "x" * 255,
    "slash/",
)
ANY = tuple(range(200, 600))  # statuses to be looked at, not raised


@dataclass(frozen=True)
class Finding:
    """One thing tried."""

    what: str
    is_good: bool
    found: str
    then: str = ""  # what shardtool does where it is not good
    is_needed: bool = False


class Store:
    """The store below a folder of our own."""

    def __init__(self, client: S3Client, bucket: str, folder: str) -> None:
        self.client, self.bucket, self.folder = client, bucket, folder

    def ask(self, method: str, key: str = "", **how: object) -> Response:
        """An answer, whatever its status."""
        name = self.folder + key if key else ""
        return self.client.request(method, self.bucket, name, allow=ANY, **how)  # type: ignore[arg-type]

    def put(self, key: str, body: bytes = BODY, **headers: str) -> Response:
        return self.ask("PUT", key, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()})

    def listed(self, **query: str) -> list[bytes]:
        """Keys of one page, below the folder."""
        asked = {"list-type": "2", "prefix": self.folder, "max-keys": "1000", "encoding-type": "url", **query}
        page = parse_page(self.ask("GET", query=tuple(asked.items())).body)
        return [key.removeprefix(self.folder.encode()) for key in page.objects.keys.to_pylist()]

    def clear(self) -> None:
        for key in list_bucket(self.client, self.bucket, self.folder.encode()).keys.to_pylist():
            self.client.request("DELETE", self.bucket, key, allow=ANY)


def objects(store: Store) -> Iterator[Finding]:
    put, got = store.put("one"), store.ask("GET", "one")
    yield Finding("an object comes back", got.body == BODY, f"PUT {put.status}, GET {got.status}", is_needed=True)
    is_md5 = got.etag == hashlib.md5(BODY).hexdigest()
    yield Finding("its ETag is its MD5", is_md5, got.etag or "no ETag", "SHARDTOOL_S3_CHECK_MD5 is of no use here")
    store.put("empty", b"")
    yield Finding("an empty object comes back", store.ask("GET", "empty").body == b"", "", is_needed=True)
    store.put("meta", x_amz_meta_shardtool_test="7")
    told = store.ask("HEAD", "meta").headers.get("x-amz-meta-shardtool-test", "")
    yield Finding("it keeps metadata", told == "7", told or "lost", "digests are in the manifest all the same")
    gone = store.ask("GET", "none").status
    yield Finding("a missing object is 404", gone == 404, str(gone), is_needed=True)


def ranges(store: Store) -> Iterator[Finding]:
    for text, wanted in (("0-9", BODY[:10]), ("100-199", BODY[100:200]), ("2000-", BODY[2000:]), ("-5", BODY[-5:])):
        got = store.ask("GET", "one", headers={"range": f"bytes={text}"})
        is_good = (got.status, got.body) == (206, wanted)
        yield Finding(
            f"bytes {text} of an object", is_good, f"{got.status}, {len(got.body)} bytes", is_needed=text != "-5"
        )
    beyond = store.ask("GET", "one", headers={"range": f"bytes={len(BODY)}-"}).status
    yield Finding("a range behind the end is 416", beyond == 416, str(beyond), "lengths are compared anyway")


def conditions(store: Store) -> Iterator[Finding]:
    etag = store.ask("HEAD", "one").etag
    same = store.ask("GET", "one", headers={"if-match": f'"{etag}"'}).status
    other = store.ask("GET", "one", headers={"if-match": '"0"'}).status
    then = "ETags of answers are compared instead"
    yield Finding("If-Match of this version is served", same == 200, str(same), is_needed=True)
    yield Finding("If-Match of another version is 412", other == 412, str(other), then)
    again = store.put("one", if_none_match="*").status
    yield Finding("If-None-Match: * keeps what is there", again == 412, str(again), "nothing relies on it")


def checksums(store: Store) -> Iterator[Finding]:
    for crc32, name in ((True, "CRC32"), (False, "MD5")):
        (header, wrong), *_ = body_headers(b"other", crc32=crc32).items()
        right = body_headers(BODY, crc32=crc32)
        took = store.ask("PUT", "sum", body=BODY, headers=right).status
        refused = store.ask("PUT", "sum", body=BODY, headers={header: wrong}).status
        found = f"right {took}, wrong {refused}"
        then = "Content-MD5 is sent instead" if crc32 else "sizes and ETags are compared after uploads"
        yield Finding(f"a body with a wrong {name} is refused", took == 200 and refused >= 400, found, then)


def multipart(store: Store) -> Iterator[Finding]:
    begun = store.ask("POST", "parts", query=(("uploads", ""),))
    upload = text_of(begun.body, "UploadId")
    parts = []
    for number, body in ((1, PART), (2, BODY)):
        query = (("partNumber", str(number)), ("uploadId", upload))
        parts.append((number, f'"{store.ask("PUT", "parts", query=query, body=body).etag}"', ""))
    done = store.ask("POST", "parts", query=(("uploadId", upload),), body=complete_upload(parts))
    got = store.ask("GET", "parts")
    yield Finding(
        "an upload in parts comes back",
        got.body == PART + BODY,
        f"{done.status}, {len(got.body)} bytes",
        is_needed=True,
    )
    sums = hashlib.md5(hashlib.md5(PART).digest() + hashlib.md5(BODY).digest()).hexdigest()
    then = "sizes are compared after uploads"
    yield Finding("its ETag is the MD5 of the parts' MD5s", got.etag == f"{sums}-2", got.etag, then)
    begun = store.ask("POST", "aborted", query=(("uploads", ""),))
    upload = text_of(begun.body, "UploadId")
    ended = store.ask("DELETE", "aborted", query=(("uploadId", upload),)).status
    yield Finding("an upload can be given up", ended == 204, str(ended), "set a lifecycle rule for unfinished uploads")


def keys(store: Store) -> Iterator[Finding]:
    written = [key for key in ODD if store.put(f"odd/{key}", key.encode()).status == 200]
    refused = sorted(set(ODD) - set(written))
    yield Finding("odd keys can be written", not refused, _few(refused), "such keys cannot exist there")
    listed = {key.decode().removeprefix("odd/") for key in store.listed(prefix=f"{store.folder}odd/")}
    lost = sorted(set(written) - listed)
    yield Finding("each of them is listed", not lost, _few(lost), "what a store does not list is not packed")
    changed = [key for key in written if store.ask("GET", f"odd/{key}").body != key.encode()]
    yield Finding(
        "each of them comes back", not changed, _few(changed), "sizes and ETags are compared: another body is an error"
    )


def listing(store: Store) -> Iterator[Finding]:
    names = [f"list/{name}" for name in ("a-b", "a/b", "a.b", "a/c/d", "b")]
    for name in names:
        store.put(name, b"x")
    listed = [key.decode() for key in store.listed(prefix=f"{store.folder}list/")]
    yield Finding("all plain keys are listed", sorted(listed) == sorted(names), _few(listed), is_needed=True)
    yield Finding(
        "in byte order", listed == sorted(names), " ".join(listed), "lists are sorted here; no order is relied on"
    )
    prefix = f"{store.folder}list/"
    query = {"list-type": "2", "prefix": prefix, "delimiter": "/", "max-keys": "1000", "encoding-type": "url"}
    folders = parse_page(store.ask("GET", query=tuple(query.items())).body).prefixes
    yield Finding(
        "folders by a delimiter", folders == [f"{prefix}a/".encode()], str(len(folders)), "listed without threads"
    )
    found, token = [], ""
    for _ in names:
        more = {"continuation-token": token} if token else {}
        asked = {**query, "delimiter": "", "max-keys": "2", **more}
        page = parse_page(store.ask("GET", query=tuple((k, v) for k, v in asked.items() if v)).body)
        found += page.objects.keys.to_pylist()
        token = page.token
        if not token:
            break
    is_good = sorted(found) == sorted(f"{store.folder}{name}".encode() for name in names)
    yield Finding("page after page", is_good, f"{len(found)} of {len(names)} keys", is_needed=True)


def rights(store: Store) -> Iterator[Finding]:
    nobody = S3Client(replace(store.client.settings, no_sign_request=True))
    status = nobody.request("GET", store.bucket, f"{store.folder}one", allow=ANY).status
    yield Finding("anonymous readers are refused", status in (401, 403), str(status), "whoever reaches it reads it")


GROUPS: dict[str, Callable[[Store], Iterator[Finding]]] = {
    "objects": objects,
    "ranges": ranges,
    "conditions": conditions,
    "checksums": checksums,
    "multipart": multipart,
    "keys": keys,
    "listing": listing,
    "rights": rights,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="test-s3", description="Try what an object store does, and say what shardtool does about it."
    )
    parser.add_argument("url", help="s3://BUCKET[/PREFIX]")
    parser.add_argument("--endpoint", help="of the store, where it is not AWS")
    options = parser.parse_args()
    apply_s3_options(endpoint_url=options.endpoint)
    bucket, prefix = split_url(options.url)
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    client = S3Client(replace(S3Settings.from_environ(), retry_s=20.0))
    store = Store(client, bucket, f"{folder}shardtool-test-{uuid.uuid4().hex[:12]}/")
    failed = 0
    try:
        for name, group in GROUPS.items():
            print(name)
            for finding in group(store):
                failed += finding.is_needed and not finding.is_good
                print(_line(finding))
    except ShardtoolError as error:
        print(f"error  {error.message}\nhint   {error.hint}", file=sys.stderr)
        return error.exit_code
    finally:
        store.clear()
    print(
        f"\n{'works' if not failed else 'does NOT work'} with shardtool" + (f": {failed} needs unmet" if failed else "")
    )
    return int(failed > 0)


def _line(finding: Finding) -> str:
    mark = "ok     " if finding.is_good else "MISSING" if finding.is_needed else "differs"
    if finding.is_good:
        return f"  {mark}  {finding.what}"
    return f"  {mark}  {finding.what}: {finding.found}" + (f"\n           then: {finding.then}" if finding.then else "")


def _few(names: list[str]) -> str:
    shown = ", ".join(repr(name if len(name) < 30 else f"{name[:3]}...({len(name)})") for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


if __name__ == "__main__":
    sys.exit(main())
