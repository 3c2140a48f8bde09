"""The page table under any order of operations: no leaks, no double use, and reads return what was written."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.errors import Unsupported

MAX_DRAFT = 3


class Tables(RuleBasedStateMachine):
    """State machine: each sequence reads back through its rows what it wrote.

    `written` is the content of each sequence; `store` is the pool that the page numbers refer to.
    """

    groups = (PageGroup("full", 11, 4), PageGroup("window", 13, 2, 5))
    names = st.sampled_from("abcde")

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageTable(self.groups, max_draft=MAX_DRAFT)
        self.written: dict[str, list[int]] = {}
        self.store = {group.name: [[-1] * group.page_size for _ in range(group.num_pages)] for group in self.groups}
        self.clock = 0

    @rule(name=names, count=st.integers(0, 9), kept=st.integers(0, 9))
    def step(self, name: str, count: int, kept: int) -> None:
        """Reserve and write `count` tokens, and commit the first `kept` of them."""
        start = len(self.written.get(name, ()))
        if not self.pages.reserve(name, start + count):
            return
        self.make_copies()
        tokens = list(range(self.clock, self.clock + count))
        self.clock += count
        for group in self.groups:
            row = self.pages.row(name, group.name)
            for position, token in enumerate(tokens, start):
                self.store[group.name][row[position // group.page_size]][position % group.page_size] = token
        kept = min(kept, count)
        self.pages.commit(name, start + kept)
        self.written.setdefault(name, []).extend(tokens[:kept])

    @rule(name=names, count=st.integers(0, 9))
    def reserve(self, name: str, count: int) -> None:
        """Reserve without a step, like a plan that is dropped."""
        if self.pages.reserve(name, len(self.written.get(name, ())) + count):
            self.written.setdefault(name, [])

    @precondition(lambda self: self.written)
    @rule(data=st.data(), name=names)
    def fork(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.written)))
        if name not in self.written:
            self.pages.fork(source, name)
            self.written[name] = list(self.written[source])

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.written)))
        length = data.draw(st.integers(0, len(self.written[name])))
        if self.pages.can_truncate(name, length):
            self.pages.truncate(name, length)
            del self.written[name][length:]
        else:
            with pytest.raises(Unsupported):
                self.pages.truncate(name, length)

    @precondition(lambda self: self.written)
    @rule(data=st.data(), count=st.integers(0, 30))
    def step_held(self, data: st.DataObject, count: int) -> None:
        """Truncate a held sequence to any length since it was held."""
        name = data.draw(st.sampled_from(sorted(self.written)))
        before = len(self.written[name])
        with self.pages.holding([name]):
            self.step(name=name, count=count, kept=count)
            length = data.draw(st.integers(before, len(self.written[name])))
            self.pages.truncate(name, length)
            del self.written[name][length:]

    @rule(name=names)
    def release(self, name: str) -> None:
        self.pages.release(name)
        self.written.pop(name, None)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.pages.trim(data.draw(st.sampled_from(sorted(self.written))))

    @invariant()
    def state_is_consistent(self) -> None:
        self.pages.check()
        assert set(self.pages.ids()) == set(self.written)

    @rule()
    def every_sequence_reads_what_it_wrote(self) -> None:
        self.make_copies()
        for name, tokens in self.written.items():
            assert self.pages.length(name) == len(tokens)
            for group in self.groups:
                row = self.pages.row(name, group.name)
                seen = 0 if group.window is None else max(0, len(tokens) - group.window + 1)
                for position in range(seen, len(tokens)):
                    page, slot = divmod(position, group.page_size)
                    assert self.store[group.name][row[page]][slot] == tokens[position]

    def make_copies(self) -> None:
        for copy in reversed(self.pages.take_copies()):
            self.store[copy.group][copy.target] = list(self.store[copy.group][copy.source])

    def teardown(self) -> None:
        self.every_sequence_reads_what_it_wrote()
        for name in list(self.written):
            self.pages.release(name)
        self.pages.check()
        assert self.pages.used == 0


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
