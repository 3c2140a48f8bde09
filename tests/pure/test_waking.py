"""Who is woken when, on an event loop that has others to look after."""

from __future__ import annotations

import asyncio

from engine_fakes import greedy, input_processor
from ferrum.core.types import TokenEvent
from ferrum.engine.output_stream import RequestStream
from ferrum.engine.stream_fairness import TOGETHER, Waking

NAMES = [f"s{number}" for number in range(3 * TOGETHER)]


def woken_by_turn(
    *steps: tuple[list[str], list[str]], took: float = 0.0, others_took: float = 0.0, turns: int = 20
) -> list[list[str]]:
    """The streams that write in each turn of a loop, when one step after the other has news for those that had news
    before and those that had none.

    Args:
        took: seconds of a processor that a stream takes to write.
        others_took: seconds that each turn takes besides.
        turns: of the loop after the last step, which take no time.
    """
    found: list[list[str]] = [[]]

    def seconds() -> float:
        return took * sum(map(len, found)) + others_took * len(found)

    def stream(name: str, begun: bool) -> RequestStream:
        loop = asyncio.get_running_loop()
        request = input_processor().process([1], greedy(), request_id=name)
        made = RequestStream(request, name, None, lambda: loop.call_soon(lambda: found[-1].append(name)))
        if begun:
            made.push(TokenEvent(name, 0, (5,)))
            assert made.take() is not None
        return made

    async def run() -> None:
        waking = Waking(asyncio.get_running_loop(), clock=seconds)
        known: dict[str, RequestStream] = {}
        for begun, fresh in steps:
            waking.add([known.setdefault(name, stream(name, name in begun)) for name in (*begun, *fresh)])
        for _ in range(turns):
            found.append([])
            await asyncio.sleep(0)

    asyncio.run(run())
    return [turn for turn in found if turn]


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
    assert woken == NAMES + NAMES[:TOGETHER]  # the first few had been woken before they had news again


def test_who_had_news_is_let_alone_for_a_while_after_a_round_and_who_has_none_is_not() -> None:
    first, again = (NAMES, []), (NAMES[:TOGETHER], ["new"])
    assert woken_by_turn(first, again, took=0.0)[-1] == NAMES[:TOGETHER]
    later = woken_by_turn(first, again, took=10.0)
    assert later[-1] != NAMES[:TOGETHER] and [name for turn in later for name in turn if name not in NAMES] == ["new"]


def test_what_others_take_of_the_loop_does_not_make_the_pause_longer() -> None:
    first, again = (NAMES, []), (NAMES[:TOGETHER], [])
    assert woken_by_turn(first, again, others_took=10.0)[-1] == NAMES[:TOGETHER]


def test_a_consumer_that_cannot_be_woken_keeps_nobody_else_asleep() -> None:
    woken, told = [], []

    def stream(name: str) -> RequestStream:
        def wake() -> None:
            woken.append(name)
            if name == NAMES[1]:
                raise ValueError(name)

        return RequestStream(input_processor().process([1], greedy(), request_id=name), name, None, wake)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        waking = Waking(loop)
        for names in (NAMES, ["later"]):
            loop.call_soon(waking.add, [stream(name) for name in names])
            for _ in range(20):
                await asyncio.sleep(0)

    asyncio.run(run())
    assert woken == [*NAMES, "later"] and told == [NAMES[1]]
