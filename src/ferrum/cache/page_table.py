"""The page table: what sequences store, and full pages that can be found by content hash. Host integers only.

Hashed pages outlive their sequence while there is room, and a new sequence with the same prefix adopts them. The table
lists the copies of pages to make before a step writes; the executor makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter

from ferrum.cache.page_hashes import PartialPage, SequenceHashes, longest_match
from ferrum.cache.page_rows import FREED as FREED
from ferrum.cache.page_rows import KnownRows, NextTokens, SequenceRows, adopted_rows, can_grow, new_rows
from ferrum.cache.pool import HashedPage, PageHash, Room, capacity_tokens
from ferrum.cache.pool import PageCopy as PageCopy
from ferrum.cache.pool import PageGroup as PageGroup
from ferrum.cache.state_slots import StateSlots
from ferrum.cache.tiered_restore import PageTier, Restores
from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import AdapterUse
from ferrum.core.values import kept_length, shown

_changes = attrgetter("changes")


class PageTable:
    """What all sequences store: pages in all groups, and slots of states.

    Args:
        groups, max_draft: see `Room`.
        states: slots of the states of sequences; None if no layer has one.
        unpaged: tokens that the executor holds where no group limits them.

    Attributes:
        restores: pages on their way back from a KV tier.
        next_tokens: the usual step.
        page_size: tokens per page.
        capacity_tokens: tokens that the whole pool holds.
        shares_prefixes: whether sequences have pages, with which others can begin.
    """

    def __init__(
        self, groups: Iterable[PageGroup], *, max_draft: int = 16, states: StateSlots | None = None, unpaged: int = 0
    ) -> None:
        self._room = room = Room(groups, max_draft)
        self.groups, self.page_size, self.states = room.groups, room.page_size, states
        self.capacity_tokens = capacity_tokens(room.groups) if room.groups else unpaged
        self.shares_prefixes = bool(room.groups)
        self._rows = KnownRows()
        self._copies = [pool.copies for pool in room.pools]
        # With windows or states, the next token's commit changes more than the length.
        changing = states is not None or any(group.window is not None for group in room.groups)
        self.next_tokens = NextTokens(self, room, self._rows, changing=changing)
        self._asked = self._found = self._hits = 0
        self.restores = Restores(self)

    # Sequences and pages

    def __contains__(self, cache_id: str) -> bool:
        return cache_id in self._rows

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all sequences, oldest first."""
        return tuple(self._rows)

    def length(self, cache_id: str) -> int:
        """Return the number of stored tokens. Raises UnknownSequence."""
        return self._rows[cache_id].length

    def generation(self, cache_id: str) -> int:
        """Return a number that increases with every commit and truncation. Raises UnknownSequence."""
        return self._rows[cache_id].generation

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Return a live view of the sequence's page numbers, with reserved pages and FREED entries."""
        return self._rows[cache_id].rows[self._room.index[group]]

    @property
    def used(self) -> int:
        """Number of pages in use, over all groups."""
        return sum([pool.num_pages - pool.free for pool in self._room.pools])

    @property
    def usage(self) -> float:
        """Share of all pages that is in use, 0 to 1."""
        return self.used / max(1, sum([pool.num_pages for pool in self._room.pools]))

    @property
    def changes(self) -> int:
        """A number that increases with every page that is taken or dropped."""
        changes: int = sum(map(_changes, self._room.pools))
        return changes if self.states is None else changes + self.states.changes

    @property
    def shared(self) -> int:
        """Number of pages with several owners, over all groups."""
        return sum([pool.shared for pool in self._room.pools])

    @property
    def free_slots(self) -> int:
        """Free slots of states; 0 without states."""
        return 0 if self.states is None else self.states.free

    def free(self, group: str) -> int:
        """Return the number of free pages of the group."""
        return self._room.pools[self._room.index[group]].free

    # Room

    def fits_empty_pool(self, length: int, step: int) -> bool:
        """Return whether the empty pool holds a sequence of `length` tokens; `step`: see `can_grow`."""
        return self._room.fits_empty(length, step)

    def can_grow(self, lengths: Mapping[str, int], step: int, gone: Collection[str] = ()) -> bool:
        """Return whether the free pages let all these sequences reach their lengths together.

        Args:
            lengths: final number of tokens by sequence.
            step: largest number of tokens between two commits. A window group holds them in addition to its window.
            gone: sequences whose pages count as free, except those that other sequences share.

        Raises UnknownSequence.
        """
        ends = [(self._rows[cache_id], length) for cache_id, length in lengths.items()]
        return can_grow(self._room, ends, step, [self._rows[cache_id] for cache_id in gone])

    def growth(self, limit: int) -> int:
        """Return by how many tokens, up to `limit`, a sequence may grow in one step, see `Room.growth`."""
        return self._room.growth(limit)

    # Adapters

    def adapters(self, cache_id: str) -> tuple[AdapterUse, ...]:
        """Return the adapters of its last step with any, or those chosen since. Raises UnknownSequence."""
        return self._rows[cache_id].adapters

    def choose(self, cache_id: str, adapters: tuple[AdapterUse, ...]) -> None:
        """Set the adapters of a sequence; an unknown id begins an empty one."""
        if cache_id not in self._rows:
            self._rows[cache_id] = SequenceRows(self._room)
        self._rows[cache_id].adapters = adapters

    def adapter_keys(self) -> frozenset[str]:
        """Return the keys of all sequences' adapters. Safe to call from any thread."""
        return frozenset(use.key for rows in list(self._rows.values()) for use in rows.adapters)

    def add_blocks(self, cache_id: str, blocks: Iterable[range]) -> None:
        """Note positions whose rows see each other: no truncation ends among them. Raises UnknownSequence."""
        self._rows[cache_id].blocks += tuple(blocks)

    # Growth

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens in all groups, or change nothing; an unknown id begins a sequence.

        A shared or hashed page that would be written to is replaced by a copy (see `take_copies`).

        Returns:
            False if a group has too few free pages.
        """
        rows = self._rows.get(cache_id)
        if rows is not None and length <= rows.reserved:  # the usual case, as a page lasts many steps
            return True
        rows = rows or SequenceRows(self._room)
        if not rows.grow(length):
            return False
        self._rows[cache_id] = rows
        return True

    @property
    def needs_copies(self) -> bool:
        """Whether `take_copies` has anything to return."""
        return any(self._copies)

    def take_copies(self) -> tuple[PageCopy, ...]:
        """Return the page copies to make before the next write to the pool; from now on they count as made.

        No target is a source, and no target appears twice, so any order works. Until they are taken, the sources stay
        out of the free list, and releasing a target cancels its copy.
        """
        return tuple(
            PageCopy(group.name, source, target)
            for group, pool in zip(self.groups, self._room.pools, strict=True)
            for target, source in pool.take_copies()
        )

    def commit(self, cache_id: str, length: int) -> None:
        """Advance the stored length to `length`, and each kind of what is stored: a step has succeeded.

        Window groups free the pages that no later query can see. A state that the step has written becomes the
        sequence's.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is below the stored length or beyond the reserved pages.
        """
        rows = self._rows[cache_id]
        if not rows.length <= length <= rows.reserved:
            most = rows.capacity()
            if length < rows.length or (most is not None and length > most):
                raise RequestError(f"{length} is not in [{rows.length}, {most}]", param="length")
        rows.advance(length)
        if self.states is not None:
            self.states.commit(cache_id)

    # Undo

    @contextmanager
    def holding(self, cache_ids: Collection[str]) -> Iterator[None]:
        """Keep all pages of these sequences, so that a truncation to their present lengths succeeds.

        Raises UnknownSequence.
        """
        held = {cache_id: rows for cache_id in cache_ids if not (rows := self._rows[cache_id]).held}
        for cache_id, rows in held.items():
            rows.held = True
            if self.states is not None:
                self.states.hold(cache_id, rows.length)
        try:
            yield
        finally:
            for cache_id, rows in held.items():
                if self._rows.get(cache_id) is rows:
                    rows.stop_holding()
                    if self.states is not None:
                        self.states.unhold(cache_id)

    def abandon(self, cache_id: str) -> None:
        """Give back what the sequence's failed steps have taken, none of which is in flight. Raises UnknownSequence."""
        self.trim(cache_id)
        if self.states is not None:
            self.states.abandon(cache_id)

    def trim(self, cache_id: str) -> None:
        """Release the pages that are reserved beyond the stored length. Raises UnknownSequence."""
        self._rows[cache_id].trim()

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Return whether the tokens from position `length` on still find all they depend on. Raises UnknownSequence."""
        rows = self._rows[cache_id]
        cut = any(block.start < length < block.stop for block in rows.blocks)
        return rows.sees_from(length) and self._has_state(cache_id, length) and not cut

    def truncate(self, cache_id: str, length: int) -> None:
        """Remove the tokens from position `length` on and release their pages; at the stored length, do nothing.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is no integer, negative or beyond the stored length.
            Unsupported: a window group has freed keys that the next query would see, a state has seen later tokens, or
                the rows before have seen those after.
        """
        rows = self._rows[cache_id]
        length = kept_length("length", length, rows.length)
        if length == rows.length:
            return
        if not self._has_state(cache_id, length):
            what = "the state of its recurrent layers has seen later tokens"
            raise Unsupported("truncation", f"position {length}: {what}")
        if (block := next((each for each in rows.blocks if each.start < length < each.stop), None)) is not None:
            what = f"rows {block.start} to {block.stop - 1} see each other: truncate to {block.start}"
            raise Unsupported("truncation", f"position {length}: {what}")
        if not rows.sees_from(length):
            raise Unsupported("truncation", f"the keys before position {length} have left the window and are freed")
        rows.cut(length)
        if self.states is not None:
            self.states.truncate(cache_id, length)

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as a copy of `source` that shares all it has stored, the partly filled page included.

        Raises:
            UnknownSequence: no such source.
            RequestError: the target exists.
        """
        rows = self._rows[source]
        if target in self._rows:
            raise RequestError(f"the sequence {shown(target)} exists already", param="target")
        self._rows[target] = rows.share()
        if self.states is not None:
            self.states.fork(source, target)

    def begin_stored(self, cache_id: str, length: int, freed: Sequence[int]) -> bool:
        """Begin a sequence of `length` tokens on new pages, which the caller writes before any step.

        Args:
            cache_id: must be unknown.
            length: number of its tokens.
            freed: by group, the number of its first pages that have left the window.

        Returns:
            False if a group has too few free pages.
        """
        assert cache_id not in self._rows and self.states is None
        rows = new_rows(self._room, length, freed)
        if rows is not None:
            self._rows[cache_id] = rows
        return rows is not None

    def release(self, cache_id: str) -> None:
        """Remove the sequence and drop its pages; an unknown id is no error."""
        rows = self._rows.pop(cache_id, None)
        if rows is not None:
            rows.hashes.discard()
            rows.drop()
            if self.states is not None:
                self.states.release(cache_id)

    # Prefixes

    def match(self, page_hashes: Sequence[PageHash]) -> int:
        """Return how many leading pages a new sequence can adopt.

        A group with a window needs only those of them that the next query sees.
        """
        return longest_match(self.groups, self._room.pools, page_hashes) if self.shares_prefixes else 0

    def has_page(self, group: str, page_hash: PageHash) -> bool:
        """Return whether the group has a published page with this hash."""
        return self._room.pools[self._room.index[group]].hashes.find(page_hash) is not None

    def has_partial_page(self, page_hash: PageHash) -> bool:
        """Return whether all groups have a page with this hash."""
        return self.shares_prefixes and all(pool.hashes.find(page_hash) is not None for pool in self._room.pools)

    def publish_partial_page(self, cache_id: str, length: int, page_hash: PageHash) -> None:
        """Let the page that ends the first `length` tokens be found, though not full. Raises UnknownSequence."""
        self._rows[cache_id].publish_partial(length, page_hash)

    def publish_page(self, group: str, page: int, page_hash: PageHash) -> None:
        """Publish a page that belongs to a sequence and was written from a KV tier."""
        pool = self._room.pools[self._room.index[group]]
        hashed = pool.hashes.assign(page, page_hash)
        assert hashed is not None, "a page reserved for a restore has no hash"
        pool.publish(hashed)

    def attach(self, tier: PageTier | None) -> None:
        """Set the KV tier that keeps copies of published pages."""
        self.restores.tier = tier
        for group, pool in zip(self.groups, self._room.pools, strict=True):
            pool.hashes.on_evict = None if tier is None else partial(tier.evicted, group.name)

    def adopt(
        self,
        cache_id: str,
        page_hashes: Sequence[PageHash],
        count: int,
        partial_page: PartialPage | None = None,
        snapshot: PageHash | None = None,
    ) -> None:
        """Begin a sequence with the first `count` pages, which `match` has just found.

        Args:
            cache_id: must be unknown.
            page_hashes: of all its full pages, as far as its tokens are known: a view that its owner appends to.
            count: number of pages to begin with.
            partial_page: a page whose first tokens come next; all groups have it.
            snapshot: name of the state after them, if layers have states.
        """
        assert cache_id not in self._rows
        self._rows[cache_id] = adopted_rows(self._room, page_hashes, count, partial_page)
        if snapshot is not None and self.states is not None:
            self.states.adopt(cache_id, snapshot)

    def label(self, cache_id: str, page_hashes: Sequence[PageHash]) -> None:
        """Set the hashes of a sequence that did not begin by `adopt`. Raises UnknownSequence."""
        self._rows[cache_id].hashes = SequenceHashes(page_hashes)

    def publish(self, cache_id: str) -> None:
        """Let others find the sequence's full pages and snapshots, after its logits were finite.

        Raises UnknownSequence.
        """
        stored = self._rows[cache_id]
        if self.states is not None:
            self.states.publish(cache_id)
        stored.assign_hashes()
        tier = self.restores.tier
        for pool, hashed in stored.hashes.publish():
            if tier is not None:
                tier.keep(self.groups[self._room.pools.index(pool)].name, hashed)

    def holds(self, group: str, hashed: HashedPage) -> bool:
        """Return whether the page still has its hash. Safe to call from any thread."""
        return self._room.pools[self._room.index[group]].hashes.holds(hashed)

    def count_lookup(self, asked: int, found: int) -> None:
        """Count a lookup of a prompt of `asked` tokens, `found` of which were adopted."""
        self._asked += asked
        self._found += found
        self._hits += found > 0

    def prefix_counts(self) -> PrefixCounts:
        """Return the counts of the prefix cache."""
        states = {} if self.states is None else {**self.states.counts(), "snapshot_hits": self._hits}
        pools = self._room.pools
        return PrefixCounts(
            cached_pages=sum([len(pool.hashes) for pool in pools]),
            evicted_pages=sum([pool.hashes.evicted for pool in pools]),
            query_tokens=self._asked,
            hit_tokens=self._found,
            restored_pages=self.restores.pages,
            external_query_tokens=self.restores.asked_tokens,
            external_hit_tokens=self.restores.found_tokens,
            shared_pages=sum([pool.shared for pool in pools]),
            **states,
        )

    def reset(self) -> None:
        """Remove every sequence and every prefix, after pending restores have finished."""
        self.restores.finish()
        self._rows.clear()
        for pool in self._room.pools:
            pool.clear()
        if self.states is not None:
            self.states.reset()

    def check(self) -> None:
        """Assert that rows, lengths, reference counts, copies and free lists agree; every page is somewhere, once."""
        for index, pool in enumerate(self._room.pools):
            counts = [0] * pool.num_pages
            for rows in self._rows.values():
                rows.count(index, counts)
            pool.check(counts)
        if self.states is not None:
            self.states.check()

    def _has_state(self, cache_id: str, length: int) -> bool:
        """Return whether the state after `length` tokens can be had again, if there are states."""
        return self.states is None or self.states.can_truncate(cache_id, length)
