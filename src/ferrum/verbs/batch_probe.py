"""Measurement of how long a step of a given size takes, for `ModelExecutor.optimal_batch_size`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ferrum.core.errors import FerrumError, KvExhausted
from ferrum.core.step import Span, StepBatch, StepOutput, Want
from ferrum.verbs.handles import NamedSequences

_PROBES: Final = 3


def step_seconds(run: Callable[[StepBatch], StepOutput], sequences: NamedSequences, size: int) -> float:
    """Return the seconds of a step of `size` one-token sequences, the best of a few; infinite without room.

    Args:
        run: runs a step.
        sequences: of the executor; none is left behind.
        size: number of sequences.
    """
    names = [sequences.passing_id("probe") for _ in range(size)]
    spans = tuple(Span(name, 0, (0,), Want.LOGITS) for name in names)
    best = float("inf")
    for _ in range(_PROBES):
        output = run(StepBatch(spans))
        for name in names:
            sequences.pages.release(name)
        errors = [outcome for outcome in output.results if isinstance(outcome, FerrumError)]
        if any(isinstance(error, KvExhausted) for error in errors):
            break
        if errors:
            raise errors[0]
        best = min(best, output.seconds)
    return best
