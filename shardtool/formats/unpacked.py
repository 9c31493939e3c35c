"""What a compressed shard is called, and what its index says, once it was decompressed: `stage --decompress`.

Offsets in the index of a compressed shard are those of its raw bytes, so the index file stays as it is; readers get it
without what concerns frames. The manifest of such a folder names both: the raw file, and as `packed` the one that was
compressed, from which the identity of the data set follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.model import FileRecord

if TYPE_CHECKING:
    from shardtool.index_file import ShardIndex
    from shardtool.model import ManifestShard

SUFFIXES = (".zst", ".zstd")
_OF_FRAMES = ("frame_bytes", "frames", "raw_bytes")


def raw_path(path: str) -> str:
    """`data/x.tar` of `data/x.tar.zst`."""
    return next((path.removesuffix(suffix) for suffix in SUFFIXES if path.endswith(suffix)), path + ".raw")


def decompressed(shard: ManifestShard) -> ManifestShard:
    """The same shard with its raw file in place of the compressed one; a shard that is not compressed itself."""
    if not shard.raw_bytes:
        return shard
    file, *others = shard.files
    raw = FileRecord(raw_path(file.path), shard.raw_bytes, shard.raw_xxh3_128)
    return replace(shard, files=(raw, *others), raw_bytes=0, raw_xxh3_128="", packed=file)


def fitted(index: ShardIndex, shard: ManifestShard) -> ShardIndex:
    """The index as it is true of the file that lies here; itself unless the shard was decompressed.

    Digests of blocks are left out: they are those of the compressed file. Settings stay: the head of an MDS shard names
    its compression in its raw form, too.
    """
    stated = index.meta["shard"]
    if shard.packed is None or (stated["path"], stated["xxh3_128"]) != (shard.packed.path, shard.packed.xxh3_128):
        return index
    file = shard.files[0]
    if index.raw_bytes != file.num_bytes:
        return index
    meta = {name: value for name, value in index.meta.items() if name not in _OF_FRAMES}
    meta |= {"shard": {"path": file.path, "bytes": file.num_bytes, "xxh3_128": file.xxh3_128}, "blocks": []}
    return replace(index, meta=meta)
