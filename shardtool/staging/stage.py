"""Bring shards of a data set to folders of this node: `stage(place, request, say)`.

    manifest -> errands (which shards, for which folder) -> one copier a folder -> room reserved -> shards copied

Nothing is listed: all that is needed follows from the manifest. A rerun brings what is missing; processes that run
this at the same time share one copy.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import FormatError, UsageProblem
from shardtool.loading.available import available_memory
from shardtool.manifest import MANIFEST
from shardtool.staging.arriving import CopyOptions, Route
from shardtool.staging.disk import allocate, check_room, open_part, warning_for
from shardtool.staging.election import elected, files_of
from shardtool.staging.errands import errands_of, later_shards
from shardtool.staging.folder import Staged, VerifiedTable, make_folders, read_staged, sweep_journals, write_staged
from shardtool.staging.request import StageResult
from shardtool.staging.rolling import known_uses, roll
from shardtool.staging.throttle import Throttle
from shardtool.staging.transfer import TAG, Copier, bring_small
from shardtool.staging.window import times_fetched
from shardtool.storage.local import put_file
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from shardtool.manifest import Manifest, ManifestShard
    from shardtool.staging.errands import Errand
    from shardtool.staging.folder import Target
    from shardtool.staging.request import StageRequest
    from shardtool.staging.transfer import Advance
    from shardtool.storage.base import Place

MANY_TIMES = 1.5  # fetches of a shard an epoch from which a budget is worth a warning
SMALL_FILES = 4  # manifest, labels, staged.json, table: beside the files of shards


class Moving(Protocol):
    """What a progress display offers."""

    def advance(self, shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
        """Add what was just done."""


class Say(Protocol):
    """Where a copy tells what it does."""

    def step(self, verb: str, text: str) -> None:
        """One line."""

    def warn(self, text: str) -> None:
        """What costs something."""

    def progress(
        self, total_shards: int, total_bytes: int, total_samples: int, verb: str = "copy"
    ) -> AbstractContextManager[Moving]:
        """How far it is."""


def stage(place: Place, request: StageRequest, say: Say, *, stays: bool = False) -> StageResult:
    """Bring what is asked for, verified.

    Args:
        place: where the data set lies.
        request: what, where, how.
        say: told how far it is.
        stays: with a budget, go on until the last epoch is over, as readers say how far they are.

    Raises:
        SourceNotFound, FormatError, CorruptShard, SourceChanged, RemoteError: the source.
        UsageProblem: shards, nodes or options that do not exist.
        DestinationExists, DestinationError, NoSpace: the target.
    """
    began = time.monotonic()
    errands = errands_of(place, request)
    for errand in errands:
        check_foreseeable(errand, request)
    manifest = errands[0].manifest
    paths = tuple(errand.target.path for errand in errands)
    result = StageResult(paths, manifest.dataset_id, total_shards=len(manifest.shards))
    introduce(place, request, errands, say)
    wanted = [record for errand in errands for record in errand.records()]
    total_bytes = sum(record.num_bytes for record in wanted)
    with say.progress(len(wanted), total_bytes, sum(s.num_samples for s in wanted), verb="copy") as progress:
        for errand in errands:
            _run(place, errand, request, progress.advance, result, stays=stays)
    result.seconds = time.monotonic() - began
    return result


def introduce(place: Place, request: StageRequest, errands: list[Errand], say: Say) -> None:
    """The `stage` line, and what may cost more than it seems."""
    manifest, wish = errands[0].manifest, request.wish
    who = f"node {request.node} of {wish.num_nodes or 1}   " if request.select == "share" else ""
    for errand in errands:
        if warning := warning_for(errand.target.path):
            say.warn(warning)
        shards = f"{len(errand.share.shards):,} of {plural(len(manifest.shards), 'shard')}"
        where = f" for {errand.target.path}" if len(errands) > 1 else ""
        form = " decompressed" if errand.decompress else ""
        say.step("stage", f"{who}{shards}   {format_bytes(errand.num_bytes)}{form}{where}")
    if request.decompress and not errands[0].decompress:
        say.warn(f"--decompress changes nothing: the shards of {place.url} are not compressed as wholes")
    if _is_window(errands[0], request):
        _warn_of_refetching(errands[0], request, say)
    count, num_bytes = later_shards(manifest, request)
    if count:
        last = request.epochs[1]
        say.warn(
            f"epoch {last} reads {plural(count, 'shard')} more on this node ({format_bytes(num_bytes)}): "
            f"--epochs {request.epochs[0]}:{last + 1} brings them too, --all every shard"
        )


def _warn_of_refetching(errand: Errand, request: StageRequest, say: Say) -> None:
    """Say what a budget costs with this order, where that is much."""
    uses, _ = known_uses(errand, request)
    sizes = {shard: errand.manifest.shards[shard].num_bytes for shard in errand.share.shards}
    times, missing = times_fetched(uses, sizes, request.budget)
    if times < MANY_TIMES:
        return
    cure = "give more room" if request.wish.mode == "shard" else "--order shard, here and in training, needs each once"
    say.warn(
        f"--budget {format_bytes(request.budget)}: in this order each shard would be fetched about {times:.1f} times "
        f"an epoch, {format_bytes(round(times * errand.num_bytes))} instead of {format_bytes(errand.num_bytes)}, "
        f"and {missing:.0%} of the reads would wait for it: {cure}"
    )


def _run(
    place: Place, errand: Errand, request: StageRequest, advance: Advance, result: StageResult, *, stays: bool
) -> None:
    """One folder: copy, or wait for who copies."""
    records = errand.records()
    make_folders(errand.target)
    waits_for = records if not _is_window(errand, request) else errand.first(1)
    with elected(errand.target, waits_for, advance) as is_copier:
        if is_copier:
            with closing(VerifiedTable(errand.target)) as table:
                route = Route(place, errand.target, table, _options(errand, request))
                _bring(route, errand, request, advance, result, stays=stays)
        else:
            result.reused_bytes += errand.num_bytes
            result.is_complete = result.is_complete and waits_for == records
    result.num_shards += len(records)
    result.num_bytes += errand.num_bytes


def _bring(
    route: Route, errand: Errand, request: StageRequest, advance: Advance, result: StageResult, *, stays: bool
) -> None:
    """As the one that copies."""
    sweep_journals(errand.target)
    if _is_window(errand, request):
        _prepare(route, errand, request, [])
        done = roll(route, errand, request, advance, stays=stays)
        result.evicted_shards += done.evicted
        result.is_complete = result.is_complete and done.is_complete
    else:
        _copy_all(route, errand, request, advance)
    totals = route.totals
    result.fetched_bytes += totals.fetched_bytes
    result.reused_bytes += totals.reused_bytes
    result.refetched_blocks += totals.refetched_blocks


def _is_window(errand: Errand, request: StageRequest) -> bool:
    return 0 < request.budget < errand.num_bytes


def _copy_all(route: Route, errand: Errand, request: StageRequest, advance: Advance) -> None:
    missing = []
    for record in errand.records():
        if all(map(route.table.holds, files_of(record))):
            route.count(reused=record.num_bytes)
            advance(1, record.num_bytes, record.num_samples)
        else:
            missing.append(record)
    _prepare(route, errand, request, missing)
    if missing:
        Copier(route, advance).copy(missing)


def _prepare(route: Route, errand: Errand, request: StageRequest, missing: Sequence[ManifestShard]) -> None:
    """Reserve room, then write what makes the folder a data set, and declare what is meant to be in it."""
    reserve(errand.target, missing, request.reserve, passing_bytes(errand, missing, request.jobs))
    manifest, target, durable = errand.manifest, errand.target, request.durable
    for record in (*([manifest.labels] if manifest.labels else []), *manifest.side_files):
        if not route.table.holds(record):
            bring_small(route, record)
            route.vouch(record)
    shards = {*errand.share.shards, *_declared(route, manifest)}
    write_staged(
        target,
        Staged(
            manifest.dataset_id,
            _source(route.place),
            tuple(sorted(shards)),
            _is_window(errand, request),
            any(record.packed is not None for record in manifest.shards),
        ),
        durable=durable,
    )
    if not _has(target.final(MANIFEST), errand.manifest_data):
        put_file(target.path, MANIFEST, errand.manifest_data, tag=TAG, durable=durable)


def _declared(route: Route, manifest: Manifest) -> Sequence[int]:
    """The shards that are meant to be here already; those that are here, where staged.json is damaged."""
    try:
        before = read_staged(route.target.path)
    except FormatError:
        return [n for n, shard in enumerate(manifest.shards) if all(map(route.table.holds, files_of(shard)))]
    return before.shards if before else ()


def _has(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except FileNotFoundError:
        return False


def _source(place: Place) -> str:
    """The source as it is written down: whole, and without a name and password in it."""
    if place.is_local:
        return os.path.abspath(place.url)
    return without_user(place.url)


def without_user(url: str) -> str:
    """A URL without a name and password in it."""
    scheme, sign, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sign}{host.rpartition('@')[2]}{slash}{path}" if sign else url


@dataclass(frozen=True)
class _Needed:
    """Room that a copy takes."""

    num_bytes: int
    num_files: int


def _needed(target: Target, missing: Sequence[ManifestShard]) -> _Needed:
    """What is not on the disk yet: parts of an earlier copy have their room already."""
    num_bytes = num_files = 0
    for record in missing:
        for file in record.files:
            size = allocated(target.part(file.path))
            num_bytes += max(0, file.num_bytes - size)
            num_files += 2  # the part and its journal
        if record.index is not None and not os.path.exists(target.final(record.index.path)):
            num_bytes += record.index.num_bytes
            num_files += 1
    return _Needed(num_bytes, num_files + SMALL_FILES)


def allocated(path: str) -> int:
    """Bytes of disk that a file takes; 0 where there is none."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def check_foreseeable(errand: Errand, request: StageRequest) -> None:
    """Refuse, before anything is written, a target that is too small or would be.

    Raises:
        NoSpace: it is.
    """
    table = VerifiedTable(errand.target)
    missing = [record for record in errand.records() if not all(map(table.holds, files_of(record)))]
    needed = _needed(errand.target, missing)
    num_bytes = needed.num_bytes
    if _is_window(errand, request):
        present = sum(record.num_bytes for record in errand.records()) - sum(r.num_bytes for r in missing)
        num_bytes = max(0, min(needed.num_bytes, request.budget - present))
    num_bytes += passing_bytes(errand, missing, request.jobs)
    check_room(errand.target.path, num_bytes, needed.num_files, request.reserve)


