"""Chat completions: the shapes that clients rely on, streamed and whole."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from engine_fakes import POISON, LetterTokenizer, expected
from ferrum.client import request_output
from ferrum.client.request_output import Delta, join, join_all
from serve_kit import USER, Served, chat_parts, error_of, events, serving


def letters(tokens: tuple[int, ...]) -> str:
    return LetterTokenizer().decode(tokens)


def test_reply_continues_the_rendered_conversation(server: Served) -> None:
    reply = server.chat(temperature=0).json()
    [request] = server.requests
    assert LetterTokenizer().decode(request.prompt) == "[user]hi[bot]"
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": letters(expected(request)), "refusal": None}
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    assert reply["system_fingerprint"] == "fake-1" and choice["finish_reason"] == "length"
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (13, 8, 21)


def test_stream_sends_role_text_finish_and_usage_in_order(server: Served) -> None:
    *chunks, done = events(server.chat(temperature=0, stream=True, n=2, stream_options={"include_usage": True}))
    assert done is None
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    *news, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 16
    assert all(chunk["usage"] is None for chunk in news)
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in news if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert mine[-1]["delta"] == {} and mine[-1]["finish_reason"] == "length"
        assert all(set(each["delta"]) == {"content"} and each["finish_reason"] is None for each in mine[1:-1])


def test_chunks_have_no_usage_by_default(server: Served) -> None:
    assert all("usage" not in chunk for chunk in events(server.chat(stream=True))[:-1])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", [{"include_usage": True}, {}])
def test_continuous_usage_counts_the_sent_tokens_up_to_the_total(server: Served, options: Any, n: int) -> None:
    options = {**options, "continuous_usage_stats": True}
    *chunks, last = events(server.chat(temperature=0, stream=True, n=n, stream_options=options))[:-1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 8 * n
    for chunk in chunks:
        usage = chunk["usage"]  # cached tokens are known at the end only
        assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens"} and usage["prompt_tokens"] == 13
    assert last["choices"] == [] and last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_continuous_usage_is_not_sent_without_usage(server: Served) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    for ask in (server.chat, server.complete):
        chunks = events(ask(stream=True, stream_options=options))[:-1]
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0, "logprobs": True, "top_logprobs": 3},
        {"seed": 7, "n": 3, "return_token_ids": True},
        {"seed": 7, "stop": ["e", "A", "}"], "max_tokens": 60, "ignore_eos": True},
        {"seed": 1, "echo": True, "messages": [*USER, {"role": "assistant", "content": "so"}]},
        {"seed": 2, "stop": "t", "include_stop_str_in_output": True, "max_tokens": 60},
    ],
)
def test_joined_stream_equals_the_whole_reply(server: Served, body: dict[str, Any]) -> None:
    whole = server.chat(**body).json()
    chunks = [chunk for chunk in events(server.chat(stream=True, **body)) if chunk is not None]
    for choice in whole["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["delta"].get("content") or "" for part in mine) == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]
        logprobs = [entry for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert logprobs == (choice["logprobs"]["content"] if choice["logprobs"] else [])
        assert [i for part in mine for i in part.get("token_ids") or ()] == choice.get("token_ids", [])


def test_logprobs_contain_tokens_and_bytes(server: Served) -> None:
    [choice] = server.chat(temperature=0, logprobs=True).json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == choice["message"]["content"]
    assert bytes(b for each in content for b in each["bytes"]).decode() == choice["message"]["content"]
    assert choice["logprobs"]["refusal"] is None
    ids = server.chat(temperature=0, logprobs=True, return_tokens_as_token_ids=True).json()["choices"][0]
    assert [each["token"] for each in ids["logprobs"]["content"]] == [
        f"token_id:{LetterTokenizer().encode(each['token'])[0]}" for each in content
    ]


def test_too_many_logprobs_for_one_reply_are_refused_up_front(server: Served) -> None:
    """Streams hold only unread deltas, and one choice may always fill the context."""
    every = {"logprobs": True, "top_logprobs": 20}
    for limit in ("max_tokens", "max_completion_tokens"):
        error = error_of(server.chat(**every, n=128, **{"max_tokens": None, limit: 1000}), 400)
        assert error["param"] == limit and "log-probabilities" in error["message"]
    assert error_of(server.chat(**every, n=128, max_tokens=None), 400)["param"] == "max_tokens"
    assert error_of(server.complete(prompt=["a"] * 64, n=10, max_tokens=1000, logprobs=5), 400)["param"] == "max_tokens"
    assert not server.requests
    for body in ({"n": 1}, {"n": 128, "max_tokens": 2}, {"n": 128, "stream": True}, {"n": 2, "top_logprobs": 0}):
        assert server.chat(**{**every, "max_tokens": None, **body}).status_code == 200


def test_joining_deltas_copies_each_token_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joining each delta to all before it would take quadratic time."""
    copied = 0

    def counted(first: Delta, second: Delta) -> Delta:
        nonlocal copied
        joined = join(first, second)
        copied += len(joined.token_ids)
        return joined

    monkeypatch.setattr(request_output, "join", counted)
    deltas = [Delta("r", 0, (number,), str(number % 10)) for number in range(1000)]
    whole = join_all(deltas)
    assert whole.token_ids == tuple(range(1000)) and whole.text == "".join(str(n % 10) for n in range(1000))
    assert copied < 1000 * 11


