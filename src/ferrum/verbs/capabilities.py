"""An executor's capabilities, derived from its traits and its model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ferrum.contract.model_info import DataType, Device, ExecutorTraits, ModelInfo
from ferrum.core.json_record import JsonRecord
from ferrum.core.memory_plan import MemoryRequirements, memory_requirements


class AttentionType(StrEnum):
    """Kinds of attention: the first three are how heads are shared, the others how keys are stored and read."""

    MULTI_HEAD = "MultiHead"
    MULTI_QUERY = "MultiQuery"
    GROUPED_QUERY = "GroupedQuery"
    FLASH = "Flash"
    PAGED = "Paged"
    SLIDING_WINDOW = "SlidingWindow"
    LATENT = "Latent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCapabilities(JsonRecord):
    """The capabilities of an executor.

    Attributes:
        max_batch_size: maximum sequences of one step, each of which needs a page of the pool.
        max_sequence_length: maximum tokens of a sequence: the context, but at most what the pool holds.
        attention_mechanisms: how heads are shared, and how keys are stored and read.
        supports_dynamic_batching: several sequences share a forward pass.
        supports_continuous_batching: sequences join and leave between any two steps.
        supports_speculative_decoding: a span may carry drafts.
        supports_tensor_parallelism, supports_pipeline_parallelism: the model is split over several devices.
        supported_dtypes, supported_devices: formats and devices that the model can be loaded in.
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
    """Return the capabilities of an executor of this model with these traits."""
    return ExecutorCapabilities(
        max_batch_size=traits.largest_batch,
        max_sequence_length=traits.longest_sequence,
        attention_mechanisms=_mechanisms(info, traits),
        supports_dynamic_batching=traits.largest_batch > 1,
        # Any span may begin, end or pause its sequence; a draft is one more token of a span.
        supports_continuous_batching=True,
        supports_speculative_decoding=traits.longest_sequence > 1,
        # One executor holds all layers on one device.
        supports_tensor_parallelism=False,
        supports_pipeline_parallelism=False,
        supported_dtypes=traits.dtypes | {info.dtype},
        supported_devices=frozenset({info.device}),
        memory_requirements=memory_requirements(
            traits.memory, info.kv_bytes_per_token(traits.kv_dtype), info.num_layers, traits.max_batch_size
        ),
    )


def head_sharing(num_heads: int, num_kv_heads: int) -> AttentionType:
    """Return how query heads share KV heads: one each, one for all (Shazeer 2019), or groups (Ainslie et al. 2023)."""
    if num_heads == num_kv_heads:
        return AttentionType.MULTI_HEAD
    return AttentionType.MULTI_QUERY if num_kv_heads == 1 else AttentionType.GROUPED_QUERY


def _mechanisms(info: ModelInfo, traits: ExecutorTraits) -> frozenset[AttentionType]:
    if not info.num_heads:
        return frozenset()
    found = {head_sharing(info.num_heads, info.num_kv_heads)}
    if traits.paged:
        found.add(AttentionType.PAGED)
    if traits.windows:
        found.add(AttentionType.SLIDING_WINDOW)
    if traits.latent:
        found.add(AttentionType.LATENT)
    if traits.flash:
        found.add(AttentionType.FLASH)
    return frozenset(found)
