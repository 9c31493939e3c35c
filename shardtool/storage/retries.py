"""How often this process had to ask a store again; light, for those who may never have met one."""

from __future__ import annotations

import sys

_RETRY = "shardtool.storage.s3.retry"
_told = _noted = 0


def note_retries(count: int) -> None:
    """Requests that another process sent again for this one."""
    global _noted
    _noted += count


def new_retries() -> int:
    """Requests sent again since the last call, here or as noted; 0 where no store was spoken to."""
    global _told
    module = sys.modules.get(_RETRY)  # not imported: local work stays light
    total = _noted + (sum(module.retries_so_far().values()) if module else 0)
    _told, new = total, total - _told
    return new
