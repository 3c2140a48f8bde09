"""Engines whose client process forks, or ends without closing them."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from engine_fakes import parts
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.llm import LLM

TESTS = Path(__file__).parents[1] / "support"


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter that can import the tests' fakes."""
    return subprocess.run([sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60)


FORKED = """
import os, signal, sys
from engine_fakes import FakeRecipe, greedy, parts
from ferrum.core.errors import EngineDead
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.llm import LLM

recipe = FakeRecipe(seconds_per_step=0.002)
model = LLM.from_parts(parts(recipe, process={process}))
engine = AsyncEngine.from_parts(parts(recipe, process={process}))
live = model.stream([1], greedy(None, ignore_eos=True))
next(live)
child = os.fork()
if not child:
    signal.alarm(20)  # it would wait forever
    for use in (
        lambda: model.generate("a", use_tqdm=False),
        lambda: model.stream("a"),
        lambda: list(live),
        lambda: engine.generate("a"),
    ):
        try:
            use()
        except EngineDead as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    live.close()
    model.close()
    del engine
    sys.exit(0)
print(os.waitpid(child, 0)[1], len(model.generate("abc", greedy(3), False)[0].outputs[0].token_ids))
next(live)
live.close()
engine.close()
model.close()
"""


@pytest.mark.parametrize("process", [False, True])
def test_a_forked_process_cannot_use_or_end_the_engine(process: bool) -> None:
    done = run(FORKED.format(process=process))
    assert (done.stdout, done.returncode) == ("0 3\n", 0), done.stderr


BARE = """
import os, signal, sys, threading
from contract_kit import PROMPT, make_fake
from ferrum.verbs.io_types import DecodeInput, PrefillInput
from ferrum.core.errors import EngineDead

executor = make_fake().executor
handle = executor.prefill(PrefillInput([PROMPT])).kv_cache
running, over = threading.Event(), threading.Event()
if {midst}:
    run = executor.lm.run

    def long(batch):
        running.set()
        over.wait()
        return run(batch)

    executor.lm.run = long
    other = threading.Thread(target=lambda: executor.prefill(PrefillInput([PROMPT])))
    other.start()
    running.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # it would wait forever
    threads = [threading.Thread(target=executor.reset) for _ in range(0 if {midst} else 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uses = [
        lambda: executor.decode(DecodeInput([1], handle)) if {midst} else executor.prefill(PrefillInput([PROMPT])),
        lambda: executor.acquire_lease("an engine"),
        lambda: executor.release_lease("an engine"),
        lambda: executor.warmup(),
        lambda: executor.shutdown(),
    ]
    for use in uses:
        try:
            use()
        except EngineDead as error:
            assert {midst} and "forked" in str(error)
        else:
            assert not {midst}
    os._exit(0)
status = os.waitpid(child, 0)[1]
over.set()
print(status, executor.decode(DecodeInput([1], handle)).kv_cache.sequence_length)
"""


@pytest.mark.parametrize("midst", [False, True])
def test_a_forked_process_can_use_an_idle_executor(midst: bool) -> None:
    done = run(BARE.format(midst=midst))
    assert (done.stdout, done.returncode) == ("0 8\n", 0), done.stderr


ENDING = """
import atexit, threading, time

steps = []


def look_later():
    before = len(steps)
    time.sleep(0.1)
    print(before > 0, len(steps) - before, flush=True)


atexit.register(look_later)  # runs after the handlers of modules imported so far

from contract_kit import PROMPT, make_fake
from ferrum.verbs.io_types import PrefillInput

executor = make_fake().executor
run = executor.lm.run
executor.lm.run = lambda batch: (time.sleep(0.001), steps.append(1), run(batch))[-1]


def work():
    while True:
        executor.release_cache(executor.prefill(PrefillInput([PROMPT])).kv_cache.cache_id)


threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


def test_no_step_runs_while_the_interpreter_ends() -> None:
    done = run(ENDING)
    assert (done.stdout, done.returncode) == ("True 0\n", 0), done.stderr


RECORDING = """
import os, signal, sys
from ferrum.verbs.executor_reports import StepRecorder
from ferrum.core.step import Span

recorder = StepRecorder()
ends = []


def fork_there(frame, event, _):
    if event == "line":
        child = os.fork()
        if not child:
            signal.alarm(20)  # it would wait forever
            recorder.metrics(max_batch_size=1, memory_efficiency=1.0)
            os._exit(0)
        ends.append(os.waitpid(child, 0)[1])
    return fork_there


sys.settrace(lambda frame, *_: fork_there if frame.f_code is StepRecorder.record.__code__ else None)
recorder.record([Span("a", 0, (1,))], 0.1)
sys.settrace(None)
print(len(ends) > 5, sum(ends), recorder.metrics(max_batch_size=1, memory_efficiency=1.0).prefill_operations)
"""


def test_a_process_forked_at_any_point_of_a_step_can_read_the_metrics() -> None:
    done = run(RECORDING)
    assert (done.stdout, done.returncode) == ("True 0 1\n", 0), done.stderr


UNCLOSED = """
import asyncio, sys
from engine_fakes import FakeRecipe, ServedFake, greedy, parts
from ferrum.client.async_engine import AsyncEngine

ServedFake.shutdown = lambda self: print("shut down", flush=True)
engine = AsyncEngine.from_parts(parts(FakeRecipe(seconds_per_step=0.002)))

async def main():
    async for _ in engine.generate([1], greedy(None, ignore_eos=True)):
        sys.exit(3)

asyncio.run(main())
"""


def test_an_unclosed_async_engine_ends_before_the_interpreter() -> None:
    done = run(UNCLOSED)
    assert (done.stdout, done.returncode) == ("shut down\n", 3), done.stderr


@pytest.mark.parametrize("kind", [LLM, AsyncEngine])
def test_an_unreferenced_client_ends_its_engine(kind: type[LLM] | type[AsyncEngine]) -> None:
    engine = kind.from_parts(parts())
    thread = engine.client.router
    gone = weakref.ref(engine), weakref.ref(thread)
    del engine, thread
    deadline = time.monotonic() + 30
    while any(each() is not None for each in gone) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert [each() for each in gone] == [None, None]
