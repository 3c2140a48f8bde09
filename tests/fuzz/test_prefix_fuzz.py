"""The prefix cache under any order of verbs, and at a million pages."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrum.cache.page_hashes import PageHash
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.prefix_hash import PrefixScope

SIZE = 4
SCOPE = PrefixScope(model="m", weights="f32", kv_format="f32", page_size=SIZE, numerics_id="n")
ROOT = SCOPE.root(adapter=None, tenant="", salt="")


class Prefixes(RuleBasedStateMachine):
    """Sequences from two books of one word each, so that they meet often: each reads back its own, adopted or not.

    A slot holds the whole history up to its token, as keys and values depend on all of it. What a sequence computes
    may turn out unsound: it is written as such, and no other sequence may ever read it.
    """

    groups = (PageGroup("full", 16, SIZE), PageGroup("window", 14, SIZE, 6))
    names = st.sampled_from("abcd")
    UNSOUND = ("unsound",)

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageTable(self.groups, max_draft=1)
        self.tokens: dict[str, list[int]] = {}
        self.called: dict[str, list[PageHash]] = {}
        self.unsound: set[str] = set()
        self.store: dict[str, list[list[tuple[Any, ...]]]] = {
            group.name: [[()] * SIZE for _ in range(group.num_pages)] for group in self.groups
        }

    @rule(
        name=names,
        book=st.integers(0, 1),
        length=st.integers(6, 20),
        fate=st.sampled_from(["proven", "open", "unsound"]),
    )
    def begin(self, name: str, book: int, length: int, fate: str) -> None:
        """A prompt, as the scheduler admits it: with the longest prefix that leaves a token to compute."""
        self.release(name)
        wanted = [book] * length
        called: list[PageHash] = []
        SCOPE.extend(called, ROOT, wanted)
        found = min(self.pages.match(called), (len(wanted) - 1) // SIZE)
        found = self.pages.match(called[:found])
        self.pages.adopt(name, called, found)
        self.tokens[name], self.called[name] = wanted[: found * SIZE], called
        self.read(name)
        if fate == "unsound":
            self.unsound.add(name)
        self.grow(name, wanted[found * SIZE :])
        if fate == "proven":
            self.pages.publish(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def step(self, data: st.DataObject, more: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        del self.called[name][len(self.tokens[name]) // SIZE :]
        self.grow(name, more)

    def grow(self, name: str, more: list[int]) -> None:
        start = len(self.tokens[name])
        if not self.pages.reserve(name, start + len(more)):
            return
        self.make_copies()
        self.tokens[name] += more
        SCOPE.extend(self.called[name], ROOT, self.tokens[name])
        for group in self.groups:
            row = self.pages.row(name, group.name)
            for position in range(start, start + len(more)):
                content = self.UNSOUND if name in self.unsound else tuple(self.tokens[name][: position + 1])
                self.store[group.name][row[position // SIZE]][position % SIZE] = content
        self.pages.commit(name, start + len(more))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def prove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if name not in self.unsound:
            self.pages.publish(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), name=names)
    def fork(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.tokens)))
        if name not in self.tokens:
            self.pages.fork(source, name)
            self.tokens[name] = list(self.tokens[source])
            self.called[name] = self.called[source][: len(self.tokens[source]) // SIZE]
            self.pages.label(name, self.called[name])
            if source in self.unsound:
                self.unsound.add(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), back=st.integers(0, 9), more=st.lists(st.integers(0, 1), max_size=4))
    def edit(self, data: st.DataObject, back: int, more: list[int]) -> None:
        """Go back, and on from there with other tokens."""
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        length = max(0, len(self.tokens[name]) - back)
        if self.pages.can_truncate(name, length):
            self.pages.truncate(name, length)
            del self.tokens[name][length:]
            del self.called[name][length // SIZE :]
            self.grow(name, more)

    @rule(name=names)
    def release(self, name: str) -> None:
        self.pages.release(name)
        self.tokens.pop(name, None)
        self.called.pop(name, None)
        self.unsound.discard(name)

    @rule()
    def make_copies(self) -> None:
        for copy in reversed(self.pages.take_copies()):
            self.store[copy.group][copy.target] = list(self.store[copy.group][copy.source])

    def read(self, name: str) -> None:
        self.make_copies()
        tokens = self.tokens[name]
        for group in self.groups:
            row = self.pages.row(name, group.name)
            for position in range(0 if group.window is None else max(0, len(tokens) - group.window + 1), len(tokens)):
                content = self.store[group.name][row[position // SIZE]][position % SIZE]
                unsound = name in self.unsound and content == self.UNSOUND
                assert unsound or content == tuple(tokens[: position + 1])

    @invariant()
    def books_agree(self) -> None:
        self.pages.check()
        assert set(self.pages.ids()) == set(self.tokens)

    @rule()
    def everyone_reads_what_it_wrote(self) -> None:
        for name in self.tokens:
            self.read(name)

    def teardown(self) -> None:
        self.everyone_reads_what_it_wrote()
        for name in list(self.tokens):
            self.release(name)
        self.pages.check()
        assert self.pages.used == 0
        self.pages.reset()
        self.pages.check()


TestPrefixes = Prefixes.TestCase
TestPrefixes.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


class CountedName(bytes):
    """A name that counts how often a table looks at it."""

    looks = 0

    def __hash__(self) -> int:
        CountedName.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedName.looks += 1
        return super().__eq__(other)


def operations(work: Any) -> int:
    """Bytecode instructions that the work takes, and looks at names; not those of garbage collection's callbacks."""
    counted = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    CountedName.looks = 0
    before = sys.gettrace()
    gc.disable()  # Hypothesis has it call back, in instructions that are not the work's
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return counted + CountedName.looks


@pytest.mark.parametrize("window", [None, 16])
def test_lookup_and_eviction_take_the_same_work_in_a_small_pool_and_at_a_million_pages(window: int | None) -> None:
    def cost(num_pages: int) -> int:
        pages = PageTable([PageGroup("main", num_pages, 1, window)], max_draft=0)
        names = [CountedName(index.to_bytes(4, "little")) for index in range(num_pages)]
        for begin in range(0, num_pages, 500):
            # Each in a chain of its own, so that all of them are in the pool at the end.
            own = names[begin : begin + 500]
            pages.adopt("filler", own, 0)
            assert pages.reserve("filler", len(own))
            pages.commit("filler", len(own))
            pages.publish("filler")
            pages.release("filler")
        assert pages.prefix_counts().cached_pages == num_pages

        def work() -> None:
            last = names[-500:]
            pages.adopt("hit", last, pages.match(last))
            assert pages.length("hit") == 500
            assert pages.reserve("new", 300)
            pages.release("hit")
            pages.release("new")

        return operations(work)

    assert cost(1_000_000) == cost(2_000)
