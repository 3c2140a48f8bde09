"""Workloads as data, and the forward passes each of them consists of.

`subject.py` runs them; `limits.py` computes their lower bound in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord


class Kind(Enum):
    """What a workload measures."""

    DECODE = "decode"
    PREFILL = "prefill"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class SpanShape:
    """A sequence's part of a pass: `count` tokens after `start` stored ones, with `logits` rows of logits."""

    start: int
    count: int
    logits: int


Pass: TypeAlias = tuple[SpanShape, ...]


@dataclass(frozen=True, slots=True)
class Workload(JsonRecord):
    """A named measurement; one sample processes `tokens` tokens of every sequence.

    Attributes:
        name: also the metric name in scripts that measure other engines.
        kind: DECODE: `tokens` steps of one token per sequence at a constant context. PREFILL: a prompt of `tokens` up
            to its first logits. SERVE: requests through the engine's queue, all sent at once, with prompts of
            `context` tokens and `tokens` sampled tokens each.
        sequences: number of sequences.
        context: tokens stored before the measured ones.
        tokens: measured tokens per sequence.
    """

    name: str
    kind: Kind
    sequences: int
    context: int
    tokens: int

    @property
    def counted_tokens(self) -> int:
        """Tokens of a sample over all sequences: the numerator of tokens per second."""
        return self.sequences * self.tokens

    @property
    def length(self) -> int:
        """The most tokens a sequence holds; DECODE runs one extra step before the clock starts."""
        return self.context + self.tokens + (self.kind is Kind.DECODE)

    def passes(self, max_rows: int) -> Iterator[Pass]:
        """Yield the forward passes of a sample, each of at most `max_rows` tokens; for SERVE an ideal schedule."""
        if self.kind is Kind.DECODE:
            for _ in range(self.tokens):
                yield (SpanShape(self.context, 1, 1),) * self.sequences
        elif self.kind is Kind.PREFILL:
            yield from _prompts(self.sequences, self.tokens, max_rows)
        else:
            yield from _prompts(self.sequences, self.context, max_rows)
            for done in range(self.tokens - 1):  # the prompts' passes sampled the first tokens
                yield (SpanShape(self.context + done, 1, 1),) * self.sequences


def _prompts(sequences: int, length: int, max_rows: int) -> Iterator[Pass]:
    """Yield passes that hold prompts one after the other, cut where a pass is full."""
    spans: list[SpanShape] = []
    room = max_rows
    for _ in range(sequences):
        done = 0
        while done < length:
            count = min(room, length - done)
            spans.append(SpanShape(done, count, int(done + count == length)))
            done, room = done + count, room - count
            if room == 0:
                yield tuple(spans)
                spans, room = [], max_rows
    if spans:
        yield tuple(spans)


WORKLOADS: Final = (
    *(Workload(f"decode@{context}", Kind.DECODE, 1, context, 16) for context in (128, 1024, 4096)),
    *(Workload(f"batch{sequences}@256", Kind.DECODE, sequences, 256, 4) for sequences in (8, 16, 32)),
    *(Workload(f"prefill{tokens}", Kind.PREFILL, 1, 0, tokens) for tokens in (128, 512, 2048)),
    Workload("serve16", Kind.SERVE, 16, 256, 64),
)


def chosen_workloads(patterns: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads whose names match a pattern such as `decode*`; without patterns all.

    Raises:
        ConfigError: a pattern matches none.
    """
    for pattern in patterns:
        if not _matches(pattern, WORKLOADS):
            known = ", ".join(workload.name for workload in WORKLOADS)
            raise ConfigError(f"must match one of {known}, not {pattern!r}", param="workload")
    chosen = [each for each in WORKLOADS if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    return tuple(chosen) if patterns else WORKLOADS


def fitting_workloads(
    workloads: Sequence[Workload],
    patterns: Sequence[str],
    *,
    context: int,
    sequences: int,
    report: Callable[[str], object],
) -> tuple[Workload, ...]:
    """Return the workloads that fit; report the others.

    Args:
        workloads: the choice.
        patterns: each must keep a workload; without patterns one must remain.
        context: tokens a sequence can have.
        sequences: sequences a step can have.
        report: called with a line per workload that does not fit.

    Raises:
        ConfigError: none fits, or none of those that one pattern matches.
    """
    errors = {}
    for each in workloads:
        if each.length > context:
            problem = f"{each.name} needs {each.length} tokens, the model's context holds {context}"
            errors[each.name] = ConfigError(problem, param="workload")
        elif each.kind is not Kind.SERVE and each.sequences > sequences:  # served requests may wait in the queue
            problem = f"{each.name} needs {each.sequences} sequences, a step holds {sequences}"
            errors[each.name] = ConfigError(problem, param="max_batch_size")
    fitting = tuple(each for each in workloads if each.name not in errors)
    for pattern in patterns or ["*"]:
        if not _matches(pattern, fitting):
            raise next(error for name, error in errors.items() if fnmatchcase(name, pattern))
    for error in errors.values():
        report(f"left out: {error.message}")
    return fitting


def _matches(pattern: str, workloads: Iterable[Workload]) -> bool:
    return any(fnmatchcase(each.name, pattern) for each in workloads)


def pool_tokens(workloads: Iterable[Workload], page_size: int) -> int:
    """Return the tokens a pool needs for the largest workload and one extra page."""
    return page_size + max(each.sequences * -(-each.length // page_size) * page_size for each in workloads)
