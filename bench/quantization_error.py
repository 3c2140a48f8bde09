"""Error of each weight format: bits per byte on held-out text, and divergence from the unquantised model.

    python bench/quantization_error.py --out bench/results/quantization_error.json
    python bench/quantization_error.py --kv --out bench/results/kv_error.json

Each scheme and group is measured as served (integers times integers), and with unrounded activations; the difference is
the error of rounding activations. The texts are modules of the standard library that the training of the built-in model
held out (`training/data.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import ModelConfig
from ferrum.core.step import Rows, Span, SpanResult, StepBatch, Want
from ferrum.kernels.interface import F32
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.formats import QUANTIZERS, SCHEMES, Quantizer
from ferrum.quant.int4 import Int4Weight, quantize_int4, quantize_int4_zero_points
from ferrum.quant.scale_groups import GROUPS, in_groups
from ferrum.quant.weight import GroupedWeight
from ferrum.runtime.checkpoint import TensorStore
from ferrum.runtime.hub import BUILT_IN
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.runtime.model_source import ModelSource
from ferrum.runtime.open_model import open_model

REPOSITORY: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Text:
    """A window of a text.

    Attributes:
        tokens: token ids.
        nbytes: bytes of all tokens except the first.
    """

    tokens: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The error of a format over all positions.

    Attributes:
        name: scheme, group, and whether activations are rounded.
        weight_bytes: bytes of all matrices.
        bits_per_byte: of the text.
        excess: bits per byte more than the unquantised model.
        divergence: mean Kullback-Leibler divergence from the unquantised model, bits per token.
        divergence_p99: its 99th percentile.
        same_choice: share of positions with the same most likely token.
    """

    name: str
    weight_bytes: int
    bits_per_byte: float
    excess: float
    divergence: float
    divergence_p99: float
    same_choice: float


class RoundedCheckpoint:
    """A `TensorStore` of matrices quantised and dequantised again, for the error of the weights alone.

    Attributes:
        weight_bytes: of all matrices read so far, quantised.
    """

    def __init__(self, store: TensorStore, layers: Quantizer, ends: Quantizer, group: int) -> None:
        self.directory, self.config, self.tensors = store.directory, store.config, store.tensors
        self.weight_bytes = 0
        self._store, self._layers, self._ends, self._group = store, layers, ends, group

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

    def file_of(self, name: str) -> str:
        return self._store.file_of(name)

    def read(self, name: str) -> NDArray[Any]:
        values = self._store.read(name)
        if values.ndim == 1:
            return values
        weight = (self._ends if name in (EMBEDDING, HEAD) else self._layers)(values, self._group)
        self.weight_bytes += weight.nbytes
        return weight.dequantize()

    def forget(self, name: str) -> None:
        self._store.forget(name)


