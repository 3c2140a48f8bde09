"""From a model's name to a ready executor, or to a plan of one.

Files are read in `checkpoint.py`, weights made in `parameters.py`, the pool sized in `memory.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from weakref import ref

from ferrum.core.config import MAX_PAGE_SIZE, MAX_RUN_AHEAD, PAGE_SIZE, ModelConfig, Switches
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import as_text, check_flag, check_number
from ferrum.core.span_checks import check_kind
from ferrum.core.values import shown
from ferrum.runtime.assembly import MAX_ROWS, Bounds, assemble
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.runtime.model_report import ModelPlan as ModelPlan
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.sources.parameters import Progress
from ferrum.sources.read_model import read_spec


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
    reserved: int = 0,
) -> LocalExecutor:
    """Return the executor of a configuration. Arguments and errors as `load_executor`.

    With a `checkpoint`, its tensors are loaded, and the configuration's model is only a name. A pool without a given
    capacity leaves `reserved` bytes.
    """
    if memory_pool_size is not None:
        check_number("memory_pool_size", memory_pool_size, 1)
    check_number("page_size", page_size, 1, MAX_PAGE_SIZE)
    check_number("max_rows", max_rows, 1)
    check_number("run_ahead", run_ahead, 0, MAX_RUN_AHEAD)
    check_kind(cache_prefix, str, param="cache_prefix")
    if progress is not None and not callable(progress):
        raise ConfigError(f"must take the bytes loaded and the bytes in total, not {shown(progress)}", param="progress")
    bounds = Bounds(memory_pool_size, page_size, max_rows, run_ahead, reserved)
    lm, plan = assemble(config, bounds, checkpoint, progress)
    log_tokens = config.switches.log_tokens
    executor = LocalExecutor(
        lm,
        info=plan.info,
        traits=plan.traits,
        log_tokens=log_tokens,
        cache_prefix=cache_prefix,
        open_adapter=partial(_open_adapter, config, None if checkpoint is None else ref(checkpoint)),
    )
    executor.warmup()
    return executor


def _open_adapter(config: ModelConfig, checkpoint: ref[TensorStore] | None, path: str) -> AdapterFile:
    """Read an adapter. The model's files are opened again unless the caller still has them: none are held for this."""
    from ferrum.sources.adapters.open_adapter import open_adapter  # plain serving reads no adapters

    return open_adapter(path, read_spec(config, None if checkpoint is None else checkpoint()))


def plan_model(config: ModelConfig, reserved: int = 0) -> ModelPlan:
    """Return the plan of `build_executor` for a configuration. Errors as there, except that nothing is too large.

    No tensor is read or fetched, and no memory is taken for matrices and pages. A pool without a given capacity is
    sized as if the weights were loaded, and has at least one page.
    """
    source = open_model(config.model, headers_only=True, models_dir=config.models_dir)
    return assemble(config, Bounds(reserved=reserved), source.checkpoint(), planning=True)[1]
