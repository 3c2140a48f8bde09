"""Sequences with steps in flight: prepared and not settled yet. What their next step begins with is known from here.

`source`, `issue`, `length` and `settle` belong to the thread that prepares and settles, the rest to the thread that
computes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ferrum.cache.page_table import PageTable
from ferrum.core.errors import FerrumError, RequestError, StepError
from ferrum.core.span_checks import wrong_type
from ferrum.core.step import CARRY, Outcome, Span, SpanResult, Want
from ferrum.kernels.interface import StepTokens
from ferrum.runtime.step_tables import Source

_MAX_SAMPLED: Final = 1024
"""Remembered tokens of sequences beyond which those of released ones are dropped."""


@dataclass(slots=True)
class _Flight:
    """One sequence with steps in flight.

    Attributes:
        is_new: the first of them began the sequence.
        planned: its length when all of them have succeeded; None: drafts are being verified.
        samples: the last of them samples a token.
        computed: its length after the steps computed so far.
        sampled: tokens of the last of them.
        index: of the sequence's span in it.
        steps: number of steps.
        failed: one of them has failed.
    """

    is_new: bool
    planned: int | None
    samples: bool
    computed: int
    sampled: StepTokens | None = None
    index: int = 0
    steps: int = 0
    failed: bool = False


class Flights:
    """The steps in flight of each sequence, and the token that each sequence sampled last.

    Args:
        pages: the page table.
    """

    def __init__(self, pages: PageTable) -> None:
        self._pages = pages
        self._flights: dict[str, _Flight] = {}
        self._sampled: dict[str, tuple[int, int]] = {}  # token and its position

    def ahead(self, cache_id: str) -> int:
        """Return the number of the sequence's steps in flight."""
        flight = self._flights.get(cache_id)
        return 0 if flight is None else flight.steps

    def length(self, cache_id: str) -> int | None:
        """Return the length at which the sequence's next step starts; None for an unknown sequence."""
        flight = self._flights.get(cache_id)
        if flight is None:
            return self._pages.length(cache_id) if cache_id in self._pages else None
        return flight.planned

    def refuse_carry(self, span: Span) -> FerrumError | None:
        """Return why a span that `carries` cannot have its CARRY token, or None."""
        flight = self._flights.get(span.cache_id)
        known = self._carried(span) is not None if flight is None else flight.samples and flight.planned == span.start
        if not known or span.tokens.index(CARRY) or span.tokens.count(CARRY) > 1:
            return RequestError("must be the first token of a sequence that sampled in the step before", param="CARRY")
        return None

    def source(self, span: Span) -> Source:
        """Return what the first token of a span stands for, before the span is issued."""
        flight = self._flights.get(span.cache_id)
        if span.tokens[0] != CARRY or flight is None or flight.sampled is None:
            return self.token(span)
        return flight.sampled, flight.index

    def issue(self, spans: Sequence[Span], sampled: StepTokens | None, new: Collection[str] = ()) -> None:
        """Record that these spans are in flight.

        Args:
            spans: of one step, checked.
            sampled: the step's tokens; None at depth 0.
            new: sequences that it begins.
        """
        for index, span in enumerate(spans):
            flight = self._flights.get(span.cache_id)
            if flight is None:
                flight = _Flight(span.cache_id in new, span.start, samples=False, computed=span.start)
                self._flights[span.cache_id] = flight
            flight.planned = span.end if span.extras is None or not (span.drafts and span.want is Want.TOKEN) else None
            flight.samples = span.want is Want.TOKEN
            flight.sampled, flight.index = sampled, index
            flight.steps += 1

    def refuse_issued(self, span: Span) -> FerrumError | None:
        """Return why a span in flight cannot run now, or None: the step before it has failed."""
        flight = self._flights.get(span.cache_id)
        broken = flight is not None and flight.computed != span.start
        if broken or (carries(span) and self._carried(span) is None):
            return StepError(f"the step before failed, so {span.cache_id!r} cannot go on from it")
        return None

    def token(self, span: Span) -> int:
        """Return a span's first token, or the one that CARRY stands for."""
        carried = self._carried(span) if span.tokens[0] == CARRY else None
        return span.tokens[0] if carried is None else carried

    def all_succeeded(self, spans: Sequence[Span]) -> bool:
        """Return whether the steps before these spans have succeeded."""
        flights = self._flights
        for span in spans:  # noqa: SIM110 - `all` would be a call per span
            if flights[span.cache_id].computed != span.start:
                return False
        return True

    def record(self, spans: Sequence[Span], outcomes: Mapping[str, Outcome], sampled: StepTokens | None) -> None:
        """Record the lengths and tokens of a computed step, and in `sampled` the tokens for the steps after it."""
        tokens = []
        for span in spans:
            outcome, flight, token = outcomes[span.cache_id], self._flights.get(span.cache_id), -1
            if isinstance(outcome, SpanResult):
                if outcome.tokens:
                    token = outcome.tokens[-1]
                    self._sampled[span.cache_id] = token, outcome.length
                else:
                    self._sampled.pop(span.cache_id, None)
                if flight is not None:
                    flight.computed = outcome.length
            tokens.append(token)
        if sampled is not None:
            sampled.tokens = np.array(tokens, np.int32)

    def settle(self, span: Span, outcome: Outcome) -> None:
        """Advance the sequence of a span, or free what its failed steps have reserved once the last one is settled."""
        cache_id = span.cache_id
        flight = self._flights.get(cache_id) or _Flight(False, span.start, samples=True, computed=span.start, steps=1)
        flight.steps -= 1
        if isinstance(outcome, SpanResult):
            self._pages.commit(cache_id, outcome.length)
        else:
            flight.failed = True
        if flight.steps:
            return
        self._flights.pop(cache_id, None)
        if flight.failed and flight.is_new and not self._pages.length(cache_id):
            self._pages.release(cache_id)
        elif flight.failed:
            self._pages.abandon(cache_id)
        if len(self._sampled) > _MAX_SAMPLED:
            self._sampled = {each: last for each, last in self._sampled.items() if each in self._pages}

    def clear(self) -> None:
        """Forget everything: no step is in flight, and the sequences are gone."""
        self._flights.clear()
        self._sampled.clear()

    def _carried(self, span: Span) -> int | None:
        token, length = self._sampled.get(span.cache_id, (None, None))
        return token if length == span.start else None


def carries(span: Span) -> bool:
    """Return whether CARRY is among the tokens; invalid spans are left to `refuse_span`."""
    try:
        return CARRY in span.tokens and wrong_type(span) is None
    except (TypeError, ValueError):  # no sequence, or an array among the tokens
        return False
