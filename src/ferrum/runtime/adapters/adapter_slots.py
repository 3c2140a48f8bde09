"""`AdapterSlots`: the adapters that a model holds, and which rows of a step use them.

Files of adapters become changes in `sources/adapters/`; who loads and frees adapters is decided by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.step import AdapterUse
from ferrum.core.values import shown
from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.kernels.interface import AdapterRows, Kernels
from ferrum.models.rank_cuts import MatrixPart
from ferrum.runtime.adapters.adapter_factors import with_column_factors, with_factors
from ferrum.runtime.adapters.adapter_parts import part_of_change, whole_site


def _no_pause() -> None:
    """Go on at once."""


class UsingRows(Protocol):
    """Consecutive tokens of a sequence, and its adapters: `step_tables.Piece`."""

    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logit_rows(self) -> range: ...
    @property
    def adapters(self) -> tuple[AdapterUse, ...]: ...


OtherRanks = Callable[..., list[Any]]
"""Runs a method of `AdapterSlots` by name on all ranks but the first, and returns its results."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PreparedAdapter:
    """An adapter in the backend's form.

    Attributes:
        number: of those that these slots have prepared, from 1; other ranks hold their parts under it.
        entries: of the sites that it changes.
        nbytes: of all numbers, on all ranks together.
        scales: whether requests may scale it: only low-rank products without factors can be scaled.
        absorbed: whether it changes keys of latent attention, which all queries compute from the latent vectors: all
            tokens of a sequence must have the same ones.
    """

    number: int
    entries: tuple[tuple[AdapterSite, Any], ...]
    nbytes: int
    scales: bool
    absorbed: bool = False