def passing_bytes(errand: Errand, missing: Sequence[ManifestShard], jobs: int) -> int:
    """Room for compressed shards: for all that are kept, else for those on their way at a time."""
    sizes = sorted((record.packed.num_bytes for record in missing if record.packed is not None), reverse=True)
    return sum(sizes if errand.decompress == "keep" else sizes[: jobs + 1]) if errand.decompress else 0


def reserve(target: Target, missing: Sequence[ManifestShard], keep_free: int, passing: int = 0) -> None:
    """Give every part its room now, so that the copy cannot run out of it later.

    Args:
        target: the folder.
        missing: shards to come.
        keep_free: bytes that must be left.
        passing: bytes of what comes beside them, looked for but not reserved.

    Raises:
        NoSpace: there is not enough; what was reserved here is given back.
    """
    needed = _needed(target, missing)
    check_room(target.path, needed.num_bytes + passing, needed.num_files, keep_free)
    made: list[str] = []
    try:
        for record in missing:
            for file in record.files:
                _reserve_part(target.part(file.path), target.final(file.path), file.num_bytes, made)
    except BaseException:
        for path in made:
            with suppress(FileNotFoundError):
                os.unlink(path)
        raise


def _reserve_part(part: str, final: str, size: int, made: list[str]) -> None:
    if os.path.exists(part) or os.path.exists(final):
        return
    fd = open_part(part)
    made.append(part)
    try:
        allocate(fd, size, part)
    finally:
        os.close(fd)


def _options(errand: Errand, request: StageRequest) -> CopyOptions:
    if request.jobs < 1:
        raise UsageProblem(f"--jobs {request.jobs}", hint="give 1 or more")
    is_small = errand.num_bytes < available_memory() // 2
    keeps = request.page_cache == "keep" or (request.page_cache == "auto" and is_small)
    throttle = Throttle(request.bytes_per_s)
    return CopyOptions(request.jobs, throttle, request.durable, keeps, errand.decompress)
