"""Many clients: disconnecting and slow ones do not change the replies of others."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from engine_fakes import FakeRecipe, ServedFake
from ferrum.engine.host import Built
from ferrum.engine.messages import Abort, Message
from serve_kit import Served, chat_parts, serving, wait_for

RECIPE = FakeRecipe(seconds_per_step=0.001, max_sequences=16, num_pages=400)
SEEDS = 10


async def text_of(client: httpx.AsyncClient, seed: int, max_tokens: int) -> str:
    """Return the text of a stream that must end normally."""
    body = {"model": "fake", "prompt": "ab", "seed": seed, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    pieces: list[str] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    assert line == "" or line == "data: [DONE]"
    return "".join(pieces)


class Leaving:
    """Clients that send long requests and disconnect, most after a random number of steps."""

    def __init__(self, server: Served, executor: ServedFake) -> None:
        self._server, self._executor = server, executor
        self._rng = random.Random(1)
        self.taken: set[str] = set()

    async def one(self, client: httpx.AsyncClient, number: int) -> None:
        name, pick = f"left-{number}", self._rng
        body = {"model": "fake", "prompt": "x" * pick.randint(1, 500), "max_tokens": 3500, "ignore_eos": True, "n": 2}
        ask = client.post("/v1/completions", json={**body, "stream": pick.random() < 0.5, "request_id": name})
        asking = asyncio.create_task(ask)
        if pick.random() < 0.2:
            await asyncio.sleep(pick.uniform(0, 0.02))  # possibly before the request is accepted
        else:
            await self._reach(lambda: self._server.service.live_name(name, tenant="") is not None)
            self.taken.add(f"cmpl-{name}")
            until = len(self._executor.batches) + pick.randint(0, 100)
            await self._reach(lambda: len(self._executor.batches) >= until)
        asking.cancel()
        with suppress(asyncio.CancelledError, httpx.HTTPError):
            await asking

    async def _reach(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


def cancel_under_load(count: int, together: int) -> None:
    built: list[Built] = []

    def recipe() -> Built:
        built.append(RECIPE())
        return built[0]

    async def run(server: Served) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60) as client:
            alone = [await text_of(client, seed, 40) for seed in range(SEEDS)]
            for start in range(0, count, together):
                going = [leaving.one(client, number) for number in range(start, start + together)]
                staying = [text_of(client, seed, 40) for seed in range(SEEDS)]
                results: list[Any] = await asyncio.gather(*going, *staying)
                assert results[together:] == alone

    with serving(chat_parts(recipe, max_requests=500)) as server:  # type: ignore[arg-type]
        executor = built[0].executor
        assert isinstance(executor, ServedFake)
        leaving = Leaving(server, executor)
        steps_before = _watch_aborts(server, executor)
        asyncio.run(run(server))
        server.wait_idle()
        assert len(leaving.taken) > count / 2 and leaving.taken <= steps_before.keys()
        assert _late_spans(executor, steps_before) == []
        wait_for(lambda: executor.pages.used == 0)
        executor.pages.check()


def _watch_aborts(server: Served, executor: ServedFake) -> dict[str, int]:
    """Return the engine's number of steps at each cancellation."""
    host = server.service.model().client.router._host
    send, steps = host.send, dict[str, int]()

    def watched(message: Message) -> None:
        send(message)
        if isinstance(message, Abort):
            steps.setdefault(message.request_id, len(executor.batches))

    host.send = watched  # type: ignore[method-assign]
    return steps


def _late_spans(executor: ServedFake, steps_before: dict[str, int]) -> list[tuple[str, int]]:
    """Return spans of cancelled requests after the step that may already be planned."""
    return [
        (span.cache_id, number)
        for number, batch in enumerate(executor.batches)
        for span in batch.spans
        if number > steps_before.get(span.cache_id.rpartition("/")[0], number)
    ]


def test_disconnecting_clients_do_not_change_other_replies() -> None:
    cancel_under_load(40, 20)


@pytest.mark.soak
def test_a_thousand_disconnecting_clients() -> None:
    cancel_under_load(1000, 25)


def test_sleeping_reader_delays_no_other_and_loses_nothing() -> None:
    """The reader reads nothing while the others are served, then the whole text."""
    body = {"model": "fake", "prompt": "ab", "seed": 1, "max_tokens": 3000, "ignore_eos": True, "logprobs": 1}
    with serving(chat_parts(FakeRecipe(seconds_per_step=0.0))) as server:
        whole = server.complete(**body).json()["choices"][0]["text"]
        host, port = server.url.removeprefix("http://").split(":")
        payload = json.dumps({**body, "stream": True}).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(payload)
        )
        with socket.socket() as sleeper:
            sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sleeper.connect((host, int(port)))
            sleeper.sendall(head + payload)
            wait_for(lambda: server.service.num_live == 1)
            wait_for(lambda: server.service.model().engine.num_live == 0)  # computed to the end, although unread
            assert all(server.complete(max_tokens=4).status_code == 200 for _ in range(5))
            received = b"".join(iter(lambda: sleeper.recv(1 << 16), b""))
        assert b"data: [DONE]" in received
        lines = [line for line in received.decode().split("\r\n") if line.startswith("data: {")]
        chunks = [
            json.loads(each.removeprefix("data: ")) for line in lines for each in line.split("\n\n") if "{" in each
        ]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
