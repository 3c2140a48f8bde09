"""File descriptors, of which each connection takes one: as many as may be, and one line where none is left.

Runs the application: uvicorn, structured logs, and an end in two steps.
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

from ferrum.core.errors import ConfigError
from ferrum.core.logging import log_objects, warn_once
from ferrum.engine.async_engine import AsyncEngine
from ferrum.engine.hosts.process import SWITCH_SECONDS
from ferrum.engine.progress import leave
from ferrum.server.app import create_app
from ferrum.server.gc_policy import put_off, search_in_pauses
from ferrum.server.http_timeouts import PunctualProtocol
from ferrum.server.server_config import ServerConfig
from ferrum.server.service import Service, State

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

NOT_NOW: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EBADF)
"""Why a connection that waits cannot be taken. asyncio tries again in a second; by then the server may have ended."""


def allow_all() -> None:
    """Take all that this process may have: shells and systemd begin with 1,024, as many as requests may be."""
    if resource is not None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError, ValueError):  # some systems have no number that means all
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def tell_once_of_none(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's handler of errors: asyncio tells 2,048 times a second of connections that cannot be taken."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in NOT_NOW:
        warn_once(f"new connections cannot be taken: {error}")
    else:
        loop.default_exception_handler(context)


POLL_SECONDS: Final = 0.05
"""How often a draining server looks whether it is done."""

WRITE_SECONDS: Final = 60.0
"""How long a client may take nothing of what it is sent."""

CLOSE_SECONDS: Final = 1.0
"""How long connections have to come to their end when everything has been ended that runs on them."""


NOT_LISTENING: Final = (1, 3)
"""What uvicorn exits with where it cannot listen, in its older versions and in those since."""

HANG_UP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""The terminal is closed. Not every system has it."""


class Server(uvicorn.Server):
    """A server that ends in two steps: the first signal drains it, the second aborts what still runs.

    After that no client holds it up: connections that are still there after a moment, or at one more signal, are cut.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        write_seconds = min(WRITE_SECONDS, config.request_seconds or WRITE_SECONDS)
        protocol = partial(
            PunctualProtocol,
            head_seconds=config.head_seconds,
            body_seconds=config.body_seconds,
            write_seconds=write_seconds,
        )
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                http=cast("Any", protocol),  # uvicorn calls it as it would call the class
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
            )
        )
        self._service: Service = app.state.service
        self._drain_seconds = config.drain_seconds
        self._signals = 0
        self._hung_up = False
        self._tasks: list[asyncio.Task[None]] = []

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """See uvicorn. A terminal that is closed is a signal like the others, unless nohup has it ignored."""
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
        """Take a signal; what it means is done on the event loop."""
        if sig != HANG_UP or not self._hung_up:  # of a closed terminal both the shell and the system tell
            self._signals += 1
        self._hung_up |= sig == HANG_UP

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """See uvicorn. The signals, and the pauses, are watched from here on."""
        asyncio.get_running_loop().set_exception_handler(tell_once_of_none)
        await super().startup(sockets)
        pauses = search_in_pauses(lambda: self._service.num_live)
        self._tasks = [asyncio.create_task(each) for each in (self._watch_signals(), pauses)]

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """See uvicorn. Nothing is left of the watches, and no connection is waited for."""
        for each in self._tasks:
            each.cancel()
        cutting = asyncio.create_task(self._cut_connections())
        await super().shutdown(sockets)
        cutting.cancel()
        if self.force_exit:  # then uvicorn leaves it out
            await self.lifespan.shutdown()

    async def _cut_connections(self) -> None:
        """Cut the connections that are left in a moment, or at one more signal; what was sent to nobody is lost.

        Requests that are not over a moment later wait for an engine that is stuck in a step: it is closed all the same.
        """
        known, until = self._signals, time.monotonic() + CLOSE_SECONDS
        while self._signals == known and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        for each in self.server_state.connections:
            each.transport.abort()
        await asyncio.sleep(CLOSE_SECONDS)
        self.force_exit = bool(self.server_state.tasks)

    def _busy(self) -> bool:
        """Whether a request is being read or answered, or a client is still taking an answer."""
        state = self.server_state
        return bool(state.tasks) or any(each.transport.get_write_buffer_size() for each in state.connections)

    async def _watch_signals(self) -> None:
        """Drain at the first signal; end when nobody is served, at the second signal, or when the time is over."""
        while not self._signals and self._service.state is not State.FAILED:
            await asyncio.sleep(POLL_SECONDS)
        if self._service.state is not State.FAILED:
            self._service.drain()
            until = time.monotonic() + self._drain_seconds
            while self._busy() and self._signals == 1 and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
            self._service.abort_all()
        self.should_exit = True


def serve(make_engine: Callable[[], AsyncEngine], config: ServerConfig) -> None:
    """Serve until a signal ends it. One that comes while the engine is still being built ends the process at once.

    Raises:
        ConfigError: the file of API keys cannot be used, or nobody can listen on the port.
        Exception: what kept the engine from being built.
    """
    log_to_stderr()
    allow_all()
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(partial(_settled, make_engine), config)
    try:
        with put_off():
            Server(app, config).run()
    except SystemExit as end:  # so uvicorn ends where it cannot listen, after a line that tells why
        if end.code not in NOT_LISTENING:
            raise
        raise ConfigError(f"{config.port} of {config.host} cannot be listened on", param="port") from None
    finally:
        gc.unfreeze()  # or what the engine's cycles hold would outlast the library that frees it
    service: Service = app.state.service
    if service.left_loading:
        leave(0)  # the interpreter's own end would wait for the thread that loads, or break it in native code
    if service.failure is not None:
        raise service.failure


def _settled(make_engine: Callable[[], AsyncEngine]) -> AsyncEngine:
    """The engine. What there is by now will stay: to search it for garbage would hold up every stream."""
    engine = make_engine()
    gc.freeze()
    return engine


def log_to_stderr() -> None:
    """Send all logs to standard error: those of ferrum and of uvicorn, and the warnings of whatever else runs here."""
    log_objects(logging.WARNING)
    for name in ("ferrum", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
