"""Slots of states with names: what is found, what is evicted, and that no slot leaks."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.cache.state_slots import NO_SLOT, StateSlots


def run(slots: StateSlots, cache_id: str, start: int, until: int) -> None:
    """Run a step that leaves the state after `until` tokens, and commit it."""
    step = slots.begin(cache_id, start, until)
    assert step is not None and (step.start, step.until) == (start, until)
    slots.commit(cache_id)
    slots.check()


def named(slots: StateSlots, cache_id: str, length: int, name: bytes, tenant: str = "") -> None:
    """Grow a new sequence to a length, name its state, and release it."""
    run(slots, cache_id, 0, length)
    slots.name(cache_id, length, name, tenant)
    slots.publish(cache_id)
    slots.release(cache_id)
    slots.check()


def test_a_snapshot_is_found_once_published_and_begins_another_sequence() -> None:
    slots = StateSlots(4)
    run(slots, "a", 0, 10)
    slots.name("a", 10, b"ten")
    assert not slots.has(b"ten")
    slots.publish("a")
    assert slots.has(b"ten")
    before = slots.begin("a", 10, 11)
    slots.adopt("b", b"ten")
    step = slots.begin("b", 10, 12)
    assert before is not None and step is not None
    assert step.read == before.read != step.write and step.applied == 10, "nothing is copied"


def test_a_snapshot_with_drafts_next_to_it_begins_a_sequence_with_them() -> None:
    slots = StateSlots(4)
    run(slots, "a", 0, 10)
    run(slots, "a", 10, 11)  # with three drafts, of which two count
    slots.name("a", 13, b"drafted")
    slots.publish("a")
    slots.adopt("b", b"drafted")
    step = slots.begin("b", 13, 14)
    assert step is not None and (step.applied, step.start) == (11, 13)
    assert step.part(13, 14) == (step.read, step.write, 2, 0)


def test_a_round_of_drafts_takes_one_slot_and_gives_one_back() -> None:
    """No state is copied, whether drafts are accepted or not: the next round reads the slot that this one wrote."""
    slots = StateSlots(2)
    run(slots, "a", 0, 10)
    length, written = 10, None
    for accepted in (3, 0, 1):
        before = slots.changes
        step = slots.begin("a", length, length + 1)
        assert step is not None and written in (None, step.read) and slots.free == 0
        slots.commit("a")
        length, written = length + 1 + accepted, step.write
        slots.truncate("a", length)
        assert slots.free == 1 and slots.changes == before + 2


def test_a_state_that_has_seen_later_tokens_gets_no_name() -> None:
    slots = StateSlots(4)
    run(slots, "a", 0, 10)
    slots.name("a", 9, b"nine")
    slots.publish("a")
    assert not slots.has(b"nine")


def test_names_of_an_unpublished_sequence_go_with_it() -> None:
    slots = StateSlots(4)
    run(slots, "a", 0, 10)
    slots.name("a", 10, b"ten")
    run(slots, "a", 10, 20)
    slots.release("a")
    slots.check()
    assert not slots.has(b"ten") and slots.counts()["snapshots"] == 0 and slots.free == 4


def test_of_two_snapshots_of_one_name_the_first_stays() -> None:
    slots = StateSlots(6)
    for cache_id in "ab":
        run(slots, cache_id, 0, 10)
        slots.name(cache_id, 10, b"ten")
    for cache_id in "ab":
        slots.publish(cache_id)
        slots.release(cache_id)
    slots.check()
    assert slots.has(b"ten") and slots.counts()["snapshots"] == 1


def test_a_sequence_goes_back_to_its_snapshots_and_to_the_one_it_began_with() -> None:
    slots = StateSlots(8)
    named(slots, "a", 10, b"ten")
    slots.adopt("b", b"ten")
    run(slots, "b", 10, 20)
    slots.name("b", 20, None)
    run(slots, "b", 20, 30)
    assert [length for length in range(31) if slots.can_truncate("b", length)] == [0, 10, 20, 30]
    slots.truncate("b", 20)
    slots.check()
    assert [length for length in range(21) if slots.can_truncate("b", length)] == [0, 10, 20]
    slots.truncate("b", 0)
    step = slots.begin("b", 0, 5)
    assert step is not None and step.read == NO_SLOT


def test_forks_go_back_to_a_snapshot_of_their_source() -> None:
    slots = StateSlots(8)
    run(slots, "a", 0, 59)
    slots.name("a", 59, None)
    run(slots, "a", 59, 60)
    for cache_id in "bcd":
        slots.fork("a", cache_id)
        slots.truncate(cache_id, 59)
        step = slots.begin(cache_id, 59, 60)
        assert step is not None and step.applied == 59
    slots.check()


def test_the_least_valuable_snapshot_is_evicted() -> None:
    """It saves fewest tokens for its age; a use makes it young."""
    slots = StateSlots(4)
    for index, length in enumerate((100, 10, 50)):
        named(slots, "a", length, b"%d" % length)
        assert slots.free == 4 and slots.counts()["snapshots"] == index + 1
    for cache_id in "xy":
        run(slots, cache_id, 0, 1)
    assert [slots.has(name) for name in (b"100", b"10", b"50")] == [True, False, True]
    assert slots.counts()["evicted_snapshots"] == 1


def test_a_snapshot_saves_what_lies_after_the_one_before_it() -> None:
    slots = StateSlots(4)
    run(slots, "a", 0, 100)
    slots.name("a", 100, b"100")
    run(slots, "a", 100, 101)
    slots.name("a", 101, b"101")
    slots.publish("a")
    slots.release("a")
    for cache_id in "xyz":
        run(slots, cache_id, 0, 1)
    assert slots.has(b"100") and not slots.has(b"101")


def test_a_tenant_that_floods_the_slots_evicts_only_its_snapshots() -> None:
    slots = StateSlots(8)
    for tenant in "ab":
        named(slots, "s", 10, tenant.encode(), tenant)
    for number in range(100):
        named(slots, "s", 1000, b"flood %d" % number, "c")
    assert slots.has(b"a") and slots.has(b"b")


def test_slots_suffice_if_each_sequence_can_hold_all_it_may() -> None:
    slots = StateSlots(6)
    assert slots.suffice("abc") and not slots.suffice("abcd")
    for cache_id in "ab":
        run(slots, cache_id, 0, 10)
    assert slots.suffice("abc") and not slots.suffice("abcd")
    run(slots, "stranger", 0, 10)
    assert slots.suffice("ab") and not slots.suffice("abc")
    assert slots.suffice("bc", gone="a")
    slots.fork("a", "d")
    assert slots.suffice("b", gone="a") and not slots.suffice("bcd", gone="a"), "d keeps the slot of a"


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_operations_leaks_a_slot(seed: int) -> None:
    slots, pick = StateSlots(12), Random(seed)
    lengths: dict[str, int] = {}
    for _ in range(300):
        cache_id = pick.choice("abcd")
        length = lengths.get(cache_id)
        match pick.choice(("grow", "grow", "name", "fork", "back", "release", "adopt", "fail")):
            case "grow" if slots.begin(cache_id, length or 0, (length or 0) + 5) is not None:
                slots.commit(cache_id)
                lengths[cache_id] = (length or 0) + 5
            case "fail" if slots.begin(cache_id, length or 0, (length or 0) + 5) is not None:
                pick.choice((slots.abandon, slots.cancel))(cache_id)
                lengths.setdefault(cache_id, 0)
            case "name" if length:
                slots.name(cache_id, length, pick.choice((None, b"%d" % length)), pick.choice("xy"))
                if pick.random() < 0.7:
                    slots.publish(cache_id)
            case "fork" if length and (target := pick.choice("abcd")) not in lengths:
                slots.fork(cache_id, target)
                lengths[target] = length
            case "back" if length and slots.can_truncate(cache_id, to := pick.randrange(0, length, 5)):
                slots.truncate(cache_id, to)
                lengths[cache_id] = to
            case "adopt" if length is None and slots.has(name := b"%d" % pick.randrange(5, 30, 5)):
                slots.adopt(cache_id, name)
                lengths[cache_id] = int(name)
            case "release":
                slots.release(cache_id)
                lengths.pop(cache_id, None)
        slots.check()
    for cache_id in "abcd":
        slots.release(cache_id)
    slots.check()
    assert slots.free == 12 and slots.counts()["used_slots"] == 0
    slots.reset()
    slots.check()
    assert slots.counts()["snapshots"] == 0
