"""`AsyncModelExecutor`: the verbs of any executor as coroutines, for programs with an event loop.

One thread makes all calls, so the event loop never waits for a step. For many requests there is `AsyncEngine`, which
has a scheduler.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, CancelledError, Lock, get_running_loop, wrap_future
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from ferrum.contract.model_info import ModelInfo
from ferrum.core.memory_plan import MemoryRequirements
from ferrum.core.span_checks import check_kind
from ferrum.core.step import PendingStep, StepBatch
from ferrum.verbs.model_executor import ModelExecutor

P = ParamSpec("P")
Result = TypeVar("Result")

_LOG: Final = logging.getLogger("ferrum.executor")


def _verb(
    method: Callable[Concatenate[ModelExecutor, P], Result],
) -> Callable[Concatenate[AsyncModelExecutor, P], Coroutine[Any, Any, Result]]:
    """Return a coroutine function with the arguments, result and errors of a verb."""

    @wraps(method)
    async def call(self: AsyncModelExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await self._call(partial(getattr(self.executor, method.__name__), *args, **kwargs))

    return call


def _query(
    method: Callable[Concatenate[ModelExecutor, P], Result],
) -> Callable[Concatenate[AsyncModelExecutor, P], Result]:
    """Return a method that calls the executor's at once: it waits for no step."""

    @wraps(method)
    def call(self: AsyncModelExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        result: Result = getattr(self.executor, method.__name__)(*args, **kwargs)
        return result

    return call


class AsyncModelExecutor:
    """An executor for an event loop. Calls run one at a time, in the order in which they are first awaited.

    A call that is cancelled while it waits never runs. One that is cancelled while it runs ends in the background, then
    it is undone, then the next call runs: new sequences are released, and those that grew are truncated, with their
    handles valid again. If a sliding window has freed the keys that this needs, the sequence is released. What a call
    has removed or chosen stays so (`truncate_kv`, `set_lora_adapter`, `release_cache`, `reset`, `shutdown`).

    It is a context manager: leaving it shuts the executor down.

    Args:
        executor: the executor; it may be used directly too. Its lease closes these verbs as it closes its own.

    Raises:
        RequestError: `executor` is no `ModelExecutor`.
    """

    def __init__(self, executor: ModelExecutor) -> None:
        check_kind(executor, ModelExecutor, param="executor")
        self.executor = executor
        self._thread = _one_thread()
        self._loop: AbstractEventLoop | None = None
        self._lock = Lock()

    prefill = _verb(ModelExecutor.prefill)
    batch_prefill = _verb(ModelExecutor.batch_prefill)
    forward = _verb(ModelExecutor.forward)
    decode = _verb(ModelExecutor.decode)
    batch_decode = _verb(ModelExecutor.batch_decode)
    unified_decode = _verb(ModelExecutor.unified_decode)
    forward_verify = _verb(ModelExecutor.forward_verify)
    speculative_decode = _verb(ModelExecutor.speculative_decode)
    truncate_kv = _verb(ModelExecutor.truncate_kv)
    truncate_kv_for_cache_id = _verb(ModelExecutor.truncate_kv_for_cache_id)
    fork = _verb(ModelExecutor.fork)
    set_lora_adapter = _verb(ModelExecutor.set_lora_adapter)
    release_cache = _verb(ModelExecutor.release_cache)
    optimal_batch_size = _verb(ModelExecutor.optimal_batch_size)
    warmup = _verb(ModelExecutor.warmup)
    reset = _verb(ModelExecutor.reset)

    handle = _query(ModelExecutor.handle)
    capabilities = _query(ModelExecutor.capabilities)
    kv_capacity = _query(ModelExecutor.kv_capacity)
    supports_batch_size = _query(ModelExecutor.supports_batch_size)
    status = _query(ModelExecutor.status)
    metrics = _query(ModelExecutor.metrics)
    cache_metrics_snapshot = _query(ModelExecutor.cache_metrics_snapshot)
    lora_metrics_snapshot = _query(ModelExecutor.lora_metrics_snapshot)

    @property
    def info(self) -> ModelInfo:
        """The model: the object that the executor was built with."""
        return self.executor.info

    @property
    def in_use(self) -> bool:
        """Whether the executor's lease is held or a step is running."""
        return self.executor.in_use

    @property
    def memory_requirements(self) -> MemoryRequirements:
        """The formula that bounds the memory for work of a given size."""
        return self.executor.memory_requirements

    async def submit(self, batch: StepBatch) -> PendingStep:
        """Run a step and return it when it has ended, so that `result()` does not wait. Raises as the executor's."""

        def ended() -> PendingStep:
            pending = self.executor.submit(batch)
            pending.result()
            return pending

        return await self._call(ended)

    async def shutdown(self) -> None:
        """Wait for earlier calls, then shut the executor down; later calls do nothing. Raises ExecutorInUse."""
        await self._call(self.executor.shutdown)
        self._thread.shutdown(wait=False)
        self._thread = _one_thread()  # calls after the shutdown raise the executor's errors

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def _call(self, verb: Callable[[], Result]) -> Result:
        # The next call starts after this coroutine has the result or was cancelled, so an undo always comes before it.
        async with self._turn():
            call = self._thread.submit(self._revocable, verb)
            try:
                result, _ = await wrap_future(call)
            except CancelledError:
                if not call.cancel():
                    self._thread.submit(_take_back, call)
                raise
            return result

    def _revocable(self, verb: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Call a verb; return its result, and what undoes its additions to sequences."""
        executor = self.executor
        with executor._locked():  # other threads may use the executor too: only this verb's changes are undone
            before = executor.sequences.undo.stored()
            result = verb()
            after = executor.sequences.undo.stored()

        def undo() -> None:
            with executor._locked():
                executor.sequences.undo.take_back(before, after)

        return result, undo

    def _turn(self) -> Lock:
        """Return the lock that calls wait for in order; it belongs to one event loop."""
        loop = get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, Lock()
        return self._lock


def _one_thread() -> ThreadPoolExecutor:
    """Return a pool of one thread, which starts with the first call and ends with the pool."""
    return ThreadPoolExecutor(1, thread_name_prefix="ferrum-executor")


def _take_back(call: Future[tuple[Any, Callable[[], None]]]) -> None:
    """Undo a cancelled call that has run; a call that failed has changed nothing."""
    if call.exception() is None:
        try:
            call.result()[1]()
        except Exception:  # noqa: BLE001 - its caller is gone
            _LOG.exception("cannot undo a cancelled call")
