"""Slots of states: which slot of the pool holds the state of which sequence, and up to which token.

A state has no rows that can be ignored: a token that was applied stays. So a step reads one slot and writes another.
If it succeeds the written slot becomes the sequence's; if not, the old one still is, and the step can run again with
the same bits. Forks share a slot, because no step writes to one that it reads.

The tokens of drafts are not applied. Their rows are kept in the slot, next to the state before them; the next step
first applies those that were accepted.

A snapshot is a slot with a name. It is kept until its slot is needed, so that another sequence that begins alike can
begin with it, and nothing is copied. Names are hashes, as those of pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ferrum.cache.pool import HashedPage, HashIndex, PageHash, PagePool

NO_SLOT: Final = -1
"""The slot of a sequence without tokens, whose state is zero."""


class StateStep(NamedTuple):
    """What one step does to the state of one sequence.

    Attributes:
        read, write: slots; `read` is NO_SLOT for a new sequence.
        applied: tokens that the state in `read` has seen. Rows of those between them and `start` are kept there.
        start: position of the step's first token.
        until: tokens that the state in `write` will have seen; the rows of those after them are kept.
    """

    read: int
    write: int
    applied: int
    start: int
    until: int

    def part(self, first: int, end: int) -> tuple[int, int, int, int]:
        """Return what the pass over positions `first` to `end` - 1 reads, writes, applies before it, and keeps.

        Returns: slot read, slot written, kept rows to apply first, rows to keep.
        """
        kept = max(0, end - self.until)
        if first == self.start:
            return self.read, self.write, first - self.applied, kept
        return self.write, self.write, max(0, first - self.until), kept  # a later pass of a large step


class _State(NamedTuple):
    """A slot, and the number of tokens that its state has seen."""

    slot: int
    applied: int


_EMPTY: Final = _State(NO_SLOT, 0)


@dataclass(slots=True)
class _States:
    """The states of one sequence.

    Attributes:
        current: after its stored tokens, without kept rows.
        ahead: of its steps in flight, in order.
        held: a state that stays while the sequence may be truncated to it, and the length then.
        snapshots: those of the sequence by its length then.
        unpublished: snapshots that no other sequence finds yet.
    """

    current: _State = _EMPTY
    ahead: list[_State] | None = None
    held: tuple[_State, int] | None = None
    snapshots: dict[int, HashedPage] = field(default_factory=dict)
    unpublished: list[HashedPage] = field(default_factory=list)


class Snapshot(NamedTuple):
    """What a named slot holds, and who asked for it.

    Attributes:
        applied: tokens that the state has seen. Rows of those between them and `length` are kept next to it.
        length: tokens of the sequence then.
        saved: tokens that are not computed again thanks to it, at least: `length` minus that of the snapshot before it.
        tenant: owner.
    """

    applied: int
    length: int
    saved: int
    tenant: str


class SnapshotIndex(HashIndex):
    """Names of slots. The idle one that is evicted first is the least valuable of the tenant that has most of them.

    The value of a snapshot is the tokens that it saves, divided by the snapshots that were used since its last use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[int, Snapshot] = {}
        self._used: dict[int, int] = {}
        self._clock = 0

    def named(self, slot: int) -> HashedPage:
        """Return a slot with its name. It must have one."""
        return self._by_page[slot]

    def use(self, slot: int) -> None:
        """Note that a snapshot is used."""
        self._clock += 1
        self._used[slot] = self._clock

    def remove(self, hashed: HashedPage) -> bool:
        was_idle = super().remove(hashed)
        if hashed.page not in self:
            self.facts.pop(hashed.page, None)
            self._used.pop(hashed.page, None)
        return was_idle

    def evict(self) -> int:
        counts = Counter(self.facts[slot].tenant for slot in self.idle)
        tenant = max(counts, key=counts.__getitem__)
        mine = [slot for slot in self.idle if self.facts[slot].tenant == tenant]
        self.idle.move_to_end(min(mine, key=self._value), last=False)
        return super().evict()

    def clear(self) -> None:
        super().clear()
        self.facts.clear()
        self._used.clear()

    def _value(self, slot: int) -> float:
        return self.facts[slot].saved / (1 + self._clock - self._used.get(slot, 0))


