"""What a source holds: folders, prefixes of a store, or a list in; an EntryTable and an account of the rest out.

Entries seen = rows + ignored + failed. A folder that is left out whole (junk, hidden, excluded) is one entry.
"""

from __future__ import annotations

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, SourceNotFound, UsageProblem
from shardtool.sources.junk import NameRules
from shardtool.sources.listing import ListingSource, read_list
from shardtool.sources.s3_url import is_s3, normal_root
from shardtool.sources.tree import TreeSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import ScanResult
    from shardtool.workers import WorkerPool

LINKS = ("follow", "skip", "error")
ON_ERROR = ("error", "skip")


def scan(
    roots: Sequence[str | os.PathLike[str]],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    files_from: str | None = None,
    null_separated: bool = False,
    links: str = "follow",
    hidden: bool = False,
    on_error: str = "error",
    pool: WorkerPool | None = None,
    inventory: str = "",
    list_cache: str = "",
) -> ScanResult:
    """Every file below `roots`, sorted by root as given, folder and name, with size and mtime.

    Troubles with entries are no exceptions: they are `failed` entries and problems, all of them in one go, fatal ones
    unless `on_error` is "skip".

    Args:
        roots: folders, or `s3://bucket/prefix` URLs; links do not matter there.
        include: globs below a root; a file that matches none of them is ignored as `not_included`.
        exclude: globs; a file or folder that matches is ignored as `excluded`.
        files_from: a file of paths relative to the only root, `-` for stdin; these files instead of all.
        null_separated: the list is separated by NUL bytes.
        links: `follow` to files and folders, `skip` as ignored, or `error`: every link a problem.
        hidden: keep names that begin with a dot.
        on_error: `error` or `skip`: what an entry that cannot be read means.
        pool: worker processes, used once the scan takes more than a moment.
        inventory: manifest.json of an S3 Inventory: these objects, without listing the store.
        list_cache: a file that keeps the list of objects; used instead of the store's list where it exists.

    Raises:
        SourceNotFound: a root does not exist.
        AccessDenied: a root may not be read.
        UsageProblem: a root is a file, roots overlap, or options contradict one another.
    """
    _check_options(links, on_error, files_from, len(roots))
    names = NameRules(hidden, tuple(map(os.fsencode, include)), tuple(map(os.fsencode, exclude)))
    skip_errors = on_error == "skip"
    if _are_urls(roots, inventory or list_cache):
        from shardtool.sources.s3 import S3Source

        urls = tuple(os.fspath(root) for root in roots)
        check_overlap(urls, None)
        keys = None if files_from is None else read_list(files_from, null_separated=null_separated)
        return S3Source(urls, names, skip_errors, keys, inventory, list_cache).scan()
    paths = _checked_roots(roots)
    if files_from is None:
        return TreeSource(paths, names, links, skip_errors, pool).scan()
    listed = read_list(files_from, null_separated=null_separated)
    return ListingSource(paths[0], listed, names, links, skip_errors, pool).scan()


def check_overlap(roots: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None) -> None:
    """Refuse sources that hold one another or the output, or lie in it; links are resolved.

    Raises:
        UsageProblem: two of them overlap.
    """
    real = [_resolved(root) for root in roots]
    for number, root in enumerate(real):
        for other in range(number):
            if _holds(root, real[other]) or _holds(real[other], root):
                message = f"sources {os.fspath(roots[other])} and {os.fspath(roots[number])} overlap"
                raise UsageProblem(message, hint="their files would be packed twice: name the outer one alone")
    for root, shown in zip(real, [os.fspath(root) for root in roots], strict=True):
        if output is not None and (_holds(root, _resolved(output)) or _holds(_resolved(output), root)):
            message = f"source {shown} and output {os.fspath(output)} overlap"
            raise UsageProblem(message, hint="choose an output folder outside the source")


def _resolved(root: str | os.PathLike[str]) -> str:
    text = os.fspath(root)
    return normal_root(text) if is_s3(text) else os.path.realpath(text)


def _are_urls(roots: Sequence[str | os.PathLike[str]], options: str) -> bool:
    """Whether the sources are on an object store; `options` that only matter there are refused elsewhere."""
    urls = [root for root in roots if is_s3(os.fspath(root))]
    if urls and len(urls) < len(roots):
        raise UsageProblem(
            "folders and s3:// URLs cannot be packed together",
            hint="pack each, and read the two data sets as a mixture",
        )
    if options and not urls:
        raise UsageProblem(f"{options}: --inventory and --list-cache are for sources on an object store, s3://...")
    return bool(urls)


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _check_options(links: str, on_error: str, files_from: str | None, num_roots: int) -> None:
    if links not in LINKS:
        raise UsageProblem(f"links={links!r} is not one of {', '.join(LINKS)}")
    if on_error not in ON_ERROR:
        raise UsageProblem(f"on_error={on_error!r} is not one of {', '.join(ON_ERROR)}")
    if num_roots == 0:
        raise UsageProblem("no source given", hint="name at least one folder")
    if files_from is not None and num_roots != 1:
        message = f"--files-from needs one source folder that its paths are relative to, not {num_roots}"
        raise UsageProblem(message, hint="name the folder that holds all of them")


def _checked_roots(roots: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Absolute paths of roots that can be listed; all that cannot are named in one error."""
    shown = [os.fspath(root) for root in roots]
    missing = [root for root in shown if not os.path.lexists(root)]
    broken = [root for root in shown if os.path.lexists(root) and not os.path.exists(root)]
    if missing or broken:
        verb = "does not exist" if missing else "is a link that points to nothing"
        hint = _similar(missing[0]) if missing else "restore its target"
        where = {"path": (missing or broken)[0]}
        raise SourceNotFound(f"source {', '.join(missing or broken)} {verb}", hint=hint, where=where)
    files = [root for root in shown if not os.path.isdir(root)]
    if files:
        hint = "give the folder that holds it, with --include or --files-from to choose"
        raise UsageProblem(f"source {', '.join(files)} is not a folder", hint=hint, where={"path": files[0]})
    effective = os.access in os.supports_effective_ids
    denied = [root for root in shown if not os.access(root, os.R_OK | os.X_OK, effective_ids=effective)]
    if denied:
        hint = "chmod u+rx it, or run as its owner"
        raise AccessDenied(f"source {', '.join(denied)} may not be read", hint=hint, where={"path": denied[0]})
    check_overlap(shown, None)
    return tuple(map(absolute_root, shown))


def _similar(path: str) -> str:
    """What to do about a path that does not exist: the nearest name beside it, if any."""
    folder, name = os.path.split(path.rstrip("/"))
    names: list[str] = []
    with suppress(OSError), os.scandir(folder or ".") as entries:
        names = [entry.name for entry in islice(entries, 10_000)]
    found = get_close_matches(name, names, 1)
    return (
        f"did you mean {os.path.join(folder, found[0])}?" if found else "check the path, and that its disk is mounted"
    )


def absolute_root(root: str) -> str:
    """`root` as an absolute path; `..` after a link leads where the system would go, not where the text does.

    A URL stays one.
    """
    if is_s3(root):
        return normal_root(root)
    return os.path.realpath(root) if ".." in root.split("/") else os.path.abspath(root)
