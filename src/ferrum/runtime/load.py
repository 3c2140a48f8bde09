"""From a model's name to a ready executor, or to a plan of one.

Files are read in `checkpoint.py`, weights made in `parameters.py`, the pool sized in `memory.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ferrum.contract.capabilities import ExecutorTraits
from ferrum.contract.decoder_llm import LlmRuntimeConfig
from ferrum.contract.formats import DataType, Device
from ferrum.contract.io_types import ModelInfo
from ferrum.core.config import MAX_DRAFT, MAX_PAGE_SIZE, MAX_RUN_AHEAD, PAGE_SIZE, ModelConfig, Switches, auto_kv_dtype
from ferrum.core.errors import ConfigError
from ferrum.core.kv_shape import KvShape
from ferrum.core.logging import warn_once
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.option_fields import as_text, check_flag, check_number
from ferrum.core.span_checks import check_kind
from ferrum.core.values import shown
from ferrum.kernels.interface import Kernels
from ferrum.kernels.interpreter import Interpreter
from ferrum.kernels.op_spec import Extent
from ferrum.models.decoder import Decoder, Inventory, build_decoder, inventory
from ferrum.models.families import decoder_spec
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import EMBEDDING
from ferrum.quant.backend_quantizer import quantizer_of
from ferrum.quant.block_format import data_type
from ferrum.runtime.backend import choose_kernels
from ferrum.runtime.checkpoint import Checkpoint, TensorStore
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.runtime.memory import (
    LIBRARY_BYTES,
    PoolLimits,
    allowance,
    bytes_to_load,
    memory_for,
    refuse_too_large,
)
from ferrum.runtime.open_model import open_model
from ferrum.runtime.packed import PackedParameters, is_packed
from ferrum.runtime.parameters import Parameters, PlannedParameters, Progress, model_spec
from ferrum.runtime.pool_plan import PoolPlan, plan_pool
from ferrum.runtime.viewed_tensors import with_views

MAX_ROWS: Final = 512
"""Default limit of tokens in one forward pass."""

_LOGIT_BYTES: Final = 64 << 20
"""Size limit of the buffer of a pass's logits."""

_MAX_STEP_ROWS: Final = 1 << 32
"""Limit of tokens of a step: beyond it, sizes of buffers could overflow 64 bits."""


def load_executor(
    model: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    kv_dtype: str = "auto",
    kernels: str = "auto",
    isa: str = "auto",
    threads: int | None = None,
    max_batch_size: int | None = None,
    max_sequence_length: int | None = None,
    kv_capacity: int | None = None,
    models_dir: str | os.PathLike[str] | None = None,
    memory_pool_size: int | None = None,
    page_size: int = PAGE_SIZE,
    max_rows: int = MAX_ROWS,
    run_ahead: int = 0,
    replay: bool | None = None,
    log_tokens: bool | None = None,
    cache_prefix: str = "llm-cache",
    progress: Progress | None = None,
) -> LocalExecutor:
    """Load a model. The executor is ready: `status().is_ready` is true before the first step.

    Args:
        model: directory, GGUF file or hub id.
        device, dtype, quantize, kv_dtype, kernels, isa, threads, max_batch_size, max_sequence_length,
            kv_capacity, models_dir: see `ModelConfig`.
        memory_pool_size: maximum bytes of the KV pool; None follows `kv_capacity`.
        page_size: tokens per page of the KV pool.
        max_rows: maximum tokens of one forward pass; a larger step takes several.
        run_ahead: largest depth of `LocalExecutor.run_ahead` for a model with states, which are planned for it.
        replay: run the recorded program; None follows the environment (FERRUM_DISABLE_GRAPHS).
        log_tokens: log the best tokens of each span; None follows the environment (FERRUM_LOG_TOKENS).
        cache_prefix: new sequences are named `<prefix>-0`, `<prefix>-1`, ...
        progress: called with the bytes loaded and the bytes in total.

    Raises:
        ConfigError: an invalid option; `param` names it.
        Unsupported: a feature or architecture that is not implemented.
        ModelNotFound, CheckpointError: the model does not exist, or its files are damaged.
        CapacityError: not enough memory for the weights, the KV pool or the buffers of a step.
    """
    config = ModelConfig(
        model=as_text(model), device=device, dtype=dtype, quantize=quantize, kv_dtype=kv_dtype,
        kernels=kernels, isa=isa, threads=threads, max_batch_size=max_batch_size,
        max_sequence_length=max_sequence_length, kv_capacity=kv_capacity,
        models_dir=as_text(models_dir), switches=_switches(replay, log_tokens),
    )  # fmt: skip
    return build_executor(
        config,
        memory_pool_size=memory_pool_size,
        page_size=page_size,
        max_rows=max_rows,
        run_ahead=run_ahead,
        cache_prefix=cache_prefix,
        progress=progress,
    )


