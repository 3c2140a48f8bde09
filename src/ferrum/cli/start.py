"""Entry point of the `ferrum` command: handles signals and streams before the other modules are imported."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

from ferrum.cli.exit_codes import INTERRUPTED, SIGNALLED

STREAMS: Final = (("stdin", "r", "surrogateescape"), ("stdout", "w", "replace"), ("stderr", "w", "backslashreplace"))
"""Standard streams, their modes, and the handling of characters outside their encoding."""


def main() -> None:
    """Import the command line, run it, and exit with its code."""
    try:
        signal.signal(signal.SIGTERM, _end)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, _end)
        prepare_streams()
        from ferrum.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a handler's signature
    """End as an error does, so that child processes end, too. `ferrum serve` has its own handler."""
    if number != signal.SIGTERM:  # the shell and the system both report a closed terminal
        signal.signal(number, signal.SIG_IGN)
    sys.exit(SIGNALLED + number)


def prepare_streams() -> None:
    """Open closed standard streams and accept any character, so that no stream makes a command fail.

    Closed streams are opened in the order of their numbers, or the next opened file would take their number. Characters
    a terminal cannot show become question marks; bytes that are not text reach the check of prompts.
    """
    for name, mode, errors in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)
