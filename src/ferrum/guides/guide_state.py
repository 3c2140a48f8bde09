"""`GuideState`: where a sequence's output stands between thought, triggers and grammar, and the mask of its next token.

    thought --close marker--> waiting --trigger--> grammar --complete--> ends, or waiting again
       |                      (without triggers the grammar begins at once)
       +--trigger--> grammar

Only the thread that computes masks uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum
from typing import Any

from ferrum.core.errors import NothingAllowed, StepError
from ferrum.core.guidance import Marker
from ferrum.guides.guide_program import GuideProgram
from ferrum.scheduler.guides import UNLIMITED


class Phase(Enum):
    """The part of an output that its next token belongs to.

    FIRST: the first tokens, which may open a thought. ENDED: the grammar is complete, only end tokens are left.
    FREE: nothing is limited from now on.
    """

    FIRST = "first"
    THOUGHT = "thought"
    WAITING = "waiting"
    GRAMMAR = "grammar"
    ENDED = "ended"
    FREE = "free"


class GuideState:
    """The state of one sequence.

    Args:
        program: of its request.

    Attributes:
        phase: see `Phase`.
        forced: the tokens of the thought's end that are still to come.
    """

    def __init__(self, program: GuideProgram) -> None:
        self._program = program
        token_bytes = program.tokens.tokenizer.token_bytes
        thought, grammar = program.thought, program.grammar
        self._close = MarkerFinder(() if thought is None else (thought.close,), token_bytes)
        self._triggers = MarkerFinder(() if grammar is None else grammar.triggers, token_bytes)
        self._matcher: Any = None
        self._opened = 0
        self._thought_tokens = 0
        self.forced: tuple[int, ...] = ()
        self.phase = Phase.FIRST
        if thought is None:
            self._leave_thought()
        elif thought.opened:
            self._think()
        elif grammar is not None and not program.lazy:
            self._matcher = program.matcher.deep_copy()

    def copy(self) -> GuideState:
        """Return an independent state at the same place."""
        other = copy(self)
        other._close, other._triggers = copy(self._close), copy(self._triggers)
        if self._matcher is not None:
            other._matcher = self._matcher.deep_copy()
        return other

    # What the next tokens may be

    @property
    def trigger_tokens(self) -> frozenset[int]:
        """The tokens after which a mask may be needed."""
        if self.phase is Phase.FREE:
            return frozenset()
        return self._triggers.tokens | (self._close.tokens if self.phase is Phase.THOUGHT else frozenset())

    @property
    def unconstrained_for(self) -> int:
        """How many tokens may follow before a mask is needed, trigger tokens excepted; 0: the next one needs it."""
        phase, thought = self.phase, self._program.thought
        if self.forced:
            return 0
        if phase is Phase.FREE:
            return UNLIMITED
        if phase in (Phase.GRAMMAR, Phase.ENDED) or self._triggers.by_bytes:
            return 0
        if phase is Phase.FIRST:
            return int(self._program.lazy or self._program.grammar is None)
        if phase is Phase.THOUGHT:
            assert thought is not None
            if self._close.by_bytes or self._program.required:
                return 0
            return UNLIMITED if thought.budget is None else thought.budget - self._thought_tokens
        return UNLIMITED

    def mask(self) -> bytes | None:
        """Return the bits of the allowed tokens; None: all. Raises StepError."""
        if self.forced:
            return self._only(self.forced[:1])
        if self.phase is Phase.ENDED:
            return self._only(self._program.ends)
        if self.phase is Phase.GRAMMAR:
            return self._grammar_mask(self._matcher)
        if self.phase is Phase.FIRST and self._program.grammar is not None and not self._program.lazy:
            opening = self._program.opening[self._opened : self._opened + 1]
            return self._only(opening) if self._matcher is None else self._grammar_mask(self._matcher, opening)
        return self._without_forbidden() if self.phase is not Phase.FREE else None

    def known(self) -> tuple[int, ...]:
        """Return the next tokens as far as there is no alternative to them; not always all of them."""
        if self.forced:
            after, first = self.copy(), self.forced[0]
            return (first, *after.known()) if after.take(first) else (first,)
        return tuple(self._matcher.compute_ff_tokens()) if self.phase is Phase.GRAMMAR else ()

    def _only(self, tokens: tuple[int, ...]) -> bytes:
        mask = bytearray(self._program.tokens.end // 8 + 1)
        for token in tokens:
            mask[token >> 3] |= 1 << (token & 7)
        return bytes(mask)

    def _without_forbidden(self) -> bytes | None:
        """Return the mask of all tokens but those after which the grammar would begin with an error, or never begin."""
        finder = self._triggers if self._program.lazy else self._close
        found = [tokens for begun, tokens in self._program.forbidden.items() if finder.ends_with(begun)]
        refused = frozenset[int]().union(*found).difference(self._program.ends)
        if self._program.required:
            refused = refused.union(self._program.ends)
        if not refused:
            return None
        mask = bytearray(b"\xff" * (self._program.tokens.end // 8 + 1))
        for token in refused:
            mask[token >> 3] &= ~(1 << (token & 7)) & 0xFF
        return bytes(mask)

    def _grammar_mask(self, matcher: Any, others: tuple[int, ...] = ()) -> bytes:
        """Return the matcher's mask, with the request's end tokens in place of the end of the grammar."""
        found: bytes = matcher.compute_bitmask()
        _check(matcher)
        end = self._program.tokens.end
        ended = found[end >> 3] >> (end & 7) & 1
        if not (ended or others):
            return found
        mask = bytearray(found)
        mask[end >> 3] &= ~(1 << (end & 7)) & 0xFF
        for token in (*others, *(self._program.ends if ended else ())):
            mask[token >> 3] |= 1 << (token & 7)
        return bytes(mask)

    # The tokens that come

    def take(self, token: int) -> bool:
        """Take in the next token; return False if it was not allowed, and then the state is of no more use.

        Raises:
            StepError: the grammar fails.
        """
        forced = self.forced
        if forced and token != forced[0]:
            return False
        self.forced = forced[1:]
        allowed = self._take(token)
        if forced and not self.forced and self.phase is Phase.THOUGHT:
            self._leave_thought()  # the end of a thought ends it, whether its marker was found or not
        if self.forced and self.phase is Phase.GRAMMAR and not self._matcher.validate_tokens([self.forced[0]]):
            self.forced = ()  # the grammar has no place for the rest of the end
        return allowed

    def _take(self, token: int) -> bool:
        match self.phase:
            case Phase.GRAMMAR:
                return self._match(token)
            case Phase.ENDED:
                return token in self._program.ends
            case Phase.FREE:
                return True
        if token in self._program.ends and self.phase is not Phase.FIRST:
            return not self._program.required  # the output ends, unless the request ignores that
        if self._program.lazy and (rest := self._triggers.find(token)) is not None:
            self.forced = ()
            return self._begin_grammar(rest)
        if self.phase is Phase.FIRST:
            return self._take_first(token)
        if self.phase is Phase.THOUGHT:
            if (rest := self._close.find(token)) is not None:
                return self._leave_thought(rest)
            self._thought_tokens += 1
            self._check_budget()
        return True

    def _take_first(self, token: int) -> bool:
        """Take in a token that opens the thought, or that belongs to what comes without one."""
        opening, matcher = self._program.opening, self._matcher
        if token == opening[self._opened]:
            self._opened += 1
            if self._opened == len(opening):
                self._think()
            elif matcher is not None and not (matcher.validate_tokens([token]) and matcher.consume_token(token)):
                self._matcher = None  # only the thought begins like this
            return True
        if self._program.grammar is None or self._program.lazy:
            return self._leave_thought()
        if matcher is None:
            return False
        self.phase = Phase.GRAMMAR
        self._look_for_end()
        return self._match(token)

    def _think(self) -> None:
        self.phase, self._matcher = Phase.THOUGHT, None
        self._check_budget()

    def _check_budget(self) -> None:
        thought = self._program.thought
        assert thought is not None
        if not self.forced and thought.budget is not None and self._thought_tokens >= thought.budget:
            self.forced = self._program.end

    def _leave_thought(self, rest: bytes = b"") -> bool:
        """Go on after the thought, with bytes that came after it in the same token."""
        if self._program.grammar is None:
            self.phase = Phase.FREE
        elif self._program.lazy:
            self.phase = Phase.WAITING
        else:
            return self._begin_grammar(rest)
        return True

    def _begin_grammar(self, rest: bytes = b"") -> bool:
        self._matcher, self.phase = self._program.matcher.deep_copy(), Phase.GRAMMAR
        self._look_for_end()
        return all(self._match(token) for token in self._program.tokens.spell(rest)) if rest else True

    def _match(self, token: int) -> bool:
        """Let the grammar take a token."""
        if self.phase is Phase.ENDED or self._matcher is None:
            return False
        matcher = self._matcher
        if matcher.validate_tokens([token]):
            matcher.consume_token(token)
            _check(matcher)
            self._look_for_end()
            return True
        _check(matcher)
        if token in self._program.ends and matcher.is_accepting():
            self.phase = Phase.ENDED
            return True
        return False

    def _look_for_end(self) -> None:
        """Go on if the grammar has nothing more to come."""
        if self._matcher.is_stopped():
            _check(self._matcher)
            assert self._program.grammar is not None
            self.phase = Phase.WAITING if self._program.grammar.repeats and self._program.lazy else Phase.ENDED
            self._matcher = None
            self._triggers.reset()


def _check(matcher: Any) -> None:
    """Raise StepError if the library has given up: NothingAllowed where the grammar goes on and no token does."""
    if matcher.get_error().startswith("NoExtensionBias"):  # the code of the library's error is its first line
        raise NothingAllowed("no token of the vocabulary continues the grammar")
    if matcher.is_error():
        raise StepError(f"the grammar failed: {matcher.get_error().strip()}")


# Markers of a format in a growing output


class MarkerFinder:
    """Finds the first of some markers in tokens as they arrive.

    Args:
        markers: those to look for.
        token_bytes: bytes of a token.

    Attributes:
        tokens: the tokens that are markers.
        by_bytes: some markers have no token, so that every token must be looked at.
    """

    def __init__(self, markers: Sequence[Marker], token_bytes: Callable[[int], bytes]) -> None:
        self.tokens = frozenset(each.token for each in markers if each.token is not None)
        self._texts = tuple(each.text.encode() for each in markers if each.token is None)
        self.by_bytes = bool(self._texts)
        self._token_bytes = token_bytes
        self._keep = max(map(len, self._texts), default=1) - 1
        self._tail = b""

    def reset(self) -> None:
        """Forget the output so far."""
        self._tail = b""

    def find(self, token: int) -> bytes | None:
        """Return None, or, if the token completes a marker, its bytes after that marker."""
        if token in self.tokens:
            return b""
        if not self._texts:
            return None
        text = self._tail + self._token_bytes(token)
        ends = [place + len(each) for each in self._texts if (place := text.find(each)) >= 0]
        if ends:
            return text[min(ends) :]
        self._tail = text[max(0, len(text) - self._keep) :]
        return None

    def ends_with(self, text: bytes) -> bool:
        """Return whether the output so far ends with a part of a marker."""
        return self._tail.endswith(text)
