"""The server over a real model: replies equal those of `LLM` in every bit."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

import text_samples
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.llm import LLM
from ferrum.core.params import SamplingParams
from ferrum.server.openai.reply_tokens import text_offsets
from ferrum.sources.hub import BUILT_IN
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import load_tokenizer
from serve_kit import TEMPLATE, Served, error_of, events, serving

PROMPTS = ["def read(path):\n", "import os\n\nclass Café:\n", 'x = "日本語🦀"\n', "    return "]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(BUILT_IN, generation_config="none") as model:
        yield model


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    with serving(lambda: AsyncEngine(BUILT_IN, generation_config="none")) as served:
        yield served


def post(server: Served, **body: Any) -> Any:
    response = server.post("/v1/completions", **{"model": BUILT_IN, "max_tokens": 12, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response


def scores_over_http(server: Served, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Return a continuation's log-likelihood and whether it is greedy, as evaluation harnesses do."""
    tokens = [*context, *continuation]
    [choice] = post(server, prompt=[tokens], max_tokens=1, logprobs=1, echo=True, seed=1).json()["choices"]
    logprobs = choice["logprobs"]
    scored = range(len(context), len(tokens))
    total = sum(logprobs["token_logprobs"][at] for at in scored)
    greedy = all(
        max(logprobs["top_logprobs"][at].items(), key=lambda item: item[1])[0] == logprobs["tokens"][at]
        for at in scored
    )
    return total, greedy


def test_scores_over_http_equal_those_of_llm(real: Served, llm: LLM) -> None:
    tokenizer = llm.client.tokenizer
    assert tokenizer is not None
    for prompt in PROMPTS:
        ids = list(tokenizer.encode(prompt + "value = self.path\n"))
        cut = len(ids) // 2
        total, _ = scores_over_http(real, ids[:cut], ids[cut:])
        [scores] = llm.score([ids], use_tqdm=False)
        assert total == pytest.approx(sum(each.logprob for each in scores[cut:] if each), abs=1e-6)
        [output] = llm.generate(
            [ids[:cut]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False
        )
        assert scores_over_http(real, ids[:cut], output.outputs[0].token_ids)[1]


def test_texts_and_log_probabilities_equal_those_of_llm(real: Served, llm: LLM) -> None:
    params = {"temperature": 0.9, "seed": 5, "max_tokens": 24, "logprobs": 2, "top_p": 0.9, "frequency_penalty": 0.5}
    outputs = llm.generate(PROMPTS, SamplingParams(**params), use_tqdm=False)
    reply = post(real, prompt=PROMPTS, **params).json()
    Completion.model_validate(reply)
    for choice, output in zip(reply["choices"], outputs, strict=True):
        [expected] = output.outputs
        assert choice["text"] == expected.text and choice["finish_reason"] == expected.finish_reason
        assert expected.logprobs is not None
        assert choice["logprobs"]["token_logprobs"] == [
            position[token].logprob for token, position in zip(expected.token_ids, expected.logprobs, strict=True)
        ]
    assert reply["system_fingerprint"] == llm.info.numerics_id


def test_text_offsets_point_at_their_tokens(real: Served) -> None:
    prompts = [*PROMPTS, "<|endoftext|>def f(x):", "a = 'é' <|endoftext|> # b"]
    for choice in post(real, prompt=prompts, echo=True, logprobs=0, temperature=1, seed=3).json()["choices"]:
        logprobs, text = choice["logprobs"], choice["text"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if not token.startswith("bytes:"):
                assert text[offset : offset + len(token)] == token


def test_partial_characters_are_named_by_their_bytes(real: Served) -> None:
    """With one name for all, harnesses could not tell the likeliest token."""
    scored = {"max_tokens": 0, "echo": True, "logprobs": 5, "prompt_logprobs": 5}
    [choice] = post(real, prompt="naïve 日本語🦀", **scored).json()["choices"]
    logprobs = choice["logprobs"]
    first, *tops = logprobs["top_logprobs"]
    assert first is None
    for name, own, top, told in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], tops, choice["prompt_logprobs"][1:], strict=True
    ):
        assert top[name] == own
        assert sorted(top.values()) == sorted(each["logprob"] for each in told.values())
    spelled = [
        name.removeprefix("bytes:").encode("latin-1").decode("unicode_escape").encode("latin-1")
        if name.startswith("bytes:")
        else name.encode()
        for name in logprobs["tokens"]
    ]
    assert b"".join(spelled).decode() == "naïve 日本語🦀"
    assert "bytes:\\xe6" in logprobs["tokens"]


