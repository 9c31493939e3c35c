"""A byte-level BPE of a few hundred entries, trained by the tests; the same each time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TEXT = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_[a-c]*.py"))]


@cache
def tokenizer_file(vocab_size: int = 400, end: str = END) -> Path:
    """A tokenizer.json in a folder for temporary files."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[end], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXT, trainer)
    folder = Path(mkdtemp(prefix="shardtool-bpe-"))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
