"""`StoredSequence`: the keys and values of a sequence as bytes, with which it moves to another executor or device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import FREED, PageTable
from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.core.errors import ContextOverflow, KvExhausted, RequestError, Unsupported
from ferrum.core.span_checks import check_kind
from ferrum.runtime.decoder_lm import DecoderLM


@dataclass(frozen=True, slots=True, eq=False)
class StoredSequence:
    """What a sequence stores. It can be pickled.

    Attributes:
        length: number of tokens.
        origin: what the executor must agree in that continues it: model, weights, arithmetic, and layout of pages.
        pages: by layer group, the bytes of each page, uint8; None for pages that have left the window.
    """

    length: int
    origin: Mapping[str, str]
    pages: Mapping[str, tuple[NDArray[np.uint8] | None, ...]]

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(page.nbytes for pages in self.pages.values() for page in pages if page is not None)


def origin_of(info: ModelInfo, traits: ExecutorTraits, lm: DecoderLM) -> dict[str, str]:
    """Return what two executors must agree in for a sequence to continue with the same bits."""
    pages = [f"{group.page_size} tokens, {lm.pool.page_bytes(group.name)} bytes" for group in lm.pages.groups]
    return {
        "model": f"{info.model_id} ({info.family}, {info.num_parameters:,} parameters)",
        "numerics_id": traits.numerics_id,
        "weights": traits.weights,
        "kv_dtype": str(traits.kv_dtype),
        "pages": "; ".join(pages),
    }


def read_stored(lm: DecoderLM, cache_id: str, origin: Mapping[str, str]) -> StoredSequence:
    """Read a sequence. No step is in flight.

    Raises:
        UnknownSequence: there is none of this name.
        Unsupported: it has adapters, or states of recurrent layers.
    """
    table = lm.pages
    if table.adapters(cache_id):
        raise Unsupported("export", f"{cache_id!r} has adapters, whose names belong to this executor")
    _refuse_states(table)
    lm.make_copies()
    length = table.length(cache_id)
    pages = {}
    for group in table.groups:
        row = table.row(cache_id, group.name)[: group.pages(length)]
        pages[group.name] = tuple(None if page == FREED else lm.pool.read_page(group.name, page) for page in row)
    return StoredSequence(length, dict(origin), pages)


def begin_stored(lm: DecoderLM, cache_id: str, given: StoredSequence, origin: Mapping[str, str]) -> None:
    """Begin a sequence with what another one has stored.

    Raises:
        RequestError: the sequence is of an executor that differs in a part of its origin.
        ContextOverflow, KvExhausted: the sequence is too long, or the pool has too few free pages.
        Unsupported: the model has recurrent layers.
    """
    check_kind(given, StoredSequence, param="stored")
    table = lm.pages
    _refuse_states(table)
    for name, value in origin.items():
        if given.origin.get(name) != value:
            raise RequestError(f"has another {name}: {given.origin.get(name)}, not {value}", param="stored")
    if given.length > lm.config.max_seq_len:
        raise ContextOverflow(f"{given.length} tokens exceed {lm.config.max_seq_len} (max_sequence_length)")
    freed = [sum(page is None for page in given.pages[group.name]) for group in table.groups]
    if not table.begin_stored(cache_id, given.length, freed):
        raise KvExhausted(f"no free pages for the {given.length} tokens of a stored sequence: release others")
    try:
        for group in table.groups:
            for page, data in zip(table.row(cache_id, group.name), given.pages[group.name], strict=True):
                if data is not None:
                    lm.pool.write_page(group.name, page, data)
    except BaseException:
        table.release(cache_id)
        raise


def _refuse_states(table: PageTable) -> None:
    if table.states is not None:
        raise Unsupported("export", "states of recurrent layers are not moved: prefill the tokens again")
