"""The bodies that Claude Code 2.1.197 and opencode 1.18.33 send in the third turn of an edit, shortened.

`tests/clients/test_coding_agents.py` runs the clients themselves; the body of Codex is in `test_responses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coding_script
from agent_kit import agent, chunks_of, folded
from messages_kit import events_of, post, prompt_of
from serve_kit import Served

PATH = Path("/home/user/settings.ini")
EDIT = {"file_path": str(PATH), "old_string": coding_script.OLD, "new_string": coding_script.NEW, "replace_all": False}


@pytest.fixture(scope="module")
def coder() -> Iterator[Served]:
    with agent(coding_script.reply) as served:
        yield served


def claude_tool(name: str, *parameters: str) -> dict[str, Any]:
    flag = {"default": False, "type": "boolean"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {**{each: {"type": "string"} for each in parameters}, "replace_all": flag},
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name} a file.", "input_schema": schema}


def claude_body(turns: int) -> dict[str, Any]:
    """Return the body after that many calls; a system message stands after the user's, and caching moves along."""
    cached = {"cache_control": {"type": "ephemeral"}}
    calls = (("Read", {"file_path": str(PATH)}, "1\tcolor = red\n2\t"), ("Edit", EDIT, "The file has been updated."))
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday's date is 2026-11-27.\n</system-reminder>\n"},
                {"type": "text", "text": coding_script.task(PATH), **({} if turns else cached)},
            ],
        },
        {"role": "system", "content": "Available agent types: none."},
    ]
    for place, (name, arguments, result) in enumerate(calls[:turns]):
        thought = {"type": "thinking", "thinking": coding_script.THOUGHT, "signature": "ferrum."}
        call = {"type": "tool_use", "id": f"toolu_{place:09}", "name": name, "input": arguments}
        answer = {"tool_use_id": call["id"], "type": "tool_result", "content": result}
        messages.append({"role": "assistant", "content": [thought, call]})
        messages.append({"role": "user", "content": [{**answer, **(cached if place == turns - 1 else {})}]})
    return {
        "messages": messages,
        "system": [
            {"type": "text", "text": "You are an agent.", **cached},
            {"type": "text", "text": "Edit.", **cached},
        ],
        "tools": [claude_tool("Read", "file_path"), claude_tool("Edit", "file_path", "old_string", "new_string")],
        "metadata": {"user_id": '{"device_id":"0","account_uuid":"","session_id":"1"}'},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }


def test_claude_code_edits_a_file(coder: Served) -> None:
    prompts, blocks = [], []
    for turns in range(3):
        events = events_of(coder, **claude_body(turns))
        blocks.append([each["content_block"] for each in events if each["type"] == "content_block_start"][-1])
        prompts.append(prompt_of(coder))
        assert [each["type"] for each in events[-2:]] == ["message_delta", "message_stop"]
    assert [each.get("name") for each in blocks] == ["Read", "Edit", None]
    assert prompts[1].startswith(prompts[0]) and prompts[2].startswith(prompts[1])
    whole = post(coder, **claude_body(2))
    assert whole.json()["content"][-1] == {"type": "text", "text": coding_script.ANSWER}
    assert set(whole.headers["x-ferrum-ignored"].split(", ")) == {
        "output_config.effort",
        "context_management",
        "messages[5].content[0].cache_control",
        "metadata",
        "system[0].cache_control",
        "system[1].cache_control",
    }


def opencode_tool(name: str, *parameters: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return {"type": "function", "function": {"name": name, "parameters": {**schema, "required": [*parameters]}}}


def opencode_body(turns: int) -> dict[str, Any]:
    arguments = '{"filePath":"/home/user/settings.ini"}'
    change = '{"filePath":"/home/user/settings.ini","oldString":"color = red","newString":"color = blue"}'
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are opencode."},
        {"role": "user", "content": coding_script.task(PATH)},
    ]
    for place, call in enumerate((("read", arguments), ("edit", change))[:turns]):
        function = {"name": call[0], "arguments": call[1]}
        made = {"id": f"call{place:05}", "type": "function", "function": function}
        said = {"content": "", "reasoning_content": coding_script.THOUGHT, "tool_calls": [made]}
        messages.append({"role": "assistant", **said})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": "<path>settings.ini</path>"})
    return {
        "model": "scripted",
        "max_tokens": 8192,
        "messages": messages,
        "tools": [opencode_tool("read", "filePath"), opencode_tool("edit", "filePath", "oldString", "newString")],
        "tool_choice": "auto",
        "stream_options": {"include_usage": True},
    }


def test_opencode_edits_a_file(coder: Served) -> None:
    found = []
    for turns in range(3):
        message = folded(chunks_of(coder, **opencode_body(turns)))[0]["message"]
        found.append([each["function"]["name"] for each in message.get("tool_calls", [])])
    assert found == [["read"], ["edit"], []] and message["content"] == coding_script.ANSWER
