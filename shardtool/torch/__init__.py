"""Packed data sets in torch: map-style, as a stream, and a DataLoader that can be stopped and resumed anywhere.

    dataset = ShardDataset("out", decode=True)
    sampler = ShardBatchSampler(dataset, global_batch=1024, seed=7)     rank and world size from torch.distributed
    loader = ResumableLoader(dataset, batch_sampler=sampler, num_workers=4)
    for batch in loader: ...                                            one epoch; the next loop is the next epoch
    torch.distributed.checkpoint.save({"model": ..., "loader": loader})

`ShardMixture([a, b], weights=(3, 1))` stands for a dataset where several are read in one stream.

State is the position in the global stream and the parameters of the order: integers and short strings, equal on all
ranks, independent of workers, prefetching, batch size and world size. Needs `pip install 'shardtool[torch]'`.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("shardtool.torch needs torch: pip install 'shardtool[torch]'") from error

from shardtool.torch.dataset import Repeated, ShardDataset
from shardtool.torch.loader import ResumableLoader
from shardtool.torch.mixture import ShardMixture
from shardtool.torch.sampler import ShardBatchSampler
from shardtool.torch.stream import ShardStream

__all__ = ["Repeated", "ResumableLoader", "ShardBatchSampler", "ShardDataset", "ShardMixture", "ShardStream"]
