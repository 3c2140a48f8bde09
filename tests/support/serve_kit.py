"""A real server on 127.0.0.1 over a fake or given engine, and requests of tests."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import httpx

from engine_fakes import EOS, FakeRecipe, parts
from ferrum.client.async_engine import AsyncEngine, AsyncStream
from ferrum.client.model_client import Parts
from ferrum.client.router import QueueSlots
from ferrum.core.types import Request
from ferrum.server.app import DIALECTS, create_app
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.json_routes import AddRoutes
from ferrum.server.common.service import Service, State
from ferrum.server.launch import Server
from ferrum.server.server_config import ServerConfig
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig

if TYPE_CHECKING:
    from openai import OpenAI

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}[bot]{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]
ENDLESS_TOKENS = 30_000
SLOW = FakeRecipe(seconds_per_step=0.01, num_pages=32_768, context=32_000)
"""A recipe on which ENDLESS_TOKENS take five minutes, with pages for a dozen such requests."""

LARGE: Final = {"model": "fake", "prompt": ["a" * 30_000] * 2, "n": 128, "max_tokens": 1, "echo": True}
"""A completion whose reply of 8 MB exceeds all buffers between server and client."""


@dataclass
class Served:
    """A running server: address, state, connections, and the requests given to its engine."""

    url: str
    service: Service
    http: httpx.Client
    connections: Collection[Any] = ()
    requests: list[Request] = field(default_factory=list)

    def openai(self, **options: Any) -> OpenAI:
        """Return an official client; all share one connection pool."""
        from openai import OpenAI  # takes half a second, which servers in processes need not wait for

        options = {"api_key": "none", "max_retries": 0, "http_client": self.http, **options}
        return OpenAI(base_url=f"{self.url}/v1", **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", **{"model": "fake", "messages": USER, "max_tokens": 8, **body})

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", **{"model": "fake", "prompt": "ab", **body})

    def wait_idle(self) -> None:
        """Wait until no request is in progress."""
        wait_for(lambda: self.service.num_live == 0 and self.service.model().engine.num_live == 0)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.002)


def chat_parts(recipe: FakeRecipe | None = None, *, sampling: dict[str, Any] | None = None, **options: Any) -> Parts:
    """Return a fake engine whose model has a chat template."""
    return replace(
        parts(recipe, **options),
        chat_template=ChatTemplate(TEMPLATE),
        generation=GenerationConfig(eos_token_ids=(EOS,), sampling=sampling or {}),
    )


@contextmanager
def serving(
    make: Callable[[], AsyncEngine] | Parts | None = None,
    *,
    ready: bool = True,
    api_key: str | None = None,
    dialects: Sequence[tuple[Dialect, AddRoutes]] = DIALECTS,
    **config: Any,
) -> Iterator[Served]:
    """Run a server, by default over the fake engine; wait until it is ready unless `ready` is false."""
    made = chat_parts() if make is None else make
    options = ServerConfig(port=0, **config)
    app = create_app(
        (lambda: AsyncEngine.from_parts(made)) if isinstance(made, Parts) else made,
        options,
        api_key=api_key,
        dialects=dialects,
    )
    server = Server(app, options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        service: Service = app.state.service
        if ready:
            wait_for(lambda: service.state is not State.LOADING, 120)
            if service.failure is not None:
                raise service.failure
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=120) as http:
            served = Served(url, service, http, server.server_state.connections)
            if ready:
                _record(served)
            yield served
    finally:
        server.should_exit = True
        thread.join()


def _record(served: Served) -> None:
    """Store every request given to the engine."""
    engine = served.service.model().engine
    opened = engine.open

    def open_and_keep(requests: list[Request], places: QueueSlots | None) -> AsyncStream:
        served.requests += requests
        return opened(requests, places)

    engine.open = open_and_keep  # type: ignore[method-assign, assignment]


@contextmanager
def wire(server: Served) -> Iterator[socket.socket]:
    """Open a bare connection to the server."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def post_bytes(path: str, **body: Any) -> bytes:
    """Return a raw HTTP request after which the server closes the connection."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def heard(connection: socket.socket, *, pause: float = 0.0, size: int = 1 << 16) -> bytes:
    """Read until the connection is closed or reset, in pieces with a pause after each."""
    said = bytearray()
    with suppress(ConnectionError):
        while piece := connection.recv(size):
            said += piece
            time.sleep(pause)
    return bytes(said)


def events(response: httpx.Response) -> list[Any]:
    """Return the objects of a stream after checking its format; [DONE] becomes None."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    text = response.text
    assert text.endswith("\n\n")
    found: list[Any] = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        if event == ": keep-alive":
            continue
        assert event.startswith("data: ") and "\n" not in event
        payload = event.removeprefix("data: ")
        found.append(None if payload == "[DONE]" else json.loads(payload))
    return found


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error of a reply after checking its format."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["code"], str) and "Traceback" not in response.text
    return dict(body["error"])
