"""Encoding and decoding equal the library's on random input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum.text.tokenizer import _SHORT, FileTokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from text_samples import LAYOUTS

BACKENDS = {name: build() for name, build in LAYOUTS.items()}
TOKENIZERS = {name: FileTokenizer(backend, TokenizerConfig()) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=100)
@given(data=st.data())
def test_decoding_equals_the_library_on_valid_text(layout: str, data: st.DataObject) -> None:
    backend, tokenizer = BACKENDS[layout], TOKENIZERS[layout]
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() + 2), max_size=8))
    skip = data.draw(st.booleans())
    ours = tokenizer.decode(ids, skip_special_tokens=skip)
    theirs = backend.decode(ids, skip_special_tokens=skip)
    # For invalid UTF-8 the library's byte fallback replaces the whole run of bytes; ours only the invalid ones.
    if layout != "byte_fallback" or "\ufffd" not in ours:
        assert ours == theirs


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20)
@given(st.lists(st.text(max_size=20), min_size=1), st.integers(_SHORT // 2, 2 * _SHORT), st.booleans())
def test_encoding_equals_the_library_at_any_length(
    layout: str, pieces: list[str], length: int, add_special_tokens: bool
) -> None:
    text = ("".join(pieces) * length)[:length]
    expected = BACKENDS[layout].encode(text, add_special_tokens=add_special_tokens).ids
    assert TOKENIZERS[layout].encode(text, add_special_tokens=add_special_tokens) == expected
