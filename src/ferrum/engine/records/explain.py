"""What a record's schedule says, in a few lines for each choice: the prompt's pieces, what was found, guesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ferrum.core.json_record import JsonRecord
from ferrum.engine.records.record import Record, RecordedShare
from ferrum.engine.records.step_shares import StepShare


class Work(StrEnum):
    """What a choice did in a step.

    PROMPT processes a piece of the prompt, AGAIN computes what was lost with its pages, DECODE one token that was
    sampled before, VERIFY also guesses after it.
    """

    PROMPT = "prompt"
    AGAIN = "again"
    DECODE = "decode"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage(JsonRecord):
    """Consecutive shares of a choice that did the same.

    Attributes:
        first_step, last_step: steps of the engine; between them may be steps in which the choice had no share.
        start: tokens that were stored before.
        tokens: processed, guesses not counted.
        found: of those stored before, the ones that were found and not computed, at a beginning.
        drafted, accepted: guesses, and the right ones among them.
        sampled: tokens that came of it.
        most_rows: of the largest of the steps, over all sequences.
    """

    choice: int
    work: Work
    first_step: int
    last_step: int
    start: int
    tokens: int
    found: int = 0
    drafted: int = 0
    accepted: int = 0
    sampled: int = 0
    most_rows: int = 0


def passages(record: Record) -> list[Passage]:
    """The schedule of a request, choice by choice."""
    found: list[Passage] = []
    for choice in range(record.request.params.n):
        shares = [each for each in record.shares if each.share.choice == choice]
        for passage in _singly(shares, len(record.request.prompt)):
            last = found[-1] if found else passage
            if last.choice == choice and last.work is passage.work is Work.DECODE:
                found[-1] = _joined(last, passage)
            else:
                found.append(passage)
    return found


def _singly(shares: list[RecordedShare], prompt: int) -> Iterator[Passage]:
    """A passage for each share of one choice."""
    losses, reached = -1, 0
    for each in shares:
        share = each.share
        begins, losses = share.preemptions != losses, share.preemptions
        yield Passage(
            choice=share.choice,
            work=_work(share, prompt, reached),
            first_step=each.step,
            last_step=each.step,
            start=share.start,
            tokens=share.tokens,
            found=share.start if begins else 0,
            drafted=len(share.drafts),
            accepted=share.accepted,
            sampled=len(share.sampled),
            most_rows=each.rows,
        )
        reached = max(reached, share.start + share.tokens + share.accepted)


def _work(share: StepShare, prompt: int, reached: int) -> Work:
    """What a share did, after the choice had stored `reached` tokens at the most."""
    if share.start < reached:
        return Work.AGAIN
    if share.start < prompt:
        return Work.PROMPT
    return Work.VERIFY if share.drafts else Work.DECODE


def _joined(first: Passage, second: Passage) -> Passage:
    return replace(
        first,
        last_step=second.last_step,
        tokens=first.tokens + second.tokens,
        sampled=first.sampled + second.sampled,
        most_rows=max(first.most_rows, second.most_rows),
    )
