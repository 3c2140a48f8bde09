"""The prefix cache under any order of operations, and with many pages."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.pool import PageHash

SIZE = 4
SCOPE = PrefixScope(model="m", weights="f32", kv_format="f32", page_size=SIZE, numerics_id="n")
ROOT = SCOPE.root(tenant="", salt="")


class Prefixes(RuleBasedStateMachine):
    """State machine: sequences over two tokens, so that prefixes often match; each reads back its own history.

    A slot holds the whole history up to its token, since keys and values depend on all of it. The content of a failed
    sequence is marked, and no other sequence may read it.
    """

    groups = (PageGroup("full", 16, SIZE), PageGroup("window", 14, SIZE, 6))
    names = st.sampled_from("abcd")
    FAILED = ("failed",)

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageTable(self.groups, max_draft=1)
        self.tokens: dict[str, list[int]] = {}
        self.page_hashes: dict[str, list[PageHash]] = {}
        self.failed: set[str] = set()
        self.store: dict[str, list[list[tuple[Any, ...]]]] = {
            group.name: [[()] * SIZE for _ in range(group.num_pages)] for group in self.groups
        }

    @rule(
        name=names,
        book=st.integers(0, 1),
        length=st.integers(6, 20),
        fate=st.sampled_from(["published", "open", "failed"]),
    )
    def begin(self, name: str, book: int, length: int, fate: str) -> None:
        """Begin a prompt with its longest prefix that leaves a token to compute, like the scheduler."""
        self.release(name)
        wanted = [book] * length
        page_hashes: list[PageHash] = []
        SCOPE.extend(page_hashes, ROOT, wanted)
        found = min(self.pages.match(page_hashes), (len(wanted) - 1) // SIZE)
        found = self.pages.match(page_hashes[:found])
        self.pages.adopt(name, page_hashes, found)
        self.tokens[name], self.page_hashes[name] = wanted[: found * SIZE], page_hashes
        self.read(name)
        if fate == "failed":
            self.failed.add(name)
        self.grow(name, wanted[found * SIZE :])
        if fate == "published":
            self.pages.publish(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def step(self, data: st.DataObject, more: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        del self.page_hashes[name][len(self.tokens[name]) // SIZE :]
        self.grow(name, more)

    def grow(self, name: str, more: list[int]) -> None:
        start = len(self.tokens[name])
        if not self.pages.reserve(name, start + len(more)):
            return
        self.make_copies()
        self.tokens[name] += more
        SCOPE.extend(self.page_hashes[name], ROOT, self.tokens[name])
        for group in self.groups:
            row = self.pages.row(name, group.name)
            for position in range(start, start + len(more)):
                content = self.FAILED if name in self.failed else tuple(self.tokens[name][: position + 1])
                self.store[group.name][row[position // SIZE]][position % SIZE] = content
        self.pages.commit(name, start + len(more))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if name not in self.failed:
            self.pages.publish(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), name=names)
    def fork(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.tokens)))
        if name not in self.tokens:
            self.pages.fork(source, name)
            self.tokens[name] = list(self.tokens[source])
            self.page_hashes[name] = self.page_hashes[source][: len(self.tokens[source]) // SIZE]
            self.pages.label(name, self.page_hashes[name])
            if source in self.failed:
                self.failed.add(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), back=st.integers(0, 9), more=st.lists(st.integers(0, 1), max_size=4))
    def edit(self, data: st.DataObject, back: int, more: list[int]) -> None:
        """Truncate, and continue with other tokens."""
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        length = max(0, len(self.tokens[name]) - back)
        if self.pages.can_truncate(name, length):
            self.pages.truncate(name, length)
            del self.tokens[name][length:]
            del self.page_hashes[name][length // SIZE :]
            self.grow(name, more)

    @rule(name=names)
    def release(self, name: str) -> None:
        self.pages.release(name)
        self.tokens.pop(name, None)
        self.page_hashes.pop(name, None)
        self.failed.discard(name)

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
                failed = name in self.failed and content == self.FAILED
                assert failed or content == tuple(tokens[: position + 1])

    @invariant()
    def state_is_consistent(self) -> None:
        self.pages.check()
        assert set(self.pages.ids()) == set(self.tokens)

    @rule()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for name in self.tokens:
            self.read(name)

    def teardown(self) -> None:
        self.every_sequence_reads_what_it_wrote()
        for name in list(self.tokens):
            self.release(name)
        self.pages.check()
        assert self.pages.used == 0
        self.pages.reset()
        self.pages.check()


TestPrefixes = Prefixes.TestCase
TestPrefixes.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


class CountedHash(bytes):
    """A page hash that counts how often a table hashes or compares it."""

    looks = 0

    def __hash__(self) -> int:
        CountedHash.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedHash.looks += 1
        return super().__eq__(other)


def operations(work: Any) -> int:
    """Return the bytecode instructions of the work plus the accesses to page hashes, without garbage collection."""
    counted = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    CountedHash.looks = 0
    before = sys.gettrace()
    gc.disable()  # Hypothesis registers a callback with it
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return counted + CountedHash.looks


@pytest.mark.parametrize("window", [None, 16])
def test_lookup_and_eviction_cost_the_same_with_many_pages(window: int | None) -> None:
    def cost(num_pages: int) -> int:
        pages = PageTable([PageGroup("main", num_pages, 1, window)], max_draft=0)
        names = [CountedHash(index.to_bytes(4, "little")) for index in range(num_pages)]
        for begin in range(0, num_pages, 500):
            # Separate chains, so that the pool holds all of them in the end.
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

    assert cost(200_000) == cost(2_000)
