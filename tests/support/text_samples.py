"""Small tokenizers for tests, trained here, in the three layouts that checkpoints use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "def add(a, b):\n    return a + b  # naïve façade\n",
    "日本語のテキストと中文字符、还有한국어。",
    "emoji: 🦀🐍👩‍👩‍👧‍👦 é ü ß Ωμέγα",
]
BOS, EOS = "<s>", "</s>"


def byte_level() -> Tokenizer:
    """Build a byte-level BPE, as GPT-2, Llama 3 and Qwen have it, with special and plain added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[BOS, EOS]
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("世界 !", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Build a SentencePiece BPE as Llama 2 has it: metaspaces, bytes as <0xAB>, begin token by template."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=110, show_progress=False)
    tokenizer.train_from_iterator(LINES[:2], trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    pieces = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer.model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 1)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """Build a unigram model as T5 has it: Metaspace decoder, no byte tokens."""
    words = ["▁the", "▁dog", "▁quick", "▁", "é", "日本", "🦀", "▁▁"]
    letters = sorted(set("".join(LINES)) - {" "})
    vocabulary = [("<unk>", 0.0), (BOS, 0.0), (EOS, 0.0)]
    vocabulary += [(word, -1.0) for word in words] + [(letter, -5.0) for letter in letters if letter not in words]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    return tokenizer


LAYOUTS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "unigram": unigram}


def write(directory: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """Write a checkpoint directory with this tokenizer and `tokenizer_config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": EOS} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    return directory


class PieceTokenizer:
    """A tokenizer of given byte pieces; None is a control token."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._pieces = pieces
        self.vocab_size = len(pieces)
        self.bos_token_id: int | None = None
        self.eos_token_ids: tuple[int, ...] = ()
        self.special_ids = self.added_ids = frozenset(place for place, piece in enumerate(pieces) if piece is None)

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._pieces[token_id]
        return b"<end>" if piece is None else piece

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def piece(self, token_id: int) -> str | None:
        return self.token_text(token_id)


def first_stop(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, str] | None:
    """Return end and string of the first complete stop, the longest of several, by brute force.

    Stops that end within the first `after` characters are ignored.
    """
    for end in range(after + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None
