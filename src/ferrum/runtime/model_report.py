"""What a loaded or planned model reports: its description, its traits and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferrum.contract.model_info import DataType, Device, ExecutorTraits, ModelInfo
from ferrum.core.config import ModelConfig
from ferrum.core.logging import warn_once
from ferrum.core.memory_plan import MemoryPlan
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.recorded_program import Interpreter
from ferrum.models.decoder import Decoder
from ferrum.models.spec import DecoderSpec
from ferrum.quant.block_format import data_type
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.memory import (
    LIBRARY_BYTES,
    allowance,
)
from ferrum.runtime.pool_sizes import PoolSizes
from ferrum.sources.parameters import Parameters
from ferrum.sources.read_model import ReadModel


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The properties of an executor that loading a model would give.

    Attributes:
        info, traits: the executor's.
        kv_capacity: tokens that fit in the KV pool.
        formats: numbers of the matrices by the formats that they are held in.
        device_memory: free bytes of the device, or of the one that a plan assumes; None for the CPU.
        tower: bytes of the tower for images, in host memory; 0 without one.
    """

    info: ModelInfo
    traits: ExecutorTraits
    kv_capacity: int
    formats: Mapping[str, int] = field(default_factory=dict)
    device_memory: int | None = None
    tower: int = 0


def plan_of(
    config: ModelConfig,
    model: ReadModel,
    parameters: Parameters,
    notes: Sequence[str],
    lm: DecoderLM,
    decoder: Decoder,
    pool: PoolSizes,
) -> ModelPlan:
    """Return the plan of an assembled model; `notes` are warnings about its kernels."""
    headless = model.spec.tied_head and not model.own.tied_head
    traits = replace(
        _traits(lm, decoder, pool),
        weights=_weights(parameters, model.spec, model.own),
        notes=(*notes, *_notes(config, headless=headless)),
    )
    info = replace(_info(config, model, parameters), device=Device(lm.kernels.device))
    return ModelPlan(info, traits, pool.capacity, dict(parameters.by_format), pool.limits.device_memory)


def _weights(parameters: Parameters, spec: DecoderSpec, own: DecoderSpec) -> str:
    """Return the name of the weights' format; a context that changes dynamic rope is part of it."""
    return parameters.made if spec.layers == own.layers else f"{parameters.made} for {spec.max_sequence_length} tokens"


def _notes(config: ModelConfig, *, headless: bool) -> tuple[str, ...]:
    """Return warnings about a checkpoint. A model is headless if only its files, not its configuration, say so."""
    if not headless:
        return ()
    note = f"{config.model} was saved without a head: use it for embeddings only, generated text is meaningless"
    warn_once(note)
    return (note,)


def _info(config: ModelConfig, model: ReadModel, parameters: Parameters) -> ModelInfo:
    spec, asks, (kv_heads, head_dim) = model.spec, model.asks, model.first_stored
    return ModelInfo(
        model_id=config.model,
        family=spec.family,
        num_parameters=parameters.count,
        vocab_size=spec.vocab_size,
        max_sequence_length=spec.max_sequence_length,
        hidden_size=spec.hidden_size,
        num_layers=len(spec.layers),
        num_heads=asks.num_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=data_type(parameters.main_format),
        kv_layers=asks.kv_layers,
        state_layers=asks.state_layers,
    )


def _traits(lm: DecoderLM, decoder: Decoder, pool: PoolSizes) -> ExecutorTraits:
    limits = pool.limits
    memory = MemoryPlan(
        weights=sum(weight.nbytes for weight in decoder.weights.values()),
        activations=sum(map(lm.buffer_bytes, Extent))
        + lm.kernels.scratch_bytes
        + lm.sampler.held_bytes(decoder.spec.vocab_size),
        activation_row=lm.buffer_bytes(Extent.ROWS) // limits.max_rows,
        tables=lm.kernels.table_bytes,
        pool=pool.parts,
        states=pool.state_part,
        libraries=LIBRARY_BYTES,
        allowance=allowance(allocates=lm.replay is None or isinstance(lm.replay, Interpreter)),
        device=lm.kernels.device,
    )
    return ExecutorTraits(
        backend=lm.kernels.name,
        numerics_id=lm.kernels.numerics_id,
        tier=lm.kernels.tier,
        kv_dtype=DataType(pool.format),
        max_batch_size=limits.max_batch_size,
        max_sequence_length=limits.max_sequence_length,
        memory=memory,
        dtypes=frozenset(DataType),
        windows=any(kv.window is not None for kv in decoder.kv_layers),
        latent=any(kv.latent for kv in decoder.kv_layers),
        flash=True,  # online softmax over steps of 64 keys: no row of scores is ever whole
        attention_weights=lm.kernels.captures,
        layer_states=lm.kernels.captures,
        ranks=pool.ranks,
    )
