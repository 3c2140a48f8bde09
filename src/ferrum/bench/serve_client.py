"""A streaming client of OpenAI-compatible servers that records arrival times: one connection per request."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import h11

from ferrum.bench.serve_options import LOWEST_TOKEN, USUAL_VOCABULARY, Endpoint, Planned, Target
from ferrum.core.json_record import JsonRecord

_CHUNK: Final = 1 << 16
_MAX_ERROR: Final = 200
"""Characters kept of an error message."""

ANSWER_SECONDS: Final = 30.0
"""Time limit for answers of a few bytes, such as a list of models."""

NotOpenAI: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer of another API can raise."""

NoConnection: Final = (OSError, h11.ProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(JsonRecord):
    """What happened to a request. Times are seconds since the start of the run.

    Attributes:
        planned: when it was due.
        sent: when the client began to send it.
        pieces: when each piece of text arrived.
        end: when its stream ended.
        prompt_tokens, tokens: from the stream's `usage`, else from the request and by counting pieces.
        error: why it failed, in a few words; None: it succeeded.
        said: the server's error message, shortened.
    """

    planned: float
    sent: float
    pieces: tuple[float, ...]
    end: float
    prompt_tokens: int
    tokens: int
    error: str | None = None
    said: str | None = None

    @property
    def ttft(self) -> float:
        """Time to first token, from when the request was due."""
        return self.pieces[0] - self.planned

    @property
    def e2e(self) -> float:
        """Time to the end, from when the request was due."""
        return self.end - self.planned

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None if a single piece arrived."""
        if self.tokens < 2 or len(self.pieces) < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Times between consecutive pieces."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]


def request_body(target: Target, planned: Planned, draw: random.Random) -> dict[str, Any]:
    """Return the JSON object of a request with a new random prompt: servers cache earlier ones."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": planned.max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.ignore_eos:
        body["ignore_eos"] = True
    if target.endpoint == Endpoint.CHAT:
        words = " ".join("".join(draw.choices("aeiounrst", k=3)) for _ in range(planned.prompt_tokens))
        return {**body, "messages": [{"role": "user", "content": words}]}
    below = target.vocabulary or USUAL_VOCABULARY
    return {**body, "prompt": [draw.randrange(LOWEST_TOKEN, below) for _ in range(planned.prompt_tokens)]}


Clock: TypeAlias = Callable[[], float]
Send: TypeAlias = Callable[[Planned, float], Awaitable[Timeline]]
"""Sends a request with its due time and returns its timeline, also for a failure."""


class RequestFailed(Exception):
    """A refusal or a broken stream.

    Args:
        error: what happened, in a few words.
        said: the server's message.
    """

    def __init__(self, error: str, said: str | None = None) -> None:
        super().__init__(error if said is None else f"{error}: {said}")
        self.error = error
        self.said = said


class Client:
    """A sender of requests.

    Args:
        target: the server.
        key: the API key, if any.
        clock: seconds since the start of the run.

    Attributes:
        fingerprint: the server's last `system_fingerprint`.
    """

    def __init__(self, target: Target, key: str | None, clock: Clock) -> None:
        self._target = target
        self._key = key
        self._draw = random.Random()
        self._clock = clock
        self.fingerprint: str | None = None

    async def __call__(self, planned: Planned, due: float) -> Timeline:
        """Send a request and follow its stream. See `Send`."""
        body = request_body(self._target, planned, self._draw)
        sent, pieces, usage = self._clock(), list[float](), dict[str, int]()
        error = said = None
        try:
            async with asyncio.timeout(self._target.timeout):
                await self._read(body, pieces, usage)
        except TimeoutError:
            error = "timeout"
        except RequestFailed as failure:
            error, said = failure.error, failure.said
        except NoConnection as failure:
            error = type(failure).__name__
        except NotOpenAI:
            error = "not an OpenAI stream"
        return Timeline(
            planned=due,
            sent=sent,
            pieces=tuple(pieces),
            end=self._clock(),
            prompt_tokens=usage.get("prompt_tokens", planned.prompt_tokens),
            tokens=usage.get("completion_tokens", len(pieces)),
            error=error or (None if pieces else "no text"),
            said=said,
        )

    async def _read(self, body: Mapping[str, Any], pieces: list[float], usage: dict[str, int]) -> None:
        """Follow a stream to its end."""
        path = "/chat/completions" if self._target.endpoint == Endpoint.CHAT else "/completions"
        async with aclosing(exchange(self._target.url, path, self._key, json.dumps(body).encode())) as parts:
            async for line in _lines(parts):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if event.get("error"):
                    raise RequestFailed("error in the stream", message_of(data))
                if any(map(_has_text, event.get("choices") or ())):
                    pieces.append(self._clock())
                counts = (event.get("usage") or {}).items()
                usage.update({name: count for name, count in counts if type(count) is int and count >= 0})
                if isinstance(named := event.get("system_fingerprint"), str):
                    self.fingerprint = named or self.fingerprint
        raise RequestFailed("connection closed before [DONE]")


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice of an event carries text; servers name a model's reasoning differently."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content"))


async def get_json(url: str, path: str, key: str | None = None) -> Any:
    """Return the JSON answer to a GET.

    Raises:
        RequestFailed: a status other than 200.
        OSError, ValueError, RecursionError: no answer in time, or no JSON.
    """
    async with asyncio.timeout(ANSWER_SECONDS), aclosing(exchange(url, path, key)) as parts:
        return json.loads(b"".join([part async for part in parts]))


async def exchange(url: str, path: str, key: str | None, body: bytes | None = None) -> AsyncGenerator[bytes, None]:
    """Send a POST of a JSON body, or a GET, on a new connection; yield the parts of the response's body.

    Raises:
        RequestFailed: a status other than 200.
        OSError, h11.ProtocolError: the connection failed.
    """
    base = urlsplit(url.rstrip("/"))
    secure = ssl.create_default_context() if base.scheme == "https" else None
    reader, writer = await asyncio.open_connection(base.hostname, base.port or (443 if secure else 80), ssl=secure)
    headers = {"host": base.netloc.rpartition("@")[2], "connection": "close", "content-type": "application/json"}
    headers["content-length"] = str(len(body or b""))
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    method = "GET" if body is None else "POST"
    try:
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=base.path + path, headers=list(headers.items()))
        for event in (request, h11.Data(data=body or b""), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        status, refusal = 200, b""
        async for got in _received(connection, reader):
            if isinstance(got, h11.Response):
                status = got.status_code
            elif isinstance(got, h11.Data) and status == 200:
                yield bytes(got.data)
            elif isinstance(got, h11.Data) and len(refusal) < _CHUNK:
                refusal += got.data
        if status != 200:
            raise RequestFailed(f"HTTP {status}", message_of(refusal))
    finally:
        writer.close()


async def _received(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[h11.Event]:
    """Yield the events of a response up to its end."""
    while not isinstance(got := connection.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if got is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(got, h11.Event):
            yield got


def message_of(body: bytes) -> str | None:
    """Return the message of an error's JSON, or else its text, shortened to one line; None if it is empty."""
    text = body.decode("utf-8", "replace")
    with suppress(*NotOpenAI):
        text = str(json.loads(text)["error"]["message"])
    return shorten(text, _MAX_ERROR, placeholder=" ...") or None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines of a body without their line ends."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