class StateSlots:
    """The slots of all sequences.

    Args:
        num_slots: slots of the pool.
        per_sequence: slots that a sequence may hold: its state, and one for each step in flight.
        slot_bytes: bytes of a slot.

    Attributes:
        snapshots: names of slots.
    """

    def __init__(self, num_slots: int, per_sequence: int = 2, slot_bytes: int = 0) -> None:
        self.num_slots, self.per_sequence, self.slot_bytes = num_slots, per_sequence, slot_bytes
        self.snapshots = SnapshotIndex()
        self._pool = PagePool(num_slots, self.snapshots)
        self._states: dict[str, _States] = {}
        self._unshared = 0

    @property
    def free(self) -> int:
        """Number of slots that can be taken, those of snapshots alone included."""
        return self._pool.free

    @property
    def changes(self) -> int:
        """A number that increases with every slot that is taken or dropped."""
        return self._pool.changes

    def counts(self) -> dict[str, int]:
        """Return the counts of slots and snapshots by their names in `PrefixCounts`."""
        return {
            "state_slots": self.num_slots,
            "state_bytes": self.num_slots * self.slot_bytes,
            "used_slots": self.num_slots - self._pool.free,
            "snapshots": len(self.snapshots),
            "evicted_snapshots": self.snapshots.evicted,
        }

    def suffice(self, wanted: Iterable[str], gone: Iterable[str] = ()) -> bool:
        """Return whether each of these sequences may hold `per_sequence` slots at once.

        Args:
            wanted: sequences, known or not.
            gone: sequences whose slots count as free, except those that others share.
        """
        given = self._pool.owned_by(slot for cache_id in gone for slot in self._held(cache_id))
        needs = [self.per_sequence - self._pool.owned_by(self._held(cache_id)) for cache_id in wanted]
        return sum(max(0, each) for each in needs) <= self._pool.free + given

    def begin(self, cache_id: str, start: int, until: int) -> StateStep | None:
        """Return what the sequence's next step does; None if there is no free slot.

        Args:
            cache_id: the sequence; an unknown one begins.
            start: position of the step's first token.
            until: tokens that the state is to have seen after it: all but drafts.
        """
        if not self._pool.free:
            return None
        states = self._states.setdefault(cache_id, _States())
        states.ahead = states.ahead or []
        last = states.ahead[-1] if states.ahead else states.current
        written = _State(self._pool.take(), until)
        states.ahead.append(written)
        return StateStep(last.slot, written.slot, last.applied, start, until)

    def cancel(self, cache_id: str) -> None:
        """Take back the last `begin` of a sequence, whose step will not run."""
        states = self._states.get(cache_id)
        if states is not None and states.ahead:
            self._drop(states.ahead.pop())

    def commit(self, cache_id: str) -> None:
        """Let the state of the oldest step in flight be the sequence's. Without one, nothing changes."""
        states = self._states.get(cache_id)
        if states is not None and states.ahead:
            self._drop(states.current)
            states.current = states.ahead.pop(0)

    def abandon(self, cache_id: str) -> None:
        """Drop the states of all steps in flight: one of them has failed, and the others went on from it."""
        states = self._states.get(cache_id)
        if states is not None:
            for state in states.ahead or ():
                self._drop(state)
            states.ahead = None

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Return whether the state after `length` tokens, at most those stored, can be had again."""
        return length == 0 or self._reaching(self._states.get(cache_id, _States()), length) is not None

    def truncate(self, cache_id: str, length: int) -> None:
        """Go back to the state after `length` tokens, for which `can_truncate` has answered True."""
        states = self._states.get(cache_id)
        if states is None:
            return
        found = self._reaching(states, length) if length else _EMPTY
        assert found is not None, "asked before"
        if found.slot != states.current.slot:
            self._share(found)
            self._drop(states.current)
        states.current = found
        states.snapshots = {at: hashed for at, hashed in states.snapshots.items() if at <= length}

    def fork(self, source: str, target: str) -> None:
        """Begin `target` with the state of `source`."""
        states = self._states.get(source)
        if states is not None:
            self._share(states.current)
            self._states[target] = _States(states.current, snapshots=dict(states.snapshots))

    def hold(self, cache_id: str, length: int) -> None:
        """Keep the present state, after `length` tokens, until `unhold`."""
        states = self._states.get(cache_id)
        if states is not None and states.held is None:
            self._share(states.current)
            states.held = states.current, length

    def unhold(self, cache_id: str) -> None:
        """End `hold`. A sequence without one is no error."""
        states = self._states.get(cache_id)
        if states is not None and states.held is not None:
            self._drop(states.held[0])
            states.held = None

    def release(self, cache_id: str) -> None:
        """Drop all states of a sequence; an unknown id is no error."""
        self.abandon(cache_id)
        self.unhold(cache_id)
        states = self._states.pop(cache_id, None)
        if states is not None:
            for hashed in states.unpublished:
                self._pool.remove_hash(hashed)
            self._drop(states.current)

    # Snapshots

    def name(self, cache_id: str, length: int, name: PageHash | None, tenant: str = "") -> None:
        """Name the present state of a sequence of this length. `publish` lets other sequences find it.

        Args:
            name: None for a state that only the sequence and its forks may go back to.
        """
        states = self._states.get(cache_id)
        if states is None or states.current.slot == NO_SLOT or states.current.applied > length:
            return  # a later step is committed already
        if name is None:
            self._unshared += 1
            name = b"unshared %d" % self._unshared
        slot, applied = states.current
        hashed = self._pool.hashes.assign(slot, name)
        if hashed is not None:
            before = max((each for each in states.snapshots if each < length), default=0)
            self.snapshots.facts[slot] = Snapshot(applied, length, length - before, tenant)
            self.snapshots.use(slot)
            states.snapshots[length] = hashed
            states.unpublished.append(hashed)

    def publish(self, cache_id: str) -> None:
        """Let other sequences find the snapshots of a sequence."""
        states = self._states.get(cache_id)
        if states is not None and states.unpublished:
            for hashed in states.unpublished:
                self._pool.publish(hashed)
            states.unpublished.clear()

    def has(self, name: PageHash) -> bool:
        """Return whether a snapshot of this name can be found."""
        return self.snapshots.find(name) is not None

    def adopt(self, cache_id: str, name: PageHash) -> None:
        """Begin a sequence with the snapshot of this name, which `has` has just found."""
        slot = self._pool.adopt(name)
        self.snapshots.use(slot)
        facts = self.snapshots.facts[slot]
        known = {facts.length: self.snapshots.named(slot)}
        self._states[cache_id] = _States(_State(slot, facts.applied), snapshots=known)

    def reset(self) -> None:
        """Drop everything."""
        self._states.clear()
        self._pool.clear()

    def check(self) -> None:
        """Assert that every slot has as many owners as states name it."""
        counts = [0] * self.num_slots
        for cache_id in self._states:
            for slot in self._held(cache_id):
                counts[slot] += 1
        self._pool.check(counts)
        assert self.snapshots.facts.keys() == {slot for slot in range(self.num_slots) if slot in self.snapshots}

    def _held(self, cache_id: str) -> list[int]:
        """Return the slots of a sequence, one for each state that names it."""
        states = self._states.get(cache_id, _States())
        held = () if states.held is None else (states.held[0],)
        return [each.slot for each in (states.current, *(states.ahead or ()), *held) if each.slot != NO_SLOT]

    def _reaching(self, states: _States, length: int) -> _State | None:
        """Return the state that has seen at most `length` tokens and keeps the rows up to there."""
        if states.current.applied <= length:
            return states.current
        held, end = states.held or (_EMPTY, 0)
        if states.held is not None and held.applied <= length <= end:
            return held
        hashed = states.snapshots.get(length)
        if hashed is None or not self.snapshots.holds(hashed):
            return None
        return _State(hashed.page, self.snapshots.facts[hashed.page].applied)

    def _share(self, state: _State) -> None:
        if state.slot != NO_SLOT:
            self._pool.share(state.slot)

    def _drop(self, state: _State) -> None:
        if state.slot != NO_SLOT:
            self._pool.drop(state.slot)
