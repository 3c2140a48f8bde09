"""Anthropic's Messages API on the wire: histories, tools, thinking, formats, headers and errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_kit import CITY
from agent_script import ANSWER, THOUGHT
from engine_fakes import greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.request_output import Delta, Usage
from ferrum.core import logging as once
from ferrum.server.anthropic.replies import usage_of
from ferrum.server.chat.turn import Counts
from ferrum.text.chat_template import ChatTemplate
from messages_kit import SAID, THINK, WEATHER, ask, error_in, post, prompt_of
from serve_kit import SLOW, Served, chat_parts, error_of, serving

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
ATTRIBUTION = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;"}


def said(*content: Any) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def result(call_id: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def test_reply_has_blocks_of_thinking_and_calls(assistant: Served) -> None:
    message = ask(assistant, tools=[WEATHER], thinking=THINK)
    thinking, call = message["content"]
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "tool_use")
    assert thinking["type"] == "thinking" and thinking["thinking"] == THOUGHT and thinking["signature"]
    assert call["id"].startswith("toolu_")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Paris"})
    usage = message["usage"]
    assert usage["output_tokens"] > usage["output_tokens_details"]["thinking_tokens"] > 20


def test_cached_tokens_are_not_input_tokens() -> None:
    counts = Counts([input_processor().process([1] * 9, greedy(), RequestOptions(request_id="a"))])
    counts.count(0, Delta("a", token_ids=(1, 2), usage=Usage(9, 2, cached_tokens=4, reasoning_tokens=1)))
    assert usage_of(counts).model_dump() == {
        "input_tokens": 5,
        "output_tokens": 2,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 1},
    }


def test_reply_without_thinking_is_text(assistant: Served) -> None:
    for thinking in ({}, {"thinking": {"type": "disabled"}}):
        assert ask(assistant, **thinking)["content"] == [text("Hello.")]
    budget = ask(assistant, thinking={"type": "enabled", "budget_tokens": 9})["content"][0]
    assert THOUGHT.startswith(budget["thinking"].strip()) and len(budget["thinking"]) < 12


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_history_goes_back_into_the_prompt(assistant: Served, display: str) -> None:
    options = {"tools": [WEATHER], "thinking": {**THINK, "display": display}}
    reply = ask(assistant, messages=said(text("the same, twice")), **options)
    thinking, first, second = reply["content"]
    assert (thinking["thinking"] == "") is (display == "omitted")
    answer = said(text("and now?"), result(first["id"], "21 degrees"), result(second["id"], [text("rain")]))
    history = [*said(text("the same, twice")), {"role": "assistant", "content": reply["content"]}, *answer]
    ask(assistant, messages=history, **options)
    prompt = prompt_of(assistant)
    assert prompt.count("<tool_call>\n{") == 3  # one in the instructions
    assert prompt.index("21 degrees") < prompt.index("rain") < prompt.index("and now?")
    ask(assistant, messages=history[:2] + said(*answer[0]["content"][1:]), **options)
    assert f"<think>\n{THOUGHT}\n</think>" in prompt_of(assistant)


def test_agent_gets_its_answer(assistant: Served) -> None:
    reply = ask(assistant, tools=[WEATHER])
    back = [*SAID, {"role": "assistant", "content": reply["content"]}]
    good = ask(assistant, tools=[WEATHER], messages=[*back, *said(result(reply["content"][0]["id"], "sunny"))])
    assert (good["content"], good["stop_reason"]) == ([text(ANSWER + "sunny")], "end_turn")
    failed = said(result(reply["content"][0]["id"], "no network", is_error=True))
    bad = ask(assistant, tools=[WEATHER], messages=[*back, *failed])
    assert bad["content"] == [text(ANSWER + "Error: no network")]


def test_what_is_not_text_in_a_result_is_replaced_and_named(assistant: Served) -> None:
    blocks = [
        text("plain"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a paper"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "search_result", "source": "page", "title": "found", "content": [text("words")]},
        {"type": "tool_reference", "tool_name": "look"},
    ]
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    history = [*SAID, {"role": "assistant", "content": [call]}, *said(result("toolu_1", blocks))]
    response = post(assistant, messages=history)
    inner = "messages[2].content[0].content"
    assert response.headers["x-ferrum-replaced"] == (
        f"{inner}[1].image, {inner}[3].document, {inner}[5].tool_reference"
    )
    assert (
        "plain\n[image: not text, left out]\na paper\n[document: not text, left out]\nfound\npage\nwords\n[tool: look]"
        in prompt_of(assistant)
    )


def test_attribution_is_left_out_and_logged_once(assistant: Served, caplog: pytest.LogCaptureFixture) -> None:
    once.info_once.cache_clear()
    with caplog.at_level(logging.INFO, "ferrum"):
        for _ in range(2):
            ask(assistant, system=[ATTRIBUTION, text("Be short.")])
    assert "<|im_start|>system\nBe short.<|im_end|>" in prompt_of(assistant) and "cch" not in prompt_of(assistant)
    assert sum("x-anthropic-billing-header" in record.getMessage() for record in caplog.records) == 1
    ask(assistant, system="Be short.")
    assert "<|im_start|>system\nBe short.<|im_end|>" in prompt_of(assistant)


def test_late_system_message_stands_where_it_is(assistant: Served) -> None:
    late = {"role": "system", "content": [text("# Environment")]}
    ask(assistant, system="Be short.", messages=[late, *SAID, late])
    prompt = prompt_of(assistant)
    assert prompt.startswith("<|im_start|>system\nBe short.\n# Environment<|im_end|>")
    assert prompt.count("<|im_start|>system\n# Environment<|im_end|>") == 1


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}[bot]"
)


@pytest.mark.parametrize("template", [STRICT, STRICT.replace("{{ raise_exception('late') }}", "{% continue %}")])
def test_late_system_message_becomes_text_of_the_user(template: str, tmp_path: Path) -> None:
    file = tmp_path / "strict.jinja"
    file.write_text(template)
    with serving(chat_parts(), chat_template=str(file)) as served:
        late = {"role": "system", "content": "# Environment"}
        reply = {"role": "assistant", "content": "hello"}
        response = post(served, model="fake", max_tokens=1, messages=[*SAID, late, reply, late, *SAID])
        assert response.headers["x-ferrum-replaced"] == "messages[1], messages[3]"
        words = SAID[0]["content"]
        expected = f"[user]{words}\n# Environment[assistant]hello[user]# Environment\n{words}[bot]"
        assert prompt_of(served) == expected.replace("\n", "?")  # the fake tokenizer has no line breaks


def test_templates_of_models_take_late_system_messages_or_do_not() -> None:
    """Qwen3's template renders them, those of Llama 2's and Gemma's kind refuse them."""
    known = {path.stem: ChatTemplate(path.read_text()).reads_late_system for path in TEMPLATES.glob("*.jinja")}
    assert known["Qwen-Qwen3-0.6B"] and not all(known.values())


