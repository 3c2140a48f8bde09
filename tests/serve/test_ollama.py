"""Ollama's API on the wire, as docs/api.md of Ollama describes it: streams, tools, thinking, formats and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from agent_kit import CITY, QUESTION, WEATHER, agent
from agent_script import ANSWER, MARKERS, THOUGHT
from serve_kit import Served, serving

DURATIONS = ("total_duration", "prompt_eval_duration", "eval_duration")


def ask(server: Served, path: str = "/api/chat", **body: Any) -> Any:
    """Return a whole reply."""
    messages = {"messages": QUESTION} if path == "/api/chat" else {}
    response = server.post(path, **{"stream": False, **messages, **body})
    assert response.status_code == 200, response.text
    return response.json()


def lines_of(response: httpx.Response) -> list[Any]:
    """Return the lines of a stream: exactly the last one is done."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson" and response.text.endswith("\n")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


def folded(lines: Sequence[Any]) -> dict[str, Any]:
    """Join the lines of a stream as Ollama's clients do."""
    whole: dict[str, Any] = {}
    for line in lines:
        _join(whole, line)
    return whole


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif name in ("content", "thinking", "response", "tool_calls") and name in whole:
            whole[name] += value
        else:
            whole[name] = value


def without_times(reply: dict[str, Any]) -> dict[str, Any]:
    assert all(isinstance(reply[name], int) and reply[name] > 0 for name in DURATIONS)
    return {name: value for name, value in reply.items() if name not in (*DURATIONS, "created_at")}


def error_of(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"] and isinstance(body["error"], str)
    return str(body["error"])


@pytest.mark.parametrize("said", ["What is the weather?", "the same twice", "no tool", "a city as JSON"])
@pytest.mark.parametrize("limit", [-1, 12, 70])
def test_a_stream_folds_into_the_reply(assistant: Served, said: str, limit: int) -> None:
    body = {
        "messages": [{"role": "user", "content": said}],
        "tools": [WEATHER],
        "options": {"num_predict": limit},
        "request_id": "same",
    }
    whole = ask(assistant, **body)
    streamed = folded(lines_of(assistant.post("/api/chat", **body)))
    assert without_times(streamed) == without_times(whole)
    assert whole["done_reason"] == ("length" if whole["eval_count"] == limit else "stop")
    assert limit == -1 or whole["eval_count"] <= limit


def test_a_call_has_an_object_and_its_result_is_read(assistant: Served) -> None:
    message = ask(assistant, tools=[WEATHER])["message"]
    [call] = message["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}
    assert (message["role"], message["content"], message["thinking"]) == ("assistant", "", THOUGHT)
    del call["id"]  # older servers and clients have none
    result = {"role": "tool", "tool_name": "get_weather", "content": "21 degrees"}
    reply = ask(assistant, tools=[WEATHER], messages=[*QUESTION, message, result])
    assert reply["message"]["content"] == ANSWER + "21 degrees" and "tool_calls" not in reply["message"]


@pytest.mark.parametrize(("think", "thought"), [(True, THOUGHT), ("low", THOUGHT), (None, THOUGHT), (False, None)])
def test_think_switches_the_reasoning(assistant: Served, think: Any, thought: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "no tool"}], "think": think}
    message = ask(assistant, **body)["message"]
    assert (message["content"], message.get("thinking")) == ("Hello.", thought)
    reply = ask(assistant, "/api/generate", prompt="no tool", think=think)
    assert (reply["response"], reply.get("thinking")) == ("Hello.", thought)


@pytest.mark.parametrize("form", ["json", CITY])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_format_holds_for_the_content(assistant: Served, form: Any, path: str) -> None:
    body: dict[str, Any] = {"format": form, "prompt": "no tool"}
    if path == "/api/chat":
        body = {"format": form, "messages": [{"role": "user", "content": "no tool"}]}
    reply = ask(assistant, path, **body, think=False, options={"num_predict": 300})
    text = reply.get("response") or reply["message"]["content"]
    if reply["done_reason"] == "stop":
        assert isinstance(json.loads(text), dict)
    assert text.lstrip().startswith("{")


def test_a_last_message_of_the_assistant_is_continued(assistant: Served) -> None:
    assistant.requests.clear()
    ask(assistant, messages=[*QUESTION, {"role": "assistant", "content": "It is"}], options={"num_predict": 1})
    tokenizer = assistant.service.model().client.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(assistant.requests[0].prompt, skip_special_tokens=False).endswith("It is")


