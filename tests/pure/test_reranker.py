"""What the files of a model say about its scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import LetterTokenizer
from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.reranker import load_reranker, qwen3_reranker

CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: find\n\n<Query>: {query}\n\n<Document>: a {document} b}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Prefix, pair and suffix of Qwen3-Reranker's model card."""


class WordTokenizer(LetterTokenizer):
    """A tokenizer with the words `no` and `yes`."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        words = {"no": [7], "yes": [9]}
        return words.get(text) or super().encode(text, add_special_tokens=add_special_tokens)


def test_qwen3_reranker_has_the_prompt_of_its_model_card() -> None:
    found = qwen3_reranker(WordTokenizer())
    assert (found.true_token, found.false_token) == (9, 7)
    assert found.prompt(None, "{query}", "a {document} b}", "find") == CARD
    assert "web search query" in found.prompt(None, "a", "b", None)
    assert found.score(-1.0, -1.0) == 0.5 and found.score(-800.0, 0.0) < 1e-300 and found.score(0.0, -800.0) == 1.0
    with pytest.raises(Unsupported, match="one token"):
        qwen3_reranker(LetterTokenizer())


def loaded(directory: Path, **files: Any) -> Any:
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return load_reranker(DirectoryFiles(directory), WordTokenizer())


def test_classifier_from_token_names_the_false_token_first(tmp_path: Path) -> None:
    """As vLLM's `hf_overrides` for Qwen3-Reranker have it."""
    assert loaded(tmp_path, config={}) is None
    found = loaded(tmp_path, config={"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True})
    assert found == qwen3_reranker(WordTokenizer())
    found = loaded(tmp_path, config={"classifier_from_token": ["no", "yes"]})
    assert (found.true_token, found.false_token, found.form) == (9, 7, None)
    with pytest.raises(Unsupported, match="two tokens"):
        loaded(tmp_path, config={"classifier_from_token": ["yes"]})


@pytest.mark.parametrize(
    ("score", "kind"),
    [(None, CheckpointError), ({"true_token_id": "a"}, CheckpointError), ({"true_token_id": 5}, Unsupported)],
)
def test_a_score_that_cannot_be_computed_is_refused(tmp_path: Path, score: Any, kind: type[FerrumError]) -> None:
    if score is not None:
        (tmp_path / "1_LogitScore").mkdir()
        (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(score))
    with pytest.raises(kind, match="1_LogitScore"):
        loaded(tmp_path, modules=[{"type": "a.LogitScore", "path": "1_LogitScore"}])
