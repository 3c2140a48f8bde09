"""Chat templates: selection, rendering, rejected arguments, and hostile templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chat_samples import CHATML, LLAMA, MISTRAL, QWEN, TOOLS
from ferrum.core.errors import CheckpointError, RequestError
from ferrum.text import sandbox
from ferrum.text.chat_template import ChatTemplate, load_chat_template
from ferrum.text.model_files import DirectoryFiles

USER = [{"role": "user", "content": "hi"}]


def test_chatml_reads_as_specified() -> None:
    # The layout of OpenAI's ChatML document.
    messages = [{"role": "system", "content": "S"}, *USER]
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    template = ChatTemplate(CHATML)
    assert template.render(messages) == text + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == text


def test_template_variables_reach_the_template() -> None:
    template = ChatTemplate(QWEN)
    thinking, silent = template.render(USER), template.render(USER, template_kwargs={"enable_thinking": False})
    assert silent == thinking + "<think>\n\n</think>\n\n"
    assert ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}).render(USER) == "<s>"
    assert ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}).render(USER, template_kwargs={"bos_token": ""}) == ""


def test_continue_final_message_leaves_it_open() -> None:
    messages = [*USER, {"role": "assistant", "content": "It is "}]
    assert ChatTemplate(CHATML).render(messages, continue_final_message=True).endswith("assistant\nIt is ")
    # A template that trims messages ends the text at the last word.
    trimmed = ChatTemplate(LLAMA, {"bos_token": ""}).render(messages, continue_final_message=True)
    assert trimmed.endswith("<|end_header_id|>\n\nIt is")
    blocks = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "A "}, {"type": "image"}]}]
    source = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }};{% endfor %}"
    assert ChatTemplate(source).render(blocks, continue_final_message=True) == "hi;A "


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        (USER, {"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ([{"role": "assistant", "content": None}], {"continue_final_message": True}, "continue_final_message"),
        ([*USER, {"role": "tool", "content": "x"}], {"continue_final_message": True}, "continue_final_message"),
        (USER, {"template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (USER, {"template_kwargs": {"x": object()}}, "chat_template_kwargs"),
        (USER, {"tools": "weather"}, "tools"),
        (USER, {"documents": ["text"]}, "documents"),
        ([], {}, "messages"),
        ("hi", {}, "messages"),
        (["hi"], {}, "messages"),
        ([{"role": "user", "content": b"hi"}], {}, "messages"),
        ([{"role": "user"}, {"role": "user"}], {}, "messages"),
    ],
)
def test_errors_name_the_invalid_argument(messages: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, **options)
    assert caught.value.param == param


def test_raise_exception_becomes_a_request_error_with_its_message() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(MISTRAL, {"bos_token": "<s>"}).render([*USER, *USER])
    assert (caught.value.param, caught.value.message) == (
        "messages",
        "Conversation roles must alternate user/assistant!",
    )


def test_deeply_nested_messages_are_rejected() -> None:
    content: list[Any] = []
    for _ in range(10_000):
        content = [content]
    with pytest.raises(RequestError) as caught:
        ChatTemplate(CHATML).render([{"role": "user", "content": content}])
    assert caught.value.param == "messages"


def test_render_does_not_change_its_arguments() -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning": "b", "name": None},
    ]
    before = json.dumps(messages)
    ChatTemplate("{{ messages[1].content[0].text }}").render(messages, continue_final_message=True)
    assert json.dumps(messages) == before


HOSTILE = {
    "private attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "private attributes by filter": "{{ (messages|attr('__class__'))() }}",
    "a function's globals": "{{ raise_exception.__globals__['json'] }}",
    "a macro's globals": "{{ namespace.__init__.__globals__ }}",
    "format strings": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "mutation": "{{ messages.append(messages[0]) }}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested lists": "{% set s = range(9999)|list %}{% for i in s %}{% for j in s %}{% endfor %}{% endfor %}",
    "branching macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "branching recursive loops": "{% for a in [[]]*2 recursive %}{{ loop([[]]*2) }}{{ loop([[]]*2) }}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a huge string": "{{ 'a' * 10**10 }}",
    "a huge list": "{{ 10**9 * [1] }}",
    "a huge number": "{{ 10**(10**10) }}",
    "files": "{% include '/etc/passwd' %}",
    "imports": "{% import 'os' as os %}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("origin", [None, "model/chat_template.jinja"])
def test_hostile_template_raises_a_typed_error(
    source: str, origin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 10_000)
    with pytest.raises(RequestError if origin is None else (RequestError, CheckpointError)):
        ChatTemplate(source, origin=origin).render(USER)


def test_step_limit_applies_to_each_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 10_000)
    template = ChatTemplate("{% for i in range(9000) %}{% endfor %}.")
    assert [template.render(USER) for _ in range(12)] == ["."] * 12


def test_broken_template_is_blamed_on_its_source() -> None:
    with pytest.raises(RequestError, match="line 2") as caught:
        ChatTemplate("\n{% if %}").render(USER)
    assert caught.value.param == "chat_template"
    with pytest.raises(CheckpointError, match=r"model/chat_template\.jinja.*line 1"):
        ChatTemplate("{% for %}", origin="model/chat_template.jinja").render(USER)
    for deep in ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "{{ " + "(" * 5000 + ")" * 5000 + " }}"):
        with pytest.raises(RequestError, match="compile") as caught:
            ChatTemplate(deep).render(USER)
        assert caught.value.param == "chat_template"
        with pytest.raises(CheckpointError, match="compile"):
            ChatTemplate(deep, origin="model/chat_template.jinja").render(USER)


@pytest.mark.parametrize(("origin", "param"), [(None, "chat_template"), ("model/chat_template.jinja", "messages")])
def test_failing_template_of_the_caller_is_named(origin: str | None, param: str) -> None:
    with pytest.raises(RequestError, match="ZeroDivisionError") as caught:
        ChatTemplate("{{ 1 / 0 }}", origin=origin).render(USER)
    assert caught.value.param == param


def test_tools_select_the_template_named_tool_use() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "with tools"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=TOOLS) == "with tools"
    with pytest.raises(RequestError, match="rag"):
        ChatTemplate({"rag": ""}).render(USER)


def test_template_files_override_the_configuration(tmp_path: Path) -> None:
    assert load_chat_template(DirectoryFiles(tmp_path)) is None

    def render(**options: Any) -> str:
        template = load_chat_template(DirectoryFiles(tmp_path))
        assert template is not None
        return template.render(USER, **options)

    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }} configured"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert render() == "<s> configured"
    named = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "second"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    assert (render(), render(tools=TOOLS)) == ("first", "second")
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert (render(), render(tools=TOOLS)) == ("file <s>", "file <s>")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tool file")
    assert (render(), render(tools=TOOLS)) == ("file <s>", "tool file")
    (tmp_path / "chat_template.jinja").write_bytes(b"one\r\ntwo\rthree")
    assert render() == "one\ntwo\nthree"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        load_chat_template(DirectoryFiles(tmp_path))
