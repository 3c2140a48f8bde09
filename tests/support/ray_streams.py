"""Streams over all dialects, as official SDKs and other clients see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeAlias

import httpx
import openai

Stream: TypeAlias = Callable[[str], Any]
"""Sends a request to a server and returns all that its client sees but ids and times."""

SCHEMA = {"type": "array", "items": {"enum": [1, 23]}, "minItems": 4, "maxItems": 12}
TOOL = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
TIMEOUT = 600.0


def streams(count: int) -> list[Stream]:
    """Return streams whose kinds and parameters follow from their numbers."""
    return [_KINDS[number % len(_KINDS)](number) for number in range(count)]


def result_of(stream: Stream, url: str) -> Any:
    """Return what a client sees as JSON values."""
    return json.loads(json.dumps(stream(url), default=lambda each: each.model_dump()))


def _sampling(number: int) -> dict[str, Any]:
    pick = Random(number)
    return {
        "temperature": pick.choice((0.0, 0.9)),
        "seed": number,
        "presence_penalty": pick.choice((0.0, 0.7)),
        "frequency_penalty": pick.choice((0.0, 0.4)),
        "stop": pick.choice((None, ["th"], ["zq", "a b"])),
    }


def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=TIMEOUT)


def _folded(chunks: Iterable[Any]) -> list[Any]:
    """Return text, tokens and ends of each choice, and the usage: chunks may hold any number of tokens."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.usage.model_dump() if chunk.usage else usage
        for choice in chunk.choices:
            found = choices.setdefault(choice.index, {"text": "", "calls": "", "logprobs": [], "end": []})
            delta = getattr(choice, "delta", None)
            found["text"] += (choice.text if delta is None else delta.content) or ""
            for call in (getattr(delta, "tool_calls", None) or ()) if delta is not None else ():
                found["calls"] += (call.function.name or "") + (call.function.arguments or "")
            if choice.logprobs is not None:
                found["logprobs"] += _logprobs(choice.logprobs)
            if choice.finish_reason is not None:
                found["end"].append(choice.finish_reason)
    return [sorted(choices.items()), _counts(usage)]


def _logprobs(found: Any) -> list[Any]:
    if getattr(found, "content", None) is not None:
        return [each.model_dump() for each in found.content]
    return list(zip(found.tokens, found.token_logprobs, found.top_logprobs or (), strict=False))


def _counts(usage: dict[str, Any] | None) -> Any:
    """Return the usage without the tokens from the cache, which depend on the replica."""
    return None if usage is None else [usage[name] for name in sorted(usage) if isinstance(usage[name], int)]


def _completion(number: int) -> Stream:
    model = ("tiny", "adapted")[number // len(_KINDS) % 2]

    def send(url: str) -> Any:
        extra = {"ignore_eos": number % 3 == 0, "repetition_penalty": 1.1}
        with _client(url) as client:
            return _folded(
                client.completions.create(
                    model=model, prompt=f"prompt {number % 5}", max_tokens=400, n=1 + number % 2, logprobs=2,
                    stream=True, stream_options={"include_usage": True}, extra_body=extra, **_sampling(number),
                )
            )  # fmt: skip

    return send


def _chat(number: int) -> Stream:
    def send(url: str) -> Any:
        with _client(url) as client:
            return _folded(
                client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": f"question {number % 7}"}], max_tokens=120,
                    n=1 + number % 2, logprobs=True, top_logprobs=2, stream=True,
                    stream_options={"include_usage": True}, **_sampling(number),
                )
            )  # fmt: skip

    return send


def _schema(number: int) -> Stream:
    def send(url: str) -> Any:
        form: Any = {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA, "strict": True}}
        with _client(url) as client:
            return _folded(
                client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "a list"}], max_tokens=120, stream=True,
                    response_format=form, seed=number, temperature=0.9, stream_options={"include_usage": True},
                )
            )  # fmt: skip

    return send


def _tool(number: int) -> Stream:
    def send(url: str) -> Any:
        tool: Any = {"type": "function", "function": {"name": "weather", "parameters": TOOL}}
        with _client(url) as client:
            return _folded(
                client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "weather"}], max_tokens=120, stream=True,
                    tools=[tool], tool_choice="required", seed=number, temperature=0.9,
                )
            )  # fmt: skip

    return send


def _response(number: int) -> Stream:
    def send(url: str) -> Any:
        text, usage = "", None
        with _client(url) as client:
            options: Any = {"extra_body": {"seed": number}}
            for event in client.responses.create(
                model="tiny", input="a story", max_output_tokens=120, temperature=0.9, stream=True, **options
            ):
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    usage = event.response.usage
        assert usage is not None
        return [text, usage.input_tokens, usage.output_tokens]

    return send


def _lines(path: str, body: dict[str, Any], pieces: Callable[[dict[str, Any]], Any]) -> Stream:
    """Return a stream of JSON lines or events, whose pieces of text are joined and whose other parts are kept."""

    def send(url: str) -> Any:
        text, rest = "", []
        with httpx.stream("POST", f"{url}{path}", json=body, timeout=TIMEOUT) as reply:
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if data.startswith("{"):
                    found = pieces(json.loads(data))
                    text += found if isinstance(found, str) else ""
                    rest += [] if isinstance(found, str) or found is None else [found]
        return [text, rest]

    return send


def _message(number: int) -> Stream:
    def pieces(event: dict[str, Any]) -> Any:
        if event["type"] == "content_block_delta":
            return event["delta"].get("text", "")
        return [event["delta"], event["usage"]["output_tokens"]] if event["type"] == "message_delta" else None

    body = {"model": "tiny", "max_tokens": 120, "stream": True, "temperature": 0.9, "seed": number, "top_k": 20,
            "stop_sequences": ["zq"], "messages": [{"role": "user", "content": "hello"}]}  # fmt: skip
    return _lines("/v1/messages", body, pieces)


def _ollama(number: int) -> Stream:
    def pieces(event: dict[str, Any]) -> Any:
        counts = [event.get("done_reason"), event.get("prompt_eval_count"), event.get("eval_count")]
        return [event["message"]["content"], *counts] if event["done"] else event["message"]["content"]

    options = {"seed": number, "temperature": 0.9, "num_predict": 120, "repeat_penalty": 1.2}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "options": options}
    return _lines("/api/chat", body, pieces)


_KINDS = (_completion, _chat, _schema, _tool, _response, _message, _ollama)
