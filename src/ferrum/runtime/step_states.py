"""What a step does to the states of its sequences, from slots to the tables that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ferrum.cache.state_slots import StateSlots, StateStep
from ferrum.core.step import Span, Want
from ferrum.kernels.interface import StateTables


class Run(Protocol):
    """A run of one sequence's tokens: a span, or a piece of one."""

    @property
    def cache_id(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...


class StepStates:
    """The states that one step reads and writes.

    Args:
        slots: of the page table.
    """

    def __init__(self, slots: StateSlots) -> None:
        self._slots = slots
        self._steps: dict[str, StateStep] = {}

    def begin(self, span: Span) -> bool:
        """Take a slot for the state after a span; return False if there is none."""
        # A caller that gets the logits of drafts decides what counts, perhaps nothing.
        judged = span.drafts > 0 and span.want is Want.LOGITS
        step = self._slots.begin(span.cache_id, span.start, span.start if judged else span.end - span.drafts)
        if step is not None:
            self._steps[span.cache_id] = step
        return step is not None

    def cancel(self) -> None:
        """Give back all slots: the step will not run."""
        for cache_id in self._steps:
            self._slots.cancel(cache_id)
        self._steps.clear()

    def tables(self, runs: Sequence[Run]) -> StateTables:
        """Return what a pass over these runs does to states."""
        parts = [self._steps[run.cache_id].part(run.start, run.start + len(run.tokens)) for run in runs]
        return StateTables(*(np.array(column, np.int32) for column in zip(*parts, strict=True)))
