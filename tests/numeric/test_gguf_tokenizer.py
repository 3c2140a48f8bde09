"""Tokenizers from GGUF metadata give the ids that llama.cpp publishes for its vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.runtime.gguf_file import GgufFile
from ferrum.text.gguf_tokenizer import SPLITS, TokenType, as_json, end_tokens, tokenizer_config, tokenizer_json
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
    assert "new-rule" in str(caught.value) and all(name in str(caught.value) for name in SPLITS)


def test_begin_and_end_tokens_come_from_the_metadata() -> None:
    tokenizer = tokenizer_of("llama-spm")
    assert tokenizer.bos_token_id == 1 and tokenizer.eos_token_ids == (2,)
    assert tokenizer.encode("a")[0] == 1, "the file asks for a begin token"
    ids = {"eos": 2, "eot": 7, "eom": 2}
    assert end_tokens({f"tokenizer.ggml.{key}_token_id": value for key, value in ids.items()}) == [2, 7]


TEXT = "HelloWorld's 12345 \u4f60\u597d! x=3.14;\n\n  def"
WORDS = {
    "gpt-4o": "Hello|World's| |123|45| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "tekken": "Hello|World|'s| |1|2|3|4|5| \u4f60\u597d|!| x|=|3|.|1|4|;\n\n| | def",
    "deepseek-v3": "HelloWorld|'s| |123|45| |\u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
    "deepseek-llm": "HelloWorld|'|s| |12345| |\u4f60\u597d|!| x|=|3|.|14|;|\n|\n| | def",
    "glm4": "HelloWorld|'s| |123|45| \u4f60\u597d|!| x|=|3|.|14|;\n\n| | def",
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
    for key, values in {"tokens": runs, "scores": [-1000.0] * 4, "token_type": [TokenType.USER_DEFINED] * 4}.items():
        metadata[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], *values]
    metadata["tokenizer.ggml.add_space_prefix"] = prefix
    tokenizer = load_tokenizer(MetadataFiles(metadata))
    assert tokenizer is not None
    ids = tokenizer.encode(f"a{' ' * 7}b c", add_special_tokens=False)
    mark = "\u2581" if prefix else ""
    assert list(map(tokenizer.piece, ids)) == [f"{mark}a", runs[3], runs[0], f"{mark}b", "\u2581c"]
    assert tokenizer.decode(ids).replace(" ", "") == "abc"


def test_merges_of_a_byte_level_vocabulary_split_at_the_first_space_after_their_first_character() -> None:
    lines = {"a b": ("a", "b"), "  a": (" ", "a"), "#version 1": ("#version", "1"), "a  b": ("a", " b")}
    made = tokenizer_json({**BYTES, "tokenizer.ggml.merges": list(lines)})
    assert made is not None and made["model"]["merges"] == list(lines.values())
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_json({**BYTES, "tokenizer.ggml.merges": ["ab"]})
