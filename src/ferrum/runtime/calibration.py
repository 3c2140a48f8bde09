"""Calibration: how large the inputs of a model's matrices are on a text, which weighs errors of the weights.

The error of a product grows with the squared error of each weight times the mean square of its input. The model runs as
it is loaded without quantisation, over spans of a fixed size, and sums have a fixed order: every machine finds the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import ModelConfig, Switches
from ferrum.core.errors import ConfigError, FerrumError, RequestError
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.operations import F32
from ferrum.kernels.reference.reference_math import tree_sum
from ferrum.models.decoder import Decoder
from ferrum.runtime.adapters.merged_adapters import ScaledAdapter, with_adapters
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.runtime.probed_network import ProbedNetwork
from ferrum.runtime.text_spans import opening, text_spans
from ferrum.sources.model_source import ModelSource
from ferrum.sources.parameters import Progress

SPAN: Final = 512
"""Tokens of a forward pass, and the least of a text."""

_LEAST: Final = 2.0**-20
"""Smallest importance of an input, relative to the largest: quantisers need positive ones."""


def calibration_tokens(source: ModelSource, text: str) -> tuple[list[int], list[int]]:
    """Return the token ids of a text, and those that begin every text.

    Raises:
        ConfigError: the model has no tokenizer.
        RequestError: the text is too short; `param` is `calibrate`.
    """
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise ConfigError(f"{source.name} has no tokenizer, and --calibrate needs one", param="model")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if len(tokens) < SPAN:
        reason = f"has {len(tokens)} tokens, and {SPAN} are the least: give a longer text"
        raise RequestError(reason, param="calibrate")
    return tokens, opening(tokenizer)


class Calibrator:
    """A loaded model that measures its inputs. Close it, or use it as a context.

    Args:
        source: the model.
        text: to run over.
        dtype: as for `Parameters`.
        progress: of loading.
        adapters: are merged into the model first.

    Attributes:
        spans: token ids of the text in parts.

    Raises:
        ConfigError, RequestError: as `calibration_tokens`.
        CheckpointError, CapacityError, Unsupported: as `load_executor`.
    """

    def __init__(
        self,
        source: ModelSource,
        text: str,
        dtype: str = "auto",
        progress: Progress | None = None,
        adapters: Sequence[ScaledAdapter] = (),
    ) -> None:
        tokens, start = calibration_tokens(source, text)
        switches = replace(Switches.from_environment(), disable_graphs=True)
        config = ModelConfig(model=source.name, dtype=dtype, max_batch_size=1, kv_capacity=SPAN, switches=switches)
        store = with_adapters(source.checkpoint(), adapters)
        self._executor = build_executor(LocalStepExecutor, config, max_rows=SPAN, progress=progress, checkpoint=store)
        self._sums = InputSquares(self._executor)
        self.spans = text_spans(tokens, start, min(SPAN, self._executor.traits.max_sequence_length))

    def __enter__(self) -> Calibrator:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    def run(self, advance: Callable[[int], object]) -> dict[str, F32]:
        """Return the importance of the inputs of each matrix that multiplies, f32 [K] by name.

        It is the mean square of the input.

        Args:
            advance: called with 1 after each span.

        Raises:
            StepError: the model computes an infinity or a NaN.
        """
        for tokens in self.spans:
            span = Span("text", 0, tokens, Want.LOGITS, Rows.ALL)  # all rows reach the head
            (result,) = self._executor.submit(StepBatch((span,))).result().results
            if isinstance(result, FerrumError):
                raise result
            self._executor.pages.release("text")
            advance(1)
        return self._sums.importance()


class InputSquares:
    """The mean squares of the inputs of every matrix that an executor's network multiplies by.

    Args:
        executor: without a recorded program; from now on runs the probed network.
    """

    def __init__(self, executor: LocalStepExecutor) -> None:
        decoder, host = executor.lm.network, executor.lm.kernels.host
        assert isinstance(decoder, Decoder), "the network is walked, not replayed"
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[str, int] = {}
        executor.lm.network = ProbedNetwork(decoder, host, self._add, decoder.weights)

    def _add(self, names: tuple[str, ...], x: F32) -> None:
        squares = tree_sum((x * x).T).astype(np.float64)
        for name in names:
            self._sums[name] = self._sums.get(name, 0.0) + squares
            self._rows[name] = self._rows.get(name, 0) + len(x)

    def importance(self) -> dict[str, F32]:
        """Return the mean square of each input so far, f32 [K] by the name of the matrix."""
        means = {name: sums / self._rows[name] for name, sums in self._sums.items()}
        return {name: _positive(mean.astype(np.float32)) for name, mean in means.items()}


def _positive(mean: F32) -> F32:
    """Return mean squares above a small part of the largest; ones if all are zeros."""
    largest = mean.max(initial=0)
    return np.maximum(mean, largest * np.float32(_LEAST)) if largest > 0 else np.ones_like(mean)
