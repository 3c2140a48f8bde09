"""Counters of the KV cache and of the adapters at one moment, as `/metrics` shows them."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.json_record import JsonRecord
from ferrum.core.pickling import pickled_by_fields


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class PrefixCounts(JsonRecord):
    """The prefix cache.

    Attributes:
        cached_pages: pages that can be found by what they hold, or soon can; owned and idle ones.
        evicted_pages: pages that were given up for want of room, since the start.
        query_tokens, hit_tokens: prompt tokens looked up, and found, since the start.
        restored_pages: pages that came back from host buffers or from disk, since the start.
        external_query_tokens, external_hit_tokens: prompt tokens looked up there, and found, since the start.
        shared_pages: pages that have more than one owner.
    """

    cached_pages: int = 0
    evicted_pages: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    restored_pages: int = 0
    external_query_tokens: int = 0
    external_hit_tokens: int = 0
    shared_pages: int = 0


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class SpeculationCounts(JsonRecord):
    """Speculative decoding, since the start.

    Attributes:
        drafts: how often guesses for a sequence were verified.
        draft_tokens, accepted_tokens: guesses that were verified, and those of them that were right.
        accepted_per_position: right ones by their place in the draft, the first place first.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def plus(self, drafted: int, accepted: int) -> SpeculationCounts:
        """These, and a draft of so many guesses, so many of them right."""
        places = max(len(self.accepted_per_position), drafted)
        before = (*self.accepted_per_position, *(0,) * (places - len(self.accepted_per_position)))
        return SpeculationCounts(
            self.drafts + 1,
            self.draft_tokens + drafted,
            self.accepted_tokens + accepted,
            tuple(count + (place < accepted) for place, count in enumerate(before)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMetricsSnapshot(JsonRecord):
    """The KV cache, and the guesses that were verified on it.

    Attributes:
        total_pages, used_pages, shared_pages: pages of all layer groups; a shared one has more than one owner.
        sequences: live sequences.
        stored_tokens: their lengths added up.
        cached_pages, evicted_pages, prefix_query_tokens, prefix_hit_tokens, restored_pages, external_query_tokens,
            external_hit_tokens: see `PrefixCounts`.
        speculation: drafts in spans that sample.
    """

    total_pages: int
    used_pages: int
    shared_pages: int
    sequences: int
    stored_tokens: int
    cached_pages: int = 0
    evicted_pages: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    restored_pages: int = 0
    external_query_tokens: int = 0
    external_hit_tokens: int = 0
    speculation: SpeculationCounts = SpeculationCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraMetricsSnapshot(JsonRecord):
    """The adapters.

    Attributes:
        loaded: names of the adapters in memory.
        active: those that a live sequence uses.
        nbytes: bytes that they hold.
    """

    loaded: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    nbytes: int = 0
