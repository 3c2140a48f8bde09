"""Recorded requests over HTTP: lookup by id, schedule, replay, and isolation of API keys."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import POISON, FakeRecipe
from ferrum.client.records.record import Record
from ferrum.client.records.replayer import Replay
from ferrum.server.common.http_guard import CLIENT_GONE, LOG
from record_kit import recorded
from serve_kit import Served, chat_parts, error_of, events, serving, wait_for, wire

LOUD = {"max_tokens": 8, "ignore_eos": True}
RECIPE = FakeRecipe(recorded=True, prefixes=True, drafts=2, max_tokens_per_step=32)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(recorded(chat_parts(RECIPE), tmp_path_factory.mktemp("records"))) as served:
        yield served


def records(server: Served, id: str, **options: Any) -> Any:
    response = server.http.get(f"/v1/requests/{id}", **options)
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["id"], body["object"]) == (id, "request")
    return body["records"]


def test_record_is_found_by_the_reply_id(recording: Served) -> None:
    reply = recording.complete(prompt=[5] * 70, n=2, return_token_ids=True, **LOUD).json()
    (record,) = records(recording, reply["id"])
    assert record["finished"] and record["request"]["prompt"] == [5] * 70 and record["prompt"] == "$" * 70
    for told, choice in zip(record["choices"], reply["choices"], strict=True):
        assert told["token_ids"] == choice["token_ids"] and told["finish_reason"] == choice["finish_reason"]
        assert told["text"] == choice["text"] and len(told["logprobs"]) == 8
    pieces = [(each["start"], each["tokens"]) for each in record["schedule"] if each["work"] == "prompt"]
    assert pieces == [(0, 32), (32, 32), (64, 6), (69, 1)]
    assert any(each["drafted"] for each in record["schedule"])
    stream = events(recording.chat(stream=True, **LOUD))
    assert records(recording, stream[0]["id"])[0]["choices"][0]["finish_reason"] == "length"


def test_request_id_finds_all_prompts_of_a_body(recording: Served) -> None:
    recording.complete(prompt=["ab", "cd", "ef"], request_id="three", **LOUD)
    recording.chat(request_id="one", **LOUD)
    assert [each["prompt"] for each in records(recording, "three")] == ["ab", "cd", "ef"]
    assert [each["id"] for each in records(recording, "one")] == ["chatcmpl-one"]
    embedded = recording.post("/v1/embeddings", model="fake", input=["a", "b"]).json()
    assert [each["request"]["pooling"] for each in records(recording, embedded["id"])] == ["mean", "mean"]


def test_prompts_of_a_body_are_not_separate_requests(recording: Served) -> None:
    for name, prompt in (("kin-0", "x"), ("kin-1", "y")):
        recording.complete(prompt=prompt, request_id=name, **LOUD)
    assert error_of(recording.http.get("/v1/requests/kin"), 404)["code"] == "record_not_found"
    recording.complete(prompt=["ab", "cd"], request_id="kin", **LOUD)
    told = {name: [each["prompt"] for each in records(recording, name)] for name in ("kin", "kin-0", "kin-1")}
    assert told == {"kin": ["ab", "cd"], "kin-0": ["x"], "kin-1": ["y"]}


def test_last_body_of_a_reused_id_is_found(recording: Served) -> None:
    for prompts in (["a", "b", "c"], ["d", "e"], "f", ["g", "h"], "i"):
        recording.complete(prompt=prompts, request_id="again", **LOUD)
        assert [each["prompt"] for each in records(recording, "again")] == list(prompts)


def test_replay_equals_the_record_in_every_bit(recording: Served) -> None:
    reply = recording.complete(prompt=["ab", "cd"], n=2, logprobs=1, **LOUD).json()
    again = recording.post(f"/v1/requests/{reply['id']}/replay", top_logprobs=2).json()
    assert again["same"] and [each["differences"] for each in again["replays"]] == [[], []]
    for index, choice in enumerate(reply["choices"]):
        tokens = again["replays"][index // 2]["choices"][index % 2]["tokens"]
        assert [each["logprob"] for each in tokens] == choice["logprobs"]["token_logprobs"]
        assert [each["token"] for each in tokens] == choice["logprobs"]["tokens"]
    path = f"/v1/requests/{reply['id']}/replay"
    assert error_of(recording.post(path, top_logprobs=21), 400)["param"] == "top_logprobs"
    assert recording.post(path, odd=1).headers["x-ferrum-ignored"] == "odd"


def test_replay_ends_when_its_client_disconnects(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(recorded(chat_parts(RECIPE), tmp_path)) as server:
        server.complete(request_id="long", max_tokens=500, ignore_eos=True)
    slow = replace(RECIPE, seconds_per_step=0.2, drafts=0)
    with caplog.at_level(logging.INFO, LOG.name), serving(recorded(chat_parts(slow), tmp_path)) as server:
        with wire(server) as leaving:
            leaving.sendall(
                b"POST /v1/requests/long/replay HTTP/1.1\r\nhost: x\r\n"
                b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            )
            wait_for(lambda: server.service.num_live == 1)
        server.wait_idle()  # sooner than the whole replay would take
    assert [record.fields["status"] for record in caplog.records if hasattr(record, "fields")][-1] == CLIENT_GONE


def test_started_replay_finishes_while_the_server_drains(tmp_path: Path) -> None:
    parts = recorded(chat_parts(replace(RECIPE, seconds_per_step=0.02)), tmp_path)
    with serving(parts) as server, ThreadPoolExecutor(1) as pool:
        server.complete(prompt=["ab", "cd"], request_id="two", **LOUD)
        server.wait_idle()  # the reply arrives before the request is removed
        again = pool.submit(server.post, "/v1/requests/two/replay")
        wait_for(lambda: server.service.num_live == 1)
        server.service.drain()
        assert len(again.result().json()["replays"]) == 2


def test_concurrent_replays_of_one_request(tmp_path: Path) -> None:
    slow = replace(RECIPE, seconds_per_step=0.01)
    with serving(recorded(chat_parts(slow), tmp_path)) as server, ThreadPoolExecutor(3) as pool:
        server.complete(request_id="it", max_tokens=30, ignore_eos=True)
        again = list(pool.map(lambda _: server.post("/v1/requests/it/replay"), range(3)))
        assert [(each.status_code, each.json().get("same")) for each in again] == [(200, True)] * 3


def test_cancelled_replay_is_not_a_difference(tmp_path: Path) -> None:
    with serving(recorded(chat_parts(RECIPE), tmp_path)) as server:
        server.complete(request_id="long", max_tokens=100, ignore_eos=True)
    slow, path = replace(RECIPE, seconds_per_step=0.05, drafts=0), "/v1/requests/long/replay"
    with serving(recorded(chat_parts(slow), tmp_path)) as server, ThreadPoolExecutor(1) as pool:
        again = pool.submit(server.post, path)
        wait_for(lambda: server.service.num_live == 1)
        assert server.http.delete("/v1/requests/replay-cmpl-long").status_code == 200
        assert error_of(again.result(), 499)["code"] == "request_cancelled"
    with serving(recorded(chat_parts(slow), tmp_path), request_seconds=0.3) as server:
        assert error_of(server.post(path), 408)["code"] == "deadline_exceeded"


def test_replay_of_a_failure_may_fail_the_same_way_only(recording: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    error_of(recording.complete(prompt=[POISON, 5], request_id="bad", **LOUD), 500)
    assert recording.post("/v1/requests/bad/replay").json()["same"]
    monkeypatch.setattr(Replay, "_has_failed", lambda replay, choice: False)
    error_of(recording.post("/v1/requests/bad/replay"), 500)


@pytest.mark.parametrize("pages", [20, 3])
def test_replay_is_equal_with_another_kv_capacity(tmp_path: Path, pages: int) -> None:
    with serving(recorded(chat_parts(replace(RECIPE, num_pages=5)), tmp_path)) as server:
        reply = server.complete(prompt=[5] * 70, n=2, request_id="full", ignore_eos=True).json()
        assert [each["finish_reason"] for each in reply["choices"]] == ["length"] * 2
        assert reply["usage"]["completion_tokens"] == 2 * (5 * 16 + 1 - 70)  # limited by the context
    with serving(recorded(chat_parts(replace(RECIPE, num_pages=pages)), tmp_path)) as server:
        again = server.post("/v1/requests/full/replay")
        if pages > 5:
            assert again.json()["same"]
        else:
            assert error_of(again, 409)["code"] == "record_mismatch"


def test_difference_is_reported(recording: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    id = recording.complete(**LOUD).json()["id"]
    monkeypatch.setattr(Record, "sampled", lambda record, choice: [(95, -1.0)])
    again = recording.post(f"/v1/requests/{id}/replay").json()
    (difference,) = again["replays"][0]["differences"]
    assert not again["same"]
    assert (difference["what"], difference["position"], difference["recorded"]) == ("token", 0, 95)


def test_record_of_other_numerics_is_rejected(recording: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    id = recording.complete(**LOUD).json()["id"]
    recorder = recording.service.model().client.router.recorder
    assert recorder is not None
    here = recorder.origin()
    recorder.files.flush()
    monkeypatch.setattr(recorder, "origin", lambda: type(here).from_dict({**here.to_dict(), "numerics_id": "other"}))
    error = error_of(recording.post(f"/v1/requests/{id}/replay"), 409)
    assert error["code"] == "record_mismatch" and "numerics_id" in error["message"]


def test_unrecorded_request_is_not_found(recording: Served, server: Served) -> None:
    id = server.complete(**LOUD).json()["id"]
    for each, name in ((server, id), (recording, "unheard-of"), (recording, "..")):
        assert error_of(each.http.get(f"/v1/requests/{name}"), 404)
        assert error_of(each.post(f"/v1/requests/{name}/replay"), 404)


def test_keys_see_only_their_own_requests(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann:a\nbob:b\n")
    ann, bob = ({"x-api-key": key} for key in "ab")
    parts = recorded(chat_parts(RECIPE), tmp_path / "records")
    with serving(parts, api_key_file=str(tmp_path / "keys")) as server:
        for headers, prompt in ((ann, "from ann"), (bob, "from bob")):
            body = {"model": "fake", "prompt": prompt, "request_id": "same"}
            assert server.http.post("/v1/completions", json=body, headers=headers).status_code == 200
            assert [each["prompt"] for each in records(server, "same", headers=headers)] == [prompt]
        server.http.post("/v1/completions", json={"model": "fake", "prompt": "x", "request_id": "hers"}, headers=ann)
        assert error_of(server.http.get("/v1/requests/hers", headers=bob), 404)["code"] == "record_not_found"
        assert error_of(server.http.post("/v1/requests/hers/replay", json={}, headers=bob), 404)


def test_live_request_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    parts = recorded(chat_parts(FakeRecipe(recorded=True, seconds_per_step=0.01)), tmp_path)
    with serving(parts) as server:
        body = {"model": "fake", "prompt": "ab", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json={**body, "request_id": "it"}) as response:
            chunks = response.iter_raw()  # a lost reference would close the connection
            next(chunks)
            told = server.http.get("/v1/requests/it").json()
            assert told["live"] and not told["records"][0]["finished"] and told["records"][0]["choices"][0]["token_ids"]
        server.wait_idle()
        told = server.http.get("/v1/requests/it").json()
        assert not told["live"] and told["records"][0]["choices"][0]["finish_reason"] == "abort"


def test_failing_recorder_harms_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(recorded(chat_parts(RECIPE), tmp_path)) as server:
        recorder = server.service.model().client.router.recorder
        assert recorder is not None
        monkeypatch.setattr(recorder, "origin", lambda: 1 / 0)
        reply = server.complete(**LOUD).json()
        assert reply["usage"]["completion_tokens"] == 8
        assert error_of(server.http.get(f"/v1/requests/{reply['id']}"), 404)