def test_last_message_of_the_assistant_is_continued(assistant: Served) -> None:
    ask(assistant, messages=[*SAID, {"role": "assistant", "content": "It is"}], max_tokens=1)
    assert prompt_of(assistant).endswith("It is")
    parts = {"role": "assistant", "content": [text("The "), text("answer")]}
    ask(assistant, messages=[*SAID, parts], max_tokens=1)
    assert prompt_of(assistant).endswith("The answer")
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    error = error_in(post(assistant, messages=[*SAID, {"role": "assistant", "content": [call]}]), 400)
    assert error["message"].startswith("messages[1]: ")


def test_choice_of_tools_holds(assistant: Served) -> None:
    look = {**WEATHER, "name": "look", "strict": True, "input_schema": CITY}
    tools = [look, WEATHER]
    named = ask(assistant, tools=tools, tool_choice={"type": "tool", "name": "look"}, max_tokens=4000)
    assert named["content"][-1]["name"] == "look"
    idle = said(text("no tool, please"))
    forced = ask(assistant, tools=[WEATHER], messages=idle, tool_choice={"type": "any"}, thinking=THINK)
    assert forced["content"][-1]["type"] == "tool_use"
    none = ask(assistant, tools=tools, messages=idle, tool_choice={"type": "none"})
    assert none["content"] == [text("Hello.")]
    once_only = {"type": "auto", "disable_parallel_tool_use": True}
    twice = {"tools": [WEATHER], "messages": said(text("the same, twice"))}
    assert len(ask(assistant, **twice)["content"]) == 2
    assert len(ask(assistant, **twice, tool_choice=once_only)["content"]) == 1


def test_format_constrains_the_text(assistant: Served) -> None:
    form = {"format": {"type": "json_schema", "schema": CITY}}
    [block] = ask(assistant, messages=said(text("a city as JSON")), output_config=form)["content"]
    assert json.loads(block["text"]) == {"city": "Paris", "degrees": 21}


def test_ends_have_their_reasons(assistant: Served) -> None:
    stopped = ask(assistant, stop_sequences=["lo", "x"])
    assert stopped["content"] == [text("Hel")]
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lo")
    short = ask(assistant, max_tokens=2)
    assert (short["content"], short["stop_reason"], short["stop_sequence"]) == ([text("He")], "max_tokens", None)
    prompt = ask(assistant, messages=said(text("a" * 65_508)), max_tokens=100_000)
    assert prompt["stop_reason"] == "model_context_window_exceeded" and prompt["usage"]["output_tokens"] < 7


