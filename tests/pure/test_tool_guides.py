"""What models write in each format passes the guides of its grammar."""

from __future__ import annotations

import pytest

from ferrum.formats.known_formats import KNOWN
from ferrum.grammar.reply_guidance import tool_guidance
from ferrum.guides.guide_program import GrammarTokens, program_of
from ferrum.guides.guide_state import GuideState
from format_kit import ToyTokenizer, marker_texts
from format_samples import SAMPLES, TOOLS

END = 256
ONE_CALL = {"harmony", "llama3-json"}
"""The samples have two calls, but these models write one in a message."""


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", [name for name in KNOWN if name not in ONE_CALL])
def test_calls_pass_the_guide_that_waits_for_them(name: str, tokens: bool) -> None:
    form, sample = KNOWN[name], SAMPLES[name]
    toy = ToyTokenizer(marker_texts(form) if tokens else ())
    guidance = tool_guidance(form, TOOLS, "auto", parallel=True, opened=sample.opened, budget=None, tokenizer=toy)
    if name == "functionary-3.2":
        assert guidance is None  # its calls begin as its content does
        return
    assert guidance is not None and guidance.grammar is not None
    vocabulary = GrammarTokens(toy, toy.vocab_size)
    matcher = vocabulary.matcher(guidance.grammar.source)
    state = GuideState(program_of(guidance, vocabulary, matcher, (END,)))
    written: list[int] = []
    for token in [*toy.encode(sample.text), END]:
        mask = state.mask()
        allowed = mask is None or mask[token >> 3] >> (token & 7) & 1
        assert allowed and state.take(token), toy.decode(written, skip_special_tokens=False)
        written.append(token)
