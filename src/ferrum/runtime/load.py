"""From a configuration to a ready executor, or to a plan of one.

Files are read in `checkpoint.py`, weights made in `parameters.py`, the pool sized in `memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar
from weakref import ref

import numpy as np

from ferrum.contract.decoder_llm import LlmRuntimeConfig
from ferrum.core.config import MAX_DRAFT, MAX_PAGE_SIZE, MAX_RUN_AHEAD, PAGE_SIZE, ModelConfig, auto_kv_dtype
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import check_number
from ferrum.core.values import shown
from ferrum.kernels.cpu.library import available_threads
from ferrum.kernels.exchange import RankExchange, memory_bytes
from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import Bytes
from ferrum.models.decoder import Decoder, Inventory, build_decoder
from ferrum.models.rank_cuts import ONE_RANK, Ranks
from ferrum.models.tensor_names import EMBEDDING
from ferrum.runtime.backend import choose_kernels
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.runtime.memory import (
    PoolLimits,
    bytes_to_load,
    memory_for,
    refuse_too_large,
)
from ferrum.runtime.model_report import ModelPlan as ModelPlan
from ferrum.runtime.model_report import plan_of
from ferrum.runtime.pool_sizes import PoolSizes, pool_sizes
from ferrum.runtime.rank_messages import MAX_ROWS as MAX_ROWS
from ferrum.runtime.rank_messages import Bounds as Bounds
from ferrum.runtime.sharded_replay import KeptHeads
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.sources.packed import parameters_of
from ferrum.sources.parameters import Parameters, PlannedParameters, Progress
from ferrum.sources.read_model import ReadModel, read_spec

Executor = TypeVar("Executor", bound=LocalStepExecutor)


def build_executor(
    kind: Callable[..., Executor],
    config: ModelConfig,
    *,
    memory_pool_size: int | None = None,
    page_size: int = PAGE_SIZE,
    max_rows: int = MAX_ROWS,
    run_ahead: int = 0,
    progress: Progress | None = None,
    checkpoint: TensorStore | None = None,
    reserved: int = 0,
) -> Executor:
    """Return the executor of a configuration. It is ready: `warmup` has run.

    Args:
        kind: `LocalStepExecutor`, or what makes one of its subclasses from the same arguments.
        config: the model and its options.
        memory_pool_size, page_size, max_rows, run_ahead, progress: see `load_executor`.
        checkpoint: tensors to load; the configuration's model is then only a name.
        reserved: bytes that a pool without a given capacity leaves.

    Raises:
        ConfigError, Unsupported, ModelNotFound, CheckpointError, CapacityError: see `load_executor`.
    """
    if memory_pool_size is not None:
        check_number("memory_pool_size", memory_pool_size, 1)
    check_number("page_size", page_size, 1, MAX_PAGE_SIZE)
    check_number("max_rows", max_rows, 1)
    check_number("run_ahead", run_ahead, 0, MAX_RUN_AHEAD)
    if progress is not None and not callable(progress):
        raise ConfigError(f"must take the bytes loaded and the bytes in total, not {shown(progress)}", param="progress")
    bounds = Bounds(memory_pool_size, page_size, max_rows, run_ahead, reserved)
    made = _loaded(_of_each_rank(config), bounds, checkpoint, progress)
    executor = kind(
        made.lm,
        info=made.plan.info,
        traits=made.plan.traits,
        log_tokens=config.switches.log_tokens,
        open_adapter=partial(_open_adapter, config, None if checkpoint is None else ref(checkpoint)),
    )
    executor.warmup()
    return executor


def _loaded(
    config: ModelConfig, bounds: Bounds, checkpoint: TensorStore | None, progress: Progress | None
) -> Assembled:
    """Return a model on one rank or on several. Raises as `build_executor`; no process is left then."""
    if config.tensor_parallel_size == 1:
        return assemble(config, bounds, checkpoint, progress)
    from ferrum.runtime.rank_processes import RankProcesses  # most models have one rank

    processes = RankProcesses(config, bounds, checkpoint)
    try:
        made = assemble(config, bounds, checkpoint, progress, part=RankPart(processes.ranks, processes.begin))
        assert made.exchange is not None
        made.lm.use_ranks(processes.ready(made.lm, made.exchange, made.kept), processes.on_loss)
    except BaseException:
        processes.close()
        raise
    return made


def _open_adapter(config: ModelConfig, checkpoint: ref[TensorStore] | None, path: str) -> AdapterFile:
    """Read an adapter. The model's files are opened again unless the caller still has them: none are held for this."""
    from ferrum.sources.adapters.open_adapter import open_adapter  # plain serving reads no adapters

    return open_adapter(path, read_spec(config, None if checkpoint is None else checkpoint()))


