"""Counters of the KV cache and of the adapters at one moment, as `/metrics` shows them."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.serial import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMetricsSnapshot(JsonRecord):
    """The KV cache.

    Attributes:
        total_pages, used_pages, shared_pages: pages of all layer groups; a shared one has more than one owner.
        evicted_pages: pages that left the prefix cache for want of room.
        sequences: live sequences.
        stored_tokens: their lengths added up.
        prefix_query_tokens, prefix_hit_tokens: prompt tokens looked up in the prefix cache, and found there.
    """

    total_pages: int
    used_pages: int
    shared_pages: int
    sequences: int
    stored_tokens: int
    evicted_pages: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


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
