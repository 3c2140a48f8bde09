"""`AsyncEngine` on both hosts: the same tests for an engine in a thread and in a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engine_fakes import (
    KILL,
    POISON,
    FakeRecipe,
    LetterTokenizer,
    ServedFake,
    expected,
    greedy,
    input_processor,
    parts,
)
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.engine_process import ProcessHost
from ferrum.client.request_output import Delta, join
from ferrum.core.errors import EngineDead, InvalidToken, NonFiniteLogits, QueueFull, RequestError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.types import FinishReason, Request
from ferrum.engine.host import Built
from ferrum.engine.messages import EngineStats
from ferrum.engine.progress import SHOW_CURSOR
from ferrum.engine.wire import Reader

ENDLESS = greedy(None, ignore_eos=True)
SLOW = FakeRecipe(seconds_per_step=0.002, num_pages=2048)  # room for all sequences at any length


@pytest.fixture(scope="module", params=["thread", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[AsyncEngine]:
    """One engine per host, for tests that leave it unchanged."""
    served = AsyncEngine.from_parts(parts(SLOW, process=request.param == "process", max_requests=32))
    yield served
    served.close()


class Onlooker:
    """An `Observer` that notes the threads on which deltas are made."""

    def __init__(self, threads: set[threading.Thread]) -> None:
        self._threads = threads

    def step(self, stats: EngineStats) -> None:
        pass

    def delta(self, request: Request, delta: Delta) -> None:
        self._threads.add(threading.current_thread())


async def collect(deltas: AsyncIterator[Delta]) -> dict[int, Delta]:
    """Return each choice as one delta."""
    whole: dict[int, Delta] = {}
    async for delta in deltas:
        whole[delta.index] = join(whole[delta.index], delta) if delta.index in whole else delta
    return whole


async def idle(engine: AsyncEngine, live: int = 0) -> None:
    while engine.num_live > live:
        await asyncio.sleep(0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def followed(prompt: list[int], params: SamplingParams, choice: int = 0) -> tuple[int, ...]:
    return expected(input_processor().process(prompt, params), choice)


def test_concurrent_requests_each_get_their_text(engine: AsyncEngine) -> None:
    async def test() -> None:
        prompts = [[3 + i, 5] for i in range(10)]
        params = greedy(30, n=2, logprobs=0)
        found = await asyncio.gather(*(collect(engine.generate(prompt, params)) for prompt in prompts))
        for prompt, choices in zip(prompts, found, strict=True):
            for index, whole in choices.items():
                assert whole.token_ids == followed(prompt, params, index)
                body = whole.token_ids[:-1] if whole.finish_reason is FinishReason.STOP else whole.token_ids
                assert whole.text == LetterTokenizer().decode(body)
                assert whole.logprobs is not None and len(whole.logprobs) == len(whole.token_ids)
        await idle(engine)

    run(test)


@pytest.mark.contract("0.AsyncEngine")
def test_closing_or_cancelling_an_iterator_ends_the_request(engine: AsyncEngine) -> None:
    async def test() -> None:
        closed = engine.generate([1], ENDLESS)
        await anext(closed)
        await closed.aclose()
        task = asyncio.create_task(collect(engine.generate([2], ENDLESS)))
        await asyncio.sleep(0.02)
        assert engine.num_live
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(engine)

    run(test)


def test_a_stop_string_ends_the_choice_and_its_work(engine: AsyncEngine) -> None:
    async def test() -> None:
        text = LetterTokenizer().decode(followed([4, 4], greedy(300, ignore_eos=True)))
        stop = text[20:23]
        whole = (await collect(engine.generate([4, 4], greedy(3000, ignore_eos=True, stop=[stop]))))[0]
        assert (whole.finish_reason, whole.stop_reason) == (FinishReason.STOP, stop)
        assert whole.text is not None and stop not in whole.text and text.startswith(whole.text)
        assert whole.usage is not None and whole.usage.completion_tokens == len(whole.token_ids) < 100
        await idle(engine)

    run(test)


def test_deadlines_and_failures_end_in_a_delta(engine: AsyncEngine) -> None:
    async def test() -> None:
        late, bad, good = await asyncio.gather(
            collect(engine.generate([1], ENDLESS, deadline=0.05)),
            collect(engine.generate([POISON], greedy())),
            collect(engine.generate([5], greedy(3))),
        )
        assert late[0].finish_reason is FinishReason.DEADLINE
        assert bad[0].finish_reason is FinishReason.ERROR and isinstance(bad[0].error, NonFiniteLogits)
        assert good[0].token_ids == followed([5], greedy(3))

    run(test)


def test_invalid_requests_are_refused_before_they_run(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidToken):
        engine.generate([1000])
    with pytest.raises(RequestError):
        engine.generate("")
    assert engine.num_live == 0


def test_the_queue_has_a_limit(engine: AsyncEngine) -> None:
    async def test() -> None:
        waiting = [asyncio.create_task(collect(engine.generate([1 + i], ENDLESS))) for i in range(32)]
        while engine.num_live < 32:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull):
            engine.generate([1], greedy())
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await idle(engine)
        assert await collect(engine.generate([1], greedy(2)))

    run(test)


def test_an_id_serves_one_live_request_and_is_free_at_its_end(engine: AsyncEngine) -> None:
    async def test() -> None:
        first = engine.generate([1], ENDLESS, request_id="mine", trace_id="trace")
        delta = await anext(first)
        assert (delta.request_id, delta.trace_id) == ("mine", "trace")
        with pytest.raises(RequestError, match="mine"):
            await anext(engine.generate([1], greedy(), request_id="mine"))
        for _ in range(3):
            # Ended at the client by a stop string, while the engine may still know it.
            stopped = engine.generate([1], greedy(3000, stop=list("abcdefgh")), request_id="again")
            assert (await collect(stopped))[0].request_id == "again"
        await first.aclose()
        await idle(engine)

    run(test)


def test_a_new_event_loop_is_served_after_the_last_one_closed(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    engine = AsyncEngine.from_parts(parts(replace(SLOW, hold=str(hold))))

    async def leave() -> None:
        await anext(engine.generate([1], ENDLESS))
        hold.touch()

    async def come() -> None:
        read = asyncio.create_task(collect(engine.generate([2], greedy(3))))
        await asyncio.sleep(0)
        hold.unlink()
        assert (await read)[0].token_ids == followed([2], greedy(3))

    run(leave)
    run(come)
    engine.close()


def test_two_event_loops_cannot_be_served_at_once() -> None:
    engine = AsyncEngine.from_parts(parts(SLOW))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # the reader fails, as expected
    loop.run_until_complete(anext(running := engine.generate([1], ENDLESS)))
    with pytest.raises(RequestError, match="event loop"):
        asyncio.run(collect(engine.generate([2], greedy(3))))
    reader = loop.create_task(collect(running))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()  # with a reader that is not cancelled and cannot be woken
    assert asyncio.run(collect(engine.generate([2], greedy(30))))[0].token_ids == followed([2], greedy(30))
    assert not reader.done()
    engine.close()


def test_generated_ids_never_collide_with_clients_ids() -> None:
    async def test() -> None:
        async with AsyncEngine.from_parts(parts(SLOW)) as engine:
            live = []
            for tenant, name in (("bob", "x"), ("ann", "x~2"), ("ann", "x"), ("bob", "x~2")):
                live.append(engine.generate([1], ENDLESS, request_id=name, tenant=tenant))
                assert (await anext(live[-1])).request_id == name
            await live.pop(0).aclose()
            await idle(engine, live=3)
            for tenant, name in (("bob", "x~2"), ("ann", "x~2"), ("ann", "x")):
                with pytest.raises(RequestError, match=f"'{name}' is live"):
                    await anext(engine.generate([1], ENDLESS, request_id=name, tenant=tenant))

    run(test)


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_closing_the_engine_ends_live_requests_and_refuses_new_ones(process: bool) -> None:
    async def test() -> None:
        async with AsyncEngine.from_parts(parts(SLOW, process=process)) as engine:
            first = asyncio.create_task(collect(engine.generate([1], ENDLESS)))
            await asyncio.sleep(0.02)
        assert (await first)[0].finish_reason is FinishReason.ABORT
        with pytest.raises(EngineDead):
            engine.generate([1])
        engine.close()

    run(test)


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_errors_of_a_recipe_are_raised_at_the_start(process: bool) -> None:
    with pytest.raises(Unsupported, match="broken"):
        AsyncEngine.from_parts(parts(FakeRecipe(broken=True), process=process))


@pytest.mark.parametrize("end", [KeyboardInterrupt, EngineDead])
def test_a_process_that_is_killed_while_it_loads_leaves_the_cursor_visible(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def interrupted(reader: Reader) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.isatty", lambda descriptor: descriptor == 2)
    if end is KeyboardInterrupt:
        monkeypatch.setattr(Reader, "wait", interrupted)
    with pytest.raises(end):
        ProcessHost(partial(os._exit, 9)).start(lambda report: None)
    assert SHOW_CURSOR in capfdbinary.readouterr().err


def test_a_process_that_leaves_a_bar_shows_the_cursor_again() -> None:
    script = "from ferrum.engine.progress import RichBar, leave; RichBar(total=9, desc='x'); leave(0)"
    terminal, its_end = os.openpty()
    subprocess.run([sys.executable, "-c", script], stderr=its_end, env={**os.environ, "TERM": "xterm"}, check=True)
    os.close(its_end)
    shown = b""
    with suppress(OSError):  # Linux reports the end of a terminal as an error
        while read := os.read(terminal, 4096):
            shown += read
    os.close(terminal)
    assert 0 <= shown.find(b"\x1b[?25l") < shown.find(b"\x1b[?25h")


def test_the_death_of_the_process_ends_every_request_with_engine_dead() -> None:
    async def test() -> None:
        engine = AsyncEngine.from_parts(parts(SLOW, process=True))
        live = [asyncio.create_task(collect(engine.generate([1 + i], replace(ENDLESS, n=2)))) for i in range(3)]
        await asyncio.sleep(0.05)
        killer = await collect(engine.generate([KILL], greedy()))
        for choices in [killer, *await asyncio.gather(*live)]:
            for whole in choices.values():
                assert whole.finish_reason is FinishReason.ERROR
                assert isinstance(whole.error, EngineDead) and "code 7" in str(whole.error)
        with pytest.raises(EngineDead):
            engine.generate([1])
        engine.close()

    run(test)


def test_a_failing_loop_ends_every_request_with_engine_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Built] = []

    def recipe() -> Built:
        built.append(SLOW())
        return built[0]

    async def test() -> None:
        engine = AsyncEngine.from_parts(parts(recipe))  # type: ignore[arg-type]
        live = asyncio.create_task(collect(engine.generate([1], ENDLESS)))
        await asyncio.sleep(0.02)
        monkeypatch.setattr(built[0].scheduler, "plan", lambda: 1 / 0)
        assert isinstance((await live)[0].error, EngineDead)
        engine.close()
        assert built[0].executor.stopped  # type: ignore[attr-defined]

    run(test)


def test_a_closed_engine_has_released_its_pages_and_its_executor() -> None:
    built: list[Built] = []

    def recipe() -> Built:
        built.append(SLOW())
        return built[0]

    async def test() -> None:
        async with AsyncEngine.from_parts(parts(recipe)) as engine:  # type: ignore[arg-type]
            executor = built[0].executor
            assert isinstance(executor, ServedFake)
            abandoned = engine.generate([1] * 100, ENDLESS)
            await anext(abandoned)
            assert executor.pages.used > 0
            await abandoned.aclose()
            await idle(engine)
            assert executor.pages.used == 0
            assert executor.owner == "engine" and not executor.stopped
        assert executor.owner is None and executor.stopped

    run(test)


def test_a_slow_consumer_holds_one_delta_per_choice() -> None:
    async def test() -> None:
        async with AsyncEngine.from_parts(parts()) as engine:
            deltas = engine.generate([1], greedy(500, n=2, ignore_eos=True))
            await anext(deltas)
            await idle(engine)
            rest = [delta async for delta in deltas]
            assert len(rest) <= 3 and rest[-1].usage is not None and rest[-1].usage.completion_tokens == 1000

    run(test)


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_reports_can_be_delivered_on_the_event_loop(process: bool) -> None:
    async def test() -> None:
        engine = AsyncEngine.from_parts(parts(SLOW, process=process))
        before = asyncio.create_task(collect(engine.generate([9, 9], greedy(200, ignore_eos=True))))
        await asyncio.sleep(0.02)
        engine.deliver_here()
        folded: set[threading.Thread] = set()
        engine.client.router.observers = (Onlooker(folded),)
        params = greedy(30, n=2, logprobs=0)
        found = await asyncio.gather(*(collect(engine.generate([3 + i, 5], params)) for i in range(10)))
        for i, choices in enumerate(found):
            assert {index: whole.token_ids for index, whole in choices.items()} == {
                index: followed([3 + i, 5], params, index) for index in range(2)
            }
        assert (await before)[0].token_ids == followed([9, 9], greedy(200, ignore_eos=True))
        assert folded == {threading.current_thread()}
        live = asyncio.create_task(collect(engine.generate([1], ENDLESS)))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        assert (await live)[0].finish_reason is FinishReason.ABORT
        with pytest.raises(EngineDead):
            engine.generate([1])

    run(test)


def test_delivery_on_the_event_loop_reports_the_death_of_the_engine() -> None:
    async def test() -> None:
        engine = AsyncEngine.from_parts(parts(SLOW, process=True))
        engine.deliver_here()
        live = asyncio.create_task(collect(engine.generate([1], ENDLESS)))
        await asyncio.sleep(0.05)
        killer = await collect(engine.generate([KILL], greedy()))
        for whole in (killer[0], (await live)[0]):
            assert isinstance(whole.error, EngineDead) and "code 7" in str(whole.error)
        engine.close()

    run(test)