def _switches(replay: bool | None, log_tokens: bool | None) -> Switches:
    """Return the environment's switches, with arguments in their place."""
    switches = Switches.from_environment()
    if replay is not None:
        check_flag("replay", replay)
        switches = replace(switches, disable_graphs=not replay)
    if log_tokens is not None:
        check_flag("log_tokens", log_tokens)
        switches = replace(switches, log_tokens=log_tokens)
    return switches


def build_executor(
    config: ModelConfig,
    *,
    memory_pool_size: int | None = None,
    page_size: int = PAGE_SIZE,
    max_rows: int = MAX_ROWS,
    run_ahead: int = 0,
    cache_prefix: str = "llm-cache",
    progress: Progress | None = None,
    checkpoint: TensorStore | None = None,
) -> LocalExecutor:
    """Return the executor of a configuration. Arguments and errors as `load_executor`.

    With a `checkpoint`, its tensors are loaded, and the configuration's model is only a name.
    """
    if memory_pool_size is not None:
        check_number("memory_pool_size", memory_pool_size, 1)
    check_number("page_size", page_size, 1, MAX_PAGE_SIZE)
    check_number("max_rows", max_rows, 1)
    check_number("run_ahead", run_ahead, 0, MAX_RUN_AHEAD)
    check_kind(cache_prefix, str, param="cache_prefix")
    if progress is not None and not callable(progress):
        raise ConfigError(f"must take the bytes loaded and the bytes in total, not {shown(progress)}", param="progress")
    bounds = _Bounds(memory_pool_size, page_size, max_rows, run_ahead)
    lm, plan = _assemble(config, bounds, checkpoint, progress)
    log_tokens = config.switches.log_tokens
    executor = LocalExecutor(lm, info=plan.info, traits=plan.traits, log_tokens=log_tokens, cache_prefix=cache_prefix)
    executor.warmup()
    return executor


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The properties of an executor that loading a model would give.

    Attributes:
        info, traits: the executor's.
        kv_capacity: tokens that fit in the KV pool.
        formats: numbers of the matrices by the formats that they are held in.
    """

    info: ModelInfo
    traits: ExecutorTraits
    kv_capacity: int
    formats: Mapping[str, int] = field(default_factory=dict)


def plan_model(config: ModelConfig) -> ModelPlan:
    """Return the plan of `build_executor` for a configuration. Errors as there, except that nothing is too large.

    No tensor is read or fetched, and no memory is taken for matrices and pages. A pool without a given capacity is
    sized as if the weights were loaded, and has at least one page.
    """
    source = open_model(config.model, headers_only=True, models_dir=config.models_dir)
    return _assemble(config, _Bounds(), source.checkpoint(), planning=True)[1]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Arguments of `load_executor` that `ModelConfig` lacks."""

    memory_pool_size: int | None = None
    page_size: int = PAGE_SIZE
    max_rows: int = MAX_ROWS
    run_ahead: int = 0


