"""Where the `ferrum` command begins: Ctrl-C and signals end it as usual already while its modules are imported."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
SIGNALLED: Final = 128
"""Beside the number of the signal: 129 where the terminal is closed, 143 where somebody terminates the command."""

STREAMS: Final = (("stdin", "r", "surrogateescape"), ("stdout", "w", "replace"), ("stderr", "w", "backslashreplace"))
"""The standard streams, and what is done about characters that their encoding does not have."""


def main() -> None:
    """Import the command line, run it, and exit with its code."""
    try:
        signal.signal(signal.SIGTERM, _end)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(signal.SIGHUP, _end)
        prepare_streams()
        from ferrum.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a handler's signature
    """End as an error does, which takes along what a command has started. Servers have a way of their own."""
    if number != signal.SIGTERM:  # of a closed terminal both the shell and the system tell
        signal.signal(number, signal.SIG_IGN)
    sys.exit(SIGNALLED + number)


def prepare_streams() -> None:
    """Let no command fail for a stream that is closed, or for text that does not fit its encoding.

    What is closed leads nowhere: in the order of their numbers, or the next file to be opened would take its place.
    What a terminal cannot show is a question mark there; bytes that are no text get as far as the check of prompts.
    """
    for name, mode, errors in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)
