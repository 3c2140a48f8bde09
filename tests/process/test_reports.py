"""Reports of an engine process reach its clients, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from engine_fakes import FakeRecipe
from ferrum.client import engine_process as process
from ferrum.core.errors import EngineDead, StepError
from ferrum.engine import wire
from ferrum.engine.messages import Ended


@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "loop"])
def test_a_report_that_fails_does_not_stop_later_ones(on_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    delivered: list[Any] = []
    over = threading.Event()

    def deliver(report: Any) -> None:
        delivered.append(report)
        if isinstance(report, Ended):
            over.set()
        elif report in (1, 3):
            raise ValueError(report)

    here, there = socket.socketpair()
    reports = process._Reports(SimpleNamespace(end=here, ended=lambda: EngineDead("it is over")), deliver)

    async def read() -> None:
        reports.start()
        if on_loop:
            reports.read_on(asyncio.get_running_loop())
        with there:
            for report in range(5):
                wire.send(there, report)
        assert await asyncio.to_thread(over.wait, 10)
        if not on_loop:
            reports.join()

    asyncio.run(read())
    *before_end, end = delivered
    assert before_end == list(range(5)) and isinstance(end, Ended)
    assert len(caplog.records) == 2


def test_a_process_that_ends_before_its_recipe_arrives_reports_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process imports the engine's modules while its parent still builds the recipe."""
    (tmp_path / "numpy.py").write_text("raise ImportError('half of it is missing')")
    with monkeypatch.context() as broken:
        broken.syspath_prepend(tmp_path)
        refusing = process.Child()
    refusing.process.wait()
    with pytest.raises(StepError, match="half of it is missing"):
        process.ProcessHost(FakeRecipe(), refusing).start(lambda report: None)
    killed = process.Child()
    killed.process.kill()
    killed.process.wait()
    with pytest.raises(EngineDead, match="exit code -9"):
        process.ProcessHost(FakeRecipe(), killed).start(lambda report: None)


def test_a_stop_that_lasts_ends_an_engine_of_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BEAT_SECONDS", 0.01)
    reports, child = SimpleQueue[Any](), process.Child()
    host = process.ProcessHost(FakeRecipe(ranks=2), child)
    host.start(reports.put)
    os.kill(child.process.pid, signal.SIGSTOP)
    end = reports.get(timeout=60)
    assert isinstance(end, Ended)
    assert re.match(rf"rank 0 \(process {child.process.pid}\) was stopped for", str(end.error))
    host.close()
