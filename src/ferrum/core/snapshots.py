"""Counters of the KV cache, speculation and adapters at one moment, as `/metrics` shows them."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.json_record import JsonRecord
from ferrum.core.values import pickled_by_fields


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class PrefixCounts(JsonRecord):
    """Counters of the prefix cache.

    Attributes:
        cached_pages: pages that can be found by their hash, or will be once computed; both owned and idle ones.
        evicted_pages: pages evicted to make room, since the start.
        query_tokens, hit_tokens: prompt tokens looked up and found, since the start.
        restored_pages: pages restored from host buffers or from disk, since the start.
        external_query_tokens, external_hit_tokens: prompt tokens looked up and found there, since the start.
        shared_pages: pages with more than one owner.
        state_slots, state_bytes: slots of the states of recurrent layers, and their bytes.
        used_slots: slots that sequences hold.
        snapshots: slots with a name, with which other sequences can begin.
        snapshot_hits: sequences that began with a snapshot, since the start.
        evicted_snapshots: snapshots evicted to make room, since the start.
    """

    cached_pages: int = 0
    evicted_pages: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    restored_pages: int = 0
    external_query_tokens: int = 0
    external_hit_tokens: int = 0
    shared_pages: int = 0
    state_slots: int = 0
    state_bytes: int = 0
    used_slots: int = 0
    snapshots: int = 0
    snapshot_hits: int = 0
    evicted_snapshots: int = 0


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class SpeculationCounts(JsonRecord):
    """Counters of speculative decoding since the start.

    Attributes:
        drafts: number of drafts verified.
        draft_tokens, accepted_tokens: draft tokens verified and accepted.
        accepted_per_position: accepted tokens by position in the draft, from the first on.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def plus(self, drafted: int, accepted: int) -> SpeculationCounts:
        """Return these counts with one more draft added."""
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
    """Counters of the KV cache and of speculation.

    Attributes:
        total_pages, used_pages, shared_pages: pages of all layer groups; a shared one has more than one owner.
        sequences: live sequences.
        stored_tokens: sum of their lengths.
        cached_pages, evicted_pages, prefix_query_tokens, prefix_hit_tokens, restored_pages, external_query_tokens,
            external_hit_tokens, state_slots, state_bytes, used_slots, snapshots, snapshot_hits, evicted_snapshots: see
            `PrefixCounts`.
        speculation: drafts in spans that sample, and those of `speculative_decode`.
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
    state_slots: int = 0
    state_bytes: int = 0
    used_slots: int = 0
    snapshots: int = 0
    snapshot_hits: int = 0
    evicted_snapshots: int = 0
    speculation: SpeculationCounts = SpeculationCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraMetricsSnapshot(JsonRecord):
    """Counters of the adapters.

    Attributes:
        loaded: names of the adapters in memory; an engine names them by their digests.
        active: those that a live sequence uses.
        nbytes: their bytes.
    """

    loaded: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    nbytes: int = 0
