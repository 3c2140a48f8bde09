"""Conversations with images, rendered as `transformers` renders them from the same parts in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ferrum.text.chat_template import ChatTemplate
from source_tree import REPOSITORY

IMAGE = {"type": "image"}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SHOWN: dict[str, tuple[str, bool]] = {
    "Mistral-Small-3.2-24B-Instruct-2506": ("[IMG]", False),
    "Qwen3.5-4B": ("<|image_pad|>", True),
    "smolvlm": ("<image>", False),
    "gemma3": ("<start_of_image>", True),
}
"""By template: how it writes an image, and whether it does so in results of tools."""

OWN = {
    # The forms of SmolVLM's and Gemma 3's templates: the first reads parts only, and looks at the first one.
    "smolvlm": (
        "{% for m in messages %}{{ m.role }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<image>{% endif %}{% endfor %}"
        "\n{% endfor %}"
    ),
    "gemma3": (
        "{% for m in messages %}<turn>{{ m.role }}\n{% if m.content is string %}{{ m.content | trim }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'image' %}<start_of_image>{% elif p.type == 'text' %}"
        "{{ p.text | trim }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    ),
}


def source(name: str) -> str:
    return OWN.get(name) or (REPOSITORY / "tests" / "data" / "templates" / f"{name}.jinja").read_text()


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


MIXED: list[dict[str, Any]] = [
    {"role": "user", "content": [text("first "), IMAGE, text("middle"), IMAGE, IMAGE]},
    {"role": "assistant", "content": [text("answer")]},
    {"role": "user", "content": [IMAGE, text("last")]},
]


@pytest.mark.parametrize("name", SHOWN)
def test_texts_and_images_keep_their_order(name: str) -> None:
    template = ChatTemplate(source(name), TOKENS)
    ours = template.render(template.prepare(MIXED), add_generation_prompt=False)
    (theirs,), _ = render_jinja_template([MIXED], chat_template=source(name), add_generation_prompt=False, **TOKENS)
    assert ours == theirs
    assert ours.count(SHOWN[name][0]) == 4
    places = [ours.rindex(each) for each in ("first", "middle", "answer", "last")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", sorted(SHOWN.keys() - {"smolvlm"}))
def test_images_in_results_are_shown_there_or_with_the_user(name: str) -> None:
    call = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call00000", "name": "look", "content": [text("seen"), IMAGE]}
    asked = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    template = ChatTemplate(source(name), TOKENS)
    assert template.reads_result_images == SHOWN[name][1]
    rendered = template.render(template.prepare([*asked, result]), add_generation_prompt=False)
    assert rendered.count(SHOWN[name][0]) == 1 and "'type'" not in rendered and '"type": "image"' not in rendered
    assert rendered.index("Look") < rendered.index(SHOWN[name][0])
