"""Stand-ins for tests of the benchmark: models of real shapes without values, and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ferrum.bench.limits import Costs, Rates
from ferrum.bench.report import Cell, Origin, Report, Sample, Setting
from ferrum.bench.shapes import SHAPES
from ferrum.kernels.recorded_program import record
from ferrum.models.decoder import build_decoder, inventory
from ferrum.models.families import decoder_spec

BYTES = {"float32": 4.0, "bfloat16": 2.0, "q8_0": 1.0625, "q4_0": 0.5625}


@dataclass(frozen=True, eq=False)
class SizedWeight:
    shape: tuple[int, int]
    format: str

    @property
    def nbytes(self) -> float:
        return BYTES[self.format] * self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class SizedSource:
    """Parameters of one format; the embedding, and so a tied head, may have another."""

    format: str
    head: str

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Any:
        return SizedWeight(shape, self.head if "embed" in name or "lm_head" in name else self.format)

    def vector(self, name: str, size: int) -> Any:
        return np.zeros(size, np.float32)

    def weight(self, weight: Any) -> Any:
        return weight

    def rope_table(self, *arguments: Any) -> Any:
        return None


class VectorlessKernels(SizedSource):
    def vector(self, values: Any) -> Any:  # type: ignore[override]
        return values


EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
"""Changes of the tiny shape into one with experts."""

LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": None,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
}
"""Changes of the tiny shape into one with latent attention and no experts."""


def costs_of(shape: str, format: str, head: str | None = None, kv_format: str = "bfloat16", **changes: Any) -> Costs:
    """Return the costs of a step of a shape in a format."""
    spec = decoder_spec({**SHAPES[shape], **changes})
    source = SizedSource(format, head or format)
    program = record(build_decoder(spec, source, VectorlessKernels(format, format), 64))
    size = 4.0 if kv_format == "float32" else 2.0
    stored = inventory(spec).kv_layers
    return Costs(program, kv_format, tuple(size * each.num_heads * (each.key_dim + each.value_dim) for each in stored))


def rates(read: float = 50.0, peak: float = 1000.0) -> Rates:
    """Return rates in units of 1e9 per second; each narrower format is twice as fast."""
    return Rates(read * 1e9, peak / 2 * 1e9, peak * 1e9, 2 * peak * 1e9, 2 * peak * 1e9)


def sample(figure: float, limit: float = 100.0) -> Sample:
    return Sample(figure, 0.9 * figure, limit)


def cell_of(workload: str, ratio: float, noise: float | None = 0.001) -> Cell:
    return Cell(
        workload=workload,
        figure=100 * ratio,
        whole=90 * ratio,
        limit=100.0,
        ratio=ratio,
        noise=noise,
        samples=(sample(100 * ratio),) * (1 if noise is None else 8),
    )


def report_of(*cells: Cell, **setting: Any) -> Report:
    named = {"model": "m", "formats": ("bfloat16",), "kv_format": "bfloat16", "threads": 2, **setting}
    origin = Origin(ferrum="0", numerics_id="n", started="2026-01-01T00:00:00+00:00", processor="p", prober="q")
    return Report(
        version=Report.LAYOUT,
        setting=Setting(**named),
        origin=origin,
        weight_bytes=1,
        best=rates(),
        cells=cells,
    )
