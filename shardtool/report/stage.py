"""What `stage` did, would do, and finds, in words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from shardtool.staging.request import StagePlan, StageResult
    from shardtool.staging.upkeep import FolderStatus


def stage_text(result: StageResult) -> str:
    """The `done` line."""
    lines = [f"done   {path}" for path in result.paths[:-1]]
    what = f"{plural(result.num_shards, 'shard')} verified, {format_bytes(result.num_bytes)}"
    if result.fetched_bytes == 0 and result.is_complete:
        return "\n".join([*lines, f"done   {result.paths[-1]}   {what}: all there, nothing to fetch"])
    if not result.is_complete:
        what = f"{plural(result.num_shards, 'shard')} ready, the others come as they are needed"
    text = f"done   {result.paths[-1]}   {what}"
    if result.refetched_blocks:
        text += f", {plural(result.refetched_blocks, 'block')} fetched again (bad digest)"
    lines.append(text)
    if result.fetched_bytes:
        speed = result.fetched_bytes / max(result.seconds, 1e-9)
        took = f"fetched {format_bytes(result.fetched_bytes)} in {format_duration(result.seconds)}"
        kept = f"   {format_bytes(result.reused_bytes)} were here" if result.reused_bytes else ""
        lines.append(f"       {took}, {format_bytes(speed)}/s{kept}")
    return "\n".join(lines)


def staged_next(result: StageResult) -> list[str]:
    """What to type after it."""
    path = result.paths[0]
    if not result.is_complete:
        return [f"shardtool stage --status {os.path.dirname(path) or '.'}"]
    return [f"shardtool verify {path}"] if result.fetched_bytes else []


def plan_text(plan: StagePlan) -> str:
    """What a run would do."""
    there = f", {format_bytes(plan.here_bytes)} of it here" if plan.here_bytes else ""
    lines = [
        f"plan   {plan.paths[0]}   {plural(plan.num_shards, 'shard')}, {format_bytes(plan.num_bytes)}{there}",
        f"       to fetch {format_bytes(plan.missing_bytes)} in {plural(plan.requests, 'request')}, "
        f"about {format_duration(plan.seconds)}   free {format_bytes(plan.free_bytes)}",
    ]
    lines[1:1] = [f"       {path}" for path in plan.paths[1:]]
    return "\n".join(lines)


def status_text(folders: list[FolderStatus], place: str) -> str:
    """One line a staged data set."""
    if not folders:
        return f"status nothing is staged in {place}"
    return "\n".join(map(_folder_line, folders))


def _folder_line(folder: FolderStatus) -> str:
    state = "copying" if folder.is_running else "complete" if folder.is_complete else "incomplete"
    if not folder.dataset_id:
        state = "copying" if folder.is_running else "begun"
    figures = (
        f"{folder.ready_shards:,} of {plural(folder.wanted_shards, 'shard')}   "
        f"{format_bytes(folder.ready_bytes)} of {format_bytes(folder.wanted_bytes)}"
    )
    lines = [f"status {folder.path}   {state}   {figures}"]
    if folder.is_window:
        lines.append("       with a budget: shards come and go as training says how far it is")
    if folder.partial_bytes:
        lines.append(f"       {format_bytes(folder.partial_bytes)} of the next shards are here, too")
    if not folder.is_running and not folder.is_complete:
        source = folder.source or "SRC"
        lines.append(
            f"       no copy is running: shardtool stage {source} {os.path.dirname(folder.path) or '.'} goes on"
        )
    return "\n".join(lines)


def removed_text(folders: list[FolderStatus], place: str, removed_bytes: int) -> str:
    """What `--gc` did, and what is left."""
    left = f"{plural(len(folders), 'data set')} left" if folders else "no data set left"
    running = sum(folder.is_running for folder in folders)
    alone = f"; {running} being copied, left alone" if running else ""
    return f"gc     {place}   {format_bytes(removed_bytes)} freed, {left}{alone}"


def repair_command(path: str, source: str) -> str:
    """What brings damaged blocks again."""
    parent = os.path.dirname(path.rstrip("/")) or "."
    return f"shardtool stage {source or 'SRC'} {parent}, as before, fetches the damaged blocks again, and only those"
