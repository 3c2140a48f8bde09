"""Conversations of agents over HTTP: no token before the first change of a prompt is computed again."""

from __future__ import annotations

import random
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_model import Renderer, agent_model
from agent_talks import AGENTS, Agent, functions
from ferrum.client.async_engine import AsyncEngine, AsyncStream
from serve_kit import Served, serving

PAGE = 64
SHORT, LONG = 24, 160
"""Limits of tokens: of texts, which a random model hardly ever ends, and of calls, which a grammar ends."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is said.

    Attributes:
        conversations, turns: numbers.
        tools: number of tools; `length`: characters of each.
        lists: different lists of tools.
        capacity: tokens that fit in the pool, which keeps all conversations.
    """

    conversations: int
    turns: int
    tools: int
    length: int
    lists: int
    capacity: int


FEW = Size(conversations=3, turns=5, tools=4, length=400, lists=1, capacity=1 << 16)
MANY = Size(conversations=20, turns=20, tools=40, length=740, lists=2, capacity=1 << 19)
ALL = Size(conversations=200, turns=20, tools=40, length=740, lists=3, capacity=1 << 21)
SYSTEM = 30_000
"""Least length of the longer prompts, in tokens."""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The tokens that the engine has generated, by request."""
    found: dict[str, list[int]] = {}
    taken = AsyncStream._take

    def take(stream: AsyncStream) -> Any:
        update = taken(stream)
        if update is not None:
            place, delta = update
            found.setdefault(stream.requests[place].request_id, []).extend(delta.token_ids)
        return update

    monkeypatch.setattr(AsyncStream, "_take", take)
    return found


@contextmanager
def server_of(directory: Path, size: Size) -> Iterator[Served]:
    def engine() -> AsyncEngine:
        return AsyncEngine(str(agent_model()), kv_capacity=size.capacity, prefix_cache_dir=str(directory))

    with serving(engine, served_model_name="agent") as served:
        yield served


def same(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def whole_pages(tokens: int) -> int:
    return tokens // PAGE * PAGE


def reusable(known: Sequence[int], prompt: Sequence[int]) -> int:
    """Return the tokens of a prompt that must not be computed again after a request with those tokens.

    Keys and values of the last generated token were never computed, and the last token of a prompt always is. A prompt
    that departs from full pages shares whole pages only; one that departs in the last page shares it in part.
    """
    stored = known[:-1]
    common = min(same(stored, prompt), len(prompt) - 1)
    return common if common >= whole_pages(len(stored)) else whole_pages(common)


Firsts = MutableMapping[tuple[type[Agent], int], list[int]]
"""First prompts that the engine has computed, by client and list of tools."""


class Talk:
    """One conversation, with what must be cached of each prompt.

    Attributes:
        kept: turns after which the prompt continued with every token that the model had generated.
    """

    def __init__(self, number: int, size: Size, renderer: Renderer, outputs: dict[str, list[int]]) -> None:
        self._draw = random.Random(number)
        client, tools = AGENTS[number % len(AGENTS)], number // len(AGENTS) % size.lists
        self.key = client, tools
        self.agent: Agent = client(functions(tools, size.tools, size.length), self._draw)
        self._renderer, self._outputs = renderer, outputs
        self._known: list[int] = []
        self._calls: tuple[str, ...] = ()
        self.kept = 0

    def turn(self, server: Served, firsts: Firsts) -> None:
        """Say something and check the usage of the answer."""
        prompt = self._prompt()
        least = reusable(self._known, prompt) if self._known else whole_pages(same(firsts.get(self.key, []), prompt))
        call = self._draw.random() < 0.6
        answer = self.agent.ask(server.http, call=call, limit=LONG if call else SHORT)
        assert answer.prompt == len(prompt)
        assert least <= answer.cached < len(prompt), (least, answer, self.key)
        if not self._known:
            firsts[self.key] = prompt
        self.kept += 0 < len(self._known) - 1 <= same(self._known, prompt)
        self._known = prompt + self._outputs.pop(answer.id)
        self._calls = answer.calls

    def _prompt(self) -> list[int]:
        """Continue the conversation and return its prompt, which the test renders by itself."""
        draw = self._draw
        if self._calls:
            self.agent.give([(id, f"result {draw.random()}\n" * draw.randint(1, 8)) for id in self._calls])
        if not self._calls or draw.random() < 0.2:
            self.agent.say(f"Question {draw.random()}: what next?")
        if draw.random() < 0.2:
            self.agent.remind(f"Now it is {draw.random()}.")
        return self._renderer.tokens(self.agent.messages, self.agent.tools, thinks=self.agent.thinks)


def talk_all(directory: Path, size: Size, outputs: dict[str, list[int]]) -> None:
    """Let all conversations take turns, then restart the server and begin new ones."""
    renderer, firsts = Renderer(agent_model()), dict[tuple[type[Agent], int], list[int]]()
    talks = [Talk(number, size, renderer, outputs) for number in range(size.conversations)]
    with server_of(directory, size) as server, ThreadPoolExecutor(4) as pool:
        for _ in range(size.turns):
            list(pool.map(lambda talk: talk.turn(server, firsts), talks))
    assert sum(talk.kept for talk in talks) >= size.conversations * size.turns // 8
    after = len(AGENTS) * size.lists
    with server_of(directory, size) as server:
        for number in range(after):
            Talk(size.conversations // after * after + number, size, renderer, outputs).turn(server, firsts)
    assert len(firsts) == after and (size is FEW or min(map(len, firsts.values())) > SYSTEM)


def test_agents_prompts_are_computed_once(tmp_path: Path, outputs: dict[str, list[int]]) -> None:
    talk_all(tmp_path, FEW, outputs)


@pytest.mark.clients
def test_prompts_of_twenty_agents_are_computed_once(tmp_path: Path, outputs: dict[str, list[int]]) -> None:
    talk_all(tmp_path, MANY, outputs)


@pytest.mark.soak
def test_prompts_of_two_hundred_agents_are_computed_once(tmp_path: Path, outputs: dict[str, list[int]]) -> None:
    talk_all(tmp_path, ALL, outputs)
