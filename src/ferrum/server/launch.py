"""Runs the application with uvicorn: file limit, logs, listening, and shutdown in two steps.

The application is put together in `app`; what it does while draining is in `service`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import uvicorn
from fastapi import FastAPI

from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import ConfigError
from ferrum.core.logging import log_objects, log_text, warn_once
from ferrum.core.policy_config import POLICY
from ferrum.engine.engine_main import SWITCH_SECONDS
from ferrum.engine.progress import leave
from ferrum.server.app import create_app
from ferrum.server.common.http_timeouts import TimeoutProtocol
from ferrum.server.common.service import Service, State
from ferrum.server.greeting import greeting
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
    if service.left_loading:
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
