"""Requests to the Responses API of the scripted assistant, and folds of its streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from agent_kit import WEATHER
from serve_kit import Served

PATH: Final = "/v1/responses"
FLAT: Final[dict[str, Any]] = {"type": "function", **WEATHER["function"]}
TERMINAL: Final = ("response.completed", "response.incomplete", "response.failed")


def respond(server: Served, **body: Any) -> Any:
    """Return a response, which must be one."""
    response = server.post(PATH, **{"input": "What is the weather in Paris?", "store": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(server: Served, **body: Any) -> list[Any]:
    """Return the events of a streamed response, which must be named and numbered and end once."""
    response = server.post(PATH, **{"input": "What is the weather in Paris?", "store": False, "stream": True, **body})
    assert response.status_code == 200, response.text
    return checked_events(response.text)


def checked_events(text: str, *, queued: bool = False) -> list[Any]:
    """Return the events of a whole stream after checking names, numbers, begin and end.

    Args:
        queued: it is that of a background response.
    """
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    types = [each["type"] for each in events]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    begin = ["response.created", *(["response.queued"] if queued else []), "response.in_progress"]
    assert types[: len(begin)] == begin
    assert types[-1] in TERMINAL and sum(each in TERMINAL for each in types) == 1
    return events


def folded(events: Sequence[Any]) -> list[Any]:
    """Return the items that a client builds from events: each is added, then grows, then is done."""
    items: list[Any] = []
    for event in events:
        kind, at = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert at == len(items)
            items.append({"whole": event["item"], "text": "", "summary": "", "done": False})
        elif at is not None:
            item = items[at]
            assert not item["done"] and at == len(items) - 1
            assert event.get("item_id", item["whole"]["id"]) == item["whole"]["id"]
            if kind == "output_item.done":
                item |= {"done": True, "whole": event["item"]}
            elif kind.endswith(".delta"):
                item["summary" if "summary" in kind else "text"] += event["delta"]
            elif kind.endswith(("_text.done", "arguments.done", "input.done")):
                final = next(event[name] for name in ("text", "arguments", "input") if name in event)
                assert final == item["summary" if "summary" in kind else "text"]
    return [_checked(each) for each in items]


def _checked(item: Any) -> Any:
    """Return a whole item, whose text must be that of its deltas."""
    whole = item["whole"]
    text = {
        "message": lambda: "".join(part["text"] for part in whole["content"]),
        "reasoning": lambda: "".join(part["text"] for part in whole["content"]),
        "function_call": lambda: whole["arguments"],
        "custom_tool_call": lambda: whole["input"],
        "tool_search_call": lambda: "",
    }[whole["type"]]()
    assert not item["done"] or item["text"] == text
    if item["summary"]:
        assert whole["summary"] == [{"type": "summary_text", "text": item["summary"]}]
    return whole
