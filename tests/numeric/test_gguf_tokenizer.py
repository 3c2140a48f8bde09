"""Tokenizers from GGUF metadata give the ids that llama.cpp publishes for its vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.sources.gguf_file import GgufFile
from ferrum.text.gguf_tokenizer import RULES, as_json, special_ids, tokenizer_config, tokenizer_json
from ferrum.text.model_files import ModelFiles
from ferrum.text.tokenizer import Tokenizer, load_tokenizer

VOCABULARIES = Path(__file__).parents[1] / "data" / "vocab"


BYTES: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a"],
    "tokenizer.ggml.merges": [],
}
"""Metadata of the smallest byte-level vocabulary."""


class MetadataFiles(ModelFiles):
    """The tokenizer files of some metadata."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._made = {"tokenizer.json": tokenizer_json, "tokenizer_config.json": tokenizer_config}
        self._metadata = metadata

    def read_file(self, name: str) -> bytes | None:
        return as_json(self._made[name](self._metadata)) if name in self._made else None

    def file_names(self, folder: str = "") -> list[str]:
        return []

    def where(self, name: str) -> str:
        return name


def tokenizer_of(name: str) -> Tokenizer:
    found = load_tokenizer(MetadataFiles(GgufFile(VOCABULARIES / f"ggml-vocab-{name}.gguf").metadata))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_ids_are_the_published_ones_and_decode_to_the_text(name: str) -> None:
    texts = (VOCABULARIES / f"ggml-vocab-{name}.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    expected = (VOCABULARIES / f"ggml-vocab-{name}.gguf.out").read_text().splitlines()
    tokenizer = tokenizer_of(name)
    assert len(texts) - 1 <= len(expected) and len(expected) > 40
    for text, line in zip(texts, expected, strict=False):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [int(each) for each in line.split()], text
        assert tokenizer.decode(ids).lstrip(" ") == text.lstrip(" ")


def test_an_unknown_split_rule_is_refused_by_name() -> None:
    metadata = GgufFile(VOCABULARIES / "ggml-vocab-gpt-2.gguf").metadata
    with pytest.raises(Unsupported) as caught:
        tokenizer_json({**metadata, "tokenizer.ggml.pre": "new-rule"})
    assert "new-rule" in str(caught.value) and all(name in str(caught.value) for name in RULES)


def test_begin_and_end_tokens_come_from_the_metadata() -> None:
    tokenizer = tokenizer_of("llama-spm")
    assert tokenizer.bos_token_id == 1 and tokenizer.eos_token_ids == (2,)
    assert tokenizer.encode("a")[0] == 1, "the file asks for a begin token"
    ids = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 0}
    metadata = {**BYTES, "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.bos_token_id": 1, **ids}
    assert special_ids(metadata) == {"bos_token_id": 1, "eos_token_id": [0, 1]}


def test_gemma_4_merges_pieces_by_the_merges_of_its_file() -> None:
    """The kind `gemma4` is BPE over pieces with U+2581 for a space, byte tokens and merges; it always begins a text."""
    letters = [*"abc\u2581\n", "ab", "\u2581ab", "\n\n", "<bos>", "<0xC3>", "<0xA9>", "c  c"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": letters,
        "tokenizer.ggml.token_type": [1] * 8 + [3, 6, 6, 4],
        "tokenizer.ggml.merges": ["a b", "\u2581 ab", "\n \n"],
        "tokenizer.ggml.bos_token_id": 8,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = load_tokenizer(MetadataFiles(metadata))
    assert tokenizer is not None
    ids = tokenizer.encode("ab ab\n\n\u00e9c  cb")
    assert list(map(tokenizer.piece, ids)) == [
        *("<bos>", "ab", "\u2581ab", "\n\n", "<0xC3>", "<0xA9>", "c  c", "b"),
    ]
    assert tokenizer.decode(ids) == "ab ab\n\n\u00e9c  cb"


TEXT = "HelloWorld's 12345 \u4f60\u597d! x=3.14;\n\n  def"
WORDS = {
    "gpt-4o": "Hello|World's| |123|45| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "tekken": "Hello|World|'s| |1|2|3|4|5| \u4f60\u597d|!| x|=|3|.|1|4|;\n\n| | def",
    "deepseek-v3": "HelloWorld|'s| |123|45| |\u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "deepseek-llm": "HelloWorld|'|s| |12345| |\u4f60\u597d|!| x|=|3|.|14|;|\n|\n| | def",
    "glm4": "HelloWorld|'s| |123|45| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "lfm2": "HelloWorld|'s| |123|45| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "kimi-k2": "Hello|World's| |123|45| |\u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "deepseek-coder": "HelloWorld|'|s| |1|2|3|4|5| |\u4f60\u597d|!| x|=|3|.|1|4|;|\n|\n| | def",
    "seed-coder": "HelloWorld|'s| |1|2|3|4|5| \u4f60\u597d|!| x|=|3|.|1|4|;|\n\n| | def",
    "exaone4": "HelloWorld|'s| 12345| \u4f60\u597d|!| x|=|3|.|14|;|\n\n | def",
    "qwen35": "HelloWorld|'s| |1|2|3|4|5| \u4f60\u597d|!| x|=|3|.|1|4|;\n\n| | def",
    "hunyuan": "HelloWorld|'s| |1|2|3|4|5| \u4f60\u597d|!| x|=|3|.|1|4|;\n\n| | def",
    "tiny_aya": "Hello|World's| |12|345| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "superbpe": "HelloWorld's |12|345| \u4f60\u597d! x=|3|.|14|;\n\n  def",
    "default": "HelloWorld|'|s| |123|45| \u4f60\u597d|!| x|=|3|.|14|;|\n\n | def",
}


@pytest.mark.parametrize("rule", WORDS)
def test_a_rule_splits_a_text_into_words(rule: str) -> None:
    found = tokenizer_json({**BYTES, "tokenizer.ggml.pre": rule})
    backend = Backend.from_str(as_json(found).decode())
    places = [place for _, place in backend.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert [TEXT[begin:end] for begin, end in places] == WORDS[rule].split("|")


@pytest.mark.parametrize("prefix", [True, False])
def test_user_defined_tokens_may_hold_spaces_and_are_matched_first(prefix: bool) -> None:
    """Gemma's files have runs of spaces as user-defined tokens; llama.cpp matches the longest first."""
    metadata = dict(GgufFile(VOCABULARIES / "ggml-vocab-llama-spm.gguf").metadata)
    runs = [" " * count for count in range(2, 6)]
    for key, values in {"tokens": runs, "scores": [-1000.0] * 4, "token_type": [4] * 4}.items():
        metadata[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], *values]
    metadata["tokenizer.ggml.add_space_prefix"] = prefix
    tokenizer = load_tokenizer(MetadataFiles(metadata))
    assert tokenizer is not None
    ids = tokenizer.encode(f"a{' ' * 7}b c", add_special_tokens=False)
    mark = "\u2581" if prefix else ""
    assert list(map(tokenizer.piece, ids)) == [f"{mark}a", runs[3], runs[0], f"{mark}b", "\u2581c"]
    assert tokenizer.decode(ids).replace(" ", "") == "abc"


def test_byte_level_merges_split_at_the_first_space_after_their_first_character() -> None:
    lines = {"a b": ("a", "b"), "  a": (" ", "a"), "#version 1": ("#version", "1"), "a  b": ("a", " b")}
    made = tokenizer_json({**BYTES, "tokenizer.ggml.merges": list(lines)})
    assert made is not None and made["model"]["merges"] == list(lines.values())
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_json({**BYTES, "tokenizer.ggml.merges": ["ab"]})
