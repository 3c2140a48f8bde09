"""A server in operation: keys, queue, disconnects, timeouts, probes and logs."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest

from engine_fakes import CRASH, KILL, FakeRecipe, ServedFake
from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.engine.host import Built
from ferrum.server.common.http_guard import LOG
from ferrum.server.common.key_limits import DrainRate, KeyLimits, read_keys
from serve_kit import (
    ENDLESS_TOKENS,
    SLOW,
    USER,
    Served,
    chat_parts,
    error_of,
    events,
    post_bytes,
    serving,
    wait_for,
    wire,
)

ENDLESS = {"max_tokens": ENDLESS_TOKENS, "ignore_eos": True}
ODD = "...%2F?#\\ \n\0 é \N{GRINNING FACE}"
"""A valid id of characters with a meaning in paths."""


def spied(recipe: FakeRecipe, built: list[Built]) -> Any:
    """A recipe that stores what it built."""

    def build() -> Built:
        built.append(recipe())
        return built[0]

    return build


def pages_used(built: list[Built]) -> int:
    executor = built[0].executor
    assert isinstance(executor, ServedFake)
    return executor.pages.used


def leave(server: Served, live: int, **body: Any) -> None:
    """Send a chat request and disconnect when `live` requests are in progress."""
    payload = json.dumps({"model": "fake", "messages": USER, **ENDLESS, **body}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with wire(server) as leaving:
        leaving.sendall(head + b"content-length: %d\r\n\r\n" % len(payload) + payload)
        wait_for(lambda: server.service.num_live == live)


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_the_requests_pages(stream: bool) -> None:
    built: list[Built] = []
    with serving(chat_parts(spied(SLOW, built))) as server:
        leave(server, 1, stream=stream)
        server.wait_idle()
        wait_for(lambda: pages_used(built) == 0)
        alone = server.chat(seed=1).json()["choices"]
        assert alone == server.chat(seed=1).json()["choices"]


def test_disconnect_removes_a_queued_request() -> None:
    recipe = replace(SLOW, max_sequences=1)
    with serving(chat_parts(recipe)) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(server.chat, request_id="first", **ENDLESS)
        wait_for(lambda: server.service.num_live == 1)
        leave(server, 2)
        wait_for(lambda: server.service.num_live == 1)
        assert server.http.delete("/v1/requests/first").status_code == 200 and first.result().status_code == 499


def test_delete_cancels_a_request_by_either_id() -> None:
    with serving(chat_parts(SLOW)) as server, ThreadPoolExecutor() as pool:
        for id, name in (("mine", "mine"), ("mine", "chatcmpl-mine"), (ODD, ODD), ("é" * 512, "é" * 512)):
            running = pool.submit(server.chat, request_id=id, **ENDLESS)
            wait_for(lambda: server.service.num_live == 1)
            deleted = server.http.delete(f"/v1/requests/{quote(name, safe='')}")
            assert deleted.json() == {"id": f"chatcmpl-{id}", "object": "request", "cancelled": True}
            assert error_of(running.result(), 499)["code"] == "request_cancelled"
            server.wait_idle()
        assert error_of(server.http.delete("/v1/requests/mine"), 404)["code"] == "request_not_found"


def test_delete_ends_a_stream_with_an_error_and_no_done() -> None:
    with serving(chat_parts(SLOW)) as server:
        body = {"model": "fake", "messages": USER, "stream": True, **ENDLESS}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            server.http.delete(f"/v1/requests/{first['id']}")
            *_, last = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_cancelled"


def test_live_id_cannot_be_used_twice() -> None:
    with serving(chat_parts(SLOW)) as server, ThreadPoolExecutor() as pool:
        running = pool.submit(server.chat, request_id="mine", **ENDLESS)
        wait_for(lambda: server.service.num_live == 1)
        assert error_of(server.chat(request_id="mine"), 400)["param"] == "request_id"
        server.http.delete("/v1/requests/mine")
        running.result()
        server.wait_idle()
        assert server.chat(request_id="mine", max_tokens=1).status_code == 200


def test_full_queue_sends_retry_after_and_the_sdk_retries() -> None:
    with serving(chat_parts(SLOW, max_requests=2)) as server, ThreadPoolExecutor() as pool:
        names = ["one", "other"]
        running = [pool.submit(server.chat, request_id=name, **ENDLESS) for name in names]
        wait_for(lambda: server.service.num_live == 2)
        refused = server.chat(stream=True)
        error = error_of(refused, 429)
        assert (error["type"], error["code"]) == ("rate_limit_exceeded", "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert error_of(server.complete(prompt=["a", "b"]), 429)
        statuses: list[int] = []

        def make_room(response: httpx.Response) -> None:
            statuses.append(response.status_code)
            if response.status_code == 429:
                for name in names:
                    server.http.delete(f"/v1/requests/{name}")

        with httpx.Client(event_hooks={"response": [make_room]}) as watched:
            patient = server.openai(max_retries=5, http_client=watched)
            reply = patient.chat.completions.create(model="fake", messages=USER, max_tokens=1)  # type: ignore[arg-type]
        assert reply.choices and statuses[0] == 429 and statuses[-1] == 200
        assert [each.result().status_code for each in running] == [499, 499]


def test_batch_larger_than_the_queue_is_not_retryable() -> None:
    with serving(chat_parts(max_requests=2)) as server:
        assert error_of(server.complete(prompt=["a"] * 3), 400)["param"] == "prompt"


def test_retry_after_is_the_mean_time_between_ends() -> None:
    now = [0.0]
    rate = DrainRate(lambda: now[0])
    assert rate.retry_after() == 1
    for now[0] in (0.0, 4.0, 8.0):
        rate.ends.append(now[0])
    assert rate.retry_after() == 3  # three ends in eight seconds
    now[0] = 1e6
    assert rate.retry_after() == 60


def test_request_seconds_limits_the_time_of_a_request() -> None:
    with serving(chat_parts(SLOW), request_seconds=0.1) as server:
        response = server.chat(**ENDLESS)
        assert error_of(response, 408)["code"] == "deadline_exceeded"
        assert response.headers["x-should-retry"] == "false"
        streamed = server.chat(**ENDLESS, stream=True)
        if streamed.status_code == 200:  # otherwise the time ended before the first token
            *_, last = events(streamed)
            assert last["error"]["code"] == "deadline_exceeded"
        else:
            assert error_of(streamed, 408)["code"] == "deadline_exceeded"


def test_silent_stream_gets_keep_alive_comments(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(chat_parts(FakeRecipe(hold=str(hold))), keep_alive_seconds=0.02) as server:
        body = {"model": "fake", "messages": USER, "stream": True, "max_tokens": 2}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(4)] == [": keep-alive", ""] * 2
            hold.unlink()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        hold.touch()
        with ThreadPoolExecutor() as pool:
            chunks = pool.submit(_sdk_stream, server)
            wait_for(lambda: server.service.num_live == 1)
            hold.unlink()
            assert chunks.result()[-1].choices[0].finish_reason is not None


def _sdk_stream(server: Served) -> list[Any]:
    client = server.openai()
    return list(client.chat.completions.create(model="fake", messages=USER, max_tokens=2, stream=True))  # type: ignore[arg-type]


def test_api_key_is_required_and_identifies_its_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# keys\nada:one\n\ntwo\n")
    with serving(chat_parts(SLOW), api_key_file=str(path)) as server:
        for given in ({}, {"authorization": "Basic one"}, {"authorization": "Bearer"}):
            missing = error_of(server.http.get("/v1/models", headers=given), 401)
            assert missing["code"] == "missing_api_key" and "an API key is required" in missing["message"]
        for given in ({"authorization": "Bearer three"}, {"x-api-key": "on"}):
            wrong = error_of(server.http.get("/v1/config", headers=given), 401)
            assert (wrong["code"], wrong["message"]) == ("invalid_api_key", "this API key is not valid")
        assert error_of(server.http.post("/v1/nowhere"), 401)
        assert all(server.http.get(path).status_code == 200 for path in ("/health", "/ping", "/ready", "/version"))
        assert server.http.get("/v1/models", headers={"x-api-key": "two"}).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            server.openai(api_key="three").models.list()
        ada = server.openai(api_key="one")
        stream = ada.chat.completions.create(model="fake", messages=USER, stream=True, extra_body=ENDLESS)  # type: ignore[call-overload]
        name = next(stream).id
        assert server.requests[0].tenant == "ada"
        other = server.http.delete(f"/v1/requests/{name}", headers={"x-api-key": "two"})
        assert error_of(other, 404)
        assert server.http.delete(f"/v1/requests/{name}", headers={"x-api-key": "one"}).status_code == 200
        with pytest.raises(openai.APIError):
            list(stream)


@pytest.mark.parametrize(
    "text",
    ["", "# none\n", "a:\n", "a:k\nb:k\n", "a:\xfc", "a:k x=1", "a:k max_live=0", "a:k max_live=1\na:l max_live=2"],
)
def test_invalid_key_file_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(str(path), KeyLimits())
    assert caught.value.param == "api_key_file"


def test_missing_key_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_keys(str(tmp_path / "nothing"), KeyLimits())


def test_body_over_the_limit_is_a_413() -> None:
    with serving(max_body_bytes=1000) as server:
        assert error_of(server.complete(prompt="a" * 2000), 413)["code"] == "body_too_large"

        def pieces() -> Any:
            yield from (b'{"prompt": "', *[b"a" * 500] * 10)

        response = server.http.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})
        assert error_of(response, 413)
        assert server.complete(max_tokens=1).status_code == 200


def test_disconnect_before_the_end_of_the_body_is_logged_as_499(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOG.name):
        with wire(server) as leaving:
            leaving.sendall(post_bytes("/v1/completions", model="fake", prompt="ab")[:-5])
            wait_for(lambda: bool(server.connections))
        wait_for(lambda: any(hasattr(each, "fields") for each in caplog.records))
    assert [each.fields["status"] for each in caplog.records if hasattr(each, "fields")] == [499]


def test_body_that_never_ends_is_a_408() -> None:
    with serving(body_seconds=0.1) as server:
        with wire(server) as half:
            half.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            assert half.recv(100).startswith(b"HTTP/1.1 408")
        assert server.http.get("/health").status_code == 200


def test_headers_that_never_end_close_their_connection() -> None:
    """Both for the first request of a connection and for a later one."""
    with serving(head_seconds=2) as server, wire(server) as fresh, wire(server) as used:
        used.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += (piece := used.recv(1000))
            assert piece, "closed before its time"
        for slow in (fresh, used):
            slow.sendall(b"GET /health HTTP/1.1\r\nx-slow: ")
        assert fresh.recv(1000) == used.recv(1000) == b""
        assert server.complete(max_tokens=1).status_code == 200


def test_invalid_http_closes_only_its_connection(server: Served) -> None:
    flood = b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(20_000)) + b"\r\n"
    for garbage in (b"\x00\xff" * 100, b"POST / HTTP/9.9\r\n\r\n", flood):
        with wire(server) as connection:
            try:
                connection.sendall(garbage)
                answer = connection.recv(64)
            except ConnectionError:
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.complete(max_tokens=1).status_code == 200


def test_valid_x_request_id_is_kept(server: Served) -> None:
    given = server.http.get("/health", headers={"x-request-id": "trace-1"})
    assert given.headers["x-request-id"] == "trace-1"
    odd = server.http.get("/health", headers={"x-request-id": "a b" * 100})
    assert odd.headers["x-request-id"] != "a b" * 100 and len(odd.headers["x-request-id"]) == 32
    server.chat(max_tokens=1)
    assert server.requests[0].trace_id


def test_traceback_is_logged_but_not_sent(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ferrum.server.tasks.tokenize.tokenizer_of", lambda front: 1 / 0)
    error = error_of(server.post("/tokenize", prompt="a"), 500)
    assert error["code"] == "internal_error" and "division" not in error["message"]
    caplog.clear()
    response = server.complete(prompt=[CRASH])
    assert error_of(response, 500)["code"] == "internal_error"
    [logged] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert response.headers["x-request-id"] in logged.getMessage() and "a step that crashes" in str(logged.exc_info)
    assert server.complete(max_tokens=1).status_code == 200


def test_probes_and_requests_report_loading_and_failure() -> None:
    go = threading.Event()

    def load() -> AsyncEngine:
        go.wait(60)
        return AsyncEngine.from_parts(chat_parts())

    def fail() -> AsyncEngine:
        raise Unsupported("this", "it cannot be")

    with serving(load, ready=False) as server:
        error = error_of(server.http.get("/health"), 503)
        assert (error["code"], error["message"]) == ("loading", "Loading model")
        assert server.http.head("/health").status_code == 503
        assert "retry-after" in server.chat().headers
        go.set()
        wait_for(lambda: server.http.get("/ready").status_code == 200)
        assert [server.http.head(path).status_code for path in ("/health", "/ping", "/ready")] == [200] * 3
        assert server.chat().status_code == 200
    with serving(fail, ready=False) as server:
        wait_for(lambda: server.service.failure is not None)  # the server then stops, and the command prints the reason
        assert isinstance(server.service.failure, Unsupported)


def test_engine_death_is_reported_by_probes_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with serving(chat_parts(process=True)) as server:
        assert error_of(server.complete(prompt=[KILL]), 503)["code"] == "engine_dead"
        assert error_of(server.http.get("/health"), 503)["code"] == "engine_dead"
        assert error_of(server.chat(stream=True), 503)["code"] == "engine_dead"
    assert ["ended with exit code" in each.message for each in caplog.records] == [True]


def test_each_request_is_one_log_line_without_its_prompt(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.__dict__.get("fields", {}).get("request_id") == name]

    with caplog.at_level(logging.INFO, "ferrum.server"):
        reply = server.chat(messages=[{"role": "user", "content": "SECRET"}], max_tokens=3, ignore_eos=True)
        name = reply.headers["x-request-id"]
        wait_for(lambda: bool(logged()))
    [record] = logged()
    fields = record.__dict__["fields"]
    assert (fields["status"], fields["path"], fields["completion_tokens"]) == (200, "/v1/chat/completions", 3)
    assert "SECRET" not in str(record.__dict__)


def test_options_in_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ferrum.server"), serving(max_stored_responses=3):
        found = [each.__dict__["fields"]["config"] for each in caplog.records if "fields" in each.__dict__]
    assert [config["server"]["max_stored_responses"] for config in found] == [3]