def test_prompt_logprobs_match_the_prompt_tokens(server: Served) -> None:
    reply = server.chat(temperature=0, prompt_logprobs=0).json()
    positions = reply["prompt_logprobs"]
    assert positions[0] is None and len(positions) == reply["usage"]["prompt_tokens"]
    for token, position in zip(server.requests[0].prompt[1:], positions[1:], strict=True):
        assert set(position) == {str(token)}


def test_content_parts_are_joined_and_developer_becomes_system(server: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "D"}, {"role": "user", "content": parts}]
    rendered = server.post("/v1/chat/completions/render", messages=messages).json()
    assert rendered["prompt"] == "[system]D[user]a\nb[bot]" and rendered["count"] == len(rendered["token_ids"])


def test_template_that_reads_parts_gets_parts(server: Served) -> None:
    guard = "{% for part in messages[0].content %}{{ part.text }};{% endfor %}"
    for content in ("a", [{"type": "text", "text": "a"}]):
        body = {"messages": [{"role": "user", "content": content}], "chat_template": guard}
        assert server.post("/v1/chat/completions/render", **body).json()["prompt"] == "a;"


def test_tool_messages_are_rendered_and_checked(server: Served) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "c", "content": "1"}
    assert server.chat(messages=[*USER, asked, answer]).status_code == 200
    older = {"role": "assistant", "content": None, "function_call": call["function"]}
    assert server.chat(messages=[*USER, older, {"role": "function", "name": "f", "content": "1"}]).status_code == 200
    bad = {"role": "tool", "content": "1"}
    assert error_of(server.chat(messages=[*USER, bad]), 400)["param"] == "messages[1].tool_call_id"
    broken = {**asked, "tool_calls": [{**call, "function": {"name": "f", "arguments": [1]}}]}
    error = error_of(server.chat(messages=[*USER, broken]), 400)
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_only_an_assistant_message_may_lack_a_content(server: Served, role: str) -> None:
    template = "{% for m in messages %}[{{ m.role + m['content'] }}]{% endfor %}"
    for message in ({"role": role}, {"role": role, "content": None}):
        body = {"messages": [*USER, message, *USER], "chat_template": template}
        reply = server.post("/v1/chat/completions/render", **body)
        if role == "assistant":
            assert "[assistant]" in reply.json()["prompt"]
        else:
            assert error_of(reply, 400)["param"] == "messages[1].content"


def test_failure_in_a_stream_is_an_error_event_without_done(server: Served) -> None:
    body = {"model": "fake", "prompt": [[1], [POISON]], "stream": True, "max_tokens": 2000, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        response.read()
    if response.status_code == 200:  # the good prompt may have begun before the bad one failed
        *_, last = events(response)
        assert last["error"]["type"] == "internal_error"
    else:
        assert error_of(response, 500)["code"] == "internal_error"


def test_failure_before_the_first_event_sets_the_status(server: Served) -> None:
    error = error_of(server.complete(prompt=[POISON], stream=True), 500)
    assert "poisoned" not in error["message"]


def test_official_sdk_reads_replies_and_streams(server: Served) -> None:
    client = server.openai()
    whole = client.chat.completions.create(model="fake", messages=USER, max_tokens=8, temperature=0)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model="fake",
        messages=USER,  # type: ignore[arg-type]
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and chunks[-1].usage == whole.usage
    assert client.models.list().data[0].id == "fake" == client.models.retrieve("fake").id
    raw = client.chat.completions.with_raw_response.create(model="fake", messages=USER, max_tokens=1)  # type: ignore[arg-type]
    assert raw.headers["x-request-id"] == raw.request_id


def test_official_sdk_raises_typed_errors(server: Served) -> None:
    client = server.openai()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=USER)  # type: ignore[arg-type]
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="fake", messages=USER, temperature=3)  # type: ignore[arg-type]
    assert refused.value.param == "temperature"


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_thread_and_process_hosts_give_equal_replies(server: Served, process: bool) -> None:
    body = {"seed": 3, "n": 2, "logprobs": True, "prompt_logprobs": 1}
    with serving(chat_parts(process=process)) as other:
        assert other.chat(**body).json()["choices"] == server.chat(**body).json()["choices"]
        assert other.chat(**body).json()["prompt_logprobs"] == server.chat(**body).json()["prompt_logprobs"]


def test_concurrent_streams_equal_single_requests(server: Served) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="fake",
            messages=USER,  # type: ignore[arg-type]
            seed=seed,
            max_tokens=20,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed % 8) for seed in range(24)))

    texts = asyncio.run(all_of_them())
    alone = [server.chat(seed=seed, max_tokens=20).json()["choices"][0]["message"]["content"] for seed in range(8)]
    assert texts == alone * 3