def _assemble(
    config: ModelConfig,
    bounds: _Bounds,
    checkpoint: TensorStore | None = None,
    progress: Progress | None = None,
    *,
    planning: bool = False,
) -> tuple[DecoderLM, ModelPlan]:
    """Return a model with its kernels and its pool, and its plan. A planned model cannot run steps."""
    checkpoint = checkpoint or open_model(config.model, models_dir=config.models_dir).checkpoint()
    spec = model_spec(checkpoint, config.max_sequence_length, planning=planning)
    asks = inventory(spec)
    checkpoint = with_views(checkpoint, asks)
    widest = max((max(kv.key_dim, kv.value_dim) for kv in asks.kv_layers), default=1)
    options = config.kernels, config.isa, config.threads
    chosen = choose_kernels(config.device, *options, head_dim=widest, planning=planning)
    context = _context(spec, config.max_sequence_length)
    if not planning and chosen.kernels.quantizer() is not None:
        refuse_too_large(config, checkpoint, asks)
    parameters = _parameters(config, checkpoint, chosen.kernels, progress, planning=planning)
    if not is_packed(checkpoint):  # packed tensors have other shapes, and load at once
        parameters.expect(asks.shapes, spec.ignored_names, asks.exact)
    sequences = config.max_batch_size or min(config.max_sequences, bounds.max_rows)
    limits = PoolLimits(
        page_size=bounds.page_size,
        max_batch_size=sequences,
        full_sequences=config.full_sequences,
        max_sequence_length=context,
        max_rows=max(bounds.max_rows, sequences),
        max_draft=MAX_DRAFT,
        run_ahead=bounds.run_ahead,
        kv_capacity=config.kv_capacity,
        memory_pool_size=bounds.memory_pool_size,
        bytes_to_load=0 if config.kv_capacity else bytes_to_load(config, checkpoint, asks),
        mapped=checkpoint.nbytes if is_packed(checkpoint) else 0,
        device_memory=chosen.kernels.device_memory(),
        planning=planning,
    )
    kv_format = _kv_format(config, checkpoint, parameters, asks)
    pool = plan_pool(asks, kv_format, limits, chosen.kernels.planned_page_bytes)
    positions = pool.longest  # no sequence has a token after them
    with memory_for(f"the weights, and the rotations of {positions:,} positions (max_sequence_length)"):
        decoder = build_decoder(spec, parameters, chosen.kernels, 1 if planning else positions)
    if planning:
        chosen.kernels.table_bytes += 2 * 4 * asks.rope_numbers * (positions - 1)  # cosines and sines
    parameters.finish(spec.ignored_names)
    held = pool.without_pages() if planning else pool
    lm = _language_model(decoder, chosen.kernels, held, replay=not config.switches.disable_graphs)
    own = decoder_spec(checkpoint.config)
    traits = replace(
        _traits(lm, decoder, kv_format, pool),
        weights=_weights(parameters, spec, own),
        notes=(*chosen.notes, *_notes(config, checkpoint, headless=spec.tied_head and not own.tied_head)),
    )
    info = replace(_info(config, spec, asks, parameters), device=Device(chosen.kernels.device))
    return lm, ModelPlan(info, traits, pool.capacity, dict(parameters.by_format))


def _parameters(
    config: ModelConfig, checkpoint: TensorStore, kernels: Kernels, progress: Progress | None, *, planning: bool
) -> Parameters:
    dtype, scheme = config.dtype, config.quantize
    if isinstance(checkpoint, Checkpoint) and is_packed(checkpoint):
        sums = None if planning else kernels.page_sums()
        return PackedParameters(checkpoint, dtype, progress, quantize=scheme, sums=sums)
    if planning:
        return PlannedParameters(checkpoint, dtype, quantize=scheme)
    return Parameters(checkpoint, dtype, progress, quantize=scheme, quantizer=quantizer_of(kernels))


def _context(spec: DecoderSpec, asked: int | None) -> int:
    if asked is not None and asked > spec.max_sequence_length:
        raise ConfigError(
            f"{asked} exceeds the model's context of {spec.max_sequence_length}", param="max_sequence_length"
        )
    return asked or spec.max_sequence_length


