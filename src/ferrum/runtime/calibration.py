"""Calibration: how large the inputs of a model's matrices are on a text, which weighs errors of the weights.

The error of a product grows with the squared error of each weight times the mean square of its input. The model runs as
it is loaded without quantisation, over spans of a fixed size, and sums have a fixed order: every machine finds the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import ModelConfig, Switches
from ferrum.core.errors import ConfigError, FerrumError, RequestError
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.interface import Network, NetworkOutput
from ferrum.kernels.op_attributes import Routing
from ferrum.kernels.op_spec import Kind, OpSpec
from ferrum.kernels.operations import F32, Array, Int32, Operations, Weight
from ferrum.kernels.reference.reference_experts import add_experts, route
from ferrum.kernels.reference.reference_math import tree_sum
from ferrum.models.decoder import Decoder
from ferrum.nn.linear import weight_names
from ferrum.runtime.adapters.merged_adapters import ScaledAdapter, with_adapters
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.model_source import ModelSource
from ferrum.sources.parameters import Progress
from ferrum.text.tokenizer import Tokenizer

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


# ---- A text as spans of tokens, for programs that run a model over it ----


def opening(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that begin every text: the begin token, or none."""
    before = tokenizer.encode("")[:1]
    return before if before == [tokenizer.bos_token_id] else []


def text_spans(tokens: Sequence[int], start: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """Return the tokens of a text in parts of at most `longest`, each after the tokens that begin a text."""
    size = longest - len(start)
    return [(*start, *tokens[begin : begin + size]) for begin in range(0, len(tokens), size)]


# ---- A network that shows the inputs of matrices by name, for calibration and tests ----
#
# `nn/linear.py` says which matrices a network holds. The backend computes every result, with unchanged bits.

Probe: TypeAlias = Callable[[tuple[str, ...], F32], object]
"""Called with the names of the matrices that multiply an input, and the input [R, K]. Look-ups have no input."""

Show: TypeAlias = Callable[[tuple[Weight, ...], F32], None]
"""Called with matrices, and the input [R, K] that they multiply."""


class ProbedNetwork:
    """A `Network` that runs another one and shows inputs. It is not replayed from a recorded program.

    Args:
        network: runs, and holds the matrices in its dataclasses.
        host: `Kernels.host` of the backend that it runs on.
        probe: called before each product of a named matrix.
        names: of the matrices to probe.

    Raises:
        ValueError: the network holds no matrix of a name.
    """

    def __init__(self, network: Network, host: Callable[[Array], F32], probe: Probe, names: Collection[str]) -> None:
        held = weight_names(network)
        unknown = set(names) - set(held.values())
        if unknown:
            raise ValueError(f"the network holds no matrix {', '.join(sorted(unknown))}")
        self._network, self._host, self._probe = network, host, probe
        self._names = {key: name for key, name in held.items() if name in names}

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run one step."""
        return self._network(_Watched(kernels, self._host, self._show, self._names), states)

    def _show(self, weights: tuple[Weight, ...], x: F32) -> None:
        names = tuple(self._names[id(weight)] for weight in weights if id(weight) in self._names)
        if names:
            self._probe(names, x)


class _Watched(Operations):
    """Operations of kernels that show the inputs of every product of a probed matrix.

    Args:
        kernels: compute.
        host: returns the numbers of their arrays.
        show: called with matrices and their input.
        probed: ids of the matrices to show.
    """

    def __init__(
        self,
        kernels: Operations,
        host: Callable[[Array], F32],
        show: Show,
        probed: Collection[int],
    ) -> None:
        self._kernels, self._host, self._show, self._probed = kernels, host, show, probed

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        matrices = spec.pick(arguments, Kind.MATRIX)
        if any(id(weight) in self._probed for weight in matrices):
            if spec.name == Operations.experts.__name__:
                self._show_experts(*arguments)
            else:
                (x,) = spec.pick(arguments, Kind.VALUE)
                # A product of heads multiplies each head [R, K] of its input.
                self._show(matrices, self._host(x).reshape(-1, matrices[0].shape[1]))
        return getattr(self._kernels, spec.name)(*arguments)

    def _show_experts(self, x: Array, scores: Array, routing: Routing, *rest: Any) -> None:
        """Show the inputs of each expert's rows. Only computing the experts gives those of the last matrix."""
        gate, up, down, activation, *vectors, _, _ = rest
        selection, scale, *biases = (None if each is None else self._host(each) for each in vectors)
        routed = route(self._host(scores), routing, selection, scale)
        one, two, three = (_Shown(each, each, self._show) for each in (gate, up, down))
        first, second, third = biases
        add_experts(self._host(x), routed, (one, two, three), (first, second, third), activation, routing)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Rows of a matrix that shows the inputs of its products."""

    matrix: Weight
    inner: Weight
    show: Show

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def format(self) -> str:
        return self.inner.format

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def matmul(self, x: F32) -> F32:
        self.show((self.matrix,), x)
        return self.inner.matmul(x)

    def rows(self, ids: Int32) -> F32:
        return self.inner.rows(ids)

    def part(self, begin: int, end: int) -> Weight:
        return replace(self, inner=self.inner.part(begin, end))

    def dequantize(self) -> F32:
        return self.inner.dequantize()
