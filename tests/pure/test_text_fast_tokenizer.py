"""The fast form of a tokenizer file is the same tokenizer; other files are unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from ferrum.text.fast_tokenizer import fast_form
from text_samples import LAYOUTS, LINES

VOCABULARY = {"b": 0, "a": 3, " ": 1, "a ": 2, "ab": 4, "#version": 5, "#versiona": 6}


def saved(*merges: tuple[str, str]) -> bytes:
    return Backend(models.BPE(vocab=VOCABULARY, merges=list(merges))).to_str().encode()


def fast_model(tokenizer: bytes) -> dict[str, Any]:
    return json.loads(fast_form(tokenizer))["model"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fast_form_is_the_same_tokenizer(layout: str) -> None:
    backend = LAYOUTS[layout]()
    again = Backend.from_str(fast_form(backend.to_str().encode()).decode())
    assert json.loads(again.to_str()) == json.loads(backend.to_str())
    assert [again.encode(line).ids for line in LINES] == [backend.encode(line).ids for line in LINES]


def test_merges_become_single_strings() -> None:
    assert fast_model(saved(("a", "b")))["merges"] == ["a b"]


@pytest.mark.parametrize("merge", [("a", " "), ("#version", "a")])
def test_merges_that_cannot_be_joined_are_unchanged(merge: tuple[str, str]) -> None:
    assert fast_model(saved(merge))["merges"] == [list(merge)]


@pytest.mark.parametrize("model", [models.BPE(VOCABULARY, []), models.WordLevel(VOCABULARY, unk_token="a")])
def test_vocabulary_is_sorted(model: models.Model) -> None:
    vocabulary = fast_model(Backend(model).to_str().encode())["vocab"]
    assert vocabulary == VOCABULARY
    assert list(vocabulary) == sorted(VOCABULARY)


@pytest.mark.parametrize(
    "tokenizer",
    [
        Backend(models.Unigram([("b", -1.0), ("a", -2.0)])).to_str().encode(),
        b'{"model": {"merges": [["a"]]}}',
        b'{"model": {"merges": ["a b"]}}',
        b'{"model": {"merges": ["ab"]}}',
        b'{"model": {"merges": [[1, 2]]}}',
        b'{"model": {"merges": [["\\ud800", "b"]]}}',
        b'{"model": {"vocab": {"\\ud800": 0}}}',
        b'{"model": {"merges": null}}',
        b'{"model": []}',
        b"[]",
        b"{",
        b"\xff\xff",
        b"[" * 100_000,
    ],
    ids=range(13),
)
def test_other_files_are_unchanged(tokenizer: bytes) -> None:
    assert fast_form(tokenizer) == tokenizer
