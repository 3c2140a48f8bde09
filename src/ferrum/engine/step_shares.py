"""Steps as records hold them: the share of every choice, and its result. Built only if records are kept."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.step import SpanResult, StepOutput
from ferrum.scheduler.step_plan import Plan


@dataclass(frozen=True, slots=True)
class StepShare:
    """One choice's share of a step: a span and its result.

    Attributes:
        start: tokens stored before: the end of its last share, or the length found in the prefix cache.
        tokens: processed tokens without draft tokens.
        drafts: verified draft tokens.
        accepted: how many draft tokens were accepted.
        sampled: sampled tokens, the accepted drafts first. The choice may end before the last of them.
        logprobs: one for each sampled token.
        cached: prompt tokens from the prefix cache.
        preemptions: how often the choice was preempted so far.
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
class ComputedStep:
    """A computed step.

    Attributes:
        number: the step's number in the engine, from 1.
        rows: tokens of the step, over all sequences.
        shares: of its sequences.
    """

    number: int
    rows: int
    shares: tuple[StepShare, ...]


def computed_step(number: int, plan: Plan, output: StepOutput) -> ComputedStep:
    """Return a plan with its results. Called before the scheduler commits them."""
    shares = []
    for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
        computed = result if isinstance(result, SpanResult) else SpanResult(span.start)
        shares.append(
            StepShare(
                request_id=sequence.request.request_id,
                choice=sequence.choice,
                start=span.start,
                tokens=len(span.tokens) - span.drafts,
                drafts=span.tokens[len(span.tokens) - span.drafts :],
                accepted=computed.accepted,
                sampled=computed.tokens,
                logprobs=tuple(each.logprob for each in computed.logprobs or ()),
                cached=sequence.cached,
                preemptions=sequence.preemptions,
            )
        )
    return ComputedStep(number, plan.batch.total_tokens, tuple(shares))
