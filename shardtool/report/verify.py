"""What `verify` found, in words: one line where all is well, one a fault where not, and what repairs it."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from shardtool.report.text import printable
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from shardtool.verification.verify import VerifyResult

MAX_LINES = 20
_NAMED = 5  # pairs in a hint
_LOST = ("missing", "truncated", "size", "altered", "structure", "unreadable")
_MENDED = {"documents", "dtype", "negative_length", "pointer_overflow", "pointers", "trailing_bytes", "truncated_index"}
_REBUILT = ("index", "manifest", "labels", "totals")


def verify_text(result: VerifyResult) -> str:
    """`ok     8 shards, ...`, or a DAMAGE line for each of the first twenty faults."""
    if result.is_ok:
        return _ok_text(result)
    lines = [f"DAMAGE {printable(fault.message)}".replace("\n", "\n       ") for fault in result.faults[:MAX_LINES]]
    rest = len(result.faults) - MAX_LINES
    return "\n".join(lines + ([f"       and {rest:,} more; --json lists all"] if rest > 0 else []))


def _ok_text(result: VerifyResult) -> str:
    holds = f"{plural(result.num_shards, 'shard')}, {plural(result.num_samples, 'sample')}"
    holds += f", {plural(result.num_parts, 'part')}, {format_bytes(result.num_bytes)}"
    if not result.dataset_id:
        skipped = sum((result.skipped or {}).values())
        left_out = f", {plural(skipped, 'member')} that readers skip" if skipped else ""
        return f"ok     {holds}: structure sound{left_out}; without a manifest no content can be checked"
    if result.is_deep:
        speed = result.num_bytes / max(result.seconds, 1e-9)
        took = f" re-read in {format_duration(result.seconds)}, {format_bytes(speed)}/s, digests equal"
    else:
        took = ": all there, sizes and indexes agree"
    read_back = f", {result.reader} reads the same" if result.reader else ""
    return f"ok     {holds}{took}{read_back}"


def summary(result: VerifyResult) -> str:
    """`3 problems in 2 of 8 shards of out/`."""
    shards = {fault.shard for fault in result.faults if fault.shard is not None}
    where = f" in {len(shards):,} of {plural(result.num_shards, 'shard')}" if shards and result.num_shards else ""
    return f"{plural(len(result.faults), 'problem')}{where} of {result.path}"


def repair_hint(result: VerifyResult) -> str:
    """What to type against what was found."""
    kinds = {fault.kind for fault in result.faults}
    out = result.path.rstrip("/") or "/"
    hints = []
    if not result.dataset_id and kinds & _MENDED and "oversized" not in kinds:
        pairs = dict.fromkeys(os.path.splitext(fault.path)[0] for fault in result.faults)
        named = " ".join(shlex.quote(pair) for pair in list(pairs)[:_NAMED])
        return f"shardtool index --repair {named}: where what is wrong can be told from the rest of the pair"
    if not result.dataset_id and kinds != {"manifest"}:
        return "copy these shards again from where they came, or unpack them and pack the folder"
    if kinds & {*_LOST}:
        hints.append(
            f"shardtool pack {out} --deep rewrites only the damaged shards from their source"
            if result.has_plan
            else "copy the damaged shards again from where they came: no plan is stored here to pack them from"
        )
    elif kinds & {*_REBUILT}:
        hints.append(f"shardtool index {out} builds it again from the shards")
    if "staged" in kinds:
        hints.append(f"shardtool stage SRC {os.path.dirname(os.path.abspath(out))} writes it again")
    if kinds & {"duplicate_key", "reader", "not_adjacent"}:
        hints.append("extract the samples and pack them again: shardtool groups, names and checks anew")
    for fault in result.faults:
        if fault.kind == "renamed" and len(hints) < 3:
            wanted = fault.message.split("this is ", 1)[-1].removesuffix(" under another name")
            hints.append(f"mv {out}/{fault.path} {out}/{wanted}")
    if kinds & {"stranger", "partial"}:
        hints.append("remove or move away the files that are no part of the data set")
    return "; ".join(hints)
