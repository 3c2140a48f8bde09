"""`Dialect`: the wire form of one API. The guard chooses it by a request's path, before a route is known.

Bodies, checks and routes of a dialect are in its folder; `app` lists the dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from starlette.responses import Response

from ferrum.server.common.error_replies import ApiError

NAMED_EVENT: Final = b"event: %(name)b\ndata: %(json)b\n\n"
UNNAMED_EVENT: Final = b"data: %(json)b\n\n"
"""Server-sent events."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes streams, errors and ids.

    Attributes:
        paths: its routes, and paths below them; an empty one stands for all paths.
        ids: prefixes of the ids of its replies; clients recognise objects by them.
        error: returns the JSON of an error.
        event: form of an event of a stream, with places for `name` and `json`. The name of an error is `error`.
        end: what follows the last event of a complete stream.
        keep_alive: what is sent on an idle stream.
        stream_type: the media type of a stream.
        status: returns the HTTP status of an error.
        id_header: a further header with the request's id; empty: only `x-request-id`.
        shared_paths: routes of another dialect that answer in this one's form to requests with one of `headers`.
        headers: request headers that only clients of this dialect send.
        client_header: the one of these with which paths of no dialect are answered in this form; empty: none.
        typed: requests must have the content type of JSON, also those without an `origin`.
    """

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    error: Callable[[ApiError], bytes]
    event: bytes = NAMED_EVENT
    end: bytes = b""
    keep_alive: bytes = b": keep-alive\n\n"
    stream_type: str = "text/event-stream; charset=utf-8"
    status: Callable[[ApiError], int] = attrgetter("status_code")
    id_header: str = ""
    shared_paths: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    client_header: str = ""
    typed: bool = True

    def response(self, error: ApiError) -> Response:
        """Return an error as a response."""
        headers = dict(error.headers or {})
        return Response(self.error(error), self.status(error), headers, media_type="application/json")
