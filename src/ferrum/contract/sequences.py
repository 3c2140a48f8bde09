"""The sequences of an executor as the named verbs see them, and the way back after an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ferrum.core.errors import FerrumError
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput


class StoreGroup(Protocol):
    """A layer group of the store."""

    @property
    def name(self) -> str:
        """Unique within a store."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of the group."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        ...

    @property
    def window(self) -> int | None:
        """How many positions a query sees; None: all before it."""
        ...


class SequenceStore(Protocol):
    """What the verbs need of a page table. Every verb with a cache id raises UnknownSequence where there is none."""

    @property
    def groups(self) -> Sequence[StoreGroup]:
        """The layer groups; empty for a store without pages."""
        ...

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the whole pool holds."""
        ...

    @property
    def used(self) -> int:
        """Pages in use."""
        ...

    @property
    def shared(self) -> int:
        """Pages with more than one owner."""
        ...

    def __contains__(self, cache_id: str) -> bool: ...

    def ids(self) -> tuple[str, ...]:
        """All sequences."""
        ...

    def length(self, cache_id: str) -> int:
        """Stored tokens."""
        ...

    def generation(self, cache_id: str) -> int:
        """A number that every change raises, and that no other sequence of that id has had."""
        ...

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Page numbers, in order."""
        ...

    def free(self, group: str) -> int:
        """Free pages of the group."""
        ...

    def truncate(self, cache_id: str, length: int) -> None:
        """Forget the tokens from `length` on; no change at the stored length. Unsupported where keys are gone."""
        ...

    def holding(self, cache_ids: Collection[str]) -> AbstractContextManager[None]:
        """Within this context keys stay that truncation of these to their lengths of now needs. UnknownSequence."""
        ...

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as an independent copy."""
        ...

    def release(self, cache_id: str) -> None:
        """Forget the sequence; an unknown one is no error."""
        ...

    def reset(self) -> None:
        """Forget every sequence, and every prefix of one."""
        ...

    def prefix_counts(self) -> PrefixCounts:
        """How often prefixes were found again."""
        ...


class Undo:
    """Takes sequences back to where they were, so that the handles of before are good again.

    A store raises a sequence's generation on the way back, too. Generations are therefore told through this class,
    which remembers that the new one stands for the same tokens as the old one.
    """

    def __init__(self, pages: SequenceStore) -> None:
        self._pages = pages
        self._same: dict[str, tuple[int, int]] = {}  # id -> (the store's generation, the one that handles carry)

    def generation(self, cache_id: str) -> int:
        """The sequence's generation as handles know it. Raises UnknownSequence."""
        stored = self._pages.generation(cache_id)
        undone, told = self._same.get(cache_id, (stored, stored))
        return told if undone == stored else stored

    def forget(self, cache_id: str) -> None:
        """Drop what is remembered of a released sequence."""
        self._same.pop(cache_id, None)

    def all_or_none(self, spans: Sequence[Span], run: Callable[[StepBatch], StepOutput]) -> list[SpanResult]:
        """Run a step in which the error of one span undoes it for all of them, and is raised."""
        with self.guard(spans, settled=len(spans) == 1):
            results: list[SpanResult] = []
            for outcome in run(StepBatch(tuple(spans))).results:
                if isinstance(outcome, FerrumError):
                    raise outcome
                results.append(outcome)
        return results

    @contextmanager
    def guard(self, spans: Sequence[Span], *, settled: bool) -> Iterator[None]:
        """Undo what happens to the spans' sequences in this context if it is left by an exception.

        Args:
            spans: at most one per sequence.
            settled: an exception only comes where nothing has happened to the sequences; nothing needs to be held.
        """
        before = {
            span.cache_id: (self._pages.length(span.cache_id), self.generation(span.cache_id))
            for span in spans
            if span.cache_id in self._pages
        }
        # A single token pushes no key out of a window that is needed on the way back.
        long = () if settled else [each.cache_id for each in spans if len(each.tokens) > 1 and each.cache_id in before]
        with self._pages.holding(long):
            try:
                yield
            except BaseException:
                for span in spans:
                    if span.cache_id not in before:
                        self._pages.release(span.cache_id)
                    elif span.cache_id in self._pages:  # a model may have lost it
                        self._restore(span.cache_id, *before[span.cache_id])
                raise

    def _restore(self, cache_id: str, length: int, generation: int) -> None:
        if self._pages.length(cache_id) != length:
            self._pages.truncate(cache_id, length)
            self._same[cache_id] = (self._pages.generation(cache_id), generation)
