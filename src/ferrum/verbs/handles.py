"""The sequences of one executor by name and by handle: unused names, handles, and their validation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import count

from ferrum.contract.model_info import DataType, ModelInfo
from ferrum.contract.sequences import SequenceStore, Undo
from ferrum.core.errors import InvalidHandle, StaleHandle, UnknownSequence
from ferrum.core.span_checks import check_kind
from ferrum.verbs.io_types import KvCacheHandle


class NamedSequences:
    """The sequences of an executor; it recognises the handles that it made.

    Args:
        info: the model; it sets the shape of a stored token.
        kv_dtype: format of keys and values.
        pages: the sequences.
        prefix: new sequences are named `<prefix>-0`, `<prefix>-1`, ...; no name is used twice.

    Attributes:
        info, pages: as given.
        undo: rolls sequences back.
    """

    def __init__(self, info: ModelInfo, kv_dtype: DataType, pages: SequenceStore, prefix: str) -> None:
        check_kind(prefix, str, param="cache_prefix")
        self.undo = Undo(pages)
        self.info = info
        self._kv_dtype = kv_dtype
        self.pages = pages
        self._prefix = prefix
        self._fresh, self._clones, self._passing = count(), count(), count()
        self._executor_id = os.urandom(16).hex()

    def new_id(self) -> str:
        """Return an unused name."""
        return self._unused(self._prefix, self._fresh)

    def clone_id(self, base: str) -> str:
        """Return an unused name for a fork of a sequence."""
        return self._unused(f"{base}-clone", self._clones)

    def passing_id(self, purpose: str) -> str:
        """Return an unused name for a sequence that is not kept."""
        return self._unused(f"{self._prefix}-{purpose}", self._passing)

    def is_reserved(self, cache_id: str) -> bool:
        """Return whether only this executor may begin a sequence of this name."""
        return cache_id.startswith(f"{self._prefix}-")

    def check_new(self, cache_id: str, *, param: str) -> None:
        """Refuse a name of an unknown sequence that only this executor may begin. Raises UnknownSequence."""
        if cache_id not in self.pages and self.is_reserved(cache_id):
            raise UnknownSequence(f"{cache_id!r} is not stored, and names of this prefix are reserved", param=param)

    def _unused(self, base: str, numbers: Iterable[int]) -> str:
        """Return the next unused name; names taken through `submit` are skipped."""
        return next(name for number in numbers if (name := f"{base}-{number}") not in self.pages)

    def handle(self, cache_id: str, length: int) -> KvCacheHandle:
        """Return a handle of the first `length` tokens in the current generation. Raises UnknownSequence."""
        generation = self.undo.generation(cache_id)
        group = next(iter(self.pages.groups), None)
        pages = () if group is None else self.pages.row(cache_id, group.name)[: -(-length // group.page_size)]
        return KvCacheHandle(
            cache_id=cache_id,
            sequence_length=length,
            num_layers=self.info.num_layers,
            num_kv_heads=self.info.num_kv_heads,
            head_dim=self.info.head_dim,
            dtype=self._kv_dtype,
            device=self.info.device,
            block_table=tuple(pages),
            generation=generation,
            executor_id=self._executor_id,
        )

    def newest(self, cache_id: str) -> KvCacheHandle:
        """Return a handle of all stored tokens. Raises UnknownSequence."""
        return self.handle(cache_id, self.pages.length(cache_id))

    def name_of(self, value: str | KvCacheHandle) -> str:
        """Return the sequence of a name or handle, stale or not. Raises InvalidHandle."""
        if isinstance(value, KvCacheHandle):
            if value.executor_id != self._executor_id:
                raise InvalidHandle(f"{value.cache_id!r} belongs to another executor", param="kv_cache")
            return value.cache_id
        check_name(value)
        return value

    def check(self, handle: KvCacheHandle, *, exact: bool) -> None:
        """Refuse a handle that does not match its sequence.

        Args:
            handle: the caller's value.
            exact: the handle must also cover all stored tokens.

        Raises:
            InvalidHandle: no handle, or another executor's.
            UnknownSequence: its sequence is released.
            StaleHandle: its sequence has changed since, or is longer.
        """
        if not isinstance(handle, KvCacheHandle):
            raise InvalidHandle(f"must be a KvCacheHandle, not {type(handle).__name__}", param="kv_cache")
        if handle.executor_id != self._executor_id:
            raise InvalidHandle(f"{handle.cache_id!r} belongs to another executor", param="kv_cache")
        if handle.cache_id not in self.pages:
            raise UnknownSequence(f"{handle.cache_id!r} is released", param="kv_cache")
        if handle.generation != self.undo.generation(handle.cache_id):
            raise StaleHandle(f"{handle.cache_id!r} has changed since: use its newest handle", param="kv_cache")
        stored = self.pages.length(handle.cache_id)
        if exact and handle.sequence_length != stored:
            reason = f"the handle covers {handle.sequence_length} of {stored} tokens: call truncate_kv first"
            raise StaleHandle(reason, param="kv_cache")


def check_name(cache_id: object) -> None:
    """Refuse a cache id that is no string, such as a handle. Raises InvalidHandle."""
    if not isinstance(cache_id, str):
        raise InvalidHandle(f"must be a string, not {type(cache_id).__name__}", param="cache_id")
