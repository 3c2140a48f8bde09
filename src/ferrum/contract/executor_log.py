"""Log records of an executor: INFO when it is made, DEBUG for each step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from ferrum.contract.capabilities import ExecutorTraits
from ferrum.contract.io_types import ModelInfo
from ferrum.core.errors import FerrumError
from ferrum.core.memory_plan import size
from ferrum.core.step import Span, StepBatch, StepOutput

logger: Final = logging.getLogger("ferrum.executor")

_SHOWN: Final = 8
"""Tokens of a span in the message of a record; its fields have all."""


def log_made(info: ModelInfo, traits: ExecutorTraits) -> None:
    """Log a new executor's model, kernels and memory at INFO."""
    plan = traits.memory
    memory = {"weights": plan.weights, "kv_pool": plan.kv_pool, "total": plan.total}
    fields = {"model": info.model_id, "family": info.family, "kernels": traits.kernels, "memory": memory}
    logger.info(
        "executor of %s (%s): %s kernels, %s of weights in %s, %s of KV pool in %s, %s in total",
        *(info.model_id, info.family, traits.kernels, size(plan.weights), info.dtype),
        *(size(plan.kv_pool), traits.kv_dtype, size(plan.total)),
        extra={"fields": fields},
    )


def log_step(batch: StepBatch, output: StepOutput) -> None:
    """Log the names, positions and tokens of a step at DEBUG; a failed span has its error."""
    spans = [_fields(*pair) for pair in zip(batch.spans, output.results, strict=True)]
    served = [span for span in spans if "error" not in span]
    tokens, milliseconds = sum(len(span["tokens"]) for span in served), 1e3 * output.seconds
    counts = len(served), len(spans), tokens, milliseconds
    listed = "; ".join(f"{span['cache_id']} position={span['position']} {_described(span)}" for span in spans)
    fields = {"spans": spans, "milliseconds": milliseconds}
    logger.debug("step: %d of %d spans, %d tokens, %.3f ms: %s", *counts, listed, extra={"fields": fields})


def _fields(span: Span, result: object) -> dict[str, Any]:
    fields = {"cache_id": span.cache_id, "position": span.start, "tokens": list(span.tokens)}
    return fields | ({"error": str(result)} if isinstance(result, FerrumError) else {})


def _described(span: dict[str, Any]) -> str:
    tokens: Sequence[int] = span["tokens"]
    more = ["..."] if len(tokens) > _SHOWN else []
    text = f"tokens=[{', '.join([*map(str, tokens[:_SHOWN]), *more])}]"
    return f"{text} failed: {span['error']}" if "error" in span else text
