"""Several processes that talk over gloo on this machine, as ranks do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed
import torch.multiprocessing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run_ranks(world_size: int, folder: Path, body: Callable[..., None], *args: Any) -> None:
    """Call `body(rank, world_size, *args)` in so many processes; fails where one of them does."""
    meeting = folder / f"meeting-{world_size}-{len(os.listdir(folder))}"
    torch.multiprocessing.start_processes(  # forked: torch is imported once
        _rank, (world_size, str(meeting), body, args), nprocs=world_size, start_method="fork"
    )


def _rank(rank: int, world_size: int, meeting: str, body: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    try:
        body(rank, world_size, *args)
    finally:
        torch.distributed.destroy_process_group()
