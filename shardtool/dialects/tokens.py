"""Token shards in the layouts of other trainers: the same payload under another name, and small files beside it.

`ds` (datatrove, nanotron), `olmo` and `nanogpt` share the payload by hard links; `llmc` and `npy` have a header before
it, so their payload is a copy, as all of them are in a bucket.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dialects import Emission, SideFile
from shardtool.errors import UsageProblem
from shardtool.formats import bin_dialects
from shardtool.formats.bin_index import read_idx
from shardtool.storage.files import absolute, local_copy, open_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.manifest import ManifestShard
    from shardtool.model import Int64Array
    from shardtool.reading.reading import Dataset

_PIECE = 1 << 20
_NANOGPT = {"train": "train", "validation": "val"}


def token_facts(dataset: Dataset, dialect: str) -> dict[str, Any]:
    """What the manifest says of the tokens.

    Raises:
        UsageProblem: the data set holds none, or `shares` are asked for.
    """
    facts = dataset.manifest.membership.get("tokens")
    if dataset.manifest.format != "bin" or not isinstance(facts, dict):
        raise UsageProblem(
            f"--emit {dialect}: {dataset.path} holds {dataset.manifest.format} shards, not token ids",
            hint="shardtool pack SRC OUT --format bin makes token shards",
        )
    return facts


def stem(shard: ManifestShard) -> str:
    """`train-00000-of-00004`."""
    return os.path.splitext(os.path.basename(shard.path))[0]


def main_split(dataset: Dataset) -> str:
    """The split that a line to paste reads: `train`, or the first."""
    splits = [shard.split for shard in dataset.manifest.shards]
    return "train" if "train" in splits else splits[0]


def refuse_splits(dataset: Dataset, dialect: str, known: Iterable[str]) -> None:
    """Refuse splits that have no place in what a loader reads; else they would be left out in silence.

    Raises:
        UsageProblem: naming them.
    """
    others = sorted({shard.split for shard in dataset.manifest.shards} - set(known))
    if others:
        raise UsageProblem(
            f"--emit {dialect}: its readers know {', '.join(known)}, not {', '.join(others)}",
            hint="pack with --split train=0.9,validation=0.1",
        )


def lengths_of(dataset: Dataset, shard: ManifestShard) -> Int64Array:
    """Tokens of each sequence of a shard."""
    with local_copy(os.path.join(dataset.path, os.path.splitext(shard.path)[0] + ".idx")) as path:
        return read_idx(path).lengths.astype(np.int64)


def _read(dataset: Dataset, shard: ManifestShard) -> Iterator[bytes]:
    buffer = memoryview(bytearray(_PIECE))
    with open_stream(os.path.join(dataset.path, shard.path)) as stream:
        while count := stream.readinto(buffer):
            yield bytes(buffer[:count])


def _payload(dataset: Dataset, shard: ManifestShard, path: str) -> SideFile:
    return SideFile(path, partial(_read, dataset, shard), shares=shard.path)


def emit_ds(dataset: Dataset, _shares: str) -> Emission:
    """`ds/SPLIT/X.ds` with `.index` and `.metadata`: one folder a split, as nanotron wants it.

    The metadata name a tokenizer only where it is one that nanotron could load: a folder or a name, not bytes.
    """
    facts = token_facts(dataset, "ds")
    itemsize = int(np.dtype(facts["dtype"]).itemsize)
    if itemsize == 1:
        raise UsageProblem("--emit ds: its readers know ids of 2 and 4 bytes, not of 1", hint="--dtype uint16")
    files = []
    for shard in dataset.manifest.shards:
        path = f"ds/{shard.split}/{stem(shard)}.ds"
        files += [
            _payload(dataset, shard, path),
            SideFile(f"{path}.index", partial(_ds_index, dataset, shard)),
        ]
        if facts["tokenizer"] not in ("bytes", "none"):
            metadata = bin_dialects.ds_metadata(facts["tokenizer"], itemsize, shard.payload_bytes // itemsize)
            files.append(SideFile(f"{path}.metadata", partial(_constant, metadata)))
    folder = f"{absolute(dataset.path)}/ds/{main_split(dataset)}"
    context = facts["context"]
    recipe = (
        "from datatrove.utils.dataset import DatatroveFolderDataset\n"
        f'data = DatatroveFolderDataset("{folder}", seq_len={context - 1 if context else 2048}, '
        f"token_size={itemsize}, shuffle=False)"
    )
    return Emission("ds", tuple(files), recipe)


def _ds_index(dataset: Dataset, shard: ManifestShard) -> Iterator[bytes]:
    yield bin_dialects.ds_index(lengths_of(dataset, shard))


def _constant(data: bytes) -> Iterator[bytes]:
    yield data


def emit_olmo(dataset: Dataset, _shares: str) -> Emission:
    """`olmo/SPLIT/X.npy`, raw ids without a header, and `X.csv.gz` with the documents."""
    facts = token_facts(dataset, "olmo")
    files = []
    for number, shard in enumerate(dataset.manifest.shards):
        path = f"olmo/{shard.split}/{stem(shard)}"
        files += [
            _payload(dataset, shard, f"{path}.npy"),
            SideFile(f"{path}.csv.gz", partial(_olmo_csv, dataset, number)),
        ]
    folder = absolute(dataset.path)
    kind = {"int32": "uint32"}.get(facts["dtype"], facts["dtype"])
    eod = facts["eod"] if facts["eod"] is not None else 0
    recipe = (
        "from glob import glob\nimport numpy as np\nfrom olmo_core.data import NumpyFSLDataset\n"
        f'paths = sorted(glob("{folder}/olmo/{main_split(dataset)}/*.npy"))\n'
        f"data = NumpyFSLDataset(*paths, sequence_length={facts['context'] or 2048}, pad_token_id={eod}, "
        f"eos_token_id={eod}, vocab_size={facts['vocab_size'] or 1 << 16}, dtype=np.{kind})"
    )
    return Emission("olmo", tuple(files), recipe)


def _olmo_csv(dataset: Dataset, number: int) -> Iterator[bytes]:
    """Rows of a shard: its sequences, called by their keys."""
    index, shard = dataset.index(number), dataset.manifest.shards[number]
    keys = [key.decode("utf-8", "backslashreplace") for key in index.keys.to_pylist()]
    sources = [key.rpartition("#")[0] or key for key in keys]
    yield bin_dialects.olmo_csv(lengths_of(dataset, shard), keys, sources, range(1, len(keys) + 1))


def emit_nanogpt(dataset: Dataset, _shares: str) -> Emission:
    """`nanogpt/train.bin` and `val.bin`; its reader takes one file a split, of uint16."""
    facts = token_facts(dataset, "nanogpt")
    _only_uint16("nanogpt", facts)
    refuse_splits(dataset, "nanogpt", _NANOGPT)
    files = []
    for split, name in _NANOGPT.items():
        shards = [shard for shard in dataset.manifest.shards if shard.split == split]
        if len(shards) > 1:
            raise UsageProblem(
                f"--emit nanogpt: it reads one file a split, {split} has {len(shards):,}",
                hint="pack with --shards 1, or merge the pairs with shardtool merge",
            )
        files += [_payload(dataset, shard, f"nanogpt/{name}.bin") for shard in shards]
    folder = absolute(dataset.path)
    name = _NANOGPT[main_split(dataset)]
    recipe = f'import numpy as np\ndata = np.memmap("{folder}/nanogpt/{name}.bin", dtype=np.uint16, mode="r")'
    return Emission("nanogpt", tuple(files), recipe)


def _only_uint16(dialect: str, facts: dict[str, Any]) -> None:
    if facts["dtype"] != "uint16":
        raise UsageProblem(
            f"--emit {dialect}: its reader takes uint16, the data set has {facts['dtype']}",
            hint="a tokenizer of at most 65,536 ids gives uint16",
        )


def _numbered(dataset: Dataset, folder: str, suffix: str) -> Iterator[tuple[ManifestShard, str]]:
    """(shard, path) as `name_{train,val}_000000.bin`; other splits have no place there."""
    refuse_splits(dataset, folder, _NANOGPT)
    counts: dict[str, int] = {}
    for shard in dataset.manifest.shards:
        name = _NANOGPT[shard.split]
        number = counts.setdefault(name, 0)
        counts[name] += 1
        yield shard, f"{folder}/data_{name}_{number:06d}{suffix}"


def emit_llmc(dataset: Dataset, _shares: str) -> Emission:
    """`llmc/data_train_000000.bin`: a header of 1,024 bytes, then ids of uint16; a copy of the payload."""
    facts = token_facts(dataset, "llmc")
    _only_uint16("llmc", facts)
    files = []
    for shard, path in _numbered(dataset, "llmc", ".bin"):
        header = bin_dialects.llmc_header(shard.payload_bytes // 2)
        files.append(SideFile(path, partial(_with_header, header, dataset, shard)))
    folder = absolute(dataset.path)
    recipe = f'./train_gpt2cu -i "{folder}/llmc/data_train_*.bin" -j "{folder}/llmc/data_val_*.bin"'
    return Emission("llmc", tuple(files), recipe)


def emit_npy(dataset: Dataset, _shares: str) -> Emission:
    """`npy/data_train_000000.npy`: real arrays of numpy, as build-nanogpt reads them; a copy of the payload."""
    facts = token_facts(dataset, "npy")
    files = []
    itemsize = int(np.dtype(facts["dtype"]).itemsize)
    for shard, path in _numbered(dataset, "npy", ".npy"):
        header = bin_dialects.npy_header(shard.payload_bytes // itemsize, np.dtype(facts["dtype"]).str)
        files.append(SideFile(path, partial(_with_header, header, dataset, shard)))
    folder = absolute(dataset.path)
    name = _NANOGPT[main_split(dataset)]
    recipe = f'import numpy as np\ndata = np.load("{folder}/npy/data_{name}_000000.npy", mmap_mode="r")'
    return Emission("npy", tuple(files), recipe)


def _with_header(header: bytes, dataset: Dataset, shard: ManifestShard) -> Iterator[bytes]:
    yield header
    yield from _read(dataset, shard)
