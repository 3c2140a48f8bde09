"""Isolation of faults in a step: what fails together is run again span by span, so that only faulty spans fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ferrum.core.errors import EngineDead, FerrumError, NonFiniteLogits, as_step_error
from ferrum.core.step import Outcome, Rows, Span, Want

Attempt: TypeAlias = Callable[[Sequence[Span]], Mapping[str, Outcome]]
"""Runs spans together and returns the outcome of each sequence. If it raises, no sequence has changed."""


def split_refused(
    spans: Sequence[Span], refuse: Callable[[Span], FerrumError | None]
) -> tuple[list[Span], dict[str, Outcome]]:
    """Return the spans that can run, and the errors of the others by sequence.

    Args:
        spans: of different sequences.
        refuse: returns why a span cannot run, or None.
    """
    ready, refused = list[Span](), dict[str, Outcome]()
    for span in spans:
        error = refuse(span)
        if error is None:
            ready.append(span)
        else:
            refused[span.cache_id] = error
    return ready, refused


def run_isolated(spans: Sequence[Span], attempt: Attempt) -> dict[str, Outcome]:
    """Run spans together; if that raises, one by one, which gives the same bits.

    Draft tokens may cause a NaN: a span that wants a token is then run again without drafts, and fails only if it fails
    without. A span that wants logits needs its drafts and is not run again.

    Args:
        spans: of different sequences, at least one.
        attempt: runs some of them.

    Returns: one outcome per sequence.

    Raises EngineDead if a device or a rank is lost: no span can run.
    """
    outcomes = dict(_run_with_fallback(spans, attempt))
    drafted = [span for span in spans if span.drafts and span.want is Want.TOKEN]
    suspects = [span for span in drafted if isinstance(outcomes[span.cache_id], NonFiniteLogits)]
    if suspects:
        outcomes.update(_run_with_fallback([_without_drafts(span) for span in suspects], attempt))
    return outcomes


def _run_with_fallback(spans: Sequence[Span], attempt: Attempt) -> Mapping[str, Outcome]:
    try:
        return attempt(spans)
    except EngineDead:
        raise
    except Exception as error:  # noqa: BLE001 - any exception of a kernel or model fails its own sequence only
        if len(spans) == 1:
            return {spans[0].cache_id: as_step_error(error)}
    return {name: outcome for span in spans for name, outcome in _run_with_fallback([span], attempt).items()}


def _without_drafts(span: Span) -> Span:
    assert span.extras is not None, "it has drafts"
    extras = replace(span.extras, drafts=0, masks=span.masks[:1]).or_none()
    return replace(span, tokens=span.tokens[: -span.drafts], rows=Rows.LAST, extras=extras)
