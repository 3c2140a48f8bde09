"""Completions: forms of prompts, echo, logprobs, best_of, truncation, and streams that equal whole replies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine_fakes import LetterTokenizer, expected, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.request_output import Delta, Logprob
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.openai.builders import CompletionReplyBuilder
from ferrum.server.openai.fields import CompletionRequest
from ferrum.server.openai.reply_tokens import text_offsets
from ferrum.text.tokenizer import FileTokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from serve_kit import Served, chat_parts, error_of, events, serving
from text_samples import BOS, PieceTokenizer, byte_fallback

HEADER = ReplyHeader("r", 1, "model", "n")


def test_choices_of_several_prompts_are_in_order(server: Served) -> None:
    reply = server.complete(prompt=["ab", "cd", "ef"], n=2, seed=3).json()
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    for choice in reply["choices"]:
        place, number = divmod(choice["index"], 2)
        assert choice["text"] == LetterTokenizer().decode(expected(server.requests[place], number))
    assert reply["usage"]["prompt_tokens"] == 6 and reply["object"] == "text_completion"


def test_text_and_token_ids_give_the_same_completion(server: Served) -> None:
    ids = LetterTokenizer().encode("ab")
    replies = [server.complete(prompt=prompt, seed=1, ignore_eos=True).json() for prompt in ("ab", ["ab"], ids, [ids])]
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    assert replies[0]["usage"]["completion_tokens"] == 16  # the default of max_tokens


@pytest.mark.parametrize("prompt", [[], [[]], "", [""], [1, "a"], [[1], "a"], {"a": 1}, 5, [500], [-1], [1.5], [True]])
def test_invalid_prompts_are_refused_by_name(server: Served, prompt: Any) -> None:
    assert error_of(server.complete(prompt=prompt), 400)["param"].startswith("prompt")


def test_error_names_the_index_of_the_bad_prompt(server: Served) -> None:
    assert error_of(server.complete(prompt=[[1], [500]]), 400)["param"] == "prompt[1]"


def test_echo_without_tokens_scores_the_prompt(server: Served) -> None:
    [choice] = server.complete(prompt="abcd", max_tokens=0, echo=True, logprobs=1).json()["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == "abcd" and scores["tokens"] == list("abcd") and scores["text_offset"] == [0, 1, 2, 3]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    told = server.complete(prompt="abcd", max_tokens=1, prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    for token, score, position in zip("bcd", scores["token_logprobs"][1:], told[1:], strict=True):
        assert score == position[str(LetterTokenizer().encode(token)[0])]["logprob"]


def test_echo_with_tokens_lists_both_and_offsets_point_into_the_text(server: Served) -> None:
    body = {"prompt": ["abc", "xy"], "echo": True, "logprobs": 2, "max_tokens": 6, "seed": 5, "ignore_eos": True}
    for prompt, choice in zip(body["prompt"], server.complete(**body).json()["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert choice["text"].startswith(prompt)
        assert len({len(logprobs[name]) for name in logprobs}) == 1
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert token.startswith("<") or choice["text"][offset : offset + len(token)] == token


class CoarseTokenizer(LetterTokenizer):
    """Maps all tokens to three texts."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"abc"[token_id % 3 :][:1]


def test_offsets_account_for_white_space_at_the_start_of_an_echoed_prompt() -> None:
    """SentencePiece puts a hidden space before a first word; here it is a separate token."""
    tokenizer = FileTokenizer(byte_fallback(), TokenizerConfig())
    prompt = "\ndef x"
    ids = tokenizer.encode(prompt)
    assert [tokenizer.token_text(each) for each in ids[:3]] == [BOS, " ", "\n"]
    assert text_offsets(tokenizer, prompt, ids)[:4] == [0, 0, 0, 1]


def test_offset_after_an_incomplete_character() -> None:
    pieces = [b"\xe6", b"\x97", b"x", b"\xe6", b"\x97\xa5y", b"z"]
    tokenizer = PieceTokenizer(pieces)
    text, offsets = "\ufffdx\u65e5yz", [0, 0, 1, 2, 2, 4]
    assert text_offsets(tokenizer, text, range(6)) == offsets
    body = CompletionRequest(model="model", prompt="p", logprobs=0)
    request = input_processor().process([1], greedy(), RequestOptions(request_id="r"))
    builder = CompletionReplyBuilder(HEADER, body, Asked((request,)), [""], tokenizer)
    scored = tuple({each: Logprob(-1.0, 1, "")} for each in range(6))
    (chunk,) = builder.chunks(0, Delta("r", 0, tuple(range(6)), text, logprobs=scored))
    logprobs = chunk.choices[0].logprobs
    assert logprobs is not None and logprobs.text_offset == offsets


