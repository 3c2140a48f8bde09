"""Responses in the background: polled, streamed, cancelled, and ended exactly once whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agent_kit import QWEN3, agent, let_grammars_die
from agent_script import MARKERS, THOUGHT, reply
from ferrum.core.errors import EngineDead
from ferrum.engine.messages import Ended
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.reply_store import ReplyStore, StoredReply, Turn
from ferrum.server.responses.background import TAIL, EventLog
from responses_kit import FLAT, PATH, TERMINAL, checked_events, folded, respond
from scripted_model import scripted_parts
from serve_kit import Served, error_of, serving, wait_for


def said(prompt: str) -> str:
    return f"<think>\n{THOUGHT * 20}\n</think>\n\nHello." if "long" in prompt else reply(prompt)


@pytest.fixture
def slow() -> Iterator[Served]:
    with agent(said, MARKERS, seconds_per_step=0.002) as served:
        yield served


def started(server: Served, **body: Any) -> Any:
    """Return a response that was accepted in the background."""
    response = respond(server, store=True, background=True, **body)
    assert (response["status"], response["background"], response["output"]) == ("queued", True, [])
    return response


def status_of(server: Served, id: str) -> str:
    return str(server.http.get(f"{PATH}/{id}").json()["status"])


def ended(server: Served, id: str) -> Any:
    """Return a response after its end."""
    wait_for(lambda: status_of(server, id) not in ("queued", "in_progress"))
    return server.http.get(f"{PATH}/{id}").json()


def test_a_response_is_polled_until_it_is_complete(slow: Served) -> None:
    begun = started(slow, tools=[FLAT], metadata={"a": "b"})
    whole = ended(slow, begun["id"])
    same = respond(slow, tools=[FLAT], metadata={"a": "b"})
    for each in (whole, same):
        assert each["output"][-1].pop("call_id") and [item.pop("id") for item in each["output"]]
    assert whole["status"] == "completed" and whole["output"] == same["output"] and whole["usage"] == same["usage"]
    assert {**begun, **{name: whole[name] for name in ("status", "output", "usage")}} == whole


def test_a_response_in_progress_says_so_and_cannot_be_continued(slow: Served) -> None:
    begun = started(slow, input="a long thought")
    wait_for(lambda: status_of(slow, begun["id"]) == "in_progress")
    error = error_of(slow.post(PATH, input="x", previous_response_id=begun["id"]), 400)
    assert error["param"] == "previous_response_id" and "in progress" in error["message"]
    listed = slow.http.get(f"{PATH}/{begun['id']}/input_items").json()["data"]
    assert [each["content"][0]["text"] for each in listed] == ["a long thought"]


def test_a_cancelled_response_keeps_what_was_said(slow: Served) -> None:
    begun = started(slow, input="a long thought")
    wait_for(lambda: status_of(slow, begun["id"]) == "in_progress")
    whole = slow.http.post(f"{PATH}/{begun['id']}/cancel").json()
    assert whole["status"] == "cancelled" and all(each["status"] == "incomplete" for each in whole["output"])
    slow.wait_idle()
    for again in (slow.http.get(f"{PATH}/{begun['id']}"), slow.http.post(f"{PATH}/{begun['id']}/cancel")):
        assert again.json() == whole
    other = started(slow, input="a long thought", request_id="mine")
    assert slow.http.delete("/v1/requests/mine").json()["id"] == other["id"]
    assert ended(slow, other["id"])["status"] == "cancelled"


def test_only_background_responses_are_cancelled(slow: Served) -> None:
    whole = respond(slow, store=True)
    error = error_of(slow.http.post(f"{PATH}/{whole['id']}/cancel"), 400)
    assert error["param"] == "response_id" and "background" in error["message"]
    done = ended(slow, started(slow)["id"])
    assert slow.http.post(f"{PATH}/{done['id']}/cancel").json() == done


def test_a_deleted_response_ends(slow: Served) -> None:
    begun = started(slow, input="a long thought")
    assert slow.http.delete(f"{PATH}/{begun['id']}").json()["deleted"]
    slow.wait_idle()
    assert error_of(slow.http.get(f"{PATH}/{begun['id']}"), 404)


@pytest.mark.parametrize("end", ["engine", "grammar"])
def test_a_response_fails_once(slow: Served, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end == "grammar":
        let_grammars_die(monkeypatch)
        begun = started(slow, tools=[FLAT])
    else:
        begun = started(slow, input="a long thought")
        wait_for(lambda: status_of(slow, begun["id"]) == "in_progress")
        slow.service.model().client.router._deliver(Ended(EngineDead("killed by the test")))
    whole = ended(slow, begun["id"])
    assert whole["status"] == "failed" and all(each["status"] == "incomplete" for each in whole["output"][-1:])
    if end == "engine":
        assert whole["error"]["type"] == "engine_dead"
    assert slow.http.post(f"{PATH}/{begun['id']}/cancel").json() == whole


def background_events(text: str) -> list[Any]:
    """Return the events of a whole background stream without the one of the queue."""
    queued = text.split("\n\n")[1]
    assert queued.startswith("event: response.queued\n") and '"sequence_number":1' in queued
    events = checked_events(text, queued=True)
    assert events[0]["response"]["status"] == "queued"
    return events


def test_a_stream_is_what_is_stored_and_can_be_read_again(slow: Served) -> None:
    body = {"input": "What is the weather?", "tools": [FLAT], "background": True, "stream": True}
    text = slow.post(PATH, **body).text
    events = background_events(text)
    last = events[-1]["response"]
    assert slow.http.get(f"{PATH}/{last['id']}").json() == last and folded(events) == last["output"]
    again = slow.http.get(f"{PATH}/{last['id']}", params={"stream": "true"})
    assert again.text == text and again.headers["content-type"] == "text/event-stream; charset=utf-8"
    rest = slow.http.get(f"{PATH}/{last['id']}", params={"stream": "true", "starting_after": 4}).text
    assert rest and text.endswith(rest) and '"sequence_number":5' in rest.split("\n\n")[0]
    polled = ended(slow, started(slow)["id"])
    error = error_of(slow.http.get(f"{PATH}/{polled['id']}", params={"stream": "true"}), 400)
    assert error["param"] == "stream"


def test_a_client_that_leaves_can_come_back(slow: Served) -> None:
    body = {"input": "a long thought", "background": True, "stream": True, "request_id": "mine"}
    with slow.http.stream("POST", PATH, json=body) as response:
        head = [next(response.iter_lines()) for _ in range(1)]
    assert head == ["event: response.created"]
    with slow.http.stream("GET", f"{PATH}/resp_mine", params={"stream": "true"}) as response:
        events = background_events(response.read().decode())
    assert events[-1]["type"] == "response.completed" and len(events) > 100


def test_a_cancel_ends_its_streams(slow: Served) -> None:
    body = {"input": "a long thought", "background": True, "stream": True, "request_id": "mine"}
    with slow.http.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()
        first = "\n".join(next(lines) for _ in range(30))
        whole = slow.http.post(f"{PATH}/resp_mine/cancel").json()
        text = "\n".join([first, *lines]) + "\n"
    events = background_events(text)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"] == whole
    assert whole["status"] == "cancelled" and whole["output"][0]["status"] == "incomplete"


def test_responses_in_progress_are_limited_and_never_evicted() -> None:
    parts = scripted_parts(said, QWEN3, MARKERS, seconds_per_step=0.002)
    with serving(parts, max_stored_responses=2) as served:
        running = [started(served, input="a long thought")["id"] for _ in range(2)]
        refused = served.post(PATH, input="x", background=True)
        assert error_of(refused, 429)["code"] == "store_full" and refused.headers["retry-after"] == "1"
        respond(served, store=True)
        assert [status_of(served, each) in ("queued", "in_progress") for each in running] == [True, True]
        assert all(served.http.post(f"{PATH}/{each}/cancel").json()["status"] == "cancelled" for each in running)
        assert started(served)


def test_old_events_are_forgotten_when_they_take_too_much_room() -> None:
    """A reader that keeps up misses nothing; one that is far behind gets an error."""

    async def read(log: EventLog, number: int) -> list[bytes | None]:
        return [each async for each in log.read(number, 1.0)]

    store, log = ReplyStore(10, 100_000), EventLog()
    stored = StoredReply("", "resp_1", Turn(None, b"[]"), b"x" * 100, log=log)
    store.finish(stored, b"{}", b"[]")
    for number in range(600):
        log.add(b"%099d\n" % number)
        store.grow(stored, 100)
        assert store.size <= 100_000
    log.end()
    assert log.size == TAIL * 100 + (599 - 500) * 100
    [rest] = asyncio.run(read(log, 590))
    assert rest is not None and rest.count(b"\n") == 10
    with pytest.raises(ApiError, match="no longer stored"):
        asyncio.run(read(log, 0))


def test_a_server_stops_with_a_response_in_progress() -> None:
    with agent(said, MARKERS, seconds_per_step=0.002) as served:
        started(served, input="a long thought")
        body = {"input": "a long thought", "background": True, "stream": True}
        with served.http.stream("POST", PATH, json=body) as response:
            next(response.iter_lines())


def test_the_official_client_polls_and_cancels(slow: Served) -> None:
    client = slow.openai()
    begun = client.responses.create(model="scripted", input="a long thought", background=True)
    assert begun.status == "queued"
    assert client.responses.cancel(begun.id).status == "cancelled"
    stream = client.responses.create(model="scripted", input="no tool", background=True, stream=True)
    events = list(stream)
    assert events[-1].type in TERMINAL
    with client.responses.stream(response_id=events[0].response.id, starting_after=3) as again:  # type: ignore[union-attr]
        assert [each.sequence_number for each in again] == [each.sequence_number for each in events[4:]]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(client.responses.create(model="scripted", input="no tool").id)