def test_fields_without_effect_are_named(assistant: Served) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    cached = {**text("hi"), "cache_control": {"type": "ephemeral"}}
    fields = {"metadata": {"user_id": "a"}, "context_management": {"edits": []}, "service_tier": "auto"}
    response = post(
        assistant,
        messages=said(cached),
        tools=[search, WEATHER],
        tool_choice={"type": "none"},
        output_config={"effort": "low"},
        **fields,
    )
    names = set(response.headers["x-ferrum-ignored"].split(", "))
    here = {"messages[0].content[0].cache_control", "tools[0].web_search_20250305", "output_config.effort"}
    assert names == {*fields, *here}
    assert "web_search" not in prompt_of(assistant)


def test_count_is_that_of_the_message(assistant: Served) -> None:
    body = {"system": "Be short.", "tools": [WEATHER], "thinking": THINK}
    counted = assistant.post("/v1/messages/count_tokens", model="scripted", messages=SAID, **body)
    usage = ask(assistant, **body)["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


BAD = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"messages": []}, "messages"),
    ({"messages": said({"type": "image", "source": {}})}, "messages[0].content[0].source.type"),
    ({"messages": said({"type": "document", "source": {"type": "url", "url": "a"}})}, "messages[0].content[0].source"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0]"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
    ({"tools": [{**WEATHER, "strict": True, "input_schema": {"type": "x"}}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"container": "container_1"}, "container"),
    ({"compaction": {"type": "enabled"}}, "compaction"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=lambda each: each if isinstance(each, str) else "")
def test_invalid_field_is_named(assistant: Served, body: dict[str, Any], param: str) -> None:
    error = error_in(post(assistant, **body), 400)
    assert error["type"] == "invalid_request_error" and error["message"].startswith(f"{param}")


def test_each_error_has_its_type(assistant: Served) -> None:
    long = error_in(post(assistant, messages=said(text("a" * 70_000))), 400)
    assert long["type"] == "invalid_request_error" and long["message"].startswith("Prompt is too long: ")
    assert error_in(post(assistant, model="other"), 404)["type"] == "not_found_error"
    assert error_in(assistant.http.get("/v1/messages"), 405)["type"] == "invalid_request_error"
    assert error_in(assistant.http.post("/v1/messages", content=b"{"), 415)["type"] == "invalid_request_error"


def test_server_that_cannot_serve_now_says_when_to_retry() -> None:
    with serving(chat_parts(SLOW, max_requests=1), api_key="secret", max_body_bytes=3000) as served:
        body = {"model": "fake", "max_tokens": 1, "messages": SAID}
        assert error_in(served.http.post("/v1/messages", json=body), 401)["type"] == "authentication_error"
        served.http.headers["x-api-key"] = "secret"
        assert error_in(post(served, model="fake", system="a" * 4000), 413)["type"] == "request_too_large"
        endless = {**body, "max_tokens": 20_000, "stream": True}
        with served.http.stream("POST", "/v1/messages", json=endless) as stream:
            lines = stream.iter_lines()  # an iterator that nothing holds closes the connection
            next(lines)
            full = served.http.post("/v1/messages", json=body)
            assert error_in(full, 429)["type"] == "rate_limit_error" and int(full.headers["retry-after"]) >= 1
        served.wait_idle()
        assert served.http.post("/v1/messages", json=body).status_code == 200
        served.service.drain()
        drained = served.http.post("/v1/messages", json=body)
        assert error_in(drained, 529)["type"] == "overloaded_error" and int(drained.headers["retry-after"]) >= 1


def test_models_have_the_shape_that_headers_ask_for(assistant: Served) -> None:
    for headers in ({"anthropic-version": "2023-06-01"}, {"x-api-key": "a"}):
        page = assistant.http.get("/v1/models?limit=1000", headers=headers).json()
        assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "scripted", "scripted")
        [model] = page["data"]
        assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "scripted", 65_536)
        assert assistant.http.get("/v1/models/scripted", headers=headers).json() == model
    assert assistant.http.get("/v1/models").json()["object"] == "list"


def test_errors_of_models_have_the_shape_that_headers_ask_for() -> None:
    with serving(api_key="secret") as served:
        for headers in ({"anthropic-version": "2023-06-01"}, {"x-api-key": "wrong"}):
            for path in ("/v1/models", "/v1/models/fake"):
                refused = served.http.get(path, headers=headers)
                assert error_in(refused, 401)["type"] == "authentication_error"
        assert error_of(served.http.get("/v1/models"), 401)["code"] == "missing_api_key"
        known = {"anthropic-version": "2023-06-01", "x-api-key": "secret"}
        assert error_in(served.http.get("/v1/models/other", headers=known), 404)["type"] == "not_found_error"


def test_clients_find_the_server(assistant: Served) -> None:
    assert assistant.http.head("/api/hello").status_code == 200


def test_message_start_is_followed_by_a_ping(assistant: Served) -> None:
    """As in the first lines of the streams of Anthropic's documentation."""
    body = {"model": "scripted", "max_tokens": 3, "messages": SAID, "stream": True}
    first, second, *_ = assistant.post("/v1/messages", **body).text.split("\n\n")
    assert first.startswith("event: message_start\n")
    assert second == 'event: ping\ndata: {"type":"ping"}'