class AdapterSlots:
    """The loaded adapters of a model by key, each in a slot. Slots change between steps only.

    Args:
        kernels: of the model.
        sites: of its adapted network.
        parts: the matrices of which this rank has a part, by name.
        others: of the first rank of several.

    Attributes:
        sites: where adapters can change the model.
        changes: how often an adapter was added or removed.
    """

    def __init__(
        self,
        kernels: Kernels,
        sites: Iterable[AdapterSite],
        parts: Mapping[str, MatrixPart] | None = None,
        others: OtherRanks | None = None,
    ) -> None:
        self._kernels, self.sites = kernels, tuple(sites)
        self._parts, self._others = parts or {}, others
        self._wholes = tuple(whole_site(site, self._parts) for site in self.sites)
        self._held: dict[str, tuple[int, PreparedAdapter]] = {}
        self._numbers = count(1)
        self._unused: list[int] = []  # numbers of adapters that other ranks may free
        self._prepared: dict[int, list[tuple[AdapterSite, Any]]] = {}  # what the first rank has prepared, by number
        self.changes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded adapters."""
        return sum(adapter.nbytes for _, adapter in self._held.values())

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the loaded adapters."""
        return tuple(self._held)

    def prepare(self, changes: Mapping[str, Change], pause: Callable[[], None] = _no_pause) -> PreparedAdapter:
        """Convert changes to the backend's form. It may run while steps are computed.

        Args:
            changes: by the names of matrices.
            pause: called after each millisecond of work or less.

        Raises:
            Unsupported: an adapter cannot change a matrix of that name in that way, as the error says.
        """
        number, entries = next(self._numbers), list[tuple[AdapterSite, Any]]()
        at_sites = self._checked(changes)
        nbytes, others = 0, 0
        memory = self._kernels.adapter_memory(sum(each.nbytes for each in changes.values()))
        for place, at_site in at_sites.items():
            entry, size = self._entry(place, at_site, memory, pause)
            nbytes += size
            if entry is not None:
                entries.append((self.sites[place], entry))
            if self._others is not None:
                others += sum(self._others("prepare_part", number, place, at_site))
            pause()
        prepared = PreparedAdapter(
            number,
            tuple(entries),
            nbytes + others,
            scales=all(each.scales for each in changes.values()),
            absorbed=any(self.sites[place].kind is SiteKind.HEADS for place in at_sites),
        )
        finalize(prepared, self._unused.append, number)
        return prepared

    def _checked(self, changes: Mapping[str, Change]) -> dict[int, tuple[Change | None, ...]]:
        """Return the changes of each site that has any, by its place. Raises as `prepare`."""
        found, known = dict[int, tuple[Change | None, ...]](), set[str]()
        for place, site in enumerate(self._wholes):
            known.update(site.names)
            at_site = tuple(changes.get(name) for name in site.names)
            for index, change in enumerate(at_site):
                if change is not None:
                    refuse_change(site, index, change)
            if any(change is not None for change in at_site):
                found[place] = at_site
        unknown = sorted(set(changes) - known)
        if unknown:
            raise Unsupported("the adapter", f"{unknown[0]} cannot be changed by an adapter")
        return found

    def _entry(
        self, place: int, at_site: tuple[Change | None, ...], memory: Any, pause: Callable[[], None]
    ) -> tuple[Any, int]:
        """Return the entry of a site for changes of whole matrices, or None, and its bytes."""
        site = self.sites[place]
        pairs = zip(site.names, at_site, strict=True)
        own = [self._part(site, self._parts.get(name), change) for name, change in pairs]
        made = tuple(self._change(site, index, change, pause) for index, change in enumerate(own))
        if all(change is None for change in made):
            return None, 0
        return self._kernels.adapted(made, memory), sum(change.nbytes for change in own if change is not None)

    def _part(self, site: AdapterSite, part: MatrixPart | None, change: Change | None) -> Change | None:
        return change if part is None or change is None else part_of_change(change, site, part)

    # On ranks but the first

    def prepare_part(self, number: int, place: int, at_site: tuple[Change | None, ...]) -> int:
        """Prepare this rank's part of the changes of a site, and return its bytes."""
        memory = self._kernels.adapter_memory(0)
        entry, nbytes = self._entry(place, at_site, memory, _no_pause)
        if entry is not None:
            self._prepared.setdefault(number, []).append((self.sites[place], entry))
        return nbytes

    def install_part(self, number: int, slot: int, unused: Collection[int]) -> None:
        """Load what was prepared under a number, and free what is unused."""
        for site, entry in self._prepared.get(number, ()):
            self._kernels.install(site, slot, entry)
        for each in unused:
            self._prepared.pop(each, None)

    def remove_part(self, number: int, slot: int) -> None:
        """Free a slot with what was prepared under a number."""
        for site, _ in self._prepared.get(number, ()):
            self._kernels.install(site, slot, None)

    def _change(self, site: AdapterSite, index: int, change: Change | None, pause: Callable[[], None]) -> Change | None:
        """Return a change as kernels take it, or None if there is none."""
        if change is None or not site.base:
            return change
        matrix, bias = site.base[index]
        if site.kind is SiteKind.EMBEDDING:
            return with_column_factors(change, matrix, pause)
        return with_factors(change, matrix, None if bias is None else self._kernels.host(bias), pause)

    def add(self, key: str, adapter: PreparedAdapter) -> None:
        """Load an adapter in a free slot."""
        assert key not in self._held, "an adapter is loaded once"
        taken = {slot for slot, _ in self._held.values()}
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        if self._others is not None:
            unused = [self._unused.pop() for _ in range(len(self._unused))]
            self._others("install_part", adapter.number, slot, unused)
        for site, entry in adapter.entries:
            self._kernels.install(site, slot, entry)
        self._held[key] = slot, adapter
        self.changes += 1

    def remove(self, key: str) -> None:
        """Free an adapter, which no sequence uses. An unknown key is no error."""
        slot, adapter = self._held.pop(key, (0, None))
        if self._others is not None and adapter is not None:
            self._others("remove_part", adapter.number, slot)
        for site, _ in () if adapter is None else adapter.entries:
            self._kernels.install(site, slot, None)
        self.changes += 1

    def changed(self, present: tuple[AdapterUse, ...], key: str | None, stored: int) -> tuple[AdapterUse, ...]:
        """Return the adapters of a sequence after a change to this one, or to none.

        Args:
            present: those that it has.
            key: of a loaded adapter; None: the base model.
            stored: its tokens.

        Raises RequestError.
        """
        uses = present
        if [(use.key, use.scale) for use in present] != [(key, 1.0)]:
            uses = () if key is None else (AdapterUse(key, start=stored),)
        ending = [replace(use, start=stored) for use in present if use not in uses and use.key in self._held]
        if (error := self.refuse(uses) or self.refuse(ending)) is not None:
            raise error
        return uses

    def refuse(self, uses: Collection[AdapterUse]) -> RequestError | None:
        """Return why a sequence cannot use these adapters, or None."""
        for use in uses:
            adapter = self._held.get(use.key)
            if adapter is None:
                return RequestError(f"no adapter {shown(use.key)} is loaded (load_adapter)", param="adapters")
            if use.scale != 1 and not adapter[1].scales:
                reason = f"must be 1, not {use.scale:g}: this adapter replaces weights or scales outputs (DoRA)"
                return RequestError(reason, param="scale")
            if len(uses) > 1 and not adapter[1].scales:
                reason = f"{shown(use.key)} replaces weights or scales outputs (DoRA), so it must be the only one"
                return RequestError(reason, param="adapters")
            if use.start and adapter[1].absorbed:
                reason = f"must be 0, not {use.start}: this adapter changes kv_b_proj, so it must begin with the prompt"
                return RequestError(reason, param="start")
        return None

    def rows(self, pieces: Sequence[UsingRows]) -> tuple[AdapterRows, ...]:
        """Return which rows of a pass use which adapter, first the first adapters of all sequences."""
        found: dict[tuple[int, int, float], tuple[list[int], list[int]]] = {}
        first = logits = 0
        for piece in pieces:
            for place, use in enumerate(piece.adapters):
                begin = max(0, use.start - piece.start)
                slot, _ = self._held[use.key]
                rows, logit_rows = found.setdefault((place, slot, use.scale), ([], []))
                rows += range(first + begin, first + len(piece.tokens))
                wanted = enumerate(piece.logit_rows, logits)
                logit_rows += [index for index, row in wanted if row >= begin]
            first += len(piece.tokens)
            logits += len(piece.logit_rows)
        order = sorted(key for key, (rows, _) in found.items() if rows)
        return tuple(AdapterRows(key[1], key[2], *map(_table, found[key])) for key in order)


