"""The outermost layer of the application: request id, API key, body limits, log line, metrics.

Limits of rates are in `key_limits`; timeouts of headers and of writing are in `launch`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError, as_api_error
from ferrum.server.common.key_limits import ApiKeys, Limits
from ferrum.server.common.service import Service
from ferrum.server.common.web_ui import WEB_UI_PATHS

CLIENT_GONE: Final = 499
"""Status in logs and metrics if the client left before the response."""

OPEN_PATHS: Final = frozenset({"/health", "/ping", "/ready", "/version", "/metrics", *WEB_UI_PATHS})
"""Paths without an API key: probes, metrics and the web page."""

LOG: Final = logging.getLogger("ferrum.server.requests")

CLOSE: Final = {"connection": "close"}
"""For responses before the end of the body: the connection is out of step."""

LINGER_BYTES: Final = 64 << 20
"""Bytes of a rejected body that are received and dropped."""

_ORIGIN: Final = re.compile("^https?://[^/]*", re.IGNORECASE)
"""The origin of a request target in absolute form (RFC 9112, 3.2.2)."""

_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


def dialect_of(dialects: Sequence[Dialect], path: str, headers: Container[str]) -> Dialect:
    """Return the dialect with the longest prefix of a path, else that of the client by its headers, else the first."""
    found, longest = dialects[0], -1
    for dialect in dialects:
        shared = dialect.shared_paths if any(name in headers for name in dialect.headers) else ()
        own = (each for each in (*dialect.paths, *shared) if path == each or path.startswith(f"{each}/"))
        length = max(map(len, own), default=-1)
        if length > longest:
            found, longest = dialect, length
    if longest > 0:
        return found
    return next((each for each in dialects if each.client_header and each.client_header in headers), found)


class Guard:
    """ASGI middleware around the whole application.

    It sets in the scope's state: `request_id`, `tenant`, `service`, `dialect`, `log` (fields of the request's log
    line), `send` (sends parts of a response past the middleware in between) and `hold` (counts further bytes in memory
    until the request ends).

    Args:
        app: the application.
        service: the server's state.
        keys: accepted API keys; None: no key is required.
    """

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys | None) -> None:
        self._app = app
        self._service = service
        self._keys = keys
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = _ORIGIN.sub("", scope["path"]).removesuffix("/") or "/"
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        log = {"method": scope["method"], "path": scope["path"]}
        state: dict[str, Any] = {"request_id": request_id, "service": self._service, "tenant": "", "log": log}
        state["dialect"] = dialect_of(self._service.dialects, scope["path"], headers)
        scope["state"] = state = {**scope.get("state", {}), **state}
        config = self._service.config
        body = _Body(receive, config.max_body_bytes, config.body_seconds, self._count_held)
        sender = _Sender(send, state, self._service.limits, body.drain)
        state["send"], state["hold"] = sender, body.hold
        began = time.monotonic()
        try:
            self._admit(scope, headers)
            await self._app(scope, body, sender)
        except Exception as error:  # noqa: BLE001 - a client gets no traceback, whatever happens
            await self._answer(error, scope, receive, sender)
        finally:
            self._held -= body.held
            self._record(scope, sender, body, time.monotonic() - began)
            state.clear()  # breaks a reference cycle, which would keep the body until the next garbage collection

    def _count_held(self, size: int) -> None:
        """Count received bytes of a request. Raises ApiError, 429, above `max_held_bytes`."""
        self._held += size
        limit = self._service.config.max_held_bytes
        if self._held > limit:
            wait = {"retry-after": str(self._service.retry_after()), **CLOSE}
            raise ApiError(
                429,
                f"request bodies and images exceed {limit} bytes in total; retry later",
                code="queue_full",
                headers=wait,
            )

    def _record(self, scope: Scope, sender: _Sender, body: _Body, seconds: float) -> None:
        """Log and count a finished request. Without a status it was cut off."""
        state = scope["state"]
        status = CLIENT_GONE if body.cut else sender.status or CLIENT_GONE
        log = {"status": status, **state["log"], "seconds": round(seconds, 6)}
        level = logging.DEBUG if scope["path"] in OPEN_PATHS else logging.INFO
        fields = {"request_id": state["request_id"], "tenant": state["tenant"], **log}
        LOG.log(level, "request", extra={"fields": fields})
        handler = getattr(scope.get("route"), "path", "none")
        self._service.http.observe(handler, scope["method"], log["status"], seconds, body.received, sender.sent)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Check a request's headers.

        Raises:
            ApiError: 401 or 413.
        """
        if self._keys is not None and scope["path"] not in OPEN_PATHS:
            scope["state"]["tenant"] = self._authenticate(self._keys, headers)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._service.config.max_body_bytes:
            raise too_large(self._service.config.max_body_bytes)

    def _authenticate(self, keys: ApiKeys, headers: Headers) -> str:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        key = key.strip()
        tenant = keys.tenant(key)
        if tenant is None:
            reason = "this API key is not valid" if key else "an API key is required: send `Authorization: Bearer KEY`"
            code = "invalid_api_key" if key else "missing_api_key"
            raise ApiError(401, reason, code=code, headers={"www-authenticate": "Bearer"})
        return tenant

    async def _answer(self, error: Exception, scope: Scope, receive: Receive, sender: _Sender) -> None:
        """Send the error response; if a response has begun, raise, which cuts the connection."""
        state = scope["state"]
        failure = as_api_error(error, state["request_id"], self._service.retry_after())
        if sender.status is not None:
            raise error
        failure.request_id = state["request_id"]
        await state["dialect"].response(failure)(scope, receive, sender)


