"""Ctrl-C, or another signal whose handler raises, at any point while a program waits for tokens."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from contract_kit import PROMPT, make_fake
from engine_fakes import greedy, parts
from ferrum.client.llm import LLM
from ferrum.verbs.io_types import DecodeInput, PrefillInput
from record_kit import recorded_parts


class Interrupt:
    """Raises at one of the points where the interpreter checks for signals: a function begins or has returned.

    Args:
        place: index of the point, from 0.

    Attributes:
        raised: whether the point was reached.
    """

    def __init__(self, place: int) -> None:
        self._left = place
        self.raised = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        # An exception in a discarded generator is only printed. In `logging` it would leave a lock taken, for which all
        # threads of later tests would wait.
        spared = frame.f_code.co_flags & CO_GENERATOR or frame.f_globals["__name__"] == "logging"
        if event in ("call", "return") and not (self.raised or spared):
            self._left -= 1
            if self._left < 0:
                self.raised = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def within(self, work: Callable[[], object]) -> None:
        """Run until the interrupt; without garbage collection, where it would be lost."""
        before = sys.gettrace()
        gc.disable()
        sys.settrace(self)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            gc.enable()


@pytest.mark.parametrize("host", ["thread", "process", "recorded"])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "generate"])
def test_an_interrupt_anywhere_ends_its_requests_and_not_the_engine(tmp_path: Path, host: str, streamed: bool) -> None:
    made = recorded_parts(tmp_path) if host == "recorded" else parts(process=host == "process")
    with LLM.from_parts(made) as model:

        def work() -> object:
            if streamed:
                return list(model.stream([1, 2], greedy(2, ignore_eos=True)))
            return model.generate([[1, 2], [3]], greedy(2, ignore_eos=True), use_tqdm=False)

        work()
        interrupt, place = Interrupt(0), 0
        interrupt.within(work)
        while interrupt.raised:
            until = time.monotonic() + 5
            while len(model.client.router):
                assert time.monotonic() < until, f"a request is left by an interrupt at place {place}"
                time.sleep(0.0005)
            place += 1
            interrupt = Interrupt(place)
            interrupt.within(work)
        assert place > 50


def test_an_interrupted_executor_works_after_a_reset() -> None:
    kit = make_fake()
    executor = kit.executor
    expected = executor.prefill(PrefillInput([*PROMPT, 1])).logits
    executor.reset()

    def work() -> None:
        clone = executor.fork(start)
        executor.decode(DecodeInput([1], clone))
        executor.release_cache(clone.cache_id)

    place, raised = 0, True
    while raised:
        start = executor.prefill(PrefillInput([PROMPT])).kv_cache
        interrupt = Interrupt(place)
        interrupt.within(work)
        executor.reset()
        kit.check()
        assert executor.cache_metrics_snapshot().used_pages == 0
        assert (executor.prefill(PrefillInput([*PROMPT, 1])).logits == expected).all(), f"place {place}"
        executor.reset()
        place, raised = place + 1, interrupt.raised
