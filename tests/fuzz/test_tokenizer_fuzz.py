"""Random tokens decode to what the library makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum.text.tokenizer import FileTokenizer
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
    # Where bytes are no valid UTF-8, the library's byte fallback gives up a whole run of them; we only what is invalid.
    if layout != "byte_fallback" or "\ufffd" not in ours:
        assert ours == theirs
