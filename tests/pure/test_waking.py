"""Who is woken when, on an event loop that has others to look after."""

from __future__ import annotations

import asyncio

from engine_fakes import admission, greedy
from ferrum.core.types import TokenEvent
from ferrum.engine.stream import RequestStream
from ferrum.engine.waking import TOGETHER, Waking

NAMES = [f"s{number}" for number in range(3 * TOGETHER)]


def woken_by_turn(*steps: tuple[list[str], list[str]]) -> list[list[str]]:
    """The streams woken in each turn of a loop, when one step after the other has news for those that had news before
    and those that had none."""
    turns: list[list[str]] = [[]]

    def stream(name: str, begun: bool) -> RequestStream:
        request = admission().admit([1], greedy(), request_id=name)
        made = RequestStream(request, name, None, lambda: turns[-1].append(name))
        if begun:
            made.push(TokenEvent(name, 0, (5,)))
            assert made.take() is not None
        return made

    async def run() -> None:
        waking = Waking(asyncio.get_running_loop())
        known: dict[str, RequestStream] = {}
        for begun, fresh in steps:
            waking.add([known.setdefault(name, stream(name, name in begun)) for name in (*begun, *fresh)])
        while turns[-1]:
            turns.append([])
            await asyncio.sleep(0)

    asyncio.run(run())
    return turns[:-1]


def test_the_loop_looks_after_others_between_a_few_streams_and_the_next_few() -> None:
    turns = woken_by_turn((NAMES, []))
    assert [name for turn in turns for name in turn] == NAMES
    assert max(map(len, turns)) == TOGETHER


def test_who_gets_a_first_token_is_woken_before_those_who_go_on() -> None:
    turns = woken_by_turn((NAMES, ["new"]), ([], ["newer"]))
    assert turns[0] == ["new", *NAMES[: TOGETHER - 1]]
    assert turns[1][0] == "newer"


def test_who_waits_to_be_woken_is_woken_once() -> None:
    turns = woken_by_turn((NAMES, []), (NAMES, []))
    woken = [name for turn in turns for name in turn]
    assert sorted(woken) == sorted(NAMES + NAMES[:TOGETHER])  # the first few had been woken by then
