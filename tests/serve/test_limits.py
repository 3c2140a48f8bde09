"""Limits of API keys, and the replies when they are exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest

from engine_fakes import greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.request_output import Delta
from ferrum.core.errors import ConfigError
from ferrum.server.app import create_app
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.key_limits import KeyLimits, Limits, read_keys
from ferrum.server.server_config import ServerConfig
from serve_kit import ENDLESS_TOKENS, SLOW, USER, Served, chat_parts, error_of, serving, wait_for


class Clock:
    """A clock that tests advance."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def guarded(tmp_path: Path, lines: str, **config: int) -> Iterator[Served]:
    path = tmp_path / "keys"
    path.write_text(lines)
    with serving(chat_parts(SLOW), api_key_file=str(path), **config) as server:
        yield server


def chat(server: Served, key: str, **body: object) -> httpx.Response:
    body = {"model": "fake", "messages": USER, "max_tokens": 4, "ignore_eos": True, **body}
    return server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})


@contextmanager
def endless(server: Served, keys: list[str]) -> Iterator[None]:
    """Keep one long request per key running within the block."""
    with ThreadPoolExecutor(len(keys)) as pool:
        names = [f"endless-{number}" for number in range(len(keys))]
        running = [
            pool.submit(chat, server, key, max_tokens=ENDLESS_TOKENS, request_id=name)
            for key, name in zip(keys, names, strict=True)
        ]
        wait_for(lambda: server.service.num_live == len(keys))
        yield
        assert not any(each.done() for each in running)
        for key, name in zip(keys, names, strict=True):
            assert server.http.delete(f"/v1/requests/{name}", headers={"x-api-key": key}).status_code == 200


def test_keys_have_separate_request_ids(tmp_path: Path) -> None:
    with guarded(tmp_path, "ann:one\nbob:two\n") as server, ThreadPoolExecutor() as pool:
        keys = ("one", "two")
        running = [pool.submit(chat, server, key, max_tokens=ENDLESS_TOKENS, request_id="mine") for key in keys]
        wait_for(lambda: server.service.num_live == 2)
        for left, key, its in zip((1, 0), keys, running, strict=True):
            assert chat(server, key, request_id="mine").json()["error"]["param"] == "request_id"
            deleted = server.http.delete("/v1/requests/mine", headers={"x-api-key": key})
            assert deleted.json()["id"] == "chatcmpl-mine" and its.result().status_code == 499
            wait_for(lambda left=left: server.service.num_live == left)
            assert sum(not each.done() for each in running) == left


def refused(limits: Limits) -> int:
    """Return the `retry-after` of a key that exceeds its rates."""
    with pytest.raises(ApiError) as caught:
        limits.begin("a")
    assert (caught.value.status_code, caught.value.code) == (429, "rate_limit_exceeded")
    return int((caught.value.headers or {})["retry-after"])


def test_requests_refill_evenly() -> None:
    clock = Clock()
    limits = Limits({"a": KeyLimits(requests_per_minute=6)}, lambda: 1, clock)
    for _ in range(6):
        limits.begin("a")
    assert refused(limits) == 10
    clock.now += 9.5
    assert refused(limits) == 1
    clock.now += 0.5
    limits.begin("a")
    assert refused(limits) == 10
    clock.now += 1e6
    for _ in range(6):
        limits.begin("a")
    assert refused(limits) == 10, "more than a minute's worth is never saved"


def test_retry_after_covers_all_rates() -> None:
    clock = Clock()
    limits = Limits({"a": KeyLimits(requests_per_minute=60, tokens_per_minute=60)}, lambda: 1, clock)
    for _ in range(60):
        limits.begin("a")
    limits.queue("a", [input_processor().process([1] * 100, greedy(), RequestOptions(tenant="a"))])
    clock.now += refused(limits)
    limits.begin("a")


def test_keys_have_separate_rates() -> None:
    limits = Limits({"a": KeyLimits(requests_per_minute=1), "b": KeyLimits(requests_per_minute=1)}, lambda: 1, Clock())
    limits.begin("a")
    limits.begin("b")
    refused(limits)
    for _ in range(100):
        limits.begin("without limits")


