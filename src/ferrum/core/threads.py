"""Priorities of threads that work next to an engine's steps."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

_NICENESS: Final = 10


def yield_to_steps() -> None:
    """Lower the priority of this thread, where the system has priorities of threads: steps go first."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
