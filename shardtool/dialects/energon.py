"""`.nv-meta/` and `{shard}.tar.idx`: what `energon prepare` writes, without reading a shard.

Sources: NVIDIA/Megatron-Energon 7.4.1, flavors/webdataset/prepare.py, indexing.py, metadata.py. A `.tar.idx` holds
N + 1 little-endian uint64: where each sample begins, then where the last one ends. Keys must be unique in the data set.
Splits are lists of whole shards: the data set's own, or cut here by largest remainder.
"""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dialects import Emission, SideFile
from shardtool.dialects.checks import hash_keys, refuse_names, require_tar, shards_by_split
from shardtool.dialects.energon_sqlite import database
from shardtool.dialects.rules import READERS, Cut
from shardtool.errors import DuplicateKey, UsageProblem
from shardtool.names import compact_braces
from shardtool.planning.cuts import apportion
from shardtool.planning.splits import parse_shares
from shardtool.verification.repeats import find_repeats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import Manifest
    from shardtool.reading.reading import Dataset

META, VERSION = ".nv-meta", "7.4.1"
SPLIT_NAMES = {"validation": "val"}  # energon's names for ours; others keep theirs
_IMAGES, _TEXTS, _CLASSES = ("jpg", "jpeg", "png", "webp"), ("txt", "caption", "text"), ("cls",)
SAMPLE_TYPES = (  # energon's sample types: the first whose fields all samples have
    ("ImageClassificationSample", (("image", _IMAGES), ("label", _CLASSES))),
    ("CaptioningSample", (("image", _IMAGES), ("caption", _TEXTS))),
    ("ImageSample", (("image", _IMAGES),)),
    ("TextSample", (("text", _TEXTS),)),
)
CRUDE = """# Samples as dictionaries of bytes; your task encoder turns them into what the model takes.
# For a sample type of energon's own give sample_type and field_map instead; energon info works with those only.
__module__: megatron.energon
__class__: CrudeWebdataset
"""


def emit(dataset: Dataset, shares: str = "") -> Emission:
    """The four files of `.nv-meta`, a dataset.yaml to edit, and an index beside each shard.

    Raises:
        UsageProblem: not tar, names that energon leaves out, or shares for a data set that has splits already.
        DuplicateKey: a key that occurs twice.
    """
    require_tar(dataset, "energon")
    refuse_names(
        dataset,
        "energon",
        lambda name: not isinstance(READERS["energon"].cut(name), Cut),
        "are not UTF-8, end in a field name of energon's, or lie in a folder __like_this__: it stops or skips them",
        "rename these files",
    )
    _check_unique(dataset)
    parts = split_parts(dataset, shares)
    shards = [shard.path for shard in dataset.manifest.shards if shard.num_samples]
    numbers = [number for number, shard in enumerate(dataset.manifest.shards) if shard.num_samples]
    files = (
        *(SideFile(f"{path}.idx", partial(_offsets, dataset, k)) for path, k in zip(shards, numbers, strict=True)),
        SideFile(f"{META}/.info.json", partial(_info, dataset)),
        SideFile(f"{META}/split.yaml", partial(_split_yaml, parts)),
        SideFile(f"{META}/index.uuid", partial(_uuid, dataset)),
        SideFile(f"{META}/index.sqlite", partial(database, dataset, numbers)),
        SideFile(f"{META}/dataset.yaml", lambda: [dataset_yaml(dataset.manifest)], is_template=True),
    )
    recipe = (
        "from megatron.energon import WorkerConfig, get_train_dataset\n"
        f'dataset = get_train_dataset("{dataset.path.rstrip("/")}", batch_size=1, shuffle_buffer_size=None,\n'
        "    max_samples_per_sequence=None, task_encoder=YOURS, worker_config=WorkerConfig.default_worker_config())"
    )
    return Emission("energon", files, recipe, needs_card=True)