def test_options_are_sampling_parameters(assistant: Served) -> None:
    assistant.requests.clear()
    options = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["x"], "num_predict": 2}
    penalties = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    ask(assistant, options={**options, **penalties, "num_ctx": 4096})
    params = assistant.requests[0].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.5, 3, 0.9, 0.1, 7)
    assert (params.stop, params.max_tokens, params.repetition_penalty) == (("x",), 2, 1.5)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    dry: dict[str, Any] = {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": 64}
    repeated = {**dry, "dry_sequence_breakers": ["x"], "no_repeat_ngram_size": 4}
    ask(assistant, options={**repeated, "num_predict": 1})
    params = assistant.requests.pop().params
    assert {name: getattr(params, name) for name in repeated} == {**repeated, "dry_sequence_breakers": ("x",)}
    params = assistant.requests[0].params
    ask(assistant, options={"seed": -1, "num_predict": 1})
    assert params.seed == 7 and assistant.requests[1].params.seed is None


def test_what_has_no_effect_is_named(assistant: Served) -> None:
    body = {"keep_alive": "5m", "options": {"num_gpu": 1, "num_predict": 1, "other": 2}, "color": "red"}
    response = assistant.post("/api/chat", messages=QUESTION, stream=False, **body)
    assert response.headers["x-ferrum-ignored"] == "color, keep_alive, options.num_gpu, options.other"


def test_a_plain_prompt_is_templated_unless_raw(assistant: Served) -> None:
    assistant.requests.clear()
    tokenizer = assistant.service.model().client.tokenizer
    assert tokenizer is not None
    for body in ({"prompt": "no tool", "system": "Be kind."}, {"prompt": "<|im_start|>user\nno tool", "raw": True}):
        ask(assistant, "/api/generate", **body, options={"num_predict": 3})
    texts = [tokenizer.decode(each.prompt, skip_special_tokens=False) for each in assistant.requests]
    assert texts[0].startswith("<|im_start|>system\nBe kind.") and texts[0].endswith("<|im_start|>assistant\n")
    assert texts[1] == "<|im_start|>user\nno tool"


def test_a_suffix_is_text_after_a_gap() -> None:
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    with agent(lambda prompt: prompt.replace("|", "!"), (*MARKERS, *marks)) as served:
        reply = ask(served, "/api/generate", prompt="a = ", suffix="\nb")
        assert reply["response"] == "<!fim_prefix!>a = <!fim_suffix!>\nb<!fim_middle!>"
        assert "insert" in served.post("/api/show").json()["capabilities"]


def test_a_body_without_a_prompt_looks_up_the_model(assistant: Served) -> None:
    for path, body in (("/api/chat", {"messages": []}), ("/api/generate", {"keep_alive": 0})):
        reply = assistant.post(path, **body).json()
        assert (reply["done"], reply["done_reason"], reply["model"]) == (True, "load", "scripted")


def test_models_have_tags_and_are_found_without(assistant: Served) -> None:
    [entry] = assistant.http.get("/api/tags").json()["models"]
    [loaded] = assistant.http.get("/api/ps").json()["models"]
    assert entry["name"] == entry["model"] == loaded["name"] == "scripted:latest" and len(entry["digest"]) == 64
    assert loaded["context_length"] == 65_536
    for name in ("scripted", "scripted:latest"):
        shown = assistant.post("/api/show", model=name).json()
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
        architecture = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{architecture}.context_length"] == 65_536
        assert ask(assistant, model=name, options={"num_predict": 1})["model"] == "scripted"
    version = assistant.http.get("/api/version").json()["version"]
    # Copilot Chat asks for 0.6.4, Codex for 0.13.4, the first one with the Responses API.
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)
    assert assistant.http.head("/").status_code == 200


def test_vectors_have_length_one(server: Served) -> None:
    reply = server.post("/api/embed", input=["ab", "b"], model="fake:latest").json()
    assert len(reply["embeddings"]) == 2 and reply["prompt_eval_count"] == len("abb")
    for vector in reply["embeddings"]:
        assert sum(each * each for each in vector) == pytest.approx(1)
    assert server.post("/api/embeddings", prompt="ab").json()["embedding"] == reply["embeddings"][0]
    openai = server.post("/v1/embeddings", input="ab").json()["data"][0]["embedding"]
    assert openai == reply["embeddings"][0]


def test_a_long_input_is_cut_or_refused(server: Served) -> None:
    long = "a" * (server.service.model().context + 1)
    assert server.post("/api/embed", input=long).status_code == 200
    assert error_of(server.post("/api/embed", input=long, truncate=False)).startswith("input: ")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/api/chat", {"options": {"num_ctx": 65_537}}, "options.num_ctx: 65537 is more than"),
        ("/api/generate", {"options": {"num_ctx": 65_537}}, "options.num_ctx: 65537 is more than"),
        ("/api/chat", {"options": {"num_predict": 65_536}}, "options.num_predict: "),
        ("/api/chat", {"options": {"repeat_penalty": 0}}, "options.repeat_penalty: "),
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature: "),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]},
            "messages[0].images[0] is not supported: the model",
        ),
        ("/api/chat", {"messages": [{"role": "user", "content": "a" * 70_000}]}, "messages: This model's maximum"),
        ("/api/chat", {"messages": [{"role": "robot"}]}, "messages[0].role: "),
        ("/api/chat", {"format": "xml"}, "format: must be 'json'"),
        ("/api/chat", {"format": {"type": "no such type"}}, "format: "),
        ("/api/chat", {"tools": [{"type": "retrieval"}]}, "tools[0].type: "),
        ("/api/chat", {"think": "deeply"}, "think: "),
        ("/api/chat", {"logprobs": True}, "logprobs: "),
        ("/api/generate", {"images": ["aGk="]}, "images[0] is not supported: the model"),
        ("/api/generate", {"context": [1]}, "context: "),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "template: "),
        ("/api/generate", {"raw": True, "system": "a"}, "system: cannot be combined with raw"),
        ("/api/generate", {"suffix": "a"}, "suffix: "),
        ("/api/embed", {"input": []}, "input: must have 1"),
        ("/api/embed", {"input": "a", "dimensions": 7}, "dimensions: "),
    ],
)
def test_what_cannot_be_served_is_named(assistant: Served, path: str, body: dict[str, Any], named: str) -> None:
    base: dict[str, Any] = {"/api/chat": {"messages": QUESTION}, "/api/generate": {"prompt": "a"}}.get(path, {})
    assert error_of(assistant.post(path, **{**base, **body})).startswith(named)


