"""`AsyncModelExecutor`: order, threads and cancellation. `test_contract_verbs` has the contract itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from contract_kit import OTHER, PROMPT, FakeContractExecutor, make_fake, same
from contract_verbs.kit import truth, usable
from ferrum import (
    AsyncModelExecutor,
    DecodeInput,
    KvCacheHandle,
    LogitsPolicy,
    PrefillInput,
    Span,
    StepBatch,
    UnifiedBatch,
    UnifiedBatchItem,
    Want,
)
from ferrum.core.errors import InvalidTransition, RequestError, StaleHandle, StepError, UnknownSequence

SECONDS = 30


class Gate:
    """Steps of a fake executor that wait until the test lets them end."""

    def __init__(self, executor: FakeContractExecutor) -> None:
        self.threads: list[int] = []
        self.spans: list[tuple[str, ...]] = []
        self._run = executor.lm.run
        self._begun, self._open = threading.Semaphore(0), threading.Semaphore(0)
        self.closed = False
        executor.lm.run = self._wait  # type: ignore[method-assign]

    def _wait(self, batch: StepBatch) -> Any:
        self.threads.append(threading.get_ident())
        self.spans.append(tuple(span.cache_id for span in batch.spans))
        if not self.closed:
            return self._run(batch)
        self._begun.release()
        assert self._open.acquire(timeout=SECONDS)
        return self._run(batch)

    async def hold(self, call: Awaitable[Any]) -> asyncio.Future[Any]:
        """Start a call and wait until its step runs. The step waits for `end`."""
        self.closed = True
        task = asyncio.ensure_future(call)
        await self.begun()
        return task

    async def begun(self) -> None:
        """Wait until a step runs."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=SECONDS)

    def end(self) -> None:
        """Let one step end."""
        self._open.release()


Body = Callable[[AsyncModelExecutor, Gate], Coroutine[Any, Any, None]]


def play(body: Body, **options: int) -> None:
    """Run a test's body on an event loop, and check the pages afterwards."""
    kit = make_fake(**options)
    assert isinstance(kit.executor, FakeContractExecutor)

    async def run() -> None:
        async with AsyncModelExecutor(kit.executor) as executor:
            await body(executor, Gate(kit.executor))

    asyncio.run(run())
    kit.check()


async def cancelled(executor: AsyncModelExecutor, call: Awaitable[object], gate: Gate, *, late: bool = False) -> None:
    """Cancel a call while its step runs, or after the step has ended and before the loop has its result."""
    task = await gate.hold(call)
    if late:
        gate.end()
        executor._thread.submit(int).result(SECONDS)  # blocks the loop until the call has ended
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.closed = False
    if not late:
        gate.end()


ADDING: dict[str, Callable[[AsyncModelExecutor, KvCacheHandle, KvCacheHandle], Awaitable[object]]] = {
    "prefill": lambda executor, a, b: executor.prefill(PROMPT),
    "chunk": lambda executor, a, b: executor.prefill(PrefillInput([OTHER], kv_cache=a)),
    "batch_prefill": lambda executor, a, b: executor.batch_prefill(
        [PrefillInput(OTHER), PrefillInput([[1, 2]], kv_cache=b)]
    ),
    "decode": lambda executor, a, b: executor.decode(DecodeInput([5], a)),
    "batch_decode": lambda executor, a, b: executor.batch_decode([DecodeInput([5], a), DecodeInput([6], b)]),
    "unified_decode": lambda executor, a, b: executor.unified_decode(
        UnifiedBatch((UnifiedBatchItem(a, [5, 6], 7, logits_policy=LogitsPolicy.ALL), UnifiedBatchItem("new", [8], 0)))
    ),
    "forward_verify": lambda executor, a, b: executor.forward_verify([DecodeInput([5], a), DecodeInput([6], a)]),
    "speculative_decode": lambda executor, a, b: executor.speculative_decode(DecodeInput([5], a), [6, 7]),
    "forward": lambda executor, a, b: executor.forward([PROMPT]),
    "submit": lambda executor, a, b: executor.submit(
        StepBatch((Span(a.cache_id, 7, (5,), Want.LOGITS), Span("new", 0, (8,), Want.NONE)))
    ),
}


@pytest.mark.parametrize("late", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("verb", ADDING)
def test_a_cancelled_call_leaves_every_sequence_as_it_was(verb: str, late: bool) -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        one = (await executor.prefill(PROMPT)).kv_cache
        two = (await executor.prefill(OTHER)).kv_cache
        before = executor.cache_metrics_snapshot()
        await cancelled(executor, ADDING[verb](executor, one, two), gate, late=late)
        await executor.forward([[1]])  # waits until the cancelled call is undone
        # Counters of what was computed stay; the sequences do not.
        counted = executor.cache_metrics_snapshot().speculation
        assert executor.cache_metrics_snapshot() == replace(before, speculation=counted)
        usable(executor.executor, one, PROMPT)
        usable(executor.executor, two, OTHER)

    play(body)


def test_later_calls_wait_for_the_undo() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle = (await executor.prefill(PROMPT)).kv_cache
        first = await gate.hold(executor.decode(DecodeInput([5], handle)))
        second = asyncio.ensure_future(executor.decode(DecodeInput([6], handle)))
        await asyncio.sleep(0)
        first.cancel()
        gate.end()
        await gate.begun()
        gate.end()
        gate.closed = False
        output = await second
        assert first.cancelled() and output.kv_cache.sequence_length == len(PROMPT) + 1
        same(output.logits, truth(executor.executor, [*PROMPT, 6])[-1:])

    play(body)


def test_a_cancelled_call_that_waits_never_runs() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle = (await executor.prefill(PROMPT)).kv_cache
        first = await gate.hold(executor.prefill(OTHER))
        waiting = [
            asyncio.ensure_future(call)
            for call in (executor.decode(DecodeInput([5], handle)), executor.release_cache(handle), executor.reset())
        ]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*waiting, return_exceptions=True)
        )
        gate.closed = False
        gate.end()
        await first
        assert len(gate.spans) == 2
        usable(executor.executor, handle, PROMPT)

    play(body)


