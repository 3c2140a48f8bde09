"""What becomes of an engine when the process of its client forks, or ends without closing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter that finds the tests' fakes."""
    return subprocess.run([sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60)


FORKED = """
import os, signal, sys
from engine_fakes import FakeRecipe, greedy, parts
from ferrum.core.errors import EngineDead
from ferrum.engine.client import AsyncEngine
from ferrum.engine.offline import LLM

recipe = FakeRecipe(seconds_per_step=0.002)
model = LLM.from_parts(parts(recipe, process={process}))
engine = AsyncEngine.from_parts(parts(recipe, process={process}))
live = model.stream([1], greedy(None, ignore_eos=True))
next(live)
child = os.fork()
if not child:
    signal.alarm(20)  # it would wait for ever
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
def test_a_forked_process_is_told_that_the_engine_is_not_its_own_and_leaves_it_alone(process: bool) -> None:
    done = run(FORKED.format(process=process))
    assert (done.stdout, done.returncode) == ("0 3\n", 0), done.stderr


UNCLOSED = """
import asyncio, sys
from engine_fakes import FakeRecipe, ServedFake, greedy, parts
from ferrum.engine.client import AsyncEngine

ServedFake.shutdown = lambda self: print("shut down", flush=True)
engine = AsyncEngine.from_parts(parts(FakeRecipe(seconds_per_step=0.002)))

async def main():
    async for _ in engine.generate([1], greedy(None, ignore_eos=True)):
        sys.exit(3)

asyncio.run(main())
"""


def test_an_asynchronous_engine_that_nobody_closes_ends_before_the_interpreter() -> None:
    done = run(UNCLOSED)
    assert (done.stdout, done.returncode) == ("shut down\n", 3), done.stderr
