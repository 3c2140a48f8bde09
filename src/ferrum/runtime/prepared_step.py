"""`PreparedStep`: a step between its checks and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrum.core.step import Outcome, Span, StepBatch
from ferrum.kernels.interface import NetworkOutput, StepTables, StepTokens
from ferrum.runtime.span_results import SpanRows
from ferrum.runtime.step_states import StepStates
from ferrum.runtime.step_tables import Piece


@dataclass(slots=True)
class PreparedStep:
    """A step whose spans are checked and have pages.

    Attributes:
        batch: the step.
        spans: those of its spans that can run.
        outcomes: of the others; of all spans once the step is computed.
        rows: collectors of the spans.
        passes: forward passes, each with its tables.
        decodes: tables of the only pass, if every span decodes as in the step before.
        drawn: the spans of such a step that do not simply take the most likely token, by index.
        states: what it does to the states of its sequences; None if no layer has one.
        sampled: its tokens, for the steps after it; None if nothing is prepared before it is settled.
        output: of the step, if it was submitted before the step before it was collected.
    """

    batch: StepBatch
    spans: Sequence[Span]
    outcomes: dict[str, Outcome]
    rows: dict[str, SpanRows]
    passes: list[tuple[list[Piece], StepTables]]
    states: StepStates | None
    decodes: StepTables | None = None
    drawn: Sequence[int] = ()
    sampled: StepTokens | None = None
    output: NetworkOutput | None = None
