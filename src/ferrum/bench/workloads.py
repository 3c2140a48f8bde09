"""What is measured: workloads as data, and the forward passes that each is made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord


class Kind(Enum):
    """What a workload does with its sequences."""

    DECODE = "decode"
    PREFILL = "prefill"
    ENGINE = "engine"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class SpanShape:
    """A sequence's share of a pass: `count` tokens after `start` stored ones, and how many rows of logits it wants."""

    start: int
    count: int
    logits: int


Pass: TypeAlias = tuple[SpanShape, ...]


@dataclass(frozen=True, slots=True)
class Workload(JsonRecord):
    """One cell of the benchmark. A sample of it processes `tokens` tokens of every sequence.

    Attributes:
        name: as the peers' scripts call it.
        kind: DECODE: one token of each sequence per step, `tokens` steps, the context staying as it is.
            PREFILL: a prompt of `tokens`, up to its first logits. ENGINE: as DECODE, but as turns of the engine's loop
            after prompts of `context` tokens. SERVE: through the engine's queue, all requests at once: prompts of
            `context` tokens, `tokens` sampled ones each.
        sequences: how many.
        context: tokens stored before the measured ones.
        tokens: see above; they are what the figure counts.
    """

    name: str
    kind: Kind
    sequences: int
    context: int
    tokens: int

    @property
    def counted_tokens(self) -> int:
        """Tokens of a sample, over all sequences: the figure is these per second."""
        return self.sequences * self.tokens

    @property
    def length(self) -> int:
        """Most tokens that a sequence ever holds.

        A decode is preceded by one that does not count; in an engine's loop the first goes on while the last begins.
        """
        return self.context + self.tokens * (2 if self.kind is Kind.ENGINE else 1) + (self.kind is Kind.DECODE)

    def passes(self, max_rows: int) -> Iterator[Pass]:
        """The forward passes of a sample, none larger than `max_rows` tokens; for SERVE those of an ideal schedule."""
        if self.kind is Kind.DECODE:
            for _ in range(self.tokens):
                yield (SpanShape(self.context, 1, 1),) * self.sequences
        elif self.kind is Kind.PREFILL:
            yield from _prompts(self.sequences, self.tokens, max_rows)
        elif self.kind is Kind.ENGINE:
            yield from self._decodes(self.tokens)
        else:
            yield from _prompts(self.sequences, self.context, max_rows)
            yield from self._decodes(self.tokens - 1)  # the prompts' passes brought the first tokens

    def _decodes(self, steps: int) -> Iterator[Pass]:
        """Steps of a token each, with the context growing."""
        for done in range(steps):
            yield (SpanShape(self.context + done, 1, 1),) * self.sequences


def _prompts(sequences: int, length: int, max_rows: int) -> Iterator[Pass]:
    """Prompts one after the other, cut where a pass is full."""
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


def _decode(context: int) -> Workload:
    return Workload(f"decode@{context}", Kind.DECODE, 1, context, 16)


def _batch(sequences: int) -> Workload:
    return Workload(f"batch{sequences}@256", Kind.DECODE, sequences, 256, 4)


def _prefill(tokens: int) -> Workload:
    return Workload(f"prefill{tokens}", Kind.PREFILL, 1, 0, tokens)


WORKLOADS: Final = (
    *map(_decode, (128, 1024, 4096)),
    *map(_batch, (8, 16, 32)),
    *map(_prefill, (128, 512, 2048)),
    Workload("engine1@128", Kind.ENGINE, 1, 128, 32),
    Workload("engine32@256", Kind.ENGINE, 32, 256, 32),
    Workload("serve16", Kind.SERVE, 16, 256, 64),
)


def chosen_workloads(patterns: Sequence[str]) -> tuple[Workload, ...]:
    """The workloads whose names fit one of the patterns (`decode*`), in the table's order; all without a pattern.

    Raises:
        ConfigError: a pattern fits none.
    """
    for pattern in patterns:
        if not _named(pattern, WORKLOADS):
            known = ", ".join(workload.name for workload in WORKLOADS)
            raise ConfigError(f"{pattern!r} fits none of {known}", param="workload")
    fitting = [each for each in WORKLOADS if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    return tuple(fitting) if patterns else WORKLOADS


@dataclass(frozen=True, slots=True)
class Room:
    """What a loaded model has room for.

    Attributes:
        context: tokens of a sequence.
        sequences: of one step.
        pool: tokens of the KV pool, a page of the benchmark's own among them.
        page_size: tokens of a page.
        resident: most tokens of a sequence that the pool holds at once, where all layers slide; None: all of them.
    """

    context: int
    sequences: int
    pool: int
    page_size: int
    resident: int | None = None

    def lack(self, workload: Workload) -> tuple[str, str, int] | None:
        """The option that a workload does not fit, what it has too much of, and how much; None where it fits."""
        together = 1 if workload.kind is Kind.SERVE else workload.sequences  # requests wait for each other
        tokens = pool_tokens([replace(workload, sequences=together)], self.page_size, self.resident)
        for option, needed, there, told in (
            ("workload", workload.length, self.context, "tokens than the context of"),
            ("max_batch_size", together, self.sequences, "sequences than the steps of"),
            ("kv_capacity", tokens, self.pool, "tokens than the KV pool of"),
        ):
            if needed > there:
                return option, f"more {told} {there}", needed
        return None


def fitting_workloads(
    workloads: Sequence[Workload], patterns: Sequence[str], room: Room, tell: Callable[[str], object]
) -> tuple[Workload, ...]:
    """The workloads that a model has room for; `tell` is told which do not fit, and why.

    Raises:
        ConfigError: none does, or none of those that one of the patterns chose; `param` names what the first one lacks.
    """
    lacks = {each.name: room.lack(each) for each in workloads}
    fitting = tuple(each for each in workloads if lacks[each.name] is None)
    options, names = [], defaultdict(list)
    for name, lack in lacks.items():
        if lack is not None:
            option, reason, needed = lack
            options.append(option)
            names[reason].append(f"{name} ({needed})")
    told = [f"{reason}: {', '.join(those)}" for reason, those in names.items()]
    if not fitting or not all(_named(pattern, fitting) for pattern in patterns):
        raise ConfigError("; ".join(told), param=options[0])
    for line in told:
        tell(f"left out, {line}")
    return fitting


def _named(pattern: str, workloads: Iterable[Workload]) -> bool:
    """Whether a pattern fits the name of any."""
    return any(fnmatchcase(each.name, pattern) for each in workloads)


def pool_tokens(workloads: Iterable[Workload], page_size: int, resident: int | None = None) -> int:
    """Tokens that a pool must hold for any one of the workloads, and a page beside them; `resident` as in `Room`."""
    held = ((each.sequences, min(each.length, resident or each.length)) for each in workloads)
    return page_size + max(sequences * -(-length // page_size) * page_size for sequences, length in held)
