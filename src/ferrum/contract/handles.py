"""Making and checking the handles of one executor."""

from __future__ import annotations

import os

from ferrum.contract.io_types import DataType, KvCacheHandle, ModelInfo
from ferrum.contract.sequences import SequenceStore, Undo
from ferrum.core.errors import InvalidHandle, StaleHandle, UnknownSequence


class Handles:
    """Hands out snapshots of sequences, and knows its own again.

    Args:
        info: the model, which says what a stored token is.
        kv_dtype: format of keys and values.
        pages: the sequences.
        undo: tells their generations.
    """

    def __init__(self, info: ModelInfo, kv_dtype: DataType, pages: SequenceStore, undo: Undo) -> None:
        self._info = info
        self._kv_dtype = kv_dtype
        self._pages = pages
        self._undo = undo
        self._executor_id = os.urandom(16).hex()

    def make(self, cache_id: str, length: int) -> KvCacheHandle:
        """A handle of the first `length` tokens, of the current generation. Raises UnknownSequence."""
        generation = self._undo.generation(cache_id)
        group = self._pages.groups[0] if self._pages.groups else None
        pages = () if group is None else self._pages.row(cache_id, group.name)[: -(-length // group.page_size)]
        return KvCacheHandle(
            cache_id=cache_id,
            sequence_length=length,
            num_layers=self._info.num_layers,
            num_kv_heads=self._info.num_kv_heads,
            head_dim=self._info.head_dim,
            dtype=self._kv_dtype,
            device=self._info.device,
            block_table=tuple(pages),
            generation=generation,
            executor_id=self._executor_id,
        )

    def check(self, handle: KvCacheHandle, *, exact: bool) -> None:
        """Refuse a handle that is not of its sequence as it is now.

        Args:
            handle: what the caller gave.
            exact: it must also stand for all stored tokens, not only for the first ones.

        Raises:
            InvalidHandle: no handle, or another executor's.
            UnknownSequence: its sequence is released.
            StaleHandle: its sequence has changed since, or is longer.
        """
        if not isinstance(handle, KvCacheHandle):
            raise InvalidHandle(f"a {type(handle).__name__} is no handle", param="kv_cache")
        if handle.executor_id != self._executor_id:
            raise InvalidHandle(f"{handle.cache_id!r} is a handle of another executor", param="kv_cache")
        if handle.cache_id not in self._pages:
            raise UnknownSequence(f"{handle.cache_id!r} is released", param="kv_cache")
        if handle.generation != self._undo.generation(handle.cache_id):
            raise StaleHandle(f"{handle.cache_id!r} has changed since this handle was made", param="kv_cache")
        stored = self._pages.length(handle.cache_id)
        if exact and handle.sequence_length != stored:
            reason = f"the handle ends at {handle.sequence_length} of {stored} tokens: truncate_kv to it first"
            raise StaleHandle(reason, param="kv_cache")


def check_name(cache_id: object) -> None:
    """Refuse what is no name of a sequence, such as its handle. Raises InvalidHandle."""
    if not isinstance(cache_id, str):
        raise InvalidHandle(f"a {type(cache_id).__name__} is no name: give its cache_id", param="cache_id")
