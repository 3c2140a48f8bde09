"""Headers of messages, as gpt-oss writes them: channels, recipients and types of content are no text."""

from __future__ import annotations

import pytest

from ferrum.formats.known_formats import KNOWN
from ferrum.formats.output_parts import Call, Message
from format_kit import ToyTokenizer, marker_texts, parsed
from format_samples import TOOLS

HEADERS = {
    "<|channel|>{} <|constrain|>json<|message|>x": "x",
    "<|channel|>{}<|constrain|>json<|message|>x": "x",
    "<|channel|>{} text/plain<|message|>x": "x",
    "<|channel|>{} to=browser.search code<|message|>x": "x",
    "<|start|>assistant to=python<|channel|>{} code<|message|>x": "x",
}


@pytest.mark.parametrize("tokens", [True, False], ids=["marker_tokens", "bytes"])
@pytest.mark.parametrize("channel", ["final", "commentary", "analysis", "unheard-of"])
@pytest.mark.parametrize("header", HEADERS)
def test_words_of_a_header_are_no_text(header: str, channel: str, tokens: bool) -> None:
    toy = ToyTokenizer(marker_texts(KNOWN["harmony"]) if tokens else ())
    kind = "reasoning" if channel == "analysis" else "content"
    for tools in ((), TOOLS):
        message = parsed(header.format(channel), KNOWN["harmony"], tools, toy)
        assert message == Message(**{"reasoning": None, "content": None, kind: "x"}, calls=())


@pytest.mark.parametrize("type_", ["", " json", "<|constrain|>json", " <|constrain|>json", " code"])
@pytest.mark.parametrize("channel", ["commentary", "analysis", "final"])
def test_calls_have_their_recipient_anywhere_in_a_header(channel: str, type_: str) -> None:
    for header in (
        f" to=functions.ping<|channel|>{channel}{type_}",
        f"<|channel|>{channel} to=functions.ping{type_}",
        f"<|channel|>{channel}{type_} to=functions.ping",
    ):
        for toy in (ToyTokenizer(marker_texts(KNOWN["harmony"])), ToyTokenizer()):
            message = parsed(f"{header}<|message|>{{}}<|call|>", KNOWN["harmony"], TOOLS, toy)
            assert message == Message(None, None, (Call("ping", "{}"),)), header


@pytest.mark.parametrize("text", ["to=you", "<|channel|>final {x<|message|>", "<|channel|>fin"])
def test_what_is_no_header_stays_content(text: str) -> None:
    assert parsed(text, KNOWN["harmony"], TOOLS, ToyTokenizer()).content == text