def windows(model: ModelSource, files: Sequence[str], size: int, max_tokens: int) -> list[Text]:
    """Return windows spread evenly over the texts, with at most `max_tokens` tokens in total."""
    tokenizer = model.tokenizer()
    assert tokenizer is not None, f"{model.name} has no tokenizer"
    found: list[Text] = []
    for text in files:
        ids = tokenizer.encode(text)
        for begin in range(0, len(ids) - size + 1, size):
            part = tuple(ids[begin : begin + size])
            found.append(Text(part, len(tokenizer.decode(part[1:]).encode())))
    count = max(1, max_tokens // size)
    return [found[index * len(found) // count] for index in range(min(count, len(found)))]


class Judge:
    """Comparison of a model's distributions over the texts with those of its weights in float32."""

    def __init__(self, model: str, texts: list[Text]) -> None:
        self.model, self.texts = model, texts
        self.checkpoint = open_model(model).checkpoint()
        self.nbytes = sum(text.nbytes for text in texts)
        _, self.expected = self._run(self._floats())
        self.bits_per_byte = self._bits(self.expected)

    def costs(self, groups: Sequence[int]) -> Iterator[Cost]:
        """Measure bfloat16, every scheme and group (as served, and the weight error alone), and other int4 rules."""
        others = {
            "int4 by Q4_0's rule": _plain_int4,
            "int4 with zero points": QUANTIZERS["int4-zero-points"],
            "int4 with zero points, ranges tried": _tried_zero_points,
        }
        yield self._cost("bfloat16", self._floats("bfloat16"))
        for scheme, formats in SCHEMES.items():
            for group in groups:
                config = ModelConfig(model=self.model, quantize=scheme, group=group, kv_dtype="bfloat16")
                yield self._cost(f"{scheme}, groups of {group}", config)
                yield self._weights_alone(scheme, QUANTIZERS[formats.layers], QUANTIZERS[formats.ends], group)
        for group, (name, quantizer) in product(groups, others.items()):
            yield self._weights_alone(name, quantizer, QUANTIZERS["int8"], group)

    def kv_costs(self) -> Iterator[Cost]:
        """Measure every KV format with float32 weights, and int8 weights with int8 keys and values."""
        for kv_dtype in ("float32", "int8"):
            yield self._cost(f"{kv_dtype} keys and values", replace(self._floats(), kv_dtype=kv_dtype))
        everything = ModelConfig(model=self.model, quantize="int8", kv_dtype="int8")
        yield self._cost("int8, groups of 32, int8 keys and values", everything)

    def _floats(self, dtype: str = "float32") -> ModelConfig:
        return ModelConfig(model=self.model, dtype=dtype, kv_dtype="bfloat16")

    def _weights_alone(self, name: str, layers: Quantizer, ends: Quantizer, group: int) -> Cost:
        rounded = RoundedCheckpoint(self.checkpoint, layers, ends, group)
        cost = self._cost(f"{name}, groups of {group}, weights alone", self._floats(), checkpoint=rounded)
        return replace(cost, weight_bytes=rounded.weight_bytes)

    def _run(self, config: ModelConfig, **options: Any) -> tuple[int, list[NDArray[np.float64]]]:
        """Return the bytes of the weights, and the log-probabilities [tokens - 1, V] of each text."""
        with build_executor(config, **options) as executor:
            return executor.memory_plan.weights, [self._log_probabilities(executor, text) for text in self.texts]

    def _log_probabilities(self, executor: LocalExecutor, text: Text) -> NDArray[np.float64]:
        span = Span("text", 0, text.tokens[:-1], Want.LOGITS, Rows.ALL)
        (result,) = executor.submit(StepBatch((span,))).result().results
        executor.release_cache("text")
        assert isinstance(result, SpanResult), result
        assert result.logits is not None
        shifted = result.logits.astype(np.float64) - result.logits.max(axis=-1, keepdims=True)
        found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return found

    def _bits(self, found: list[NDArray[np.float64]]) -> float:
        nats = sum(
            -float(each[np.arange(len(each)), text.tokens[1:]].sum())
            for each, text in zip(found, self.texts, strict=True)
        )
        return nats / math.log(2) / self.nbytes

    def _cost(self, name: str, config: ModelConfig, **options: Any) -> Cost:
        weight_bytes, found = self._run(config, **options)
        pairs = list(zip(self.expected, found, strict=True))
        divergence = np.concatenate([(np.exp(p) * (p - q)).sum(axis=-1) for p, q in pairs]) / math.log(2)
        same = np.concatenate([p.argmax(axis=-1) == q.argmax(axis=-1) for p, q in pairs])
        bits = self._bits(found)
        return Cost(
            name=name,
            weight_bytes=weight_bytes,
            bits_per_byte=bits,
            excess=bits - self.bits_per_byte,
            divergence=float(divergence.mean()),
            divergence_p99=float(np.quantile(divergence, 0.99)),
            same_choice=float(same.mean()),
        )


def _plain_int4(values: NDArray[Any], group: int) -> GroupedWeight:
    return quantize_int4(values, group, ())


def _tried_zero_points(values: NDArray[Any], group: int) -> Int4Weight:
    """Quantise with zero points over the part of each group's range that has the least squared error."""
    blocks = in_groups(values, group)
    best = quantize_int4_zero_points(values, group)
    least = _squared_errors(best, blocks)
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    for part in (0.97, 0.94, 0.91, 0.88, 0.82):
        cut = np.clip(blocks, part * low[..., None], part * high[..., None])
        tried = quantize_int4_zero_points(cut.reshape(len(values), -1)[:, : values.shape[1]], group)
        error = _squared_errors(tried, blocks)
        better = error < least
        least[better] = error[better]
        for name in ("packed", "scales", "zero_points"):
            ours, theirs = (getattr(each, name).reshape(*better.shape, -1) for each in (best, tried))
            ours[better] = theirs[better]
    return best


def _squared_errors(weight: GroupedWeight, blocks: F32) -> F32:
    """Return the squared error of each group, [N, G]."""
    errors: F32 = ((in_groups(weight.dequantize(), weight.group) - blocks) ** 2).sum(axis=-1)
    return errors


def held_out() -> list[str]:
    """Return the texts that the built-in model has not seen."""
    sys.path.insert(0, str(REPOSITORY / "training"))
    from data import read_corpus

    return [source.text for source in read_corpus().held_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default=BUILT_IN, help="a directory, a hub id, or the built-in model")
    parser.add_argument(
        "--text", type=Path, nargs="*", help="UTF-8 files; default: what the built-in model has not seen"
    )
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--tokens", type=int, default=16384, help="tokens in all")
    parser.add_argument("--groups", type=int, nargs="*", default=list(GROUPS), help="sizes of groups")
    parser.add_argument("--kv", action="store_true", help="measure formats of keys and values instead")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args()
    files = [path.read_text("utf-8") for path in given.text] if given.text else held_out()
    texts = windows(open_model(given.model), files, given.window, given.tokens)
    judge = Judge(given.model, texts)
    tokens = sum(len(text.tokens) - 1 for text in texts)
    print(f"{given.model}: {tokens} tokens, {judge.nbytes} bytes, {judge.bits_per_byte:.4f} bits per byte in float32")
    print(f"{'':50} {'MB':>7} {'bits/byte':>9} {'excess':>8} {'KL bits':>8} {'p99':>7} {'same':>6}")
    costs = []
    for cost in judge.kv_costs() if given.kv else judge.costs(given.groups):
        costs.append(asdict(cost))
        print(
            f"{cost.name:50} {cost.weight_bytes / 1e6:7.2f} {cost.bits_per_byte:9.4f} {cost.excess:8.5f} "
            f"{cost.divergence:8.5f} {cost.divergence_p99:7.4f} {cost.same_choice:6.4f}",
            flush=True,
        )
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "model": given.model,
            "window": given.window,
            "tokens": tokens,
            "bytes": judge.nbytes,
            "float32_bits_per_byte": judge.bits_per_byte,
            "costs": costs,
            "python": platform.python_version(),
        }
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