def test_likelier_of_two_tokens_with_equal_text_is_reported() -> None:
    body = CompletionRequest(model="model", prompt="p", logprobs=3)
    request = input_processor().process([1], greedy(), RequestOptions(request_id="r"))
    builder = CompletionReplyBuilder(HEADER, body, Asked((request,)), [""], CoarseTokenizer())
    position = {6: Logprob(-4.0, 9, "a"), 3: Logprob(-0.5, 1, "a"), 4: Logprob(-1.0, 2, "b"), 7: Logprob(-2.0, 3, "b")}
    (chunk,) = builder.chunks(0, Delta("r", 0, (6,), "a", logprobs=(position,)))
    logprobs = chunk.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs == [-4.0]
    assert logprobs.tokens == ["a"] and logprobs.top_logprobs == [{"a": -0.5, "b": -1.0}]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["ab", "cd"], "n": 2, "seed": 4},
        {"prompt": "abc", "echo": True, "logprobs": 1, "seed": 4},
        {"prompt": "abc", "logprobs": 0, "seed": 9, "stop": ["}", "B"], "max_tokens": 80},
        {"prompt": [[5, 6], [7]], "echo": True, "return_token_ids": True, "temperature": 0},
        {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1},
    ],
)
def test_joined_stream_equals_the_whole_reply(server: Served, body: dict[str, Any]) -> None:
    whole = server.complete(**body).json()
    *chunks, done = events(server.complete(stream=True, **body))
    assert done is None and {chunk["object"] for chunk in chunks} == {"text_completion"}
    for choice in whole["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        for name in choice["logprobs"] or ():
            assert [entry for part in mine if part["logprobs"] for entry in part["logprobs"][name]] == (
                choice["logprobs"][name]
            )
        assert [i for part in mine for i in part.get("token_ids") or ()] == choice.get("token_ids", [])


def test_best_of_returns_the_likeliest_per_token(server: Served) -> None:
    every = server.complete(n=6, seed=8, logprobs=0).json()["choices"]
    best = server.complete(n=2, best_of=6, seed=8).json()
    means = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in every}
    assert [c["text"] for c in best["choices"]] == sorted(means, key=lambda text: -means[text])[:2]
    assert best["usage"]["completion_tokens"] == sum(len(c["logprobs"]["tokens"]) for c in every)
    assert [c["index"] for c in best["choices"]] == [0, 1] and best["choices"][0]["logprobs"] is None


def test_large_replies_are_built_off_the_event_loop(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing millions of numbers must not delay the streams of others."""
    where: dict[str, str] = {}

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            where[name] = threading.current_thread().name
            return work(*arguments)

        return run

    for name in ("whole", "chunks"):
        monkeypatch.setattr(CompletionReplyBuilder, name, noted(name, getattr(CompletionReplyBuilder, name)))
    large = {"prompt": [1] * 600, "max_tokens": 0, "echo": True, "logprobs": 5}
    assert server.complete().status_code == 200
    loop = where.pop("whole")
    assert server.complete(**large).status_code == 200 and where.pop("whole") != loop
    assert events(server.complete(stream=True))[-1] is None and where.pop("chunks") == loop
    assert events(server.complete(**large, stream=True))[-1] is None and where.pop("chunks") != loop


def test_truncation_keeps_the_end_of_the_prompt(server: Served) -> None:
    server.complete(prompt="abcdef", truncate_prompt_tokens=2)
    server.complete(prompt=[1] * 5000, truncate_prompt_tokens=-1, max_tokens=10)
    short, long = server.requests
    assert LetterTokenizer().decode(short.prompt) == "ef"
    assert len(long.prompt) == server.service.model().context - 10


def test_recommended_max_tokens_leaves_half_the_context_to_a_truncated_prompt() -> None:
    with serving(chat_parts(sampling={"max_tokens": 1_000_000})) as server:
        long = [{"role": "user", "content": "a" * 5000}]
        assert server.chat(messages=long, max_tokens=None, truncate_prompt_tokens=-1, stop=["a"]).status_code == 200
        assert error_of(server.chat(messages=long, max_tokens=1_000_000, truncate_prompt_tokens=-1), 400)
        [request] = server.requests
        assert len(request.prompt) == server.service.model().context - server.service.model().context // 2


def test_request_over_the_context_is_refused_up_front(server: Served) -> None:
    context = server.service.model().context
    error = error_of(server.complete(prompt=[1] * (context - 9), max_tokens=10, stream=True), 400)
    assert error["code"] == "context_length_exceeded" and error["param"] == "max_tokens" and not server.requests
    exact = server.complete(prompt=[1] * (context - 2), max_tokens=2, ignore_eos=True).json()
    assert exact["usage"]["total_tokens"] == context


def test_official_sdk_completes_token_ids_and_batches(server: Served) -> None:
    client = server.openai()
    reply = client.completions.create(model="fake", prompt=[[1, 2], [3]], max_tokens=0, echo=True, logprobs=1)
    assert [len(choice.logprobs.tokens) for choice in reply.choices if choice.logprobs] == [2, 1]
    stream = client.completions.create(model="fake", prompt="ab", temperature=0, stream=True)
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == client.completions.create(model="fake", prompt="ab", temperature=0).choices[0].text
