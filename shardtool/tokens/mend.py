"""Pairs whose `.idx` is damaged -> the same pairs with a sound one; the `.bin` stays, the damaged `.idx` is kept.

All pairs are looked through before the first is mended. Killed between two pairs, the same call goes on. In a data set
of ours the manifest knows what the `.idx` was: it is that again, or nothing is written, and no other is kept.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, DestinationExists, SourceNotFound, UsageProblem
from shardtool.formats.bin_pairs import check_pair, prefix_of
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.packing.receipts import digest_of
from shardtool.storage import is_remote
from shardtool.storage.local import new_file, sync_folder
from shardtool.tokens.merge import mended_pair, whole, write_idx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.formats.bin_pairs import PairReport

KEPT = ".damaged"  # behind the name of an .idx that was replaced


@dataclass(frozen=True)
class Looked:
    """A pair that was looked through, and mended where that was needed."""

    prefix: str
    mended: tuple[str, ...]  # what was wrong; () where it was sound
    kept: str  # the `.idx` as it was; "" where it was sound, or is again what the manifest says
    num_sequences: int
    num_documents: int
    num_tokens: int


def mend_pairs(places: Sequence[str], *, durable: bool = True) -> list[Looked]:
    """Write a sound `.idx` wherever what is wrong with it can be told from the rest of the pair.

    Args:
        places: prefixes, one of their two files, folders of pairs, or data sets of token shards.

    Raises:
        SourceNotFound: half of a pair is not there, or a folder holds none.
        CorruptShard: pairs that no `.idx` makes sound; none is written then, of no pair. Or one of a data set that
            is not what was packed.
        DestinationExists: an `.idx` kept by an earlier repair is in the way.
    """
    digests = {prefix: digest for place in places for prefix, digest in _prefixes(place)}
    reports = [check_pair(prefix) for prefix in digests]
    _check_all(reports, digests)
    return [_mend(report, digests[report.prefix], durable=durable) for report in reports]


def _prefixes(place: str) -> list[tuple[str, str]]:
    """(prefix, xxh3_128 that the manifest gives its `.idx`, or "") of the pairs at a place."""
    if is_remote(place):
        raise UsageProblem(
            f"{place}: pairs are mended where they lie on a disk", hint="copy the pair here, mend it, and copy it back"
        )
    if not os.path.isdir(place):
        return [(prefix_of(place), "")]
    if os.path.isfile(os.path.join(place, MANIFEST)):
        manifest = load_manifest(place)
        if manifest.format != "bin":
            raise UsageProblem(
                f"--repair mends .bin/.idx pairs, and {place} holds {manifest.format} shards",
                hint=f"shardtool pack {place} --deep packs damaged shards again",
            )
        files = [file for shard in manifest.shards for file in shard.files if file.path.endswith(".idx")]
        return [(prefix_of(os.path.join(place, file.path)), file.xxh3_128) for file in files]
    found = sorted({prefix_of(name) for name in os.listdir(place) if name.endswith((".bin", ".idx"))})
    if not found:
        raise SourceNotFound(f"{place} holds no .bin/.idx pairs", hint="name a prefix", where={"path": place})
    return [(os.path.join(place, name), "") for name in found]


def _check_all(reports: Sequence[PairReport], digests: dict[str, str]) -> None:
    """Refuse what cannot be mended, all of it at once, before anything is written."""
    lost: list[str] = []
    for report in reports:
        if not report.faults:
            continue
        if "oversized" in report.kinds:
            extra = next(fault.message for fault in report.faults if fault.kind == "oversized")
            lost.append(
                f"{report.prefix}.bin has {extra}, and it is left as it is; a copy without them: shardtool merge "
                f"--repair {report.prefix} -o MENDED"
            )
            continue
        try:
            mended_pair(report)
        except CorruptShard as error:
            lost.append(error.message)
            continue
        if not digests[report.prefix]:
            _check_room(report.prefix)
    if lost:
        others = len(reports) - len(lost)
        raise CorruptShard(
            "\n".join(lost),
            hint="bytes that are gone come back from a copy, or from packing the text again"
            + ("; leave these pairs out to mend the others" if others else ""),
            where={"path": next(report.prefix for report in reports if report.faults)},
        )


def _check_room(prefix: str) -> None:
    kept = f"{prefix}.idx{KEPT}"
    if os.path.lexists(kept) and not _is_copy(f"{prefix}.idx", kept):
        raise DestinationExists(
            f"{kept} exists, an .idx that an earlier repair has kept", hint="move it away first", where={"path": kept}
        )


def _is_copy(path: str, kept: str) -> bool:
    return os.path.isfile(kept) and filecmp.cmp(path, kept, shallow=False)


def _mend(report: PairReport, digest: str, *, durable: bool) -> Looked:
    prefix, header = report.prefix, report.header
    assert header is not None
    if not report.faults:
        _check_digest(f"{prefix}.idx", f"{prefix}.idx", digest)
        return Looked(prefix, (), "", header.num_sequences, header.num_entries - 1, report.num_tokens)
    pair, path = mended_pair(report), f"{prefix}.idx"
    if not digest:
        _keep(path, durable=durable)
    with new_file(path, "mend", durable=durable) as file:
        write_idx(file, [whole(pair)], pair.header.code)
        file.flush()
        _check_digest(file.name, path, digest)
    if durable:
        sync_folder(os.path.dirname(os.path.abspath(path)))
    kept = "" if digest else path + KEPT
    return Looked(prefix, pair.mended, kept, header.num_sequences, pair.num_documents, pair.num_tokens)


def _check_digest(found: str, path: str, digest: str) -> None:
    """Refuse `found`, to be called `path`, where it is not what the manifest says."""
    if digest and digest_of(found) != digest:
        raise CorruptShard(
            f"{path} can be made sound, but not what was packed",
            hint="shardtool pack OUT --deep packs it again from the source",
            where={"path": path},
        )


def _keep(path: str, *, durable: bool) -> None:
    """Give the damaged `.idx` a second name; a copy of it where the file system has no links."""
    kept = path + KEPT
    if os.path.lexists(kept):
        return  # by a run that was killed: it is the same, or we would not be here
    try:
        os.link(path, kept)
    except OSError:
        with open(path, "rb") as source, new_file(kept, "mend", durable=durable) as file:
            shutil.copyfileobj(source, file)
