"""Priorities and pauses of threads that work next to an engine's steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_NICENESS: Final = 10

_PAUSE_SHARE: Final = 4.0
"""Pause for each second of work, by the processor's time: gaps grow by less than 10% (bench/dora_load.py)."""


def yield_to_steps() -> None:
    """Lower the priority of this thread, where the system has priorities of threads: steps go first."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class Pauses:
    """Pauses of a thread between pieces of its work, while steps run.

    A step lasts until its slowest thread has ended, so work of any priority on one processor delays it.

    Args:
        stepping: whether steps run. Without any the thread goes on at once.
    """

    def __init__(self, stepping: Callable[[], bool]) -> None:
        self._stepping, self._begun = stepping, time.thread_time()

    def __call__(self) -> None:
        """Pause in proportion to this thread's processor time since the last pause."""
        if self._stepping():
            time.sleep(_PAUSE_SHARE * (time.thread_time() - self._begun))
        self._begun = time.thread_time()