@pytest.mark.parametrize("layout", text_samples.LAYOUTS)
def test_text_offsets_fit_for_every_tokenizer_layout(layout: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(DirectoryFiles(text_samples.write(tmp_path, text_samples.LAYOUTS[layout]())))
    assert tokenizer is not None
    for text in ("The quick dog", "</s>The é dog", "日本 the 🦀 dog"):
        ids = tokenizer.encode(text)
        for echoed in (text, tokenizer.decode(ids)):
            offsets = text_offsets(tokenizer, echoed, ids)
            for token, offset, end in zip(ids, offsets, [*offsets[1:], len(echoed)], strict=True):
                name = tokenizer.token_text(token)
                assert "\ufffd" in name or echoed[offset:end] in (name, name.lstrip()) or tokenizer.is_special(token)


def test_begin_token_stands_before_one_that_the_text_spells_out(tmp_path: Path) -> None:
    directory = text_samples.write(tmp_path, text_samples.LAYOUTS["byte_fallback"]())
    tokenizer = load_tokenizer(DirectoryFiles(directory))
    assert tokenizer is not None
    for text, offsets in (("<s>dog", [0, 0, 3]), ("<s><s>dog", [0, 0, 3, 6]), ("</s><s>", [0, 0, 4]), ("dog", [0, 0])):
        ids = tokenizer.encode(text)
        assert text_offsets(tokenizer, text, ids)[: len(offsets)] == offsets
        spelled = tokenizer.decode(ids, skip_special_tokens=False)
        assert text_offsets(tokenizer, spelled, ids)[:2] == [0, 3]


def test_streams_equal_whole_replies(real: Served) -> None:
    check_streams(real, 12)


@pytest.mark.soak
def test_five_hundred_streams_equal_whole_replies(real: Served) -> None:
    check_streams(real, 500)


def check_streams(server: Served, count: int) -> None:
    """Compare streamed and whole replies of random requests with stop strings from their text."""
    random.seed(count)
    for number in range(count):
        body: dict[str, Any] = {
            "prompt": random.choice(PROMPTS),
            "temperature": random.choice([0, 1, 1.8]),
            "seed": number,
            "max_tokens": random.randint(1, 30),
            "n": random.choice([1, 2]),
            "logprobs": random.choice([None, 1]),
        }
        text = post(server, **body).json()["choices"][0]["text"]
        if text:
            start = random.randrange(len(text))
            body["stop"] = [text[start : start + random.randint(1, 4)], "never there"]
        whole = post(server, **body).json()
        *chunks, done = events(post(server, **body, stream=True))
        assert done is None
        for choice in whole["choices"]:
            mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
            assert "".join(part["text"] for part in mine) == choice["text"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            if choice["logprobs"] is not None:
                streamed = [lp for part in mine if part["logprobs"] for lp in part["logprobs"]["token_logprobs"]]
                assert streamed == choice["logprobs"]["token_logprobs"]


def test_penalties_count_generated_tokens_only(real: Served) -> None:
    """The first token is not penalised for the prompt; later ones are, for generated tokens."""
    client = real.openai()
    plain, penalised = (
        client.completions.create(
            model=BUILT_IN, prompt="self self self self ", max_tokens=24, temperature=0, logprobs=3, **penalties
        )
        for penalties in ({}, {"presence_penalty": 2.0, "frequency_penalty": 2.0})
    )
    tokens = [choice.logprobs.tokens or [] for choice in (plain.choices[0], penalised.choices[0]) if choice.logprobs]
    assert tokens[0][0] == tokens[1][0] and tokens[0] != tokens[1]


def test_chat_with_a_template_in_the_request(real: Served) -> None:
    body = {"model": BUILT_IN, "messages": [{"role": "user", "content": "def f"}], "chat_template": TEMPLATE}
    reply = real.post("/v1/chat/completions", **body, max_tokens=8, logprobs=True, top_logprobs=5).json()
    parsed = ChatCompletion.model_validate(reply)
    logprobs = parsed.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    for position in logprobs.content:
        best = [each.logprob for each in position.top_logprobs]
        assert best == sorted(best, reverse=True) and len(best) == 5
        assert position.logprob <= best[0]


def test_tokenize_and_detokenize_are_inverse(real: Served, llm: LLM) -> None:
    tokenizer = llm.client.tokenizer
    assert tokenizer is not None and tokenizer.piece(tokenizer.encode(" x")[0]) == "\u0120x", "as the vocabulary has it"
    for prompt in PROMPTS:
        made = real.post("/tokenize", prompt=prompt, add_special_tokens=False, return_token_strs=True).json()
        assert made["count"] == len(made["tokens"])
        assert made["token_strs"] == [tokenizer.piece(token) for token in made["tokens"]]
        assert real.post("/detokenize", tokens=made["tokens"]).json() == {"prompt": prompt, "content": prompt}
        llama = real.post("/tokenize", content=prompt, with_pieces=True).json()["tokens"]
        assert [each["id"] for each in llama] == made["tokens"]
        pieces = b"".join(p.encode() if isinstance(p := each["piece"], str) else bytes(p) for each in llama)
        assert pieces.decode() == prompt


@pytest.mark.parametrize(
    "rules",
    [
        {"allowed_token_ids": [0], "min_tokens": 2},
        {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 2},
        {"allowed_token_ids": [5, 0], "bad_words": ["%"], "min_tokens": 1},
    ],
)
@pytest.mark.parametrize("choosing", [{"temperature": 0}, {"temperature": 1, "seed": 1}])
def test_request_that_forbids_every_token_is_a_400(
    real: Served, caplog: pytest.LogCaptureFixture, rules: dict[str, Any], choosing: dict[str, Any]
) -> None:
    body = {"model": BUILT_IN, "prompt": "def f", "max_tokens": 4, **rules, **choosing}
    for stream in (False, True):
        error = error_of(real.post("/v1/completions", **body, stream=stream), 400)
        assert error["code"] == "no_token_allowed" and "no token is allowed" in error["message"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_stream_reports_when_every_token_becomes_forbidden(real: Served) -> None:
    word = "q" * 40
    ids = real.post("/tokenize", prompt=word, add_special_tokens=False).json()["tokens"]
    assert len(set(ids)) == 1
    response = post(real, prompt="def f", stream=True, max_tokens=60, allowed_token_ids=ids[:1], bad_words=[word])
    *chunks, last = events(response)
    said = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert said and word[1:].startswith(said)
    assert (last["error"]["type"], last["error"]["code"]) == ("invalid_request_error", "no_token_allowed")