def split_parts(dataset: Dataset, shares: str) -> dict[str, list[str]]:
    """{energon's name of a split: paths of its shards}; with `shares` each gets the next run of shards.

    Raises:
        UsageProblem: the data set has splits, or fewer shards than shares.
    """
    shards = dataset.manifest.shards
    own = {SPLIT_NAMES.get(s, s): [shards[k].path for k in numbers] for s, numbers in shards_by_split(dataset).items()}
    if not shares:
        return {name: own.get(name, []) for name in dict.fromkeys(["train", "val", "test", *own])}
    wanted = parse_shares(shares)
    if len(own) > 1:
        raise UsageProblem(
            f"--split-shards: {dataset.path} has splits: {', '.join(own)}", hint="leave --split-shards out"
        )
    paths = next(iter(own.values()))
    counts = apportion(len(paths), list(wanted.values()))
    if 0 in counts:
        raise UsageProblem(
            f"--split-shards {shares}: {len(paths)} shards are too few, {list(wanted)[counts.index(0)]} would get none",
            hint="pack with --split, which cuts by samples",
        )
    ends = np.cumsum(counts).tolist()
    return {
        SPLIT_NAMES.get(name, name): paths[end - count : end]
        for name, count, end in zip(wanted, counts, ends, strict=True)
    }


def dataset_yaml(manifest: Manifest) -> bytes:
    """dataset.yaml: energon's sample type for the parts that all samples have, or dictionaries of bytes."""
    whole = [name for name, part in manifest.parts.items() if part.samples == manifest.num_samples]
    for sample_type, fields in SAMPLE_TYPES:
        found = {field: next((name for name in names if name in whole), "") for field, names in fields}
        if all(found.values()):
            lines = [f"  {field}: {name}" for field, name in found.items()]
            head = ["# Yours to edit.", "sample_type:", "  __module__: megatron.energon", f"  __class__: {sample_type}"]
            return "\n".join([*head, "field_map:", *lines, ""]).encode()
    return CRUDE.encode()


def _check_unique(dataset: Dataset) -> None:
    first, again = find_repeats([hash_keys(dataset.index(k)) for k in range(dataset.num_shards)])
    repeated = [
        (dataset.index(two).key(other), dataset.manifest.shards[one].path, dataset.manifest.shards[two].path)
        for (one, sample), (two, other) in zip(first.tolist(), again.tolist(), strict=True)
        if dataset.index(one).key(sample) == dataset.index(two).key(other)
    ]
    if repeated:
        shown = "".join(
            f"\n  {key.decode('utf-8', 'backslashreplace')!r}  in {one} and {two}" for key, one, two in repeated[:3]
        )
        raise DuplicateKey(
            f"--emit energon: {len(repeated):,} keys occur more than once, and energon wants each once{shown}",
            hint="pack so that keys keep the folder that tells them apart",
            where={"path": dataset.path},
        )


def _offsets(dataset: Dataset, shard: int) -> list[bytes]:
    index = dataset.index(shard)
    end = index.offset[-1] + index.num_bytes[-1]
    return [np.append(index.offset, end).astype("<u8").tobytes()]


def _info(dataset: Dataset) -> Iterator[bytes]:
    counts = {shard.path: shard.num_samples for shard in dataset.manifest.shards if shard.num_samples}
    yield json.dumps({"energon_version": VERSION, "shard_counts": counts}, indent=1).encode() + b"\n"


def _split_yaml(parts: dict[str, list[str]]) -> Iterator[bytes]:
    """YAML whose strings are JSON strings; shards as brace ranges, which energon expands."""
    yield b"split_parts:\n"
    for name, paths in parts.items():
        patterns = [path for pattern in compact_braces(paths) for path in _unambiguous(pattern, paths)]
        yield f"  {json.dumps(name)}: {json.dumps(patterns)}\n".encode()
    yield b"exclude: []\n"


def _unambiguous(pattern: str, paths: list[str]) -> list[str]:
    """`pattern`, or the paths themselves where some hold characters that a brace expansion would eat."""
    return paths if any(set(path) & set("{},\\$") for path in paths) else [pattern]


def _uuid(dataset: Dataset) -> list[bytes]:
    """Another one whenever the data are others, and the same whenever they are the same."""
    return [str(uuid.UUID(hex=dataset.manifest.dataset_id, version=4)).encode()]