def plan_model(config: ModelConfig, reserved: int = 0, image_rows: int = 0) -> ModelPlan:
    """Return the plan of `build_executor` for a configuration. Errors as there, except that nothing is too large.

    No tensor is read or fetched, and no memory is taken for matrices and pages. A pool without a given capacity is
    sized as if the weights were loaded, and has at least one page. It leaves room for a tower of images.

    Args:
        config: the model and its options.
        reserved: bytes that the pool leaves.
        image_rows: bytes that it leaves as well if the model has a tower.
    """
    from ferrum.runtime.image_tower import tower_bytes  # few loads need it

    source = open_model(config.model, headers_only=True, models_dir=config.models_dir, mmproj=config.mmproj)
    part = RankPart(Ranks(config.tensor_parallel_size), _planned_memory) if config.tensor_parallel_size > 1 else None
    tower = tower_bytes(source, config)
    bounds = Bounds(reserved=reserved + (tower + image_rows if tower else 0))
    plan = assemble(_of_each_rank(config), bounds, source.checkpoint(), planning=True, part=part).plan
    return replace(plan, tower=tower)


def _planned_memory(model: ReadModel, kernels: Kernels, pool: PoolSizes) -> Bytes:  # noqa: ARG001
    """Return memory of exchanges that no step will use."""
    return np.zeros(memory_bytes(model.asks.ranks.count, model.asks.widest), np.uint8)


