"""What tests ask Anthropic's Messages API, and how its clients fold streams."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic_core import from_json

from serve_kit import Served

SAID: Final = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINK: Final = {"type": "adaptive"}


def post(server: Served, path: str = "/v1/messages?beta=true", **body: Any) -> Any:
    """Return the response to a request of the least that the API requires."""
    return server.post(path, **{"model": "scripted", "max_tokens": 600, "messages": SAID, **body})


def ask(server: Served, **body: Any) -> Any:
    """Return the message, which must be one."""
    response = post(server, **body)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(server: Served) -> str:
    """Return the text of the last prompt that the engine got."""
    tokenizer = server.service.model().client.tokenizer
    assert tokenizer is not None
    return tokenizer.decode(server.requests[-1].prompt, skip_special_tokens=False)


def events_in(text: str) -> list[Any]:
    """Return the events of a stream after checking their names; pings are left out."""
    found = []
    assert text.endswith("\n\n")
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        if value["type"] != "ping":
            found.append(value)
    return found


def events_of(server: Served, **body: Any) -> list[Any]:
    """Return the events of a streamed message."""
    response = post(server, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_in(response.text)


def folded(events: list[Any]) -> Any:
    """Fold events as Anthropic's SDKs do. Return the message; its events must be in order and end once."""
    first, *rest = events
    assert first["type"] == "message_start"
    message, opened, texts, ended = first["message"], False, "", False
    for event in rest:
        kind = event["type"]
        if kind == "content_block_start":
            assert not opened and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            opened, texts = True, ""
        elif kind == "content_block_delta":
            assert opened and event["index"] == len(message["content"]) - 1
            texts = _add(message["content"][-1], event["delta"], texts)
        elif kind == "content_block_stop":
            assert opened
            opened = False
        elif kind == "message_delta":
            assert not opened and message["stop_reason"] is None
            message |= event["delta"]
            message["usage"] |= event["usage"]
        else:
            assert kind == "message_stop" and message["stop_reason"] and not ended
            ended = True
    assert ended and events[-1]["type"] == "message_stop"
    return message


def _add(block: Any, delta: Any, texts: str) -> str:
    if delta["type"] == "input_json_delta":
        texts += delta["partial_json"]
        block["input"] = from_json(texts, allow_partial=True)
    else:
        name = delta["type"].removesuffix("_delta")
        block[name] += delta[name]
    return texts


def error_in(response: Any, status: int) -> dict[str, Any]:
    """Return the error of a reply after checking its form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(body["error"]) - {"details"} == {"type", "message"} and "Traceback" not in response.text
    return dict(body["error"])
