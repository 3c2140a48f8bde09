"""`SequenceGuide`: the guide of one sequence. The engine's thread asks it, and one thread computes for all guides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, overload

from ferrum.core.errors import StepError
from ferrum.core.step import PendingMasks
from ferrum.guides.guide_program import GuideProgram
from ferrum.guides.guide_state import GuideState
from ferrum.scheduler.guides import UNLIMITED, Guide

LAG: Final = 8
"""Tokens by which the thread of the masks may be late while known tokens are still of use."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """What the thread of the masks has found.

    Attributes:
        taken: the number of tokens that it has taken in.
        unconstrained_until: see `Guide`; `taken` if the guide constrains.
        trigger_tokens: see `Guide`.
        known: the next tokens as far as there is no alternative.
    """

    taken: int
    unconstrained_until: int = 0
    trigger_tokens: frozenset[int] = frozenset()
    known: tuple[int, ...] = ()


class SequenceGuide(Guide):
    """The guide of a sequence without tokens.

    Args:
        program: of its request.
        thread: runs jobs one after the other, in order.
    """

    def __init__(self, program: GuideProgram, thread: Executor) -> None:
        self._thread = thread
        self._taken = 0
        self._newest: tuple[int, ...] = ()
        self._settled = _Settled(-1)
        self._work = _Work(program, self._settle)
        self._first: Future[Outcome] = thread.submit(self._work.advance, ())

    def _settle(self, found: _Settled) -> None:
        self._settled = found  # one assignment, which the engine's thread sees whole

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def unconstrained(self) -> bool:
        found = self._settled
        return found.taken == self._taken < found.unconstrained_until

    @property
    def trigger_tokens(self) -> frozenset[int]:
        return self._settled.trigger_tokens

    @property
    def unconstrained_until(self) -> int:
        return self._settled.unconstrained_until

    def advance(self, tokens: tuple[int, ...]) -> None:
        if tokens:
            self._taken += len(tokens)
            self._newest = (*self._newest, *tokens)[-LAG:]
            self._first = self._thread.submit(self._work.advance, tokens)

    def masks(self, drafts: tuple[int, ...]) -> GuideMasks:
        later = self._thread.submit(self._work.after_drafts, drafts) if drafts else None
        return GuideMasks(self._first, later, range(1 + len(drafts)))

    def forced(self, limit: int) -> tuple[int, ...]:
        found = self._settled
        late = self._taken - found.taken
        if late > len(self._newest) or self._newest[len(self._newest) - late :] != found.known[:late]:
            return ()
        return found.known[late : late + limit]

    def close(self) -> None:
        self._work.closed = True
        with suppress(RuntimeError):  # the engine has ended
            self._thread.submit(self._work.advance, ())  # frees the matcher


class _Work:
    """The jobs of a guide, all run by the thread of the masks.

    Attributes:
        closed: the sequence has ended, so that nothing needs to be computed any more.
    """

    def __init__(self, program: GuideProgram, settle: Callable[[_Settled], None]) -> None:
        self._program = program
        self._settle = settle
        self._state: GuideState | None = None
        self._taken = 0
        self._error: StepError | None = None
        self.closed = False

    def advance(self, tokens: tuple[int, ...]) -> Outcome:
        """Take in tokens and return the mask of the next one."""
        if self.closed:
            self._state = None
            return None
        self._taken += len(tokens)
        if self._error is None:
            try:
                return self._advanced(tokens)
            except BaseException as error:  # noqa: BLE001 - a panic of the library ends its own sequence only
                self._error = _failure(error)
        self._settle(_Settled(self._taken))
        return self._error

    def _advanced(self, tokens: tuple[int, ...]) -> bytes | None:
        if self._state is None:
            self._state = GuideState(self._program)
        state = self._state
        for token in tokens:
            if not state.take(token):
                raise StepError(f"the grammar does not allow token {token}")
        free = state.unconstrained_for
        until = UNLIMITED if free >= UNLIMITED else self._taken + free
        if free:
            self._settle(_Settled(self._taken, until, state.trigger_tokens))
            return None
        mask = state.mask()
        self._settle(_Settled(self._taken, until, known=state.known()))
        return mask

    def after_drafts(self, drafts: tuple[int, ...]) -> list[Outcome]:
        """Return the masks after each draft token; those after one that is not allowed are never used."""
        found: list[Outcome] = [] if self._error is None else [self._error] * len(drafts)
        if not found and self._state is not None and not self.closed:
            state = self._state.copy()
            try:
                for draft in drafts:
                    if not state.take(draft):
                        break
                    found.append(state.mask())
            except BaseException as error:  # noqa: BLE001 - as in `advance`
                found.append(_failure(error))
        return found + [None] * (len(drafts) - len(found))


def _failure(error: BaseException) -> StepError:
    return type(error)(*error.args) if isinstance(error, StepError) else StepError(f"the grammar failed: {error}")


# Masks that the other thread computes

Outcome: TypeAlias = bytes | StepError | None
"""A mask, None for one that allows all tokens, or the reason why there is none."""


class GuideMasks(PendingMasks):
    """The masks of a span.

    Args:
        first: of the row after the newest token.
        later: of the rows after the draft tokens, or None without drafts.
        rows: which of all of them.
    """

    def __init__(self, first: Future[Outcome], later: Future[list[Outcome]] | None, rows: range) -> None:
        self._first, self._later, self._rows = first, later, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes | None]: ...

    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes | None] | None:
        if isinstance(place, slice):
            return GuideMasks(self._first, self._later, self._rows[place])
        row = self._rows[place]
        try:
            if not row:
                found = self._first.result()
            else:
                assert self._later is not None
                found = self._later.result()[row - 1]
        except CancelledError:
            raise StepError("the engine has ended") from None
        if isinstance(found, StepError):
            raise type(found)(*found.args)  # each reader has its own traceback
        return found
