"""Stop strings: find the first of several strings in incrementally arriving text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from weakref import WeakValueDictionary

from ferrum.core.errors import RequestError


class StopStrings:
    """An automaton over a set of strings (Aho and Corasick, CACM 18(6), 1975).

    A state is the longest suffix of the text that is a prefix of a stop string; state 0 is empty. A character costs
    O(1) amortised for any number of strings. The automaton is immutable; each text stores its state.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for string in strings:
            self._insert(string)
        self._link()

    def advance(self, state: int, letter: str) -> int:
        """Return the state after one more character."""
        while state and letter not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(letter, 0)

    def match(self, state: int) -> str | None:
        """Return the longest stop string that the text ends with, or None."""
        return self._match[state]

    def pending(self, state: int) -> int:
        """Return how many final characters of the text may still become a stop string."""
        return self._depth[state]

    def _insert(self, string: str) -> None:
        state = 0
        for letter in string:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][letter]
        self._match[state] = string

    def _link(self) -> None:
        """Link every state to its longest proper suffix that is a state, in breadth-first order."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for letter, child in self._next[state].items():
                self._shorter[child] = self.advance(self._shorter[state], letter)
                if self._match[child] is None:
                    self._match[child] = self._match[self._shorter[child]]
                waiting.append(child)


_known: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()


def stop_strings(strings: Sequence[str]) -> StopStrings:
    """Return the automaton over the strings, shared by all choices that use the same ones."""
    key = tuple(strings)
    found = _known.get(key)
    if found is None:
        found = _known[key] = StopStrings(key)
    return found


class StopScanner:
    """One text, up to the first stop string. Text is held back only while it may become a stop string.

    The stop string that is complete first ends the text; of several that end at one character, the longest.

    Args:
        stop: strings that end the text.
        include_stop: keep the stop string at the end of the text.

    Raises:
        RequestError: a stop string is empty, or `stop` is a bare string.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool) -> None:
        if isinstance(stop, str) or not all(stop):
            raise RequestError("must be a list of non-empty strings", param="stop")
        self._stops = stop_strings(stop)
        self._include_stop = include_stop
        self._state = 0
        self._held = ""

    def push(self, text: str, *, spared: bool = False) -> tuple[str, str | None]:
        """Take more text; return what is final now, and the stop string that ended it.

        Args:
            text: the text.
            spared: stop strings that end in it are ignored.
        """
        seen, state = self._held + text, self._state
        for place, letter in enumerate(text, len(self._held) + 1):
            state = self._stops.advance(state, letter)
            if not spared and (stop := self._stops.match(state)) is not None:
                self._held = ""
                return seen[: place if self._include_stop else place - len(stop)], stop
        self._state = state
        certain = len(seen) - self._stops.pending(state)
        self._held = seen[certain:]
        return seen[:certain], None

    def finish(self) -> str:
        """Return the text held back."""
        held, self._held, self._state = self._held, "", 0
        return held
