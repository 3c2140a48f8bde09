"""Summary of a record's schedule: prompt chunks, prefix hits, decoding and drafts of each choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ferrum.client.records.record import Record, RecordedShare
from ferrum.core.json_record import JsonRecord
from ferrum.engine.messages import StepShare


class Work(StrEnum):
    """Kind of work of a choice in a step.

    PROMPT processes a prompt chunk, AGAIN recomputes tokens after a preemption, DECODE processes the last sampled
    token, VERIFY also draft tokens after it.
    """

    PROMPT = "prompt"
    AGAIN = "again"
    DECODE = "decode"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage(JsonRecord):
    """Consecutive shares of a choice with the same kind of work.

    Attributes:
        first_step, last_step: steps of the engine; the choice may have had no share in some between them.
        start: tokens stored before.
        tokens: processed tokens without draft tokens.
        found: tokens from the prefix cache, in the first share after a start or a preemption.
        drafted, accepted: draft tokens, and accepted ones.
        sampled: sampled tokens.
        most_rows: tokens of the largest of the steps, over all sequences.
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
    """Return the schedule of a request, choice by choice."""
    found: list[Passage] = []
    for choice in record.request.choices:
        shares = [each for each in record.shares if each.share.choice == choice]
        for passage in _each_share(shares, len(record.request.prompt)):
            last = found[-1] if found else passage
            if last.choice == choice and last.work is passage.work is Work.DECODE:
                found[-1] = _joined(last, passage)
            else:
                found.append(passage)
    return found


def _each_share(shares: list[RecordedShare], prompt: int) -> Iterator[Passage]:
    """Return a passage for each share of one choice."""
    preemptions, reached = -1, 0
    for each in shares:
        share = each.share
        begins, preemptions = share.preemptions != preemptions, share.preemptions
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
    """Return the kind of work of a share; `reached` is the most tokens that the choice has stored before."""
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