def test_debt_is_repaid_at_the_keys_rate() -> None:
    """Of 150 tokens, 60 are available and 90 are debt; one more must be available again."""
    clock = Clock()
    limits = Limits({"a": KeyLimits(tokens_per_minute=60), "b": KeyLimits(tokens_per_minute=60)}, lambda: 1, clock)
    request = input_processor().process([1] * 100, greedy(50), RequestOptions(tenant="a"))
    limits.begin("a")
    limits.queue("a", [request])
    limits.delta(request, Delta("r", token_ids=(1,) * 50))
    assert refused(limits) == 91
    limits.begin("b")
    clock.now += 90.5
    assert refused(limits) == 1, "asking meanwhile makes it no longer"
    clock.now += 0.5
    limits.begin("a")
    limits.queue("a", [request])
    assert refused(limits) == 100, "what was saved up before the debt is gone"


def test_key_may_go_into_debt_and_then_waits(tmp_path: Path) -> None:
    """The cost of a request is known at its end: here over 150 tokens, with 60 available."""
    with guarded(tmp_path, "ada:one tokens_per_minute=60\neve:two") as server:
        first = chat(server, "one", max_tokens=150)
        assert first.status_code == 200 and first.headers["x-ratelimit-limit-tokens"] == "60"
        server.wait_idle()
        again = chat(server, "one")
        assert error_of(again, 429)["code"] == "rate_limit_exceeded"
        used = first.json()["usage"]["total_tokens"]
        assert 1 <= int(again.headers["retry-after"]) <= used - 60 + 1  # one token per second
        assert again.headers["x-ratelimit-remaining-tokens"] == "0"
        assert float(again.headers["x-ratelimit-reset-tokens"].removesuffix("s")) > 60
        assert chat(server, "two").status_code == 200
        assert "x-ratelimit-limit-tokens" not in chat(server, "two").headers
        with pytest.raises(openai.RateLimitError):
            server.openai(api_key="one").chat.completions.create(model="fake", messages=USER)  # type: ignore[arg-type]


def test_key_has_a_limit_of_concurrent_requests(tmp_path: Path) -> None:
    with guarded(tmp_path, "ada:one\nada:three\neve:two max_live=3", key_max_live=2) as server:
        with endless(server, ["one", "three"]):
            response = chat(server, "one")
            assert error_of(response, 429)["code"] == "rate_limit_exceeded" and "retry-after" in response.headers
            assert chat(server, "two").status_code == 200
        server.wait_idle()
        assert chat(server, "one").status_code == 200
        batch = {"model": "fake", "prompt": ["a", "b", "c"], "max_tokens": 1}
        refused = server.http.post("/v1/completions", json=batch, headers={"x-api-key": "one"})
        assert error_of(refused, 400)["param"] == "prompt", "waiting would not help"
        assert server.http.post("/v1/completions", json=batch, headers={"x-api-key": "two"}).status_code == 200
        many = {"model": "fake", "input": ["a"] * 5}
        assert server.http.post("/v1/embeddings", json=many, headers={"x-api-key": "one"}).status_code == 200


def test_every_request_counts_except_rejected_ones(tmp_path: Path) -> None:
    with guarded(tmp_path, "ada:one max_live=1 requests_per_minute=3") as server:
        assert chat(server, "one", temperature=9).status_code == 400
        assert [chat(server, "one").status_code for _ in range(4)] == [200, 200, 429, 429]


def test_limits_in_the_file_override_options(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("ada:one max_live=9\neve:two\n")
    keys = read_keys(str(path), KeyLimits(max_live=4, tokens_per_minute=50))
    assert keys.limits == {"ada": KeyLimits(9, None, 50), "eve": KeyLimits(4, None, 50)}


def test_keys_without_names_are_separate_tenants(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeffone\ntwo\nkey-2:three\nkey:2:four\n", encoding="utf-8")
    keys = read_keys(str(path), KeyLimits())
    names = {keys.tenant(key) for key in ("one", "two", "three", "four")}
    assert len(names) == 4 and None not in names


def test_key_limits_require_a_key_file() -> None:
    with pytest.raises(ConfigError) as caught:
        create_app(lambda: pytest.fail("it was built"), ServerConfig(key_max_live=3))
    assert caught.value.param == "api_key_file"


def test_fair_policy_serves_a_key_before_anothers_queue(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("greedy:one\npolite:two\n")
    recipe = replace(SLOW, policy="fair", max_sequences=2)
    with serving(chat_parts(recipe), api_key_file=str(path)) as server, endless(server, ["one"] * 12):
        assert [chat(server, "two").status_code for _ in range(3)] == [200] * 3
