"""Runs the application with uvicorn: file limit, logs, listening, timeouts of connections, and shutdown in two steps.

The application is put together in `app`; what it does while draining is in `service`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import signal
import struct
import sys
import termios
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any, Final, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import ConfigError
from ferrum.core.logging import log_objects, log_text, warn_once
from ferrum.core.policy_config import POLICY
from ferrum.engine.engine_main import SWITCH_SECONDS
from ferrum.engine.progress import leave
from ferrum.server.app import create_app
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.service import Service, State
from ferrum.server.server_config import ServerConfig

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

HANG_UP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""The signal of a closing terminal; not every system has it."""

ACCEPT_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EBADF)
"""Errors of accepting a connection. asyncio retries after a second, when the socket may already be closed."""

NOT_LISTENING: Final = (1, 3)
"""Exit codes of uvicorn if it cannot listen: of older and of newer versions."""

POLL_SECONDS: Final = 0.05
"""Interval at which a draining server checks whether it is done."""

WRITE_SECONDS: Final = 60.0
"""How long a client may read nothing while data is waiting for it."""

CLOSE_SECONDS: Final = 1.0
"""How long connections may take to close after their requests have ended."""


class Server(uvicorn.Server):
    """A server that ends in two steps: the first signal drains, the second aborts requests.

    Then connections that remain after a moment, or at one more signal, are cut.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        write_seconds = min(WRITE_SECONDS, config.request_seconds or WRITE_SECONDS)
        protocol = partial(
            TimeoutProtocol,
            head_seconds=config.head_seconds,
            body_seconds=config.body_seconds,
            write_seconds=write_seconds,
            dialect=app.state.service.dialects[0],
        )
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                http=cast("Any", protocol),  # uvicorn calls it like the class
                loop="asyncio",  # uvicorn takes uvloop if it is installed; its transports have no attributes
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
            )
        )
        self._service: Service = app.state.service
        self._drain_seconds = config.drain_seconds
        self._greets = config.logs_text
        self._signals = 0
        self._hung_up = False
        self._watch: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle a closing terminal like other signals, unless nohup ignores it."""
        with super().capture_signals():
            if HANG_UP is None or threading.current_thread() is not threading.main_thread():
                yield
                return
            before = signal.getsignal(HANG_UP)
            if before is not signal.SIG_IGN:
                signal.signal(HANG_UP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(HANG_UP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Count a signal; the event loop acts on it."""
        if sig != HANG_UP or not self._hung_up:  # both the shell and the system signal a closed terminal
            self._signals += 1
        self._hung_up |= sig == HANG_UP

    async def startup(self, sockets: list[Any] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_accept_errors_once)
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._watch_signals())

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        cutting = asyncio.create_task(self._cut_connections())
        await super().shutdown(sockets)
        cutting.cancel()
        if self.force_exit:  # uvicorn then skips the lifespan's shutdown
            await self.lifespan.shutdown()

    async def _cut_connections(self) -> None:
        """Cut connections after a moment, or at one more signal; unsent data is lost.

        Requests that still run then wait for an engine stuck in a step; uvicorn is made to stop without them.
        """
        known, until = self._signals, time.monotonic() + CLOSE_SECONDS
        while self._signals == known and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        for each in self.server_state.connections:
            each.transport.abort()
        await asyncio.sleep(CLOSE_SECONDS)
        self.force_exit = bool(self.server_state.tasks)

    def _busy(self) -> bool:
        """Return whether a request is read or answered, or a client still receives a reply."""
        state = self.server_state
        return bool(state.tasks) or any(each.transport.get_write_buffer_size() for each in state.connections)

    async def _watch_signals(self) -> None:
        """Drain at the first signal; stop when idle, at the second, or at the deadline."""
        while not self._signals and self._service.state is not State.FAILED:
            if self._greets and self._service.state is State.READY:
                self._greets = False
                port = self.servers[0].sockets[0].getsockname()[1]
                sys.stderr.write(greeting(self._service.model().name, self.config.host, port))
            await asyncio.sleep(POLL_SECONDS)
        if self._service.state is not State.FAILED:
            self._service.drain()
            until = time.monotonic() + self._drain_seconds
            while self._busy() and self._signals == 1 and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
            self._service.abort_all()
        self.should_exit = True


def serve(make_engine: Callable[[], AsyncEngine], config: ServerConfig, api_key: str | None = None) -> None:
    """Serve until a signal ends the server.

    While the engine loads, a signal ends the process at once.

    Raises:
        ConfigError: API keys or the chat template are invalid, or the server cannot listen on the address.
        Exception: the engine could not be built.
    """
    if config.logs_text:
        log_as_text()
    else:
        log_to_stderr()
    raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(partial(_build_frozen, make_engine), config, api_key=api_key)
    thresholds = gc.get_threshold()
    # Requests leave no reference cycles (tests/serve/test_garbage.py), so collections may be rare.
    gc.set_threshold(POLICY.gc_young_objects, *thresholds[1:])
    try:
        Server(app, config).run()
    except SystemExit as end:  # uvicorn logs why it cannot listen, then exits
        if end.code not in NOT_LISTENING:
            raise
        reason = getattr(end.__context__, "strerror", None) or "see the log"
        why = reason.rpartition(": ")[2]  # asyncio puts the address before the reason
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {why}", param="port") from None
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # the engine's cycles must be freed before the native library they use
    service: Service = app.state.service
    if service.still_building:
        leave(0)  # a normal exit would wait for the loading thread, or crash it in native code
    if service.failure is not None:
        raise service.failure


def _build_frozen(make_engine: Callable[[], AsyncEngine]) -> AsyncEngine:
    """Build the engine; exempt all present objects from garbage collection, as they stay."""
    engine = make_engine()
    gc.freeze()
    return engine


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: each connection takes one."""
    if resource is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError, ValueError):  # some systems reject an unlimited value
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_accept_errors_once(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an event loop's errors: asyncio reports failing accepts up to 2,048 times a second."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in ACCEPT_ERRORS:
        warn_once(f"cannot accept new connections: {error}")
    else:
        loop.default_exception_handler(context)


def log_to_stderr() -> None:
    """Log to standard error: INFO of ferrum and uvicorn, warnings of everything else."""
    log_objects(logging.WARNING)
    for name in ("ferrum", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)


def log_as_text() -> None:
    """Log to a terminal: INFO of ferrum, warnings of everything else. The greeting replaces messages of the start."""
    log_text(logging.WARNING)
    logging.getLogger("ferrum").setLevel(logging.INFO)
    logging.getLogger("ferrum.server.common.service").setLevel(logging.WARNING)


# Timeouts of connections that uvicorn lacks: headers, unread bodies and unread responses


PROGRESS_CHECKS: Final = 4
"""Checks for progress within `write_seconds`."""


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol with timeouts for slow clients.

    - Headers: from the connection, or the first byte of a later request.
    - Rest of a body whose request is already answered.
    - Response: time in which the client reads nothing; any progress restarts it.

    Args:
        head_seconds: limit for headers.
        body_seconds: limit for the rest of a body.
        write_seconds: limit for a pause in reading the response.
        dialect: of the errors for invalid HTTP, which may have no path.
        options: uvicorn's.
    """

    def __init__(
        self, *, head_seconds: float, body_seconds: float, write_seconds: float, dialect: Dialect, **options: Any
    ) -> None:
        super().__init__(**options)
        self._head_seconds = head_seconds
        self._body_seconds = body_seconds
        self._dialect = dialect
        self._timer: asyncio.TimerHandle | None = None
        self._write_seconds = write_seconds
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # report any waiting byte to pause_writing
        self._timer = self.loop.call_later(self._head_seconds, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between = self.conn.their_state is h11.IDLE
        if not between and self.conn.our_state is not h11.DONE:
            self._stop_timer()
        elif self._timer is None:
            seconds = self._head_seconds if between else self._body_seconds
            self._timer = self.loop.call_later(seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_checks()
        super().connection_lost(exc)
        # Breaks a reference cycle of asyncio's transport with its own method.
        self.loop.call_soon(vars(self.transport).pop, "_read_ready_cb", None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._schedule_check(self._unsent(), PROGRESS_CHECKS)

    def resume_writing(self) -> None:
        self._stop_checks()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in the JSON form of other errors."""
        body = self._dialect.error(ApiError(400, msg, code="invalid_http"))
        kind, length = (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())
        head = h11.Response(status_code=400, headers=[kind, length, (b"connection", b"close")], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _schedule_check(self, unsent: int, checks: int) -> None:
        """Cut the connection after this many checks without progress."""
        if checks:
            self._write_timer = self.loop.call_later(
                self._write_seconds / PROGRESS_CHECKS, self._check_progress, unsent, checks
            )
        else:
            self.transport.abort()

    def _check_progress(self, before: int, checks: int) -> None:
        unsent = self._unsent()
        self._schedule_check(unsent, PROGRESS_CHECKS if unsent < before else checks - 1)

    def _unsent(self) -> int:
        """Return the bytes that the client has not acknowledged, here and in the kernel.

        The kernel asks for more data only when much of its buffer is free, so the buffer here would hide slow progress.
        """
        here, connection = self.transport.get_write_buffer_size(), self.transport.get_extra_info("socket")
        try:
            (in_kernel,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        except OSError:  # some systems lack this for sockets
            return here
        return here + int(in_kernel)

    def _stop_checks(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# The greeting on a terminal


_WILDCARDS: Final[Mapping[str, str]] = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})
"""Addresses that listen everywhere, and those that reach them from this machine."""


def greeting(model: str, host: str, port: int) -> str:
    """Return three lines: the model, the addresses, and how to stop."""
    reached = _WILDCARDS.get(host, host)
    url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
    return (
        f"{model} is ready\n"
        f"page {url}/   API {url}/v1\n"
        "Ctrl-C stops after running requests; a second Ctrl-C ends them\n"
    )
