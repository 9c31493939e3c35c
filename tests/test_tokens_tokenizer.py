"""Tokenizers: bytes and tokenizer.json give back what they were given; which ids frame a document; what is refused."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import corpora
import numpy as np
import pytest
from bpe import END, tokenizer_file
from helpers import make_tree, run_cli
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import read_pair
from test_tokens_pack import TEXTS, jsonl, keyed, pack_tokens, prefixes
from tokenizers import Tokenizer

from shardtool.errors import SourceNotFound, UsageProblem
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset
from shardtool.token_options import TokenOptions
from shardtool.tokens.tokenizer import decode, encode, framed, resolve_tokenizer

if TYPE_CHECKING:
    from shardtool.tokens.tokenizer import TokenizerSpec


def spec_of(**options: Any) -> TokenizerSpec:
    return resolve_tokenizer(TokenOptions(**{"tokenizer": str(tokenizer_file()), **options}))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8), st.sampled_from(["bytes", "file"]))
def test_texts_come_back_from_their_ids(texts: list[str], kind: str) -> None:
    spec = spec_of(tokenizer="bytes") if kind == "bytes" else spec_of()
    data = [text.encode() for text in texts]
    values, lengths = encode(spec, data, "uint16")
    ids, total = framed(values, lengths, spec, "append", "uint16")
    ends = np.cumsum(total).tolist()
    pieces = [ids[end - count : end] for end, count in zip(ends, total.tolist(), strict=True)]
    assert [decode(spec, piece) for piece in pieces] == data
    assert all(piece[-1] == spec.eod for piece in pieces if len(piece))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 255), max_size=90), max_size=6),
    st.sampled_from([None, 300]),
    st.sampled_from([None, 301]),
    st.sampled_from(["append", "prepend"]),
)
def test_framing_is_what_a_loop_would_do(docs: list[list[int]], eod: int | None, bos: int | None, where: str) -> None:
    from shardtool.tokens.tokenizer import TokenizerSpec

    spec = TokenizerSpec("none", eod=eod, bos=bos)
    values = np.array([token for doc in docs for token in doc], np.int64)
    ids, lengths = framed(values, np.array([len(doc) for doc in docs], np.int64), spec, where, "int32")
    wanted = []
    for doc in docs:
        head = [token for token in (bos, eod if where == "prepend" else None) if token is not None]
        tail = [eod] if eod is not None and where == "append" else []
        wanted.append([*head, *doc, *tail] if doc else [])
    assert ids.tolist() == [token for doc in wanted for token in doc]
    assert lengths.tolist() == list(map(len, wanted))


def test_ids_equal_those_of_the_library(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(TEXTS)})
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": str(tokenizer_file())}, shuffle="none")
    library = Tokenizer.from_file(str(tokenizer_file()))
    end = library.token_to_id(END)
    wanted = [[*library.encode(text, add_special_tokens=False).ids, end] for text in TEXTS]
    assert read_pair(prefixes(tmp_path / "out")[0]) == wanted
    facts = load_manifest(str(tmp_path / "out")).membership["tokens"]
    assert (facts["vocab_size"], facts["eod"], facts["dtype"]) == (400, end, "uint16")


def test_text_never_becomes_a_special_id_unless_asked_for(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl([f"one{END}two"])})
    name = str(tokenizer_file())
    pack_tokens(tmp_path / "in", tmp_path / "plain", tokens={"tokenizer": name, "eod": "none"})
    pack_tokens(
        tmp_path / "in", tmp_path / "special", tokens={"tokenizer": name, "eod": "none", "special_tokens": True}
    )
    end = Tokenizer.from_file(name).token_to_id(END)
    assert end not in read_pair(prefixes(tmp_path / "plain")[0])[0]
    assert end in read_pair(prefixes(tmp_path / "special")[0])[0]


def test_the_end_of_documents_is_found_named_or_asked_for(tmp_path: Path) -> None:
    assert spec_of().eod == 0
    odd = tokenizer_file(end="<stop>")
    with pytest.raises(UsageProblem, match="none of the usual tokens") as caught:
        spec_of(tokenizer=str(odd))
    assert "--eod" in caught.value.hint
    assert spec_of(tokenizer=str(odd), eod="<stop>").eod == 0
    shutil.copy(odd, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    assert spec_of(tokenizer=str(tmp_path)).eod == 0, "a folder with a configuration says it"
    assert (spec_of(bos="9").bos, spec_of(eod="none").eod, spec_of(eod="none").pad) == (9, None, None), "9 is an id"
    with pytest.raises(UsageProblem, match="beyond the vocabulary of 400"):
        spec_of(eod="400")


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="there is no file"):
        spec_of(tokenizer=str(tmp_path / "nope.json"))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageProblem, match="cannot be loaded"):
        spec_of(tokenizer=str(tmp_path / "x.json"))


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageProblem) as caught:
        spec_of()
    assert caught.value.hint == "pip install 'shardtool[tokenize]'"
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["x"])})
    assert run_cli("pack", tmp_path / "in", tmp_path / "out", "--format", "bin").code == 0, "bytes needs no extra"


def test_a_tokenizer_is_loaded_anew_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardtool.tokens import tokenizer

    spec = spec_of(pad="5")
    monkeypatch.setattr(tokenizer, "RECYCLE_BYTES", 10)
    before = tokenizer._loaded(spec.name, False)[0]
    one = encode(spec, [b"a longer text"], "uint16")[0].tolist()
    assert tokenizer._loaded(spec.name, False)[0] is not before
    assert encode(spec, [b"a longer text"], "uint16")[0].tolist() == one


def read_back(out: Path, spec: TokenizerSpec) -> dict[str, bytes]:
    with Dataset.open(str(out)) as dataset:
        return {
            sample.key.decode(): decode(spec, np.frombuffer(sample.parts["tokens"], "<u2"))
            for shard in range(dataset.num_shards)
            for sample in dataset.samples(shard, check=True)
        }


@pytest.mark.parametrize("tokenizer", ["bytes", "file"])
def test_the_sources_of_the_standard_library_come_back(tmp_path: Path, tokenizer: str) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    files = {f"{folder}/{path.name}": path for folder in ("json", "email") for path in (library / folder).glob("*.py")}
    make_tree(tmp_path / "in", {name: path.read_bytes() for name, path in files.items()})
    name = str(tokenizer_file()) if tokenizer == "file" else "bytes"
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": name}, shards=2)
    found = read_back(tmp_path / "out", spec_of(tokenizer=name))
    assert found == {name: path.read_bytes() for name, path in files.items() if path.stat().st_size}


@pytest.mark.parametrize("tokenizer", ["bytes", "file"])
def test_a_real_corpus_comes_back(tmp_path: Path, tokenizer: str) -> None:
    """The documentation of Linux: texts in many folders and languages."""
    corpus = corpora.CORPORA["linux-doc"]
    if reason := corpora.fetch(corpus):
        pytest.skip(reason)
    texts = {}
    for root in corpus.roots:
        for path in sorted(root.rglob("*.rst.gz"))[:300] + sorted(root.rglob("*.rst"))[:300]:
            if path.is_file() and not path.is_symlink():
                texts[str(path.relative_to(root))] = path
    if not texts:
        pytest.skip("the corpus has no texts")
    for name, path in texts.items():
        target = tmp_path / "in" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    name = str(tokenizer_file()) if tokenizer == "file" else "bytes"
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": name}, shards=3)
    found = read_back(tmp_path / "out", spec_of(tokenizer=name))
    assert found == {name: content(path) for name, path in texts.items() if content(path)}


def content(path: Path) -> bytes:
    import gzip

    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_keys_are_those_of_the_source(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jsonl": jsonl(["one", "zwei"])})
    pack_tokens(tmp_path / "in", tmp_path / "out", tokens={"tokenizer": "bytes"})
    assert keyed(tmp_path / "out") == {"a.jsonl#0": b"one", "a.jsonl#16": b"zwei"}
