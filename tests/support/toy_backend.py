"""A second backend: the reference's numbers in arrays that are not numpy's, with a separate replay and sampler.

Nothing above a backend may take its arrays for numpy's: rows refuse every conversion, and end with the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ferrum.core.params import SamplingParams
from ferrum.kernels.interface import Kernels, NetworkOutput, StepTables, StepTokens
from ferrum.kernels.op_spec import Extent, OpSpec, Program, Value, as_tuple
from ferrum.kernels.operations import Operations, Weight
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.reference.reference_math import log
from ferrum.kernels.services import Draw, Question, Standing
from ferrum.runtime.backend import ChosenKernels
from ferrum.sampling.philox import uniform
from ferrum.sampling.probabilities import log_total, mass, rank, top
from ferrum.sampling.rules import CANDIDATE_RULES, Candidates

STALE = 77
"""Written over rows that a later step has replaced."""


class Life:
    """Whether the step that computed some rows is the last one."""

    def __init__(self) -> None:
        self.over = False


class Rows:
    """An array of the toy backend. Only `ToyKernels.host` gives its numbers."""

    __array_ufunc__ = None

    def __init__(self, numbers: np.ndarray, life: Life | None = None) -> None:
        self._numbers = numbers
        self._life = life if life is not None else Life()

    @property
    def numbers(self) -> np.ndarray:
        assert not self._life.over, "rows are read after the next step"
        return self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, which: int | slice) -> Rows:
        assert isinstance(which, int | slice)
        return Rows(self.numbers[which], self._life)

    def copy(self) -> Rows:
        return Rows(self.numbers.copy())

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("rows of the toy backend are not numpy's")


class ToyWeight:
    """A matrix that only the backend multiplies by."""

    def __init__(self, inner: Weight) -> None:
        self.inner, self.shape, self.format, self.nbytes = inner, inner.shape, inner.format, inner.nbytes


def plain(argument: Any) -> Any:
    """Return an argument as the reference takes it."""
    if isinstance(argument, tuple):
        return tuple(map(plain, argument))
    return getattr(argument, "numbers", getattr(argument, "inner", argument))


def with_tokens(tables: StepTables, change: Callable[[Any], Any]) -> StepTables:
    """Return the tables with other forms of the tokens that they carry."""
    carried = []
    for each in tables.carried:
        step = StepTokens()
        step.tokens = change(each.step.tokens)
        carried.append(each._replace(step=step))
    return tables._replace(carried=tuple(carried))


class ToyKernels(Operations):
    """The reference kernels with other arrays. One method runs every operation, also those added later."""

    name = "toy"
    numerics_id = "toy-1"
    captures = False
    captured = None
    defers = False
    collect = Kernels.collect

    def __init__(self) -> None:
        self._inner = ReferenceKernels()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, tables: StepTables) -> None:
        self._inner.begin(with_tokens(tables, plain))

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        made = getattr(self._inner, spec.name)(*map(plain, arguments))
        return tuple(map(Rows, made)) if isinstance(made, tuple) else Rows(made)

    def weight(self, weight: Weight) -> ToyWeight:
        return ToyWeight(weight)

    def vector(self, values: np.ndarray) -> Rows:
        return Rows(self._inner.vector(values))

    def rope_table(self, *arguments: Any) -> tuple[Rows, ...]:
        return tuple(map(Rows, self._inner.rope_table(*arguments)))

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> ToyReplay:
        return ToyReplay(program)

    def host(self, rows: Rows) -> np.ndarray:
        return rows.numbers

    def sampler(self) -> ToySampler:
        return ToySampler()


class ToyReplay:
    """A replay without planned memory. Each step ends the rows of the one before, whose memory it overwrites."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._last: list[tuple[Rows, Life]] = []

    def submit(self, kernels: ToyKernels, tables: StepTables) -> NetworkOutput:
        held = self._run(kernels, tables)
        for rows, life in self._last:
            rows.numbers.fill(STALE)
            life.over = True
        self._last = [(Rows(held[value].numbers), Life()) for value in self.program.output]
        return NetworkOutput(*(Rows(rows.numbers, life) for rows, life in self._last))

    def timed(self, kernels: ToyKernels, tables: StepTables) -> list[float]:
        begun = time.perf_counter()
        self._run(kernels, tables)
        return [(time.perf_counter() - begun) / len(self.program.ops)] * len(self.program.ops)

    def nbytes(self, extent: Extent) -> int:
        return 0

    def _run(self, kernels: ToyKernels, tables: StepTables) -> dict[Value, Rows]:
        kernels.begin(tables)
        held: dict[Value, Rows] = {}
        for op in self.program.ops:
            made = kernels.compute(op.spec, op.spec.with_values(op.arguments, held.__getitem__))
            held.update(zip(op.results, as_tuple(made), strict=True))
        return held


class ToySampler:
    """A `RowSampler` of rows where they are; a row that rules have edited is numpy's."""

    def held_bytes(self, vocab_size: int) -> int:
        return 0

    def draw(self, rows: Sequence[Draw]) -> list[int]:
        return [self._drawn(each) for each in rows]

    @np.errstate(over="ignore")
    def _drawn(self, row: Draw) -> int:
        logits = plain(row.logits)
        tokens = np.flatnonzero(logits > -np.inf)
        if not tokens.size:
            return -1
        if not row.temperature:
            return int(np.argmax(logits))
        params = SamplingParams(temperature=row.temperature, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p)
        candidates = Candidates(tokens, logits[tokens])
        for rule in CANDIDATE_RULES:
            candidates = rule(candidates, params)
        noise = -log(-log(uniform(candidates.tokens, seed=row.seed, position=row.position, choice=row.choice)))
        return int(candidates.tokens[np.argmax(candidates.logits + noise)])

    @np.errstate(all="ignore")
    def standings(self, questions: Sequence[Question]) -> list[Standing]:
        found = []
        for each in questions:
            logits: np.ndarray = each.logits.numbers
            peak, best = logits.max(), top(logits, each.most)
            place = rank(logits, each.token)
            found.append(Standing(peak, log_total(mass(logits - peak)), place, logits[each.token], best, logits[best]))
        return found


@contextmanager
def toy_backend() -> Iterator[None]:
    """Load models on the toy backend in this context, whichever kernels are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrum.runtime.load.choose_kernels", lambda *_, **__: ChosenKernels(ToyKernels()))
        yield