class _Sender:
    """A send function that adds request id and rate limits, and records the status.

    A response that closes the connection ends only after the rejected body is received: TCP resets a connection that is
    closed with unread bytes, and a client that is still sending would lose the response.
    """

    def __init__(
        self,
        send: Send,
        state: Mapping[str, Any],
        limits: Limits,
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        self._send = send
        self._state = state
        self._limits = limits
        self._drain = drain
        self._closes = False
        self.status: int | None = None
        self.sent = 0

    async def __call__(self, message: Message) -> None:
        self.sent += len(message.get("body", b""))
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._closes = (b"connection", b"close") in message["headers"]
            tenant = self._state["tenant"]
            rates = self._limits.headers(tenant) if tenant in self._limits.tenants else ()
            names = filter(None, ("x-request-id", self._state["dialect"].id_header))
            own = [*((name.encode(), self._state["request_id"].encode()) for name in names), *rates]
            message = {**message, "headers": [*message["headers"], *own]}
        elif self._closes and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._drain()
            message = {"type": message["type"]}
        await self._send(message)


class _Body:
    """A body's receive function, which limits size and time.

    Attributes:
        received: bytes so far.
        held: bytes in memory: those received, and pixels of images.
        cut: whether the client left before the end.
    """

    def __init__(self, receive: Receive, limit: int, seconds: float, hold: Callable[[int], None]) -> None:
        self._receive = receive
        self._limit = limit
        self._count_held = hold
        self.received = self.held = 0
        self.cut = False
        self._until = time.monotonic() + seconds
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, "the request body took too long", code="body_timeout", headers=CLOSE) from None
        self._complete = not message.get("more_body", False)
        self.cut = message["type"] == "http.disconnect"
        size = len(message.get("body", b""))
        self.received += size
        self.hold(size)
        if self.received > self._limit:
            raise too_large(self._limit)
        return message

    def hold(self, size: int) -> None:
        """Count bytes in memory. Raises ApiError, 429, above `max_held_bytes`."""
        self.held += size
        self._count_held(size)

    async def drain(self) -> None:
        """Receive and drop the rest of the body, up to `LINGER_BYTES` and the body's deadline."""
        left = LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(self._until - time.monotonic()):
                while not self._complete and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)


def too_large(limit: int) -> ApiError:
    """Return the error for a body over the limit."""
    return ApiError(413, f"the request body exceeds {limit} bytes", code="body_too_large", headers=CLOSE)