def _of_each_rank(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the threads of each rank: all ranks share the available CPUs."""
    if config.tensor_parallel_size == 1 or config.threads is not None or config.kernels == "reference":
        return config
    return replace(config, threads=max(1, available_threads() // config.tensor_parallel_size))


# ---- From a configuration to a language model, in three steps: the spec, the sized pool, the weights ----
#
# Planning takes the same steps without tensors and memory.

_LOGIT_BYTES: Final = 64 << 20
"""Size limit of the buffer of a pass's logits."""

_MAX_STEP_ROWS: Final = 1 << 32
"""Limit of tokens of a step: beyond it, sizes of buffers could overflow 64 bits."""


def assemble(
    config: ModelConfig,
    bounds: Bounds,
    store: TensorStore | None = None,
    progress: Progress | None = None,
    *,
    planning: bool = False,
    part: RankPart | None = None,
) -> Assembled:
    """Return a model with its kernels and its pool, and its plan. A planned model cannot run steps.

    Args:
        config, bounds, progress: as of `load_executor`.
        store: the tensors; None opens the configuration's model.
        planning: read no tensor and take no memory for matrices and pages.
        part: which rank to load; None: the model is on one.

    Raises: as `load_executor`.
    """
    part = part or RankPart()
    model = read_spec(config, store, planning=planning, ranks=part.ranks)
    options = config.kernels, config.isa, config.threads
    graphs = config.cuda_graphs
    chosen = choose_kernels(config.device, *options, head_dim=model.widest, planning=planning, graphs=graphs)
    kernels = chosen.kernels
    if not planning and kernels.quantizer() is not None:
        refuse_too_large(config, model.store, model.asks, kernels.device_memory())
    parameters = parameters_of(model.store, config, kernels, progress, views=model.asks.views, planning=planning)
    parameters.expect(model.asks.shapes, model.spec.ignored_names, model.asks.exact, model.asks.wholes)
    if part.pool is None:
        pool = size_pool(config, bounds, model, parameters, kernels, planning=planning)
    else:
        pool = part.pool.of_rank(model.asks)
    exchange = None if part.begin is None else kernels.share(part.begin(model, kernels, pool), *part.place)
    decoder = load_weights(model, parameters, kernels, pool.longest, planning=planning)
    held = pool.without_pages() if planning else pool
    lm = _language_model(model, decoder, kernels, held, replay=not config.switches.disable_graphs)
    plan = plan_of(config, model, parameters, chosen.notes, lm, decoder, pool)
    return Assembled(lm, plan, model.asks, pool, exchange)


@dataclass(frozen=True, slots=True)
class RankPart:
    """One of the ranks that compute a model.

    Attributes:
        ranks: which one.
        begin: called before weights are read; returns the memory of exchanges (`Kernels.share`). None: there is none.
        pool: of the first rank, whose pages all have; None sizes it.
    """

    ranks: Ranks = ONE_RANK
    begin: Callable[[ReadModel, Kernels, PoolSizes], Bytes] | None = None
    pool: PoolSizes | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The number of the rank, and how many there are."""
        return self.ranks.rank, self.ranks.count


@dataclass(frozen=True, slots=True)
class Assembled:
    """A model, or one rank of it.

    Attributes:
        plan: what the model reports.
        asks, pool: what it asked for, and what its sequences store.
        exchange: with the other ranks, or None.
    """

    lm: DecoderLM
    plan: ModelPlan
    asks: Inventory
    pool: PoolSizes
    exchange: RankExchange | None

    @property
    def kept(self) -> dict[str, KeptHeads]:
        """The heads that each rank keeps, by name of the layer group."""
        ranges = self.asks.kept or ((),) * len(self.pool.groups)
        parts = zip(self.pool.groups, self.asks.kv_layers, ranges, strict=True)
        return {group.name: KeptHeads(kv.num_layers, kv.num_heads, own) for group, kv, own in parts}


def size_pool(
    config: ModelConfig,
    bounds: Bounds,
    model: ReadModel,
    parameters: Parameters,
    kernels: Kernels,
    *,
    planning: bool = False,
) -> PoolSizes:
    """Return everything that sequences will store, sized. Raises ConfigError if not even a page fits."""
    sequences = config.max_batch_size or min(config.max_sequences, bounds.max_rows)
    # Slots of states follow the memory that weights leave, also where pages have a given size.
    sized = config.kv_capacity is not None and not model.asks.state_layers
    device_memory = kernels.device_memory()
    on_device = device_memory is not None
    loaded = 0 if sized else bytes_to_load(config, model.store, model.asks, on_device=on_device)
    limits = PoolLimits(
        page_size=bounds.page_size,
        max_batch_size=sequences,
        batch_given=config.max_batch_size is not None,
        full_sequences=config.full_sequences,
        max_sequence_length=model.context,
        max_rows=max(bounds.max_rows, sequences),
        max_draft=MAX_DRAFT,
        run_ahead=bounds.run_ahead,
        kv_capacity=config.kv_capacity,
        memory_pool_size=bounds.memory_pool_size,
        bytes_to_load=0 if sized else loaded + bounds.reserved,
        mapped=0 if on_device else model.store.mapped,
        device_memory=device_memory,
        planning=planning,
        ranks=model.asks.ranks.count,
    )
    return pool_sizes(model.asks, _kv_format(config, model, parameters), limits, kernels.planned_page_bytes)


def load_weights(
    model: ReadModel, parameters: Parameters, kernels: Kernels, positions: int, *, planning: bool = False
) -> Decoder:
    """Return the decoder with its parameters.

    Args:
        positions: of the rope tables: no sequence has a token after them.

    Raises:
        CheckpointError: a tensor is missing, left over, damaged or misshapen.
        CapacityError: not enough memory.
    """
    with memory_for(f"the weights, and the rotations of {positions:,} positions (max_sequence_length)"):
        decoder = build_decoder(model.spec, parameters, kernels, 1 if planning else positions, model.asks.ranks)
    if planning:
        kernels.table_bytes += 2 * 4 * model.asks.rope_numbers * (positions - 1)  # cosines and sines
    parameters.finish(model.spec.ignored_names)
    return decoder


def _kv_format(config: ModelConfig, model: ReadModel, parameters: Parameters) -> str:
    """Return the format of keys and values: the configured one, or that of the embedding's numbers."""
    if config.kv_dtype != "auto":
        return config.kv_dtype
    if not parameters.format:  # no matrix was read yet
        parameters = PlannedParameters(model.store, config.dtype, quantize=config.quantize)
        shape = model.asks.shapes[EMBEDDING]
        parameters.matrix(EMBEDDING, (shape[0], shape[1]))
    return auto_kv_dtype(parameters.format)


def _language_model(
    model: ReadModel, decoder: Decoder, kernels: Kernels, pool: PoolSizes, *, replay: bool
) -> DecoderLM:
    pool.allocate(kernels)
    limits = pool.limits
    with memory_for(f"the buffers of steps of {limits.max_rows:,} tokens (max_rows)"):
        if limits.max_rows > _MAX_STEP_ROWS:
            raise MemoryError
        return DecoderLM(
            decoder,
            kernels,
            pool.table(),
            config=_runtime_config(model),
            max_rows=limits.max_rows,
            max_logit_rows=max(MAX_DRAFT + 1, _LOGIT_BYTES // (4 * decoder.spec.vocab_size)),
            replay=replay,
            deep_features=decoder.spec.deep_features,
            rotates_by_grid=decoder.spec.rotates_by_grid,
            given_token=decoder.spec.given_token,
        )


def _runtime_config(model: ReadModel) -> LlmRuntimeConfig:
    spec, (heads, head_dim) = model.spec, model.first_stored
    return LlmRuntimeConfig(
        hidden_size=spec.hidden_size,
        num_layers=len(spec.layers),
        num_kv_heads=heads,
        head_dim=head_dim,
        vocab_size=spec.vocab_size,
        max_seq_len=model.context,
    )
