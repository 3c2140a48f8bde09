"""Merges joined into single strings: the library reads the same tokenizer, and nothing else is touched."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from ferrum.text.merges import with_joined_merges
from text_samples import LAYOUTS, LINES

VOCABULARY = {"a": 0, " ": 1, "a ": 2, "b": 3, "ab": 4, "#version": 5, "#versiona": 6}


def saved(*merges: tuple[str, str]) -> bytes:
    return Backend(models.BPE(vocab=VOCABULARY, merges=list(merges))).to_str().encode()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_library_reads_the_same_tokenizer(layout: str) -> None:
    backend = LAYOUTS[layout]()
    joined = with_joined_merges(backend.to_str().encode())
    again = Backend.from_str(joined.decode())
    assert json.loads(again.to_str()) == json.loads(backend.to_str())
    assert [again.encode(line).ids for line in LINES] == [backend.encode(line).ids for line in LINES]


def test_merges_become_single_strings() -> None:
    assert json.loads(with_joined_merges(saved(("a", "b"))))["model"]["merges"] == ["a b"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        saved(("a", " ")),
        saved(("#version", "a")),
        Backend(models.WordLevel(VOCABULARY, unk_token="a")).to_str().encode(),
        b'{"model": {"merges": [["a"]]}}',
        b'{"model": {"merges": ["a b"]}}',
        b'{"model": {"merges": ["ab"]}}',
        b'{"model": {"merges": [["\\ud800", "b"]]}}',
        b'{"model": {"merges": null}}',
        b"[]",
        b"{",
        b"\xff\xff",
        b"[" * 100_000,
    ],
    ids=range(12),
)
def test_what_cannot_be_joined_stays_as_it_is(tokenizer: bytes) -> None:
    assert with_joined_merges(tokenizer) == tokenizer
