"""Quality of a model's formats: perplexity, and divergence from a reference on the same text.

The figures, and how they are collected span by span. `quality_run.py` loads the models, `quality_plot.py` draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.bench.report import Document, Origin
from ferrum.core.json_record import JsonRecord
from ferrum.kernels.operations import F32

_ROWS: Final = 64
"""Rows of logits that are compared at a time: in float64 a whole span of a large vocabulary takes gigabytes."""

_F64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(JsonRecord):
    """A model as it was loaded.

    Attributes:
        model: its name.
        format: of its weights.
        kv_format: of keys and values.
        weight_bytes: bytes of its matrices, the embedding included.
        bits: per weight of these matrices.
    """

    model: str
    format: str
    kv_format: str
    weight_bytes: int
    bits: float


class Predictor(Protocol):
    """A model that predicts each next token of a text."""

    @property
    def subject(self) -> Subject:
        """The model's description in a report."""

    def logits(self, tokens: Sequence[int]) -> F32:
        """Return the logits after each of the tokens, [tokens, V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality(JsonRecord):
    """How a model predicts a text, alone and next to the reference.

    Attributes:
        perplexity: exponential of the mean negative log-probability of the text's tokens.
        divergence: mean Kullback-Leibler divergence from the reference, in nats per token.
        divergence_error: standard error of that mean.
        divergence_p99: its 99th percentile over the tokens.
        same_choice: share of tokens after which both find the same next token most likely.
    """

    perplexity: float
    divergence: float
    divergence_error: float
    divergence_p99: float
    same_choice: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(JsonRecord):
    """A judged model and its quality."""

    subject: Subject
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport(Document):
    """Results of one run of `ferrum bench quality`.

    Attributes:
        origin: where and when it was measured.
        text: name of the text.
        tokens, span: tokens of all spans, and of the longest.
        reference: the model that the others are compared with.
        perplexity: of the reference.
        rows: one per judged model.
    """

    LAYOUT: ClassVar[int] = 1

    origin: Origin
    text: str
    tokens: int
    span: int
    reference: Subject
    perplexity: float
    rows: tuple[Row, ...]


class Tally:
    """Collects a model's figures span by span."""

    def __init__(self) -> None:
        self._losses: list[_F64] = []
        self._divergences: list[_F64] = []
        self._same: list[NDArray[np.bool_]] = []

    def add(self, tokens: Sequence[int], expected: F32, found: F32) -> None:
        """Compare logits of a span, [tokens, V], with those of the reference."""
        following = np.asarray(tokens[1:], np.intp)
        for begin in range(0, len(tokens), _ROWS):
            rows = slice(begin, begin + _ROWS)
            p, q = log_softmax(expected[rows]), log_softmax(found[rows])
            targets = following[rows]  # the span's last row has none
            self._losses.append(-q[np.arange(len(targets)), targets])
            self._divergences.append((np.exp(p) * (p - q)).sum(axis=-1))
            self._same.append(expected[rows].argmax(axis=-1) == found[rows].argmax(axis=-1))

    def quality(self) -> Quality:
        """Return the figures of all spans."""
        divergences = np.concatenate(self._divergences)
        return Quality(
            perplexity=math.exp(np.concatenate(self._losses).mean()),
            divergence=float(divergences.mean()),
            divergence_error=float(divergences.std() / math.sqrt(len(divergences))),
            divergence_p99=float(np.quantile(divergences, 0.99)),
            same_choice=float(np.concatenate(self._same).mean()),
        )


def log_softmax(logits: F32) -> _F64:
    """Return log-probabilities of each row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def compare(
    reference: Predictor, judged: Sequence[Predictor], spans: Sequence[Sequence[int]], advance: Callable[[int], object]
) -> tuple[Quality, list[Quality]]:
    """Return the quality of the reference and of every judged model.

    Args:
        reference, judged: the models.
        spans: token ids of the text in parts.
        advance: called with 1 after each forward pass.
    """
    own, tallies = Tally(), [Tally() for _ in judged]
    for tokens in spans:
        expected = reference.logits(tokens)
        own.add(tokens, expected, expected)
        advance(1)
        for model, tally in zip(judged, tallies, strict=True):
            tally.add(tokens, expected, model.logits(tokens))
            advance(1)
    return own.quality(), [tally.quality() for tally in tallies]