def test_other_errors_have_their_status(assistant: Served) -> None:
    for path in ("/api/chat", "/api/generate", "/api/show"):
        assert "'other' is not served" in error_of(assistant.post(path, model="other", prompt="a"), 404)
    for path in ("pull", "push", "create", "copy", "blobs/sha256:1"):
        assert "ferrum serve MODEL" in error_of(assistant.post(f"/api/{path}", model="a"))
    assert "ferrum serve MODEL" in error_of(assistant.http.request("DELETE", "/api/delete"))
    assert error_of(assistant.http.get("/api/chat"), 405)
    with serving(api_key="secret") as keyed:
        assert "API key" in error_of(keyed.http.get("/api/tags"), 401)


def test_an_error_ends_a_stream_as_a_line() -> None:
    body = {"messages": QUESTION, "request_id": "mine"}
    with agent(seconds_per_step=0.02) as slow, slow.http.stream("POST", "/api/chat", json=body) as response:
        lines = response.iter_lines()
        assert not json.loads(next(lines))["done"]
        assert slow.http.delete("/v1/requests/mine").status_code == 200
        assert "cancelled" in json.loads(list(lines)[-1])["error"]


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_bodies_are_json_whatever_their_content_type(assistant: Served, kind: str | None) -> None:
    """`curl -d` and LiteLLM send them so. Pages of other origins may not: browsers send such requests unasked."""
    body = json.dumps({"model": "scripted", "messages": QUESTION, "stream": False}).encode()
    headers = {} if kind is None else {"content-type": kind}
    assert assistant.http.post("/api/chat", content=body, headers=headers).json()["message"]["content"] == "Hello."
    page = {**headers, "origin": "http://elsewhere.example"}
    assert assistant.http.post("/api/chat", content=body, headers=page).status_code == 415


EMPTY: dict[str, dict[str, Any]] = {
    "/api/generate": {
        "context": [],
        "template": "",
        "suffix": "",
        "system": "",
        "images": [],
        "format": "",
        "raw": False,
    },
    "/api/chat": {"tools": [], "format": "", "logprobs": False, "top_logprobs": 0},
    "/api/embed": {"dimensions": 0},
    "/api/embeddings": {},
    "/api/show": {"system": "", "template": "", "verbose": False},
}
"""Fields that ask for nothing, as official clients, LiteLLM and programs in Go send them."""


@pytest.mark.parametrize("path", EMPTY)
@pytest.mark.parametrize("null", [False, True])
def test_fields_that_ask_for_nothing_change_nothing(server: Served, assistant: Served, path: str, null: bool) -> None:
    least: dict[str, Any] = {"/api/chat": {"messages": QUESTION}, "/api/embed": {"input": "a"}}.get(
        path, {"prompt": "a"}
    )
    empty = {**EMPTY[path], **({} if path == "/api/show" else {"options": {}, "keep_alive": "5m"})}
    served = server if "embed" in path else assistant
    bodies = [
        {**least, "stream": False},
        {**least, "stream": False, **(dict.fromkeys(empty) if null else empty)},
    ]
    plain, other = (served.post(path, **body) for body in bodies)
    assert (plain.status_code, other.status_code) == (200, 200), other.text
    kept = ("message", "response", "embeddings", "embedding", "template")
    assert {name: plain.json().get(name) for name in kept} == {name: other.json().get(name) for name in kept}


def test_a_message_may_have_empty_fields(assistant: Served) -> None:
    empty = {"images": [], "thinking": "", "tool_calls": [], "tool_name": "", "tool_call_id": ""}
    for fields in (empty, dict.fromkeys(empty)):
        assert ask(assistant, messages=[{**QUESTION[0], **fields}])["message"]["content"] == "Hello."
    refused = assistant.post("/api/chat", messages=[{**QUESTION[0], "images": ["aGk="]}])
    assert refused.status_code == 400 and "does not read images" in refused.json()["error"]


def test_a_stream_without_text_has_its_last_line() -> None:
    """The model ends at once, so that no line comes before the one with the counts."""
    with agent(lambda prompt: "", MARKERS) as silent:
        for path, body in (("/api/generate", {"prompt": "hi", "raw": True}), ("/api/chat", {"messages": QUESTION})):
            [line] = lines_of(silent.post(path, **body))
            assert line["done"] and line["eval_count"] == 1
