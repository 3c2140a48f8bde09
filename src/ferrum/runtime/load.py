"""From a configuration to a ready executor, or to a plan of one.

Files are read in `checkpoint.py`, weights made in `parameters.py`, the pool sized in `memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import ref

from ferrum.core.config import MAX_PAGE_SIZE, MAX_RUN_AHEAD, PAGE_SIZE, ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import check_number
from ferrum.core.values import shown
from ferrum.runtime.assembly import MAX_ROWS, Bounds, assemble
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.runtime.model_report import ModelPlan as ModelPlan
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.sources.parameters import Progress
from ferrum.sources.read_model import read_spec

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
    lm, plan = assemble(config, bounds, checkpoint, progress)
    executor = kind(
        lm,
        info=plan.info,
        traits=plan.traits,
        log_tokens=config.switches.log_tokens,
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
