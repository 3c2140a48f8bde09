"""What an executor can do: derived from what it is made of, never declared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ferrum.contract.io_types import DataType, Device, ModelInfo
from ferrum.core.json_record import JsonRecord
from ferrum.core.memory_plan import MemoryPlan, MemoryRequirements, memory_requirements


class AttentionType(StrEnum):
    """Kinds of attention: the first three say how heads are shared, the others how keys are read."""

    MULTI_HEAD = "MultiHead"
    MULTI_QUERY = "MultiQuery"
    GROUPED_QUERY = "GroupedQuery"
    FLASH = "Flash"
    PAGED = "Paged"
    SLIDING_WINDOW = "SlidingWindow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTraits:
    """What is true of an executor from its construction on. All that it reports of itself follows from this.

    Attributes:
        backend: the kernels in use ("reference", "native", "cuda").
        numerics_id: kernel set, instruction tier and version of the numerics; equal ids give equal bits.
        kv_dtype: format of keys and values.
        max_batch_size: most sequences of one step.
        max_sequence_length: most tokens of a sequence.
        memory: what it holds.
        weights: what was made of the checkpoint; with one numerics_id and one kv_dtype, equal names mean equal bits.
        group: inputs that share a scale of quantised weights; None: none are quantised.
        dtypes: weight formats that it could have been loaded in.
        windows: some layers see a sliding window.
        paged: keys and values live in pages of the pool.
        flash: attention never holds a row of scores for the whole context.
        attention_weights: attention probabilities can be returned.
        notes: what a user should know of how it was built (a fast path that is missing, and why).
    """

    backend: str
    numerics_id: str
    kv_dtype: DataType
    max_batch_size: int
    max_sequence_length: int
    memory: MemoryPlan
    weights: str = ""
    group: int | None = None
    dtypes: frozenset[DataType] = frozenset()
    windows: bool = False
    paged: bool = True
    flash: bool = False
    attention_weights: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCapabilities(JsonRecord):
    """What an executor can do.

    Attributes:
        max_batch_size: most sequences of one step.
        max_sequence_length: most tokens of a sequence.
        attention_mechanisms: how heads are shared, and how keys are read.
        supports_dynamic_batching: several sequences share a forward pass.
        supports_continuous_batching: sequences join and leave between any two steps.
        supports_speculative_decoding: a span may carry drafts.
        supports_tensor_parallelism, supports_pipeline_parallelism: the model is cut over several devices.
        supported_dtypes, supported_devices: what the model could have been loaded as.
        memory_requirements: the formula of its memory.
    """

    max_batch_size: int
    max_sequence_length: int
    attention_mechanisms: frozenset[AttentionType]
    supports_dynamic_batching: bool
    supports_continuous_batching: bool
    supports_speculative_decoding: bool
    supports_tensor_parallelism: bool
    supports_pipeline_parallelism: bool
    supported_dtypes: frozenset[DataType]
    supported_devices: frozenset[Device]
    memory_requirements: MemoryRequirements


def capabilities(info: ModelInfo, traits: ExecutorTraits) -> ExecutorCapabilities:
    """What follows for an executor of this model with these traits."""
    return ExecutorCapabilities(
        max_batch_size=traits.max_batch_size,
        max_sequence_length=traits.max_sequence_length,
        attention_mechanisms=_mechanisms(info, traits),
        supports_dynamic_batching=traits.max_batch_size > 1,
        # Any span may begin, end or pause its sequence, and a draft is one more token of a span.
        supports_continuous_batching=True,
        supports_speculative_decoding=traits.max_sequence_length > 1,
        # One executor holds all layers on one device; a sharded one will say otherwise.
        supports_tensor_parallelism=False,
        supports_pipeline_parallelism=False,
        supported_dtypes=traits.dtypes | {info.dtype},
        supported_devices=frozenset({info.device}),
        memory_requirements=memory_requirements(
            traits.memory, info.kv_bytes_per_token_and_layer(traits.kv_dtype), info.num_layers, traits.max_batch_size
        ),
    )


def head_sharing(num_heads: int, num_kv_heads: int) -> AttentionType:
    """How query heads share KV heads: one each, one for all (Shazeer 2019), or groups (Ainslie et al. 2023)."""
    if num_heads == num_kv_heads:
        return AttentionType.MULTI_HEAD
    return AttentionType.MULTI_QUERY if num_kv_heads == 1 else AttentionType.GROUPED_QUERY


def _mechanisms(info: ModelInfo, traits: ExecutorTraits) -> frozenset[AttentionType]:
    found = {head_sharing(info.num_heads, info.num_kv_heads)}
    if traits.paged:
        found.add(AttentionType.PAGED)
    if traits.windows:
        found.add(AttentionType.SLIDING_WINDOW)
    if traits.flash:
        found.add(AttentionType.FLASH)
    return frozenset(found)
