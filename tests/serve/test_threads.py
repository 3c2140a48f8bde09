"""Threads of the Messages API: what is continued has the prompt of the whole conversation, by the same key only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_kit import QWEN3
from agent_script import MARKERS, THOUGHT, reply
from messages_kit import SAID, THINK, WEATHER, ask, error_in, events_of, folded, post, prompt_of
from scripted_model import scripted_parts
from serve_kit import Served, serving

CREATE = {"thread": {"type": "create"}}
FIXED: dict[str, Any] = {"system": [{"type": "text", "text": "Be brief."}], "tools": [WEATHER], "thinking": THINK}


def after(message: Any) -> dict[str, Any]:
    return {"thread": {"type": "continue", "previous_message_id": message["id"]}}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_has_the_prompt_of_the_whole_conversation(assistant: Served, stream: bool, display: str) -> None:
    def said(**body: Any) -> Any:
        return folded(events_of(assistant, **body)) if stream else ask(assistant, **body)

    body = {**FIXED, "thinking": {**THINK, "display": display}}
    first = said(**body, **CREATE)
    call = first["content"][-1]
    result = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "21"}]}]
    second = said(messages=result, thinking=body["thinking"], **after(first))
    third = said(messages=user("no tool"), **after(second))
    prompt = prompt_of(assistant)
    history = [*SAID, {"role": "assistant", "content": first["content"]}, *result]
    history += [{"role": "assistant", "content": second["content"]}, *user("no tool")]
    ask(assistant, messages=history, system=FIXED["system"], tools=FIXED["tools"])
    assert prompt_of(assistant) == prompt and "Be brief." in prompt and THOUGHT not in third["content"][0]["text"]
    count = {"messages": user("no tool"), **after(second)}
    counted = assistant.post("/v1/messages/count_tokens", **count)
    assert counted.json()["input_tokens"] == len(assistant.requests[-1].prompt)


def test_a_message_can_be_continued_again(assistant: Served) -> None:
    """A client whose connection broke sends its turn again."""
    first = ask(assistant, messages=user("no tool"), **CREATE)
    prompts = []
    for text in ("no tool left", "no tool right", "no tool left"):
        ask(assistant, messages=user(text), **after(first))
        prompts.append(prompt_of(assistant))
    assert prompts[0] == prompts[2] != prompts[1] and "right" not in prompts[2]


def test_a_begun_reply_and_its_end_are_one_text(assistant: Served) -> None:
    first = ask(assistant, messages=[*user("no tool"), {"role": "assistant", "content": "The "}], **CREATE)
    ask(assistant, messages=user("no tool"), **after(first))
    assert f"The {first['content'][-1]['text']}" in prompt_of(assistant)


def test_the_field_is_served_and_not_named_as_ignored(assistant: Served) -> None:
    for thread in ({"type": "create"}, None):
        assert "x-ferrum-ignored" not in post(assistant, thread=thread).headers


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_thread_that_is_not_held_is_a_404_by_its_code(assistant: Served, path: str) -> None:
    response = assistant.post("/v1/responses", input="no tool").json()
    lone = ask(assistant, messages=user("no tool"))
    for missing in ({"id": "msg_x"}, response, lone):
        error = error_in(post(assistant, path, **after(missing)), 404)
        assert error["type"] == "not_found_error" and error["details"] == {"error_code": "thread_not_found"}
    held = ask(assistant, messages=user("no tool"), **CREATE)
    assert assistant.http.get(f"/v1/responses/{held['id']}").status_code == 404
    assert assistant.post("/v1/responses", input="x", previous_response_id=held["id"]).status_code == 400


def test_fields_of_a_thread_stay_the_same(assistant: Served) -> None:
    first = ask(assistant, **FIXED, **CREATE)
    same = {name: FIXED[name] for name in ("system", "tools")}
    assert ask(assistant, messages=user("no tool"), **same, **after(first))
    for change in ({"system": "Be long."}, {"tools": []}):
        error = error_in(post(assistant, messages=user("no tool"), **change, **after(first)), 400)
        assert error["details"] == {"error_code": "thread_fingerprint_mismatch"} and str(*change) in error["message"]


def test_threads_belong_to_their_key_and_are_evicted_with_stored_responses(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a:first\nb:second\n")
    parts = scripted_parts(reply, QWEN3, MARKERS)
    with serving(parts, api_key_file=str(tmp_path / "keys"), max_stored_responses=2) as served:
        mine, other = ({"x-api-key": key} for key in ("first", "second"))
        body = {"model": "scripted", "max_tokens": 100, "messages": user("no tool")}

        def status(headers: dict[str, str], **more: Any) -> int:
            return served.http.post("/v1/messages", json={**body, **more}, headers=headers).status_code

        first = served.http.post("/v1/messages", json={**body, **CREATE}, headers=mine).json()
        assert [status(each, **after(first)) for each in (other, mine)] == [404, 200]
        for _ in range(2):
            assert served.http.post("/v1/responses", json={"input": "no tool"}, headers=mine).status_code == 200
        assert status(mine, **after(first)) == 404


@pytest.mark.parametrize(
    ("thread", "param"),
    [({"type": "resume"}, "thread"), ({"type": "continue"}, "thread.previous_message_id"), ("create", "thread")],
)
def test_malformed_threads_are_refused_by_name(assistant: Served, thread: Any, param: str) -> None:
    assert error_in(post(assistant, thread=thread), 400)["message"].startswith(param)
