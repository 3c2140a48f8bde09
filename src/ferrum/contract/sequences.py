"""`SequenceStore`, the page table as the named verbs see it, and `Undo`, which rolls sequences back after an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol, TypeAlias

from ferrum.core.errors import FerrumError, Unsupported
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import NO_EXTRAS, AdapterUse, Span, SpanResult, StepBatch, StepOutput


class StoreGroup(Protocol):
    """A layer group of the store."""

    @property
    def name(self) -> str:
        """The name, unique within a store."""

    @property
    def num_pages(self) -> int:
        """Number of pages."""

    @property
    def page_size(self) -> int:
        """Tokens per page."""

    @property
    def window(self) -> int | None:
        """Positions that a query sees; None for all before it."""


class SequenceStore(Protocol):
    """The part of a page table that verbs need. Methods with a cache id raise UnknownSequence for an unknown one."""

    @property
    def groups(self) -> Sequence[StoreGroup]:
        """The layer groups; empty for a store without pages."""

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that the whole pool holds; None without a limit, for a store that grows."""

    @property
    def used(self) -> int:
        """Pages in use."""

    @property
    def shared(self) -> int:
        """Pages with more than one owner."""

    @property
    def free_slots(self) -> int:
        """Free slots of states; 0 for a store without states."""

    @property
    def changes(self) -> int:
        """A number that increases whenever the number of free pages may have changed."""

    def __contains__(self, cache_id: str) -> bool: ...

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all sequences."""

    def length(self, cache_id: str) -> int:
        """Return the stored tokens."""

    def generation(self, cache_id: str) -> int:
        """Return a number that every change raises; no earlier sequence of that id had it."""

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Return the page numbers, in order."""

    def free(self, group: str) -> int:
        """Return the free pages of the group."""

    def adapters(self, cache_id: str) -> tuple[AdapterUse, ...]:
        """Return the adapters of the sequence's last step with adapters, or those chosen since."""

    def choose(self, cache_id: str, adapters: tuple[AdapterUse, ...]) -> None:
        """Set the adapters of a sequence; an unknown id begins an empty one."""

    def truncate(self, cache_id: str, length: int) -> None:
        """Forget the tokens from `length` on; at the stored length nothing changes.

        Raises Unsupported if keys are gone.
        """

    def holding(self, cache_ids: Collection[str]) -> AbstractContextManager[None]:
        """Keep, within this context, the keys that truncating these sequences to their present lengths needs."""

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as an independent copy."""

    def release(self, cache_id: str) -> None:
        """Forget the sequence; an unknown one is no error."""

    def reset(self) -> None:
        """Forget every sequence and every cached prefix."""

    def prefix_counts(self) -> PrefixCounts:
        """Return the counters of the prefix cache."""


def with_adapters(span: Span, pages: SequenceStore) -> Span:
    """Return a span with its sequence's adapters, unless it has others."""
    if span.adapters or span.cache_id not in pages or not (adapters := pages.adapters(span.cache_id)):
        return span
    return replace(span, extras=replace(span.extras or NO_EXTRAS, adapters=adapters))


Before: TypeAlias = tuple[int, int, tuple[AdapterUse, ...]]
"""Length, generation and adapters of a sequence."""


class Undo:
    """A rollback of sequences that keeps their handles valid.

    A store raises a sequence's generation on a rollback too. So handles take generations from this class, which
    remembers that the new one stands for the same tokens as the old one.
    """

    def __init__(self, pages: SequenceStore) -> None:
        self._pages = pages
        self._same: dict[str, tuple[int, int]] = {}  # id -> (the store's generation, the handles')

    def generation(self, cache_id: str) -> int:
        """Return the sequence's generation as handles have it. Raises UnknownSequence."""
        stored = self._pages.generation(cache_id)
        undone, original = self._same.get(cache_id, (stored, stored))
        return original if undone == stored else stored

    def forget(self, cache_id: str) -> None:
        """Forget a released sequence."""
        self._same.pop(cache_id, None)

    def stored(self) -> dict[str, Before]:
        """Return what an undo needs of every sequence."""
        return {cache_id: self._before(cache_id) for cache_id in self._pages.ids()}

    def _before(self, cache_id: str) -> Before:
        return self._pages.length(cache_id), self.generation(cache_id), self._pages.adapters(cache_id)

    def take_back(self, before: Mapping[str, Before], after: Mapping[str, Before]) -> None:
        """Release sequences that began between two results of `stored`, and truncate those that grew.

        Those that changed since then stay, and those that cannot be truncated are released.
        """
        for cache_id, now in self.stored().items():
            if after.get(cache_id) != now:
                continue
            if cache_id not in before:
                self._drop(cache_id)
            elif now[0] > before[cache_id][0]:
                try:
                    self._restore(cache_id, *before[cache_id])
                except Unsupported:
                    self._drop(cache_id)

    def _drop(self, cache_id: str) -> None:
        self._pages.release(cache_id)
        self.forget(cache_id)

    def all_or_none(self, spans: Sequence[Span], run: Callable[[StepBatch], StepOutput]) -> list[SpanResult]:
        """Run a step; the error of one span undoes all of them and is raised."""
        with self.guard(spans, settled=len(spans) == 1):
            results: list[SpanResult] = []
            for outcome in run(StepBatch(tuple(spans))).results:
                if isinstance(outcome, FerrumError):
                    raise outcome
                results.append(outcome)
        return results

    @contextmanager
    def guard(self, spans: Sequence[Span], *, settled: bool) -> Iterator[None]:
        """Undo all changes of the spans' sequences if this context is left by an exception.

        Args:
            spans: at most one per sequence.
            settled: an exception implies that no sequence has changed, so no keys need to be held.
        """
        before = {span.cache_id: self._before(span.cache_id) for span in spans if span.cache_id in self._pages}
        with self._pages.holding(() if settled else before):
            try:
                yield
            except BaseException:
                for span in spans:
                    if span.cache_id not in before:
                        self._pages.release(span.cache_id)
                    elif span.cache_id in self._pages:  # a model may have lost it
                        self._restore(span.cache_id, *before[span.cache_id])
                raise

    def _restore(self, cache_id: str, length: int, generation: int, adapters: tuple[AdapterUse, ...]) -> None:
        if self._pages.length(cache_id) != length:
            self._pages.truncate(cache_id, length)
            self._same[cache_id] = (self._pages.generation(cache_id), generation)
        self._pages.choose(cache_id, adapters)
