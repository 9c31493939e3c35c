"""`inspect --doc N --decode`: one sequence of a token data set, its ids and the text that they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardtool.errors import SourceNotFound, UsageProblem

if TYPE_CHECKING:
    from shardtool.cli.output import Output
    from shardtool.reading.reading import Dataset

SHOWN_IDS = 32


def show_sequence(
    output: Output, dataset: Dataset, word: str | None, split: str, doc: int | None, decode: str | None
) -> None:
    """Show a sequence by its number in the data set, or as `word` names it.

    Raises:
        UsageProblem: the data set has no tokens, or bytes cannot be its tokenizer.
        SourceNotFound: there is no such sequence.
    """
    facts = dataset.manifest.membership.get("tokens")
    if dataset.manifest.format != "bin" or not isinstance(facts, dict):
        raise UsageProblem("--doc and --decode are for token shards", hint=f"shardtool inspect {dataset.path} KEY")
    shard, place = _place(dataset, word, split, doc)
    import numpy as np

    from shardtool.formats.bin_index import DTYPES

    index = dataset.index(shard)
    ids = np.frombuffer(dataset.read_part(shard, place), DTYPES[facts["dtype"]])
    text = _decoded(facts, ids, decode) if decode else None
    document = {
        "schema": "shardtool/inspect/1",
        "kind": "sequence",
        "key": index.key(place).decode("utf-8", "backslashreplace"),
        "shard": shard,
        "sequence": place,
        "offset": int(index.offset[place]),
        "tokens": len(ids),
        "ids": ids.tolist(),
        "text": text,
    }
    output.result(document, _text(document))


def _place(dataset: Dataset, word: str | None, split: str, doc: int | None) -> tuple[int, int]:
    from shardtool.assignment.lookup import resolve

    if doc is None:
        if not word:
            raise UsageProblem("--decode of which sequence?", hint="--doc N counts from 0, or name a key")
        shard, place = resolve(dataset, word, split)
        if place is None:
            raise UsageProblem(f"{word} is a shard", hint=f"name a sequence of it: {word}:0")
        return shard, place
    left = doc
    for number, record in enumerate(dataset.manifest.shards):
        if split not in ("", record.split):
            continue
        if left < record.num_samples:
            return number, left
        left -= record.num_samples
    raise SourceNotFound(
        f"{dataset.path} has {doc - left:,} sequences, --doc {doc:,} is beyond them", hint="they are counted from 0"
    )


def _decoded(facts: dict[str, Any], ids: Any, decode: str) -> str:
    from shardtool.token_options import TokenOptions
    from shardtool.tokens.tokenizer import decode as decode_ids
    from shardtool.tokens.tokenizer import resolve_tokenizer

    if decode == "bytes" and facts["tokenizer"] not in ("bytes", "none"):
        raise UsageProblem(
            f"the data set was made with {facts['tokenizer']}, not bytes", hint="--decode tokenizer.json"
        )
    spec = resolve_tokenizer(TokenOptions(tokenizer=decode, eod="none", pad="none"))
    digest = facts.get("tokenizer_xxh3_128")
    if digest and spec.xxh3_128 != digest:
        raise UsageProblem(
            f"{decode} is not the tokenizer of this data set: its digest is {spec.xxh3_128}, expected {digest}",
            hint="find the file that was used",
        )
    framed = replace(spec, eod=facts["eod"], bos=facts["bos"])
    return decode_ids(framed, ids).decode("utf-8", "backslashreplace")


def _text(document: dict[str, Any]) -> str:
    from shardtool.report.text import printable

    ids = document["ids"]
    shown = " ".join(map(str, ids[:SHOWN_IDS])) + (f" … {len(ids) - SHOWN_IDS:,} more" if len(ids) > SHOWN_IDS else "")
    lines = [
        f"sequence {printable(document['key'])}   shard {document['shard']}, #{document['sequence']}",
        f"tokens   {document['tokens']:,} at byte {document['offset']:,}",
        f"ids      {shown}",
    ]
    if document["text"] is not None:
        lines.append(f"text     {printable(document['text'])}")
    return "\n".join(lines)
