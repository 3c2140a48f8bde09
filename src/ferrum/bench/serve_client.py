"""A client of any OpenAI-compatible server that does little but look at its watch: one connection a request."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

import h11

from ferrum.bench.serve_options import LOWEST_TOKEN, Endpoint, Target
from ferrum.bench.serve_plan import Planned
from ferrum.core.json_record import JsonRecord

_CHUNK: Final = 1 << 16
PATIENCE: Final = 5.0
"""Seconds that what a server says of a refusal may take."""

ANSWER_SECONDS: Final = 30.0
"""Seconds that the answer to a question of a few bytes may take."""

LONGEST_MESSAGE: Final = 200
"""Characters that are told of what a server says."""

Kind = TypeVar("Kind", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(JsonRecord):
    """What became of a request. Moments are seconds after the start of the run.

    Attributes:
        planned: when it was due.
        sent: when the client began with it.
        pieces: when each piece of text arrived.
        end: when its stream was over.
        prompt_tokens, tokens: by the server's account, else by the request's and by counting pieces.
        error: what went wrong, in a word or two; None: nothing did.
        said: what the server said of it, in a line.
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
        """Time to the first token: from when the request was due to its first piece."""
        return self.pieces[0] - self.planned

    @property
    def e2e(self) -> float:
        """From when the request was due to its end."""
        return self.end - self.planned

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first one; None for a single token, and for many that came at once."""
        if self.tokens < 2 or len(self.pieces) < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """From each piece to the next."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]


def request_body(target: Target, planned: Planned, draw: random.Random) -> dict[str, Any]:
    """The JSON object of a request, with a prompt of its own."""
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
    return {**body, "prompt": [draw.randrange(LOWEST_TOKEN, target.vocabulary) for _ in range(planned.prompt_tokens)]}


Clock: TypeAlias = Callable[[], float]
Send: TypeAlias = Callable[[Planned, float], Awaitable[Timeline]]
"""Sends a request that was due at a moment, and tells what became of it. Never fails."""


class RequestFailed(Exception):
    """The server did not do what it was asked for.

    Args:
        error: what it did, in a word or two.
        said: what it said of that, in a line.
    """

    def __init__(self, error: str, said: str | None = None) -> None:
        super().__init__(error if said is None else f"{error}: {said}")
        self.error = error
        self.said = said


class Client:
    """Sends requests, each with a prompt of its own that no earlier run had: a server may remember prompts.

    Args:
        target: whom to ask.
        key: the API key; None: none.
        clock: seconds after the start of the run.

    Attributes:
        fingerprint: what the server calls its numerics, if it does.
    """

    def __init__(self, target: Target, key: str | None, clock: Clock) -> None:
        self._target = target
        self._url = urlsplit(target.url.rstrip("/"))
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._draw = random.Random()
        self._clock = clock
        self.fingerprint: str | None = None

    async def __call__(self, planned: Planned, due: float) -> Timeline:
        """See `Send`."""
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
        except (OSError, h11.ProtocolError, ValueError, RecursionError) as failure:
            error = type(failure).__name__
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
        async with aclosing(exchange(self._url, "POST", path, self._headers, json.dumps(body).encode())) as parts:
            async for line in _lines(parts):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = _given(json.loads(data), dict)
                if event.get("error"):
                    raise RequestFailed("error in the stream", message_of(data))
                if any(_has_text(_given(choice, dict)) for choice in _given(event.get("choices"), list)):
                    pieces.append(self._clock())
                counts = _given(event.get("usage"), dict).items()
                usage.update({name: count for name, count in counts if type(count) is int and count >= 0})
                if isinstance(named := event.get("system_fingerprint"), str):
                    self.fingerprint = named or self.fingerprint
        raise RequestFailed("cut off")


def _given(value: Any, kind: type[Kind]) -> Kind:
    """A JSON value of a kind; none is an empty one. Raises RequestFailed for a value of another."""
    if not isinstance(value, kind | None):
        raise RequestFailed("another stream than OpenAI's")
    return kind() if value is None else value


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of an event carries any."""
    delta = _given(choice.get("delta"), dict)
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content"))


async def get_json(url: str, path: str, key: str | None = None) -> Any:
    """What the server answers to a GET.

    Raises:
        RequestFailed: another status than 200.
        OSError: there is no server, or none that answers in time.
        ValueError, RecursionError: it does not speak JSON.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with asyncio.timeout(ANSWER_SECONDS):
        async with aclosing(exchange(urlsplit(url.rstrip("/")), "GET", path, headers)) as parts:
            return json.loads(b"".join([part async for part in parts]))


async def exchange(
    url: SplitResult, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Send one request on a connection of its own; the parts of the response's body as they arrive.

    Raises:
        RequestFailed: another status than 200.
        OSError, h11.ProtocolError: the connection failed.
    """
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure)
    try:
        connection = h11.Connection(h11.CLIENT)
        head = {"host": url.netloc.rpartition("@")[2], "connection": "close", "content-length": str(len(body))}
        request = h11.Request(method=method, target=url.path + path, headers=list({**head, **headers}.items()))
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        while True:
            got = connection.next_event()
            if got is h11.NEED_DATA:
                connection.receive_data(await reader.read(_CHUNK))
            elif isinstance(got, h11.Response) and got.status_code != 200:
                raise RequestFailed(f"HTTP {got.status_code}", message_of(await _rest(connection, reader)))
            elif isinstance(got, h11.Data):
                yield bytes(got.data)
            elif isinstance(got, h11.EndOfMessage | h11.ConnectionClosed):
                return
    finally:
        writer.close()


async def _rest(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    """The body of a response, as far as it comes and is not long."""
    body = b""
    with suppress(OSError, h11.ProtocolError):  # a time-out is an OSError, too
        async with asyncio.timeout(PATIENCE):
            while len(body) < _CHUNK:
                got = connection.next_event()
                if got is h11.NEED_DATA:
                    connection.receive_data(await reader.read(_CHUNK))
                elif isinstance(got, h11.Data):
                    body += got.data
                else:
                    break
    return body


def message_of(body: bytes) -> str | None:
    """The message of an error's JSON, or else its text, as one line that is not long; None where there is none."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):  # another server than OpenAI's
        text = str(json.loads(text)["error"]["message"])
    return shorten(text, LONGEST_MESSAGE, placeholder=" ...") or None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of a body, without their ends."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
