"""`.bin/.idx` pairs as a source: sequences keep their ids, keys and splits, and get another order, size or number of
shards. Data sets of ours give the keys of their indexes and are compared with its digests; sequences of other pairs are
numbered behind the name of their file.

Memory: 20 bytes a sequence of one pair while it is cut into tasks, and a batch of about 1 MiB of ids.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool import columns
from shardtool.errors import CorruptShard, SourceNotFound, UsageProblem
from shardtool.formats.bin_index import CODE_OF, encode_idx, read_header, read_idx
from shardtool.formats.bin_pairs import check_pair
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.shard_sources.look import split_in_name
from shardtool.storage import is_remote
from shardtool.tokens.files import InputFile
from shardtool.tokens.inputs import PAIR, SHARD
from shardtool.tokens.runs import cut, digests_of, piece_bounds
from shardtool.tokens.verify import pair_prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.formats.bin_index import BinIndex
    from shardtool.planning.plan import PlanOptions

_FACTS = ("tokenizer", "tokenizer_xxh3_128", "vocab_size", "eod", "eod_pos", "bos", "pad", "context")


def find_pairs(sources: Sequence[str], options: PlanOptions) -> tuple[list[InputFile], list[str]]:
    """(the `.bin` files of pairs and data sets, in source order, what of them cannot be carried over).

    Raises:
        UsageProblem: a source is of another kind, lies on a store, or holds ids of another type or tokenizer.
        SourceNotFound, CorruptShard: a pair is not whole.
    """
    _check_options(options)
    files: list[InputFile] = []
    losses: dict[str, None] = {}
    for source in sources:
        if is_remote(source):
            raise UsageProblem(
                f"{source}: token shards are converted from a disk",
                hint=f"shardtool stage {source} DIR brings them here",
            )
        files += _shards(source) if os.path.isfile(os.path.join(source, MANIFEST)) else _pairs(source, losses)
    _check_alike(files)
    if any(file.kind == SHARD for file in files):
        losses["provenance: which text a sequence came from is told by the source alone"] = None
    return files, [f"not carried over: {loss}" for loss in losses]


def _check_options(options: PlanOptions) -> None:
    given = [f"--{name.replace('_', '-')}" for name in ("include", "exclude", "key_column") if getattr(options, name)]
    if given:
        raise UsageProblem(
            f"{', '.join(given)}: sequences of token shards are taken as they are",
            hint="name the pairs that are wanted",
        )


def _shards(folder: str) -> Iterator[InputFile]:
    manifest = load_manifest(folder)
    if manifest.format != "bin":
        raise UsageProblem(
            f"{folder} holds {manifest.format} shards, and convert makes token shards of token shards alone",
            hint=f"text in them is tokenized by: shardtool pack {os.path.join(folder, 'data')} OUT --format bin",
            where={"path": folder},
        )
    root, name = os.path.split(os.path.abspath(folder))
    for shard in manifest.shards:
        stat = _stat(os.path.join(folder, shard.path))
        digests = "-".join(file.xxh3_128 for file in shard.files)
        path = os.fsencode(os.path.join(name, shard.path))
        yield InputFile(root, path, stat.st_size, stat.st_mtime_ns, SHARD, version=digests, split=shard.split)


def _pairs(source: str, losses: dict[str, None]) -> Iterator[InputFile]:
    prefixes = pair_prefixes([source])
    if not prefixes:
        raise UsageProblem(
            f"{source} is no data set of token shards, and no pair of .bin and .idx",
            hint=f"text is tokenized by: shardtool pack {source} OUT --format bin --tokenizer FILE",
            where={"path": source},
        )
    for prefix in prefixes:
        report = check_pair(prefix)
        if report.faults or report.header is None:
            raise CorruptShard(
                f"{prefix} is damaged: {report.faults[0].message}",
                hint=f"shardtool index --repair {prefix}, where the information is still there",
                where={"path": prefix},
            )
        if report.has_modes or report.header.dtype.name not in CODE_OF:
            what = "modes of multimodal sequences" if report.has_modes else report.header.dtype.name
            raise UsageProblem(f"{prefix} holds {what}, which token shards do not", hint="shardtool merge takes them")
        if report.header.num_entries != report.header.num_sequences + 1:
            losses["documents of several sequences: each sequence becomes one"] = None
        bin_stat, idx_stat = _stat(f"{prefix}.bin"), _stat(f"{prefix}.idx")
        version = f"{bin_stat.st_mtime_ns}-{idx_stat.st_mtime_ns}-{idx_stat.st_size}"
        root, name = os.path.split(os.path.abspath(f"{prefix}.bin"))
        split = split_in_name(name) or "train"
        yield InputFile(
            root, os.fsencode(name), bin_stat.st_size, bin_stat.st_mtime_ns, PAIR, version=version, split=split
        )


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise SourceNotFound(
            f"{path} does not exist", hint="is the data set whole? shardtool verify tells", where={"path": path}
        ) from None


def _check_alike(files: Sequence[InputFile]) -> None:
    sources = {_folder(file) if file.kind == SHARD else file.full_path: file for file in files}
    for what, told, some in (
        ("types", kept_dtype, files),
        ("tokenizers or contexts", kept_facts, list(sources.values())),
    ):
        found = {repr(told([file])): file.full_path for file in some}
        if len(found) > 1:
            shown = "\n".join(f"  {path}: {value}" for value, path in list(found.items())[:5])
            raise UsageProblem(
                f"token shards of different {what} make no data set\n{shown}", hint="convert them one by one"
            )


def kept_dtype(files: Sequence[InputFile]) -> str:
    """Type of the ids that pairs keep; "" where the files are no pairs."""
    if not files or files[0].kind not in (PAIR, SHARD):
        return ""
    return read_header(_idx_path(files[0])).dtype.name


def kept_splits(files: Sequence[InputFile]) -> tuple[str, ...]:
    """Splits that the sequences of pairs are in, in source order; () where the files are no pairs."""
    return tuple(dict.fromkeys(file.split for file in files if file.split))


def kept_facts(files: Sequence[InputFile]) -> dict[str, Any]:
    """What the manifest of the source says of its tokens, beside their number; {} of other pairs."""
    if not files or files[0].kind != SHARD:
        return {}
    facts = load_manifest(_folder(files[0])).membership.get("tokens") or {}
    return {name: facts.get(name) for name in _FACTS}


def _folder(file: InputFile) -> str:
    """The data set that a shard of ours belongs to."""
    folder = os.path.dirname(file.full_path)
    while not os.path.isfile(os.path.join(folder, MANIFEST)):
        if folder == os.path.dirname(folder):
            raise SourceNotFound(
                f"{file.full_path}: the manifest of its data set is gone",
                hint="run the command again once it is back",
                where={"path": file.full_path},
            )
        folder = os.path.dirname(folder)
    return folder


@lru_cache(maxsize=2)
def _index(file: InputFile) -> BinIndex:
    return read_idx(_idx_path(file))


def _idx_path(file: InputFile) -> str:
    return os.path.splitext(file.full_path)[0] + ".idx"


def sequence_spans(file: InputFile, slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Sequences of a pair in slices of at most so many bytes of the `.bin`, or one sequence that is larger."""
    pointers = _index(file).pointers
    first = 0
    while first < len(pointers):
        last = max(int(np.searchsorted(pointers, int(pointers[first]) + slice_bytes)), first + 1)
        yield first, last
        first = last


