"""What `--compress` says: none, auto, zstd or zstd:LEVEL."""

from __future__ import annotations

from shardtool.errors import UsageProblem

__all__ = ["DEFAULT_LEVEL", "MAX_LEVEL", "codec_of", "settled"]

DEFAULT_LEVEL, MAX_LEVEL = 3, 19  # 3 is that of zstd itself; above 19 a reader needs hundreds of MiB of window


def codec_of(text: str) -> tuple[str, int]:
    """("none", 0) or ("zstd", level) from a text that `settled` gave."""
    codec, _, level = text.partition(":")
    return codec, int(level or 0)


def settled(text: str) -> str:
    """`none` or `zstd:LEVEL`, for formats that compress the columns that are worth it; auto is the default level.

    Raises:
        UsageProblem: anything else.
    """
    codec, colon, level = text.partition(":")
    if text == "none":
        return text
    if text in ("auto", "zstd"):
        return f"zstd:{DEFAULT_LEVEL}"
    if codec == "zstd" and colon and level.isdecimal() and 1 <= int(level) <= MAX_LEVEL:
        return f"zstd:{int(level)}"
    raise UsageProblem(
        f"--compress {text!r} is none of those known", hint=f"none, auto, zstd, or zstd:1 to {MAX_LEVEL}"
    )
