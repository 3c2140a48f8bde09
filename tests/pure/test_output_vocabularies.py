"""Markers of formats in vocabularies of both kinds, as special tokens and as plain added ones."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from ferrum.core.output_format import Reading
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.output_parts import message_of
from ferrum.text.tokenizer import FileTokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from format_kit import marker_texts, parts_of
from format_samples import SAMPLES, TOOLS
from text_samples import LAYOUTS


@pytest.mark.parametrize("layout", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
def test_markers_are_found_in_vocabularies_of_both_kinds(layout: str, special: bool) -> None:
    """A vocabulary with byte fallback puts a space before text, also after a token."""
    for name in ("qwen-xml", "gemma4", "mistral", "harmony", "dsml"):
        backend, sample = LAYOUTS[layout](), SAMPLES[name]
        backend.add_tokens([AddedToken(each, normalized=False, special=special) for each in marker_texts(KNOWN[name])])
        tokenizer = FileTokenizer(backend, TokenizerConfig())
        ids = tokenizer.encode(sample.text, add_special_tokens=False)
        reading = Reading(format=KNOWN[name], tools=TOOLS, opened=sample.opened)
        message = message_of(parts_of([(each, tokenizer.token_bytes(each)) for each in ids], reading, tokenizer))
        assert [each.name for each in message.calls] == [each.name for each in sample.message.calls]
        assert (message.content or "").strip() == (sample.message.content or "")
