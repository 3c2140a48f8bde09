"""A soak test of all caches: nothing leaks, no request gets another's answer, and the counters agree.

Threads send requests whose answers an engine without caches has computed before: shared prefixes, several choices,
sessions with forks and truncation, beams, cancelled streams, missed deadlines. The pool is too small for them; there
are swap buffers for a few pages, drafts, priorities, and a directory whose files are damaged and deleted meanwhile. Now
and then the engine ends, and another one uses the pages on disk.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ferrum import LLM, SamplingParams
from ferrum.client.beams import Beam
from ferrum.client.model_client import Parts
from ferrum.client.request_output import RequestOutput
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.load import build_executor
from ferrum.verbs.load_executor import LocalExecutor
from native_twin import require_native
from tiny import directory_of, find, tokens_of

CASE = "qwen3-windows"
KINDS = 24
THREADS = 6
LIVES = 8
"""Number of engines, one after the other."""

SLACK = 12 << 20
"""Bytes by which memory may differ after two engines: the arenas of six threads."""


def prompt_of(kind: int) -> list[int]:
    """Return a prompt of up to 200 tokens that shares its prefix with a third of the others."""
    common = tokens_of(find(CASE), 130, seed=kind % 3)
    return common[: 130 - kind % 5 * 31] + tokens_of(find(CASE), 1 + kind * 3, seed=100 + kind)


def params_of(kind: int) -> SamplingParams:
    return SamplingParams(
        n=1 + kind % 2,
        temperature=0.9 * (kind % 4 > 0),
        top_p=0.95,
        seed=kind,
        max_tokens=5 + kind * 2,
        logprobs=1,
        prompt_logprobs=0 if kind % 7 == 3 else None,
        presence_penalty=0.4 * (kind % 3),
        ignore_eos=kind % 2 == 0,
    )


Answer = tuple[object, ...]


def told(output: RequestOutput) -> Answer:
    choices = [(each.index, each.finish_reason, each.token_ids, each.logprobs) for each in output.outputs]
    return (choices, output.prompt_logprobs)


def loaded(capacity: int) -> LocalExecutor:
    name = str(directory_of(find(CASE)))
    return build_executor(
        LocalExecutor, ModelConfig(model=name, kernels="native", dtype="float32", kv_capacity=capacity, threads=1)
    )


def opened(executor: LocalExecutor, directory: Path | None) -> LLM:
    """Build an engine with all caches if there is a directory, else with none."""
    config = EngineConfig(
        model=ModelConfig(model=str(directory_of(find(CASE)))),
        policy="priority",
        prefix_cache=directory is not None,
        prefix_cache_dir=None if directory is None else str(directory),
        speculative=None if directory is None else "ngram",
    )
    built = with_scheduler(executor, config, "soak")
    if directory is not None:
        buffers = 20 * sum(executor.lm.kernels.page_bytes(group.name) for group in executor.lm.pages.groups)
        executor.keep_pages(swap_bytes=buffers, recompute=lambda: 1.0)
    return LLM.from_parts(Parts(host=ThreadHost(lambda: built), config=config))


class Expected:
    """Return the answers of an engine without caches and drafts."""

    def __init__(self) -> None:
        with opened(loaded(8192), None) as plain:
            prompts, params = [prompt_of(kind) for kind in range(KINDS)], [params_of(kind) for kind in range(KINDS)]
            self.answers = [told(output) for output in plain.generate(prompts, params, use_tqdm=False)]
            self.beams = [self.search(plain, kind) for kind in range(3)]

    @staticmethod
    def search(llm: LLM, kind: int) -> list[Beam]:
        return llm.beam_search([prompt_of(kind)], 2, 6)[0]


class User:
    """A client that runs random actions and checks their results."""

    def __init__(self, llm: LLM, expected: Expected, directory: Path, seed: str) -> None:
        self.llm, self.expected, self.directory = llm, expected, directory
        self.random = Random(seed)
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self, until: float) -> None:
        """Run all actions in random order, at least once, until the deadline."""
        actions = [self.ask, self.ask, self.ask, self.leave, self.hurry, self.branch, self.search, self.damage]
        try:
            while not self.done or time.monotonic() < until:
                self.random.shuffle(actions)
                for action in actions:
                    action()
                    self.done[action.__name__] += 1
        except BaseException as failure:  # noqa: BLE001 - the test's own thread raises it
            self.failure = failure

    def kinds(self, most: int) -> list[int]:
        return [self.random.randrange(KINDS) for _ in range(self.random.randint(1, most))]

    def ask(self) -> None:
        kinds = self.kinds(4)
        outputs = self.generated(kinds, priority=self.random.randrange(3))
        assert [told(output) for output in outputs] == [self.expected.answers[kind] for kind in kinds]

    def hurry(self) -> None:
        """Send a request with a deadline; a partial answer must be right."""
        kinds = self.kinds(2)
        for kind, output in zip(kinds, self.generated(kinds, deadline=self.random.uniform(0.001, 0.2)), strict=True):
            expected: Sequence[tuple[int, str, list[int], object]] = self.expected.answers[kind][0]  # type: ignore[assignment]
            for choice, (_, finish, tokens, _) in zip(output.outputs, expected, strict=True):
                assert choice.finish_reason in (finish, "deadline") and choice.error is None
                assert list(choice.token_ids) == list(tokens)[: len(choice.token_ids)]

    def generated(self, kinds: Sequence[int], **options: float) -> list[RequestOutput]:
        prompts, params = [prompt_of(kind) for kind in kinds], [params_of(kind) for kind in kinds]
        return self.llm.generate(prompts, params, use_tqdm=False, **options)  # type: ignore[arg-type]

    def leave(self) -> None:
        """Read a part of a stream and cancel it."""
        (kind,) = self.kinds(1)
        stream = self.llm.stream(prompt_of(kind), params_of(kind))
        for _ in range(self.random.randint(0, 12)):
            if next(stream, None) is None:
                break
        stream.close()  # type: ignore[attr-defined]

    def branch(self) -> None:
        """Run a session with forks that continue, truncate and repeat."""
        kind = 2 * self.random.randrange(KINDS // 2)
        ((_, _, tokens, _),) = self.expected.answers[kind][0]  # type: ignore[misc]
        session = self.llm.session(prompt_of(kind))
        length = len(session)
        assert list(session.generate(params_of(kind)).token_ids) == list(tokens)
        for fork in (session.fork(), session.fork().append(self.kinds(9))):
            fork.generate(SamplingParams(max_tokens=self.random.randint(1, 20), ignore_eos=True))
            again = fork.truncate(length).generate(params_of(kind))
            assert list(again.token_ids) == list(tokens)

    def search(self) -> None:
        kind = self.random.randrange(3)
        assert self.expected.search(self.llm, kind) == self.expected.beams[kind]

    def damage(self) -> None:
        """Flip a bit of a page on disk, truncate it, or delete it."""
        pages = sorted(self.directory.glob("*.page"))
        if not pages or self.random.random() < 0.8:
            return
        path = self.random.choice(pages)
        with suppress(OSError):
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            path.write_bytes(data[: self.random.choice((len(data), len(data) // 2))])
            if self.random.random() < 0.3:
                path.unlink()


def resident() -> int:
    """Return the resident bytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def live(expected: Expected, directory: Path, seconds: float, name: str) -> Counter[str]:
    """Run one engine and return its actions."""
    executor = loaded(1024)
    pages = executor.lm.pages
    with opened(executor, directory) as llm:
        users = [User(llm, expected, directory, f"{name} {index}") for index in range(THREADS)]
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=user.run, args=(until,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for user in users:
            if user.failure is not None:
                raise user.failure
        done = sum((user.done for user in users), Counter())
        counts = pages.prefix_counts()
        done.update(hits=counts.hit_tokens, restored=counts.restored_pages, evicted=counts.evicted_pages)
    pages.check()
    assert pages.ids() == () and pages.used == 0 and not pages.restores.active
    return done


@pytest.mark.parametrize(
    "seconds", [0, pytest.param(1200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["slice", "soak"]
)
def test_all_caches_together_leak_nothing_and_change_no_answer(tmp_path: Path, seconds: int) -> None:
    require_native()
    if seconds:
        seconds = int(os.environ.get("FERRUM_TEST_SOAK_SECONDS", seconds))
    lives = LIVES if seconds else 2
    expected = Expected()
    done: Counter[str] = Counter()
    memory = []
    for number in range(lives):
        done += live(expected, tmp_path, seconds / lives, f"life {number}")
        memory.append(resident())
    print(dict(done), [size >> 20 for size in memory])
    assert min(done[action.__name__] for action in (User.ask, User.leave, User.hurry, User.branch, User.search)) > 0
    assert min(done["hits"], done["restored"], done["evicted"]) > 0
    if seconds:
        assert max(memory[LIVES // 2 :]) <= max(memory[1 : LIVES // 2]) + SLACK
