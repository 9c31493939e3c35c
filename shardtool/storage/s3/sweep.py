"""Uploads of runs that were killed: found by their notes, aborted, and the notes removed."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from shardtool.errors import SourceNotFound
from shardtool.storage.s3.journal import UPLOADS, abort_upload, open_uploads, read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.storage.s3.place import S3Place

YOUNG_S = 60.0  # a request of a killed process may reach the store after the process is gone


def sweep_uploads(place: S3Place, name: str, is_meant: Callable[[str], bool], *, young_s: float) -> None:
    """Abort the uploads whose notes begin with `name` and whose paths are meant.

    A note without an id stays while it is younger than `young_s`: its upload may begin yet. The next sweep finds it.
    """
    for note in list(place.walk(f"{UPLOADS}/{name}")):
        try:
            path, upload_id = read_entry(place.read(note.path))
            written, age = _time_and_age(place, note.path)
        except SourceNotFound:
            continue  # its writer has just ended
        if not path or not is_meant(path):
            continue
        _abort(place, path, upload_id, written)
        if upload_id or age >= young_s:
            place.remove([note.path])


def _abort(place: S3Place, path: str, upload_id: str, since: float) -> None:
    """One upload; where its id was never told, those of its key that began after the note."""
    key = place.key(path)
    found = [upload_id] if upload_id else list(open_uploads(place.client, place.bucket, key, since))
    for one in found:
        abort_upload(place.client, place.bucket, key, one)


def _time_and_age(place: S3Place, path: str) -> tuple[float, float]:
    """(when the note was written, seconds ago), both by the clock of the store; for ever where it tells none."""
    headers = place.client.request("HEAD", place.bucket, place.key(path)).headers
    written, now = _seconds(headers, "last-modified"), _seconds(headers, "date")
    return written, now - written if now != written else 0.0


def _seconds(headers: Mapping[str, str], name: str) -> float:
    try:
        return parsedate_to_datetime(headers[name]).timestamp()
    except (KeyError, ValueError):
        return float("inf")
