"""Templates of strangers: they render as those of the model do, and cannot take the machine with them."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.untrusted_template import ForeignTemplate

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
def test_a_foreign_template_renders_as_any_other(options: dict[str, Any]) -> None:
    kinds = [kind(SOURCE, {"bos_token": "<s>"}) for kind in (ChatTemplate, ForeignTemplate)]
    more = {"template_kwargs": {"mood": "!"}, "tools": [{"type": "function"}], **options}
    own, foreign = (template.render(MESSAGES, **more) for template in kinds)
    assert foreign == own and "Café 日本語 🦀" in own


@pytest.mark.parametrize("source", ["{% if", "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ 9**99999999 }}"])
def test_its_faults_are_told_alike(source: str) -> None:
    faults = []
    for kind in (ChatTemplate, ForeignTemplate):
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
def test_one_that_would_fill_the_memory_is_refused(source: str) -> None:
    with pytest.raises(RequestError):
        ForeignTemplate(source).render(MESSAGES)


def test_one_that_makes_too_long_a_text_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        ForeignTemplate("{% set x = 'a' * 9999999 %}{{ x }}{{ x }}").render(MESSAGES)
    assert caught.value.param == "chat_template"
