"""What a model says anyway, and what the limits of a request allow, passes its guide token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_templates_round_trip import FORMATS

from ferrum.formats.known_formats import KNOWN
from format_kit import ToyTokenizer, marker_texts
from natural_replies import CONTENT, TOOL, Chats, calls, contents, replies

ALL = dict({replace(form, name="", source=""): (name, form) for name, form in (FORMATS | dict(KNOWN)).items()}.values())
"""The formats of published templates, and the hand-written ones, each once."""


def chats_of(name: str, tokens: bool) -> Chats:
    return Chats(ALL[name], ToyTokenizer(marker_texts(ALL[name]) if tokens else ()))


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", ALL)
def test_content_of_a_form_comes_as_without_limits(name: str, tokens: bool) -> None:
    chats = chats_of(name, tokens)
    guides = [chats.guide(mode, schema=True) for mode in ("none", "auto")]
    for text in replies(ALL[name], contents(ALL[name])):
        assert chats.read(text).content == CONTENT, text
        for guide in guides:
            assert chats.refused(guide, text) is None, text


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", ALL)
def test_calls_come_as_without_limits(name: str, tokens: bool) -> None:
    chats = chats_of(name, tokens)
    guides = [
        chats.guide("required", schema=False),
        chats.guide("required", schema=False, named=TOOL.name),
        chats.guide("auto", schema=True),
    ]
    for text in replies(ALL[name], calls(ALL[name])):
        assert [each.name for each in chats.read(text).calls] == [TOOL.name], text
        for guide in guides:
            assert chats.refused(guide, text) is None, text
