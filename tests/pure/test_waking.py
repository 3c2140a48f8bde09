"""Consumers are woken on an event loop that has other work to do."""

from __future__ import annotations

import asyncio

from engine_fakes import greedy, input_processor
from ferrum.client.async_engine import StreamWaker
from ferrum.client.input_processor import RequestOptions
from ferrum.client.output_stream import RequestStream
from ferrum.core.policy_config import POLICY
from ferrum.core.types import TokenEvent

PER_TURN = POLICY.streams_per_turn
NAMES = [f"s{number}" for number in range(3 * PER_TURN)]


def written_by_turn(*steps: tuple[list[str], list[str]]) -> list[list[str]]:
    """Return the streams that write in each turn of the loop, without turns in which none does.

    Args:
        steps: each with the streams that have begun and those that have not.
    """
    found: list[list[str]] = [[]]

    def stream(name: str, begun: bool) -> RequestStream:
        loop = asyncio.get_running_loop()
        request = input_processor().process([1], greedy(), RequestOptions(request_id=name))
        made = RequestStream(request, name, None, lambda: loop.call_soon(lambda: found[-1].append(name)))
        if begun:
            made.push(TokenEvent(name, 0, (5,)))
            assert made.take() is not None
        return made

    async def run() -> None:
        waker = StreamWaker(asyncio.get_running_loop())
        known: dict[str, RequestStream] = {}
        for begun, fresh in steps:
            waker.add([known.setdefault(name, stream(name, name in begun)) for name in (*begun, *fresh)])
        for _ in range(20):
            found.append([])
            await asyncio.sleep(0)

    asyncio.run(run())
    return [turn for turn in found if turn]


def test_other_callbacks_wait_for_a_few_consumers_at_most() -> None:
    turns = written_by_turn((NAMES, []))
    assert [name for turn in turns for name in turn] == NAMES
    assert max(map(len, turns)) == PER_TURN


def test_first_tokens_are_delivered_before_later_ones() -> None:
    written = [name for turn in written_by_turn((NAMES, ["new"]), ([], ["newer"])) for name in turn]
    assert written[0] == "new" and written.index("newer") == PER_TURN


def test_a_stream_that_waits_is_woken_once() -> None:
    written = [name for turn in written_by_turn((NAMES, []), (NAMES, [])) for name in turn]
    assert written == NAMES + NAMES[:PER_TURN]  # the first few had been woken before the second step


def test_a_consumer_that_cannot_be_woken_does_not_stop_the_others() -> None:
    woken, failed = [], []

    def stream(name: str) -> RequestStream:
        def wake() -> None:
            woken.append(name)
            if name == NAMES[1]:
                raise ValueError(name)

        return RequestStream(
            input_processor().process([1], greedy(), RequestOptions(request_id=name)), name, None, wake
        )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(str(context["exception"])))
        waker = StreamWaker(loop)
        for names in (NAMES, ["later"]):
            loop.call_soon(waker.add, [stream(name) for name in names])
            for _ in range(20):
                await asyncio.sleep(0)

    asyncio.run(run())
    assert woken == [*NAMES, "later"] and failed == [NAMES[1]]
