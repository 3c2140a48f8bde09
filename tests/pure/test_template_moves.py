"""Nothing of a conversation is lost in a prompt: published templates get it where they render it, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ferrum.client.model_client import with_written_calls
from ferrum.core.errors import FerrumError, RequestError
from ferrum.formats.find import find_format
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.template_messages import refuse_lost_texts
from real_templates import TEMPLATES

Messages = Sequence[dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"look{number}",
            "description": "Looks out.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
        },
    }
    for number in (1, 2)
]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(text: str | None, *numbers: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call0000{n}",
            "type": "function",
            "function": {"name": f"look{n}", "arguments": f'{{"city": "Bonn{n}"}}'},
        }
        for n in numbers
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": f"look{number}", "content": f"rain{number}"}


TURNS = [system("brief"), user("hello"), said("dry"), user("again")]
SYSTEMS = {
    "two at the start": [system("brief"), system("second"), user("hello")],
    "developer after system": [system("brief"), {**system("second"), "role": "developer"}, user("hello")],
    "in the middle": [user("hello"), said("dry"), system("second"), user("again")],
    "another in the middle": [*TURNS[:3], system("second"), user("again")],
    "between users": [*TURNS, system("second"), user("third")],
    "at the end": [*TURNS, system("second"), system("third")],
}
CALLED = [user("hello"), said(None, 1), result(1), said("dry"), user("again")]
CALLS = {
    "text and call": [user("hello"), said("look out", 1), result(1)],
    "text and call earlier": [user("hello"), said("look out", 1), result(1), said("dry"), user("again")],
    "two calls": [user("hello"), said(None, 1, 2), result(2), result(1), said("dry"), user("again")],
    "text and two calls": [user("hello"), said("look out", 1, 2), result(1), result(2)],
    "call after call": [user("hello"), said("look out", 1), result(1), said("see more", 2), result(2), said("dry")],
    "function": [
        user("hello"),
        {"role": "assistant", "content": None, "function_call": {"name": "look1", "arguments": '{"city": "Bonn1"}'}},
        {"role": "function", "name": "look1", "content": "rain1"},
    ],
}


def prompt(template: ChatTemplate, messages: Messages) -> str:
    return template.render(template.prepare(messages), tools=TOOLS)


def renders(template: ChatTemplate, messages: Messages) -> bool:
    try:
        prompt(template, messages)
    except FerrumError:
        return False
    return True


def contents(messages: Messages) -> set[str]:
    """Return what a prompt must contain."""
    texts = {message["content"] for message in messages if message["content"]}
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    calls += [message["function_call"] for message in messages if "function_call" in message]
    return texts | {json.loads(call["arguments"])["city"] for call in calls}


@pytest.mark.parametrize("name", sorted(name for name in TEMPLATES if renders(TEMPLATES[name], TURNS)))
def test_template_with_a_system_message_renders_all_of_them(name: str) -> None:
    for where, messages in SYSTEMS.items():
        text = prompt(TEMPLATES[name], messages)
        assert not {each for each in contents(messages) if each not in text}, where


def test_late_system_message_is_text_of_the_user_next_to_it() -> None:
    strict = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    for messages, expected in (
        (SYSTEMS["two at the start"], "[system]brief\n\nsecond[user]hello"),
        (SYSTEMS["in the middle"], "[user]hello[assistant]dry[user]second\nagain"),
        (SYSTEMS["between users"], "[system]brief[user]hello[assistant]dry[user]again\nsecond\nthird"),
        ([*CALLED[:3], system("second")], "[user]hello[assistant][tool]rain1[user]second"),
        ([user("hello"), user("again"), said("dry")], "[user]hello[user]again[assistant]dry"),
    ):
        assert strict.render(strict.prepare(messages), add_generation_prompt=False) == expected


WRITES_NONE = "ibm-granite-granite-3.3-2B-Instruct"


@pytest.mark.parametrize("name", sorted(name for name in TEMPLATES if renders(TEMPLATES[name], CALLED)))
def test_text_of_a_message_with_calls_may_be_absent_null_or_empty(name: str) -> None:
    for length in (3, 5):
        null = CALLED[:length]
        absent = [{key: value for key, value in each.items() if value is not None} for each in null]
        text = prompt(TEMPLATES[name], absent)
        assert "Bonn1" in text or name == WRITES_NONE
        for content in (None, "", [{"type": "text", "text": ""}]):
            given = [{**each, "content": content} if "tool_calls" in each else each for each in null]
            assert prompt(TEMPLATES[name], given) == text, content


@pytest.mark.parametrize(
    "name", sorted(name for name in TEMPLATES if name != WRITES_NONE and renders(TEMPLATES[name], CALLED))
)
def test_template_with_a_call_renders_texts_and_several_calls(name: str) -> None:
    for kind, messages in CALLS.items():
        text = prompt(TEMPLATES[name], messages)
        # gpt-oss takes text before a call for reasoning, and drops that of earlier turns.
        dropped = {"look out", "see more"} if "gpt-oss" in name and messages[-1]["role"] != "tool" else set()
        assert not {each for each in contents(messages) - dropped if each not in text}, kind


def test_results_stand_after_their_calls_where_each_call_has_a_message() -> None:
    text = prompt(TEMPLATES["openai-gpt-oss-120b"], CALLS["two calls"])
    assert sorted(("Bonn1", "rain1", "Bonn2", "rain2"), key=text.index) == ["Bonn1", "rain1", "Bonn2", "rain2"]


def test_template_that_writes_no_calls_gets_them_as_the_model_wrote_them() -> None:
    template = TEMPLATES[WRITES_NONE]
    assert not template.writes_calls and TEMPLATES["Qwen-Qwen3-0.6B"].writes_calls
    chat = template.prepare(CALLS["text and two calls"])
    text = template.render(with_written_calls(chat, find_format(template, None, None).format), tools=TOOLS)
    assert (
        'look out<|tool_call|>[{"name": "look1", "arguments": {"city": "Bonn1"}}, '
        '{"name": "look2", "arguments": {"city": "Bonn2"}}]<|end_of_text|>'
    ) in text
    plain = template.render(with_written_calls(template.prepare(CALLED), None), tools=TOOLS)
    assert '{"name": "look1", "arguments": {"city": "Bonn1"}}<|end_of_text|>' in plain


def check(source: str | ChatTemplate, messages: Messages) -> None:
    template = ChatTemplate(source) if isinstance(source, str) else source

    def render(chat: Any) -> str:
        return template.render(template.prepare(chat))

    refuse_lost_texts(messages, render(messages), render)


@pytest.mark.parametrize(
    ("source", "messages", "param"),
    [
        ("{{ messages[-1].content }}", [user("one"), said("two"), user("three")], "messages[0].content"),
        ("{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}", CALLED[:3], "messages[2].content"),
        ("{% for m in messages if m.role != 'user' %}{{ m.content }}{% endfor %}", TURNS, "messages[1].content"),
        ("{{ messages[0].content }}", [user("one"), said("two"), user("one")], "messages[1].content"),
        ("{{ messages[0].content }}", [user("one"), user("one")], "messages[1].content"),
        ("{{ messages[0].content }}", [user("one"), user([{"type": "text", "text": "two"}])], "messages[1].content"),
    ],
)
def test_message_that_the_template_leaves_out_is_refused_by_its_place(
    source: str, messages: Messages, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        check(source, messages)
    assert caught.value.param == param


@pytest.mark.parametrize("filters", ["trim", "tojson", "upper", "replace('e', '_')", "trim | tojson"])
def test_text_that_the_template_changes_is_not_left_out(filters: str) -> None:
    check(
        f"{{% for m in messages %}}{{{{ m.content | {filters} }}}}{{% endfor %}}", [user(' "hello"\nthere '), said("é")]
    )


def test_earlier_reasoning_in_a_text_may_be_dropped() -> None:
    thought = said("<think>\nhm\n</think>\n\ndry")
    for text in ("<think>\nhm\n</think>\n\ndry", "<think>\nhm\n</think>"):
        check(TEMPLATES["Qwen-Qwen3-0.6B"], [user("hello"), thought | {"content": text}, user("again")])
