"""Tiny models of every family with weights from our own generator, and the hash of their logits."""

from __future__ import annotations

import zlib
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from block_store import fixed_blocks
from family_cases import FAMILY_CASES
from ferrum.core.config import ModelConfig
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight
from ferrum.runtime.load import build_executor
from ferrum.sampling.philox import fixed_numbers
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.tensor_file import TensorInfo
from ferrum.verbs.load_executor import LocalExecutor

BASE: dict[str, Any] = {
    "vocab_size": 137,
    "hidden_size": 72,
    "intermediate_size": 140,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SCALING = {"factor": 4.0, "original_max_position_embeddings": 32}
FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "head_dim": 32,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SCALING},
    },
    "MistralForCausalLM": {"head_dim": 24, "sliding_window": 20, "tie_word_embeddings": True},
    "MinistralForCausalLM": {
        "head_dim": 16,
        "sliding_window": 66,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "Qwen2ForCausalLM": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "Qwen3ForCausalLM": {"head_dim": 40, "rope_scaling": {"rope_type": "yarn", **SCALING}},
}
"""By architecture: what differs from `BASE`, so that every kind of part occurs. They have every format."""

ARCHITECTURES = {
    case[1].removesuffix("Config").removesuffix("Text") + "ForCausalLM": case for case in FAMILY_CASES[::-1]
}
_STATED: dict[str, dict[str, Any]] = {
    "DeepseekV3ForCausalLM": {"routed_scaling_factor": 1.0},
    "Ernie4_5ForCausalLM": {"rope_theta": 10000.0},
    "Ernie4_5_MoeForCausalLM": {"rope_theta": 10000.0},
    "Glm4MoeLiteForCausalLM": {"rms_norm_eps": 1e-6, "routed_scaling_factor": 1.0},
    "MiniMaxM2ForCausalLM": {"rope_theta": 10000.0},
    "Ministral3ForCausalLM": {"rms_norm_eps": 1e-6},
    "MixtralForCausalLM": {"rms_norm_eps": 1e-6},
    "Olmo3ForCausalLM": {"rope_theta": 10000.0},
    "SmolLM3ForCausalLM": {"rope_theta": 10000.0},
}
"""Values of the table's models that differ from those of their classes and that `family_cases.py` does not set."""

OTHER_FIELDS = {
    name: {**ARCHITECTURES[name][2], **_STATED.get(name, {})}
    for name in sorted(ARCHITECTURES.keys() - FAMILY_FIELDS.keys())
}
"""The same for the other architectures: the first model of each in `family_cases.py`, in two formats."""

DENSE = ("float32", "float16", "bfloat16")
RARE = tuple(
    name for name, kind in BLOCK_FORMATS.items() if kind.low or kind.float8 or (kind.groups > 1 and kind.sub is None)
)
WEIGHTS = (*DENSE, *(name for name in BLOCK_FORMATS if name not in RARE))
KV_FORMATS = ("float32", "bfloat16", "int8")
OTHER_FORMATS = (("float32", "float32"), ("q8_0", "bfloat16"))
CASES = (
    *product(FAMILY_FIELDS, WEIGHTS, KV_FORMATS),
    *((next(iter(FAMILY_FIELDS)), weights, "float32") for weights in RARE),
    *((family, *formats) for family in OTHER_FIELDS for formats in OTHER_FORMATS),
)
PROMPT, DECODED = 70, 8  # the prompt is longer than a step of 64 keys


class FixedCheckpoint(TensorStore):
    """A checkpoint whose numbers depend on the names of its tensors only: in float32, matrices perhaps in blocks."""

    headless = False

    def __init__(self, architecture: str, format: str = "float32") -> None:
        self._kind = BLOCK_FORMATS.get(format)
        self.directory = Path(architecture)
        self.config = {**BASE, "architectures": [architecture], **{**FAMILY_FIELDS, **OTHER_FIELDS}[architecture]}
        shapes = parameter_shapes(decoder_spec(self.config))
        self.tensors = {name: TensorInfo("F32", shape, 0, 4 * prod(shape)) for name, shape in shapes.items()}

    def read(self, name: str) -> NDArray[Any]:
        shape = self.tensors[name].shape
        numbers = fixed_numbers(prod(shape), seed=zlib.crc32(name.encode())).reshape(shape)
        if len(shape) == 2:
            return numbers * np.float32(0.3)
        return numbers * np.float32(0.2) + np.float32(0 if name.endswith(".bias") else 1)

    def block_format(self, name: str) -> str | None:
        return None if self._kind is None else self._kind.name

    def blocks(self, name: str) -> BlockWeight:
        assert self._kind is not None, "the checkpoint is in blocks"
        return fixed_blocks(name, self._kind.name, self.tensors[name].shape)


def key(family: str, weights: str, kv_format: str) -> str:
    """Return the name of a case in the table."""
    return f"{family.removesuffix('ForCausalLM')}, {weights}, {kv_format}"


def logits_hash(family: str, weights: str, kv_format: str, **options: Any) -> str:
    """Hash the logits of a prompt and of eight greedily decoded tokens.

    Args:
        family, weights, kv_format: a case of `CASES`.
        options: of the model: kernels, isa, threads.
    """
    dtype = weights if weights in DENSE else "auto"
    config = ModelConfig(model=family, dtype=dtype, kv_dtype=kv_format, max_batch_size=1, kv_capacity=128, **options)
    tokens = tuple(7 * i % BASE["vocab_size"] for i in range(PROMPT))
    digest = sha256()
    with build_executor(LocalExecutor, config, checkpoint=FixedCheckpoint(family, weights), max_rows=96) as executor:
        start = 0
        for _ in range(1 + DECODED):
            span = Span("s", start, tokens, Want.LOGITS, Rows.ALL)
            logits = executor.submit(StepBatch((span,))).result().results[0].logits
            assert logits is not None and np.isfinite(logits).all()
            digest.update(np.ascontiguousarray(logits, "<f4").tobytes())
            start, tokens = start + len(tokens), (int(np.argmax(logits[-1])),)
    return digest.hexdigest()[:16]
