"""One result or error per span: what fails is tried alone, and ends alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ferrum.core.errors import FerrumError, NonFiniteLogits, StepError
from ferrum.core.step import Outcome, Rows, Span, Want

Attempt = Callable[[Sequence[Span]], Mapping[str, Outcome]]
"""Runs spans together and tells what each sequence came to. When it raises, no sequence has changed."""


def run_apart(
    spans: Sequence[Span], refuse: Callable[[Span], FerrumError | None], attempt: Attempt
) -> tuple[Outcome, ...]:
    """Run a step's spans together; when that raises, one by one, for the bits are the same.

    What is not finite may be a guess: a span that wants a token is tried again without any, and fails only if it would
    have without. One that wants the logits behind its guesses has no use for less.

    Args:
        spans: of different sequences.
        refuse: why a span cannot run, or None; each is asked before anything runs.
        attempt: runs those that can.

    Returns: one outcome per span, in order.
    """
    outcomes: dict[str, Outcome] = {}
    ready: list[Span] = []
    for span in spans:
        error = refuse(span)
        if error is None:
            ready.append(span)
        else:
            outcomes[span.cache_id] = error
    if ready:
        outcomes.update(_attempted(ready, attempt))
    doubted = [span for span in ready if _doubts_guesses(span, outcomes[span.cache_id])]
    if doubted:
        outcomes.update(_attempted([_without_guesses(span) for span in doubted], attempt))
    return tuple(outcomes[span.cache_id] for span in spans)


def _attempted(spans: Sequence[Span], attempt: Attempt) -> Mapping[str, Outcome]:
    try:
        return attempt(spans)
    except Exception as error:  # noqa: BLE001 - whatever a kernel or a model raises must end its own sequence only
        if len(spans) == 1:
            return {spans[0].cache_id: failure(error)}
    return {name: outcome for span in spans for name, outcome in _attempted([span], attempt).items()}


def _doubts_guesses(span: Span, outcome: Outcome) -> bool:
    return span.drafts > 0 and span.want is Want.TOKEN and isinstance(outcome, NonFiniteLogits)


def _without_guesses(span: Span) -> Span:
    return replace(span, tokens=span.tokens[: -span.drafts], drafts=0, rows=Rows.LAST)


def failure(error: Exception) -> FerrumError:
    """What a span came to that ended with this exception."""
    return error if isinstance(error, FerrumError) else StepError(f"{type(error).__name__}: {error}")