def _kv_format(config: ModelConfig, checkpoint: TensorStore, parameters: Parameters, asks: Inventory) -> str:
    """Return the format of keys and values: the configured one, or that of the embedding's numbers."""
    if config.kv_dtype != "auto":
        return config.kv_dtype
    if not parameters.format:  # no matrix was read yet
        parameters = PlannedParameters(checkpoint, config.dtype, quantize=config.quantize)
        parameters.matrix(EMBEDDING, (asks.shapes[EMBEDDING][0], asks.shapes[EMBEDDING][1]))
    return auto_kv_dtype(parameters.format)


def _language_model(decoder: Decoder, kernels: Kernels, pool: PoolPlan, *, replay: bool) -> DecoderLM:
    pool.allocate(kernels)
    limits = pool.limits
    with memory_for(f"the buffers of steps of {limits.max_rows:,} tokens (max_rows)"):
        if limits.max_rows > _MAX_STEP_ROWS:
            raise MemoryError
        return DecoderLM(
            decoder,
            kernels,
            pool.table(),
            config=_runtime_config(decoder, limits.max_sequence_length),
            max_rows=limits.max_rows,
            max_logit_rows=max(MAX_DRAFT + 1, _LOGIT_BYTES // (4 * decoder.spec.vocab_size)),
            replay=replay,
        )


def _runtime_config(decoder: Decoder, context: int) -> LlmRuntimeConfig:
    spec = decoder.spec
    heads, head_dim = _stored_first(decoder.kv_layers)
    return LlmRuntimeConfig(
        hidden_size=spec.hidden_size,
        num_layers=len(spec.layers),
        num_kv_heads=heads,
        head_dim=head_dim,
        vocab_size=spec.vocab_size,
        max_seq_len=context,
    )


def _stored_first(kv_layers: Sequence[KvShape]) -> tuple[int, int]:
    """Return heads and width of the keys of the first part that stores per token; zeros without one."""
    return next(((kv.num_heads, kv.key_dim) for kv in kv_layers), (0, 0))


def _weights(parameters: Parameters, spec: DecoderSpec, own: DecoderSpec) -> str:
    """Return the name of the weights' format; a context that changes dynamic rope is part of it."""
    return parameters.made if spec.layers == own.layers else f"{parameters.made} for {spec.max_sequence_length} tokens"


def _notes(config: ModelConfig, checkpoint: TensorStore, *, headless: bool) -> tuple[str, ...]:
    """Return warnings about a checkpoint. A model is headless if only its files, not its configuration, say so."""
    notes = checkpoint.notes if config.dtype == "auto" and config.quantize is None else ()
    if headless:
        note = f"{config.model} was saved without a head: use it for embeddings only, generated text is meaningless"
        warn_once(note)
        notes = (*notes, note)
    return notes


def _info(config: ModelConfig, spec: DecoderSpec, asks: Inventory, parameters: Parameters) -> ModelInfo:
    kv_heads, head_dim = _stored_first(asks.kv_layers)
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


def _traits(lm: DecoderLM, decoder: Decoder, kv_format: str, pool: PoolPlan) -> ExecutorTraits:
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
    )
    return ExecutorTraits(
        backend=lm.kernels.name,
        numerics_id=lm.kernels.numerics_id,
        tier=lm.kernels.tier,
        kv_dtype=DataType(kv_format),
        max_batch_size=limits.max_batch_size,
        max_sequence_length=limits.max_sequence_length,
        memory=memory,
        dtypes=frozenset(DataType),
        windows=any(kv.window is not None for kv in decoder.kv_layers),
        latent=any(kv.latent for kv in decoder.kv_layers),
        flash=True,  # online softmax over steps of 64 keys: no row of scores is ever whole
        attention_weights=lm.kernels.captures,
        layer_states=lm.kernels.captures,
    )
