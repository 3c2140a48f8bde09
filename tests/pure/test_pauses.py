"""Threads that work next to steps pause in proportion to their work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ferrum.core import threads
from ferrum.core.threads import Pauses


def test_pauses_follow_the_work_while_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(threads, "time", SimpleNamespace(thread_time=lambda: now[0], sleep=sleep))
    stepping = [True, True, False, True]
    pause = Pauses(lambda: stepping.pop(0))
    for worked in (1.0, 4.0, 8.0, 2.0):
        now[0] += worked
        pause()
    assert len(slept) == 3, "none without steps"
    assert [seconds / slept[0] for seconds in slept] == pytest.approx([1, 4, 2])
    assert slept[0] >= 2, "the thread works a third of the time at most"
