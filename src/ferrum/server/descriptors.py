"""File descriptors, of which each connection takes one: as many as may be, and one line where none is left."""

from __future__ import annotations

import errno
from asyncio import AbstractEventLoop
from contextlib import suppress
from typing import Any, Final

from ferrum.core.logging import tell_once

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
        tell_once(f"new connections cannot be taken: {error}")
    else:
        loop.default_exception_handler(context)
