"""`Dialect`: the wire form of one API. A request's path chooses it before a route is known.

Bodies, checks and routes of a dialect are in its folder; `app` lists the dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from ferrum.server.common.error_replies import ApiError


def sse_event(name: str, data: bytes) -> bytes:
    """Return JSON as a server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def sse_data(_: str, data: bytes) -> bytes:
    """Return JSON as a server-sent event without a name."""
    return b"data: " + data + b"\n\n"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes streams, errors and ids.

    Attributes:
        paths: its routes, and paths below them; an empty one stands for all paths.
        ids: prefixes of the ids of its replies.
        error: returns the JSON of an error.
        event: returns the bytes of an event of a stream, from its name and its JSON. That of an error is `error`.
        end: what follows the last event of a complete stream.
        keep_alive: what is sent on an idle stream.
        stream_type: the media type of a stream.
    """

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    error: Callable[[ApiError], bytes]
    event: Callable[[str, bytes], bytes] = sse_event
    end: bytes = b""
    keep_alive: bytes = b": keep-alive\n\n"
    stream_type: str = "text/event-stream; charset=utf-8"

    def response(self, error: ApiError) -> Response:
        """Return an error as a response."""
        headers = dict(error.headers or {})
        return Response(self.error(error), error.status_code, headers, media_type="application/json")


def dialect_of(dialects: Sequence[Dialect], path: str) -> Dialect:
    """Return the dialect with the longest prefix of a path, else the first one."""
    found, longest = dialects[0], -1
    for dialect in dialects:
        for prefix in dialect.paths:
            if len(prefix) > longest and (path == prefix or path.startswith(f"{prefix}/")):
                found, longest = dialect, len(prefix)
    return found