def read_pair(file: InputFile, span: tuple[int, int]) -> Iterator[tuple[list[bytes], Any, Any]]:
    """(keys, ids one after the other, int64[n] lengths) of the sequences [first, last), about a MiB at a time.

    Raises:
        CorruptShard: a sequence of a data set is not what its index says.
    """
    index, (first, last) = _index(file), span
    dtype, lengths = index.header.dtype, index.lengths[first:last].astype(np.int64)
    keys, digests = _keys(file, first, last)
    bounds = piece_bounds(lengths * dtype.itemsize)
    with open(file.full_path, "rb") as source:
        source.seek(int(index.pointers[first]) if last > first else 0)
        for low, high in pairwise(bounds):
            some = lengths[low:high]
            ids = np.fromfile(source, dtype, int(some.sum()))
            if len(ids) < some.sum():
                raise CorruptShard(
                    f"{file.full_path} is cut short", hint="copy it again", where={"path": file.full_path}
                )
            if digests is not None:
                _check_digests(file, keys[low:high], ids, some, digests[low:high])
            yield keys[low:high], ids, some


def first_sequences(file: InputFile, folder: str, name: str) -> InputFile:
    """About the first MiB of a pair, as a pair of its own in `folder`."""
    index = _index(file)
    _, ids, lengths = next(islice(read_pair(file, (0, len(index.lengths))), 1))
    path = os.path.join(folder, name)
    with open(f"{path}.bin", "wb") as data, open(f"{path}.idx", "wb") as table:
        data.write(ids.data)
        table.writelines(encode_idx(lengths, index.header.dtype.name))
    stat = os.stat(f"{path}.bin")
    return replace(
        file, root=folder, path=os.fsencode(f"{name}.bin"), size=stat.st_size, mtime_ns=stat.st_mtime_ns, kind=PAIR
    )


def _keys(file: InputFile, first: int, last: int) -> tuple[list[bytes], Any]:
    """(keys of the sequences [first, last), the digests of their ids, or None)."""
    if file.kind == PAIR:
        return [file.path + b"#%d" % number for number in range(first, last)], None
    from shardtool.reading.reading import Dataset

    folder = _folder(file)
    path = os.path.relpath(file.full_path, folder)
    with Dataset.open(folder) as dataset:
        number = next(number for number, shard in enumerate(dataset.manifest.shards) if shard.path == path)
        index = dataset.index(number)
        return columns.to_list(index.keys.slice(first, last - first)), index.part_xxh3_64[first:last].copy()


def _check_digests(file: InputFile, keys: list[bytes], ids: Any, lengths: Any, wanted: Any) -> None:
    sizes = lengths * ids.itemsize
    found = digests_of(cut(ids.data.cast("B"), np.cumsum(sizes) - sizes, sizes))
    if (wrong := np.flatnonzero(found != wanted)).size:
        key = keys[int(wrong[0])].decode("utf-8", "backslashreplace")
        raise CorruptShard(
            f"{file.full_path}: sequence {key} is not what its index says",
            hint="shardtool verify --deep names all damage",
            where={"path": file.full_path, "key": key},
        )