def _table(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.fromiter(values, np.int32, len(values))


# ---- Checks of an adapter's changes against the matrices of a model ----


def refuse_change(site: AdapterSite, index: int, change: Change) -> None:
    """Check that kernels can apply a change to a matrix of a site.

    Raises:
        Unsupported: names the matrix, and what of the change is wrong.
    """
    name, (outputs, inputs) = site.names[index], site.shapes[index]
    outputs, grouped = outputs // site.groups, site.kind in (SiteKind.HEADS, SiteKind.EXPERTS)

    def check(what: str, found: tuple[int, ...], *wanted: tuple[int, ...]) -> None:
        if found not in wanted:
            raise Unsupported(f"the adapter's {what} of {name}", f"its shape is {list(found)}, not {list(wanted[0])}")

    if site.kind is SiteKind.NORM:
        _check_norm(name, change, outputs)
        return
    low_rank, embeds = change.low_rank, site.kind is SiteKind.EMBEDDING
    if low_rank is not None:
        _check_rank(name, low_rank)
        rank, groups = low_rank.b.shape[-1], (site.groups,) if grouped else ()
        shapes = (outputs, rank, inputs, rank) if embeds else (rank, inputs, outputs, rank)
        check("A", low_rank.a.shape, (*groups, *shapes[:2]), shapes[:2])
        check("B", low_rank.b.shape, (*groups, *shapes[2:]), shapes[2:])
    if embeds:
        _check_embedding(name, change)
    if grouped and not (change.scales and (low_rank is None or low_rank.bias is None)):
        raise Unsupported(f"the adapter's change of {name}", "of heads and experts only low-rank products are changed")
    if change.replaced is not None:
        _check_rows(name, change.replaced, *site.shapes[index])
    bias = None if low_rank is None else low_rank.bias
    vectors = {"factor": change.factor, "offset": change.offset, "magnitude": change.magnitude, "bias": change.bias}
    for what, vector in {**vectors, "bias of B": bias}.items():
        if vector is not None:
            check(what, vector.shape, (inputs if embeds else outputs,))


def _check_norm(name: str, change: Change, size: int) -> None:
    new, others = change.replaced, (change.low_rank, change.factor, change.offset, change.magnitude)
    if any(each is not None for each in others) or (new is not None and new.rows is not None):
        raise Unsupported(f"the adapter's change of {name}", "of norms only whole weights and biases are replaced")
    for what, vector in (("weight", None if new is None else new.values), ("bias", change.bias)):
        shape: tuple[int, ...] = (size, 1) if what == "weight" else (size,)
        if vector is not None and (vector.shape != shape or vector.dtype != np.float32):
            found = f"{vector.dtype} {list(vector.shape)}"
            raise Unsupported(f"the adapter's {what} of {name}", f"it is {found}, not float32 {list(shape)}")


def _check_rank(name: str, low_rank: LowRank) -> None:
    if min(*low_rank.a.shape, *low_rank.b.shape) == 0:
        raise Unsupported(f"the adapter's matrices of {name}", "they are empty")


def _check_embedding(name: str, change: Change) -> None:
    """Refuse biases, and factors without a product."""
    low_rank, factors = change.low_rank, (change.factor, change.offset, change.magnitude)
    if change.bias is not None or (low_rank is not None and low_rank.bias is not None):
        raise Unsupported(f"the adapter's change of {name}", "embeddings have no biases")
    if low_rank is None and any(each is not None for each in factors):
        raise Unsupported(f"the adapter's factors of {name}", "they need a low-rank product")


def _check_rows(name: str, replaced: Replacement, outputs: int, inputs: int) -> None:
    count = outputs if replaced.rows is None else len(replaced.rows)
    if replaced.values.shape != (count, inputs):
        found = list(replaced.values.shape)
        raise Unsupported(f"the adapter's new rows of {name}", f"their shape is {found}, not {[count, inputs]}")
    rows = replaced.rows
    if rows is not None and len(rows) and (rows[0] < 0 or rows[-1] >= outputs or (rows[1:] <= rows[:-1]).any()):
        raise Unsupported(f"the adapter's new rows of {name}", f"must ascend from 0 to {outputs - 1} at most")


# ---- Copies of adapters' numbers in memory: their files may change or end while a model uses them ----


def in_memory(changes: Mapping[str, Change]) -> dict[str, Change]:
    """Return the changes with copies of all arrays. An array that several of them share stays one."""
    copies = dict[int, tuple[Any, Any]]()
    return {name: _copy(change, copies) for name, change in changes.items()}


def _copy(value: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        if id(value) not in copies:
            copies[id(value)] = value, value.copy()  # with the original, so that its id stays taken
        return copies[id(value)][1]
    if isinstance(value, tuple):
        return tuple(_copy(each, copies) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: _copy(getattr(value, each.name), copies) for each in fields(value)})
    return value
