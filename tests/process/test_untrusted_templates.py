"""Untrusted templates render like the model's own and are bounded in memory and time."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.untrusted_template import UntrustedTemplate

CALL = {"function": {"name": "f", "arguments": {"x": [1, None, 2.5]}}}
MESSAGES = [
    {"role": "user", "content": "Café 日本語 🦀"},
    {"role": "assistant", "content": "so", "tool_calls": [CALL]},
]
SOURCE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | default([]) | tojson }}\n"
    "{% endfor %}{{ mood }}{{ tools | length }}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"add_generation_prompt": False}])
def test_untrusted_template_renders_like_any_other(options: dict[str, Any]) -> None:
    kinds = [kind(SOURCE, {"bos_token": "<s>"}) for kind in (ChatTemplate, UntrustedTemplate)]
    more = {"template_kwargs": {"mood": "!"}, "tools": [{"type": "function"}], **options}
    own, untrusted = (template.render(MESSAGES, **more) for template in kinds)
    assert untrusted == own and "Café 日本語 🦀" in own


@pytest.mark.parametrize("source", ["{% if", "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ 9**99999999 }}"])
def test_untrusted_template_raises_the_same_errors(source: str) -> None:
    faults = []
    for kind in (ChatTemplate, UntrustedTemplate):
        with pytest.raises(RequestError) as caught:
            kind(source).render(MESSAGES)
        faults.append((caught.value.message, caught.value.param))
    assert faults[0] == faults[1]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.ljust(10**10) }}",
        "{% set n = namespace(x='a') %}{% for i in range(50) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    ],
)
def test_template_that_would_fill_the_memory_is_rejected(source: str) -> None:
    with pytest.raises(RequestError):
        UntrustedTemplate(source).render(MESSAGES)


def test_too_long_text_is_rejected() -> None:
    with pytest.raises(RequestError) as caught:
        UntrustedTemplate("{% set x = 'a' * 9999999 %}{{ x }}{{ x }}").render(MESSAGES)
    assert caught.value.param == "chat_template"
