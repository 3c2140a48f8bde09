"""Sessions over HTTP: equal to one prompt, limited, and isolated by API key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import FakeRecipe, LetterTokenizer
from ferrum.engine.session import GrowingText
from ferrum.server.common import json_routes
from ferrum.server.common.error_replies import ApiError
from ferrum.server.extensions import session_routes
from ferrum.server.extensions.sessions import Sessions
from serve_kit import SLOW, Served, chat_parts, error_of, events, serving

LOUD = {"model": "fake", "max_tokens": 6, "ignore_eos": True, "seed": 3}
ENDLESS = {**LOUD, "max_tokens": 4000, "stream": True}


def begin(server: Served, prompt: str | list[int] = "hello", **options: Any) -> str:
    response = server.http.post("/v1/sessions", json={"prompt": prompt}, **options)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def state(server: Served, id: str) -> Any:
    response = server.http.get(f"/v1/sessions/{id}")
    assert response.status_code == 200, response.text
    return response.json()


def do(server: Served, id: str, verb: str, **body: Any) -> Any:
    response = server.post(f"/v1/sessions/{id}/{verb}", **body)
    assert response.status_code == 200, response.text
    return response.json()


def test_session_equals_one_prompt(server: Served) -> None:
    id = begin(server)
    for more in (" there", [5, 6, 7]):
        before = state(server, id)
        whole = server.complete(prompt=before["token_ids"], **LOUD).json()["choices"][0]
        reply = do(server, id, "generate", **LOUD)
        assert reply["object"] == "text_completion" and reply["choices"][0] == whole
        after = state(server, id)
        assert after["text"] == before["text"] + whole["text"] and after["length"] == before["length"] + 6
        added = do(server, id, "append", prompt=more)
        assert added["length"] == after["length"] + len(more) and "token_ids" not in added


def test_streamed_tokens_join_the_session_at_the_end(server: Served) -> None:
    id = begin(server)
    parts = events(server.post(f"/v1/sessions/{id}/generate", **LOUD, stream=True, return_token_ids=True))
    told = [token for part in parts[:-1] for choice in part["choices"] for token in choice["token_ids"]]
    assert parts[-1] is None and len(told) == 6
    assert state(server, id)["token_ids"] == [*LetterTokenizer().encode("hello"), *told]


def test_forks_are_independent_and_truncation_removes_the_end(server: Served) -> None:
    base = begin(server)
    do(server, base, "generate", **LOUD)
    fork = do(server, base, "fork")["id"]
    assert state(server, fork)["token_ids"] == state(server, base)["token_ids"]
    do(server, fork, "append", prompt="!")
    assert do(server, base, "truncate", length=5)["length"] == 5
    assert state(server, base)["text"] == "hello" and state(server, fork)["length"] == 12
    assert server.http.delete(f"/v1/sessions/{base}").json() == {"id": base, "object": "session", "deleted": True}
    assert error_of(server.http.get(f"/v1/sessions/{base}"), 404)["code"] == "session_not_found"
    assert state(server, fork)["length"] == 12


def test_rejected_request_is_named_and_leaves_the_session_unchanged(server: Served) -> None:
    id = begin(server)
    context = server.service.model().context
    for verb, body, param in (
        ("truncate", {"length": 6}, "length"),
        ("truncate", {"length": -1}, "length"),
        ("append", {"prompt": [97]}, "prompt"),
        ("append", {"prompt": [5] * context}, "prompt"),
        ("append", {}, "prompt"),
        ("generate", {**LOUD, "n": 2}, "n"),
        ("generate", {**LOUD, "truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ("generate", {**LOUD, "best_of": 2}, "best_of"),
        ("generate", {**LOUD, "suffix": "x"}, "suffix"),
        ("generate", {**LOUD, "temperature": 3}, "temperature"),
        ("generate", {**LOUD, "max_tokens": context}, "max_tokens"),
    ):
        assert error_of(server.post(f"/v1/sessions/{id}/{verb}", **body), 400)["param"] == param
    assert error_of(server.post(f"/v1/sessions/{begin(server, '')}/generate", **LOUD), 400)["param"] == "prompt"
    assert error_of(server.post("/v1/sessions", model="other"), 404)["code"] == "model_not_found"
    assert state(server, id)["text"] == "hello"


def test_fields_without_effect_are_named(server: Served) -> None:
    id = begin(server)
    for path, body in (
        ("", {}),
        (f"/{id}/append", {"prompt": "x"}),
        (f"/{id}/truncate", {"length": 1}),
        (f"/{id}/fork", {}),
        (f"/{id}/generate", LOUD),
    ):
        response = server.post(f"/v1/sessions{path}", **body, odd=1)
        assert response.status_code == 200 and response.headers["x-ferrum-ignored"] == "odd"
    response = server.post(f"/v1/sessions/{id}/generate", **LOUD, add_special_tokens=False, user="u")
    assert response.headers["x-ferrum-ignored"] == "add_special_tokens, user"


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serving(chat_parts(SLOW)) as served:
        yield served


def test_generating_session_rejects_changes(slow: Served) -> None:
    id = begin(slow)
    with slow.http.stream("POST", f"/v1/sessions/{id}/generate", json=ENDLESS) as response:
        chunks = response.iter_raw()  # a lost reference would close the connection
        next(chunks)
        for verb, body in (("generate", LOUD), ("append", {"prompt": "x"}), ("truncate", {"length": 1})):
            assert error_of(slow.post(f"/v1/sessions/{id}/{verb}", **body), 409)["code"] == "session_busy"
        assert state(slow, do(slow, id, "fork")["id"])["text"] == "hello"
    slow.wait_idle()
    assert state(slow, id)["text"] == "hello"
    do(slow, id, "generate", **LOUD)
    assert state(slow, id)["length"] == 11


def test_long_sessions_are_processed_off_the_event_loop(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    id, tell, make = begin(server, "hello" * 100), GrowingText.text, session_routes.check_completion
    on_loop: list[bool] = []

    def watched(text: GrowingText) -> str:
        on_loop.append(_has_loop())
        return str(tell.__get__(text))

    def made(*arguments: Any) -> Any:
        on_loop.append(_has_loop())
        return make(*arguments)

    monkeypatch.setattr(GrowingText, "text", property(watched))
    monkeypatch.setattr(session_routes, "check_completion", made)
    monkeypatch.setattr(json_routes, "MAX_LOOP_BYTES", 400)
    assert state(server, id)["text"] == "hello" * 100
    do(server, id, "generate", **LOUD)
    do(server, begin(server), "generate", **LOUD)
    assert on_loop == [False, False, True], "what is short takes no longer than to hand it over"


def _has_loop() -> bool:
    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def test_keys_see_only_their_own_sessions_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann:a\nbob:b\n")
    ann, bob = ({"x-api-key": key} for key in "ab")
    with serving(api_key_file=str(tmp_path / "keys"), max_sessions=2) as server:
        ids = [begin(server, headers=ann) for _ in range(2)]
        refused = server.http.post("/v1/sessions", json={}, headers=ann)
        assert error_of(refused, 429)["code"] == "session_limit" and int(refused.headers["retry-after"]) >= 1
        assert error_of(server.http.post(f"/v1/sessions/{ids[0]}/fork", json={}, headers=ann), 429)
        begin(server, headers=bob)
        for method, path in (("GET", ""), ("POST", "/fork"), ("POST", "/generate"), ("DELETE", "")):
            body = {"json": LOUD} if method == "POST" else {}
            response = server.http.request(method, f"/v1/sessions/{ids[0]}{path}", headers=bob, **body)
            assert error_of(response, 404)["code"] == "session_not_found"
        listed = server.http.get("/v1/sessions", headers=ann).json()["data"]
        assert {each["id"] for each in listed} == set(ids)
        server.http.delete(f"/v1/sessions/{ids[0]}", headers=ann)
        begin(server, headers=ann)


def test_idle_sessions_are_dropped() -> None:
    now = 0.0
    sessions = Sessions(2, 10.0, lambda: now)
    first, second = (sessions.add("t", GrowingText(None)) for _ in range(2))
    now = 6.0
    assert sessions.get("t", first.id) is first and sessions.expires_in(second) == 4.0
    with pytest.raises(ApiError) as caught:
        sessions.add("t", GrowingText(None))
    assert caught.value.headers == {"retry-after": "4"}
    now = 11.0
    assert sessions.of("t") == [first]
    first.busy = True
    now = 100.0
    third = sessions.add("t", GrowingText(None))
    assert sessions.get("t", first.id) is first and sessions.of("t") == [third, first]


def test_generating_session_is_not_idle() -> None:
    now = 0.0
    sessions = Sessions(2, 10.0, lambda: now)
    first, _ = (sessions.add("t", GrowingText(None)) for _ in range(2))
    with sessions.generating(first, first.text.token_ids):
        now = 50.0
    assert sessions.of("t") == [first] and sessions.expires_in(first) == 10.0
    with sessions.generating(first, first.text.token_ids):
        sessions.remove("t", first.id)
    assert not sessions.of("t")


def test_session_prefixes_are_cached(server: Served) -> None:
    with serving(chat_parts(FakeRecipe(prefixes=True))) as server:
        id = begin(server, [5] * 100)
        do(server, id, "generate", **LOUD)
        reply = do(server, do(server, id, "fork")["id"], "generate", **LOUD)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96