def test_a_call_behind_a_cancelled_step_can_be_cancelled_too() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle = (await executor.prefill(PROMPT)).kv_cache
        first = await gate.hold(executor.decode(DecodeInput([5], handle)))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.decode(DecodeInput([6], handle)), 0.01)
        gate.closed = False
        gate.end()
        await executor.warmup()
        assert len(gate.spans) == 2, "the prompt and the first decode"
        usable(executor.executor, handle, PROMPT)

    play(body)


def test_calls_run_in_order_and_never_on_the_loops_thread() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        outputs = await asyncio.gather(*(executor.prefill([1, 2, number]) for number in range(5)))
        assert gate.spans == [(f"llm-cache-{number}",) for number in range(5)]
        assert [output.kv_cache.cache_id for output in outputs] == [f"llm-cache-{number}" for number in range(5)]
        assert len(set(gate.threads)) == 1 and gate.threads[0] != threading.get_ident()

    play(body)


def test_the_loop_runs_during_a_step_and_queries_do_not_wait() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        task = await gate.hold(executor.prefill(PROMPT))
        assert executor.status().current_batch_size == 1 and executor.kv_capacity() > 0
        assert executor.capabilities() and executor.metrics() and executor.info is executor.executor.info
        gate.end()
        await task

    play(body)


def test_a_step_that_fails_after_its_caller_was_cancelled_changes_nothing() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle = (await executor.prefill(PROMPT)).kv_cache
        executor.executor.lm.explode = StepError("no")  # type: ignore[attr-defined]
        await cancelled(executor, executor.decode(DecodeInput([5], handle)), gate)
        await executor.warmup()
        executor.executor.lm.explode = None  # type: ignore[attr-defined]
        usable(executor.executor, handle, PROMPT)

    play(body)


def test_what_a_cancelled_call_has_removed_stays_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        first, second = (await executor.prefill(PROMPT)).kv_cache, (await executor.prefill(OTHER)).kv_cache
        truncate = executor.executor.truncate_kv

        def slow(handle: KvCacheHandle, length: int) -> KvCacheHandle:
            begun.set()
            assert may_end.wait(SECONDS)
            return truncate(handle, length)

        monkeypatch.setattr(executor.executor, "truncate_kv", slow)
        task = asyncio.ensure_future(executor.truncate_kv(first, 3))
        await asyncio.to_thread(begun.wait, SECONDS)
        task.cancel()
        may_end.set()
        await executor.warmup()
        assert task.cancelled() and executor.handle(first.cache_id).sequence_length == 3
        with pytest.raises(StaleHandle):
            await executor.decode(DecodeInput([5], first))
        usable(executor.executor, second, OTHER)

    play(body)


def test_a_chunk_beyond_a_window_is_released_when_it_cannot_be_undone() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle, other = (await executor.prefill(PROMPT)).kv_cache, (await executor.prefill(OTHER)).kv_cache
        await cancelled(executor, executor.prefill(PrefillInput([[1] * 60], kv_cache=handle)), gate)
        with pytest.raises(UnknownSequence):
            await executor.decode(DecodeInput([5], handle))
        await cancelled(executor, executor.decode(DecodeInput([5], other)), gate)
        await executor.warmup()
        usable(executor.executor, other, OTHER)

    play(body, window=6)


def test_sequences_of_other_threads_survive_an_undo() -> None:
    async def body(executor: AsyncModelExecutor, gate: Gate) -> None:
        handle = (await executor.prefill(PROMPT)).kv_cache
        task = await gate.hold(executor.decode(DecodeInput([5], handle)))
        gate.closed = False
        direct = asyncio.ensure_future(asyncio.to_thread(executor.executor.prefill, OTHER))
        task.cancel()
        gate.end()
        theirs = (await direct).kv_cache
        await executor.warmup()
        usable(executor.executor, theirs, OTHER)
        usable(executor.executor, handle, PROMPT)

    play(body)


def test_leaving_the_context_shuts_down_and_later_calls_raise_its_errors() -> None:
    kit = make_fake()

    async def run() -> None:
        async with AsyncModelExecutor(kit.executor) as executor:
            handle = (await executor.prefill(PROMPT)).kv_cache
        await executor.shutdown()
        with pytest.raises(InvalidTransition):
            await executor.prefill(PROMPT)
        with pytest.raises(InvalidTransition):
            await executor.decode(DecodeInput([5], handle))
        await executor.shutdown()

    asyncio.run(run())


def test_one_executor_serves_one_event_loop_after_another() -> None:
    executor = AsyncModelExecutor(make_fake().executor)

    async def run() -> list[int]:
        outputs = await asyncio.gather(*(executor.prefill(PROMPT) for _ in range(3)))
        return [output.kv_cache.sequence_length for output in outputs]

    assert asyncio.run(run()) == asyncio.run(run()) == [len(PROMPT)] * 3
    asyncio.run(executor.shutdown())


def test_another_type_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        AsyncModelExecutor(None)  # type: ignore[arg-type]
    assert caught.value.param == "executor"
