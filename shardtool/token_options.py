"""The options of `pack --format bin`: how documents become token ids, and how those become sequences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TokenOptions:
    """Every token option that can change an output byte; stored with the plan."""

    tokenizer: str = "bytes"  # bytes, none, or the path of a tokenizer.json or its folder
    text_field: str = "text"
    ids_field: str = "input_ids"
    eod: str = "auto"  # auto, none, an id or a token
    eod_pos: str = "append"
    bos: str = "none"
    special_tokens: bool = False  # whether text may become special ids
    dtype: str = "auto"
    shard_tokens: int = 0
    context: int = 0  # tokens of every sequence; 0: a document is a sequence
    packing: str = "concat"
    pad: str = "auto"  # auto is the eod
    empty: str = "drop"
    max_doc_tokens: int = 0
    on_long: str = "split"
    dedup: str = "none"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TokenOptions:
        """The inverse of `document`; names that this version does not know are left out."""
        return cls(**{name: value for name, value in document.items() if name in cls.__dataclass_fields__})
