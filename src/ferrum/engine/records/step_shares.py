"""A step as records tell it: who had which share of it, and what that came to. Made only where records are kept."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.step import SpanResult, StepOutput
from ferrum.scheduler.step_plan import Plan


@dataclass(frozen=True, slots=True)
class StepShare:
    """One choice's share of a step: a span and its result.

    Attributes:
        start: tokens that it had stored before; where its last share ended, or as many as were found for it.
        tokens: how many were processed, guesses not counted.
        drafts: the guesses that were verified.
        accepted: how many of them were right.
        sampled: what was sampled, the right guesses first; the choice may end before the last of them.
        logprobs: one for each of them.
        cached: prompt tokens that the prefix cache had.
        preemptions: how often the choice had lost its pages.
    """

    request_id: str
    choice: int
    start: int
    tokens: int
    drafts: tuple[int, ...] = ()
    accepted: int = 0
    sampled: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    cached: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TakenStep:
    """A step that was computed.

    Attributes:
        number: counts the steps of the engine.
        rows: tokens of the step, over all sequences.
        shares: of its sequences.
    """

    number: int
    rows: int
    shares: tuple[StepShare, ...]


def taken_step(number: int, plan: Plan, output: StepOutput) -> TakenStep:
    """A plan and what became of it, before the scheduler takes that in."""
    shares = []
    for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
        good = result if isinstance(result, SpanResult) else SpanResult(span.start)
        shares.append(
            StepShare(
                request_id=sequence.request.request_id,
                choice=sequence.choice,
                start=span.start,
                tokens=len(span.tokens) - span.drafts,
                drafts=span.tokens[len(span.tokens) - span.drafts :],
                accepted=good.accepted,
                sampled=good.tokens,
                logprobs=tuple(each.logprob for each in good.logprobs or ()),
                cached=sequence.cached,
                preemptions=sequence.preemptions,
            )
        )
    return TakenStep(number, plan.batch.total_tokens, tuple(shares))
