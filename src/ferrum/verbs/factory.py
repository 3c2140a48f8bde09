"""`ModelExecutorFactory`: validate an `ExecutorConfig` and load the executor that it describes.

Every field of a config has an effect or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ferrum.contract.model_info import DataType, Device, ModelInfo
from ferrum.core.config import MAX_PAGE_SIZE, PAGE_SIZE, ModelConfig, auto_kv_dtype
from ferrum.core.devices import check_device
from ferrum.core.errors import CapacityError, ConfigError, RequestError, Unsupported
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import check_flag, check_number
from ferrum.core.span_checks import check_kind, is_one_of
from ferrum.core.values import shown
from ferrum.verbs.executor_reports import AttentionType, head_sharing
from ferrum.verbs.model_executor import ModelExecutor

_MODEL_OPTIONS: Final = frozenset(
    {"quantize", "kv_dtype", "kernels", "isa", "threads", "tensor_parallel_size", "kv_capacity"}
)
OPTIONS: Final = _MODEL_OPTIONS | {"max_rows", "replay", "log_tokens", "cache_prefix"}
_PLAIN: Final = ("auto", "reference")
_LEVELS: Final[Mapping[int, Mapping[str, Any]]] = {
    0: {"kernels": "reference", "replay": False},
    1: {"kernels": "reference"},
    2: {"replay": False},
    3: {},
}
"""The arguments of `load_executor` that an optimisation level sets."""

_FIXED: Final[Mapping[str, tuple[object, str]]] = {
    "enable_paged_attention": (True, "true: the only KV store is paged"),
    "enable_flash_attention": (True, "true: keys are read in blocks"),
    "enable_memory_pooling": (True, "true: the KV cache is one pool"),
    "enable_kv_cache_sharing": (True, "true: forks share pages"),
    "enable_kernel_fusion": (True, "true: operations are always fused"),
    "custom_flags": ({}, "empty: there are no flags"),
}
"""Fields of the contract that take one value here: that value, and why."""

_READING: Final = (AttentionType.FLASH, AttentionType.PAGED, AttentionType.SLIDING_WINDOW, AttentionType.LATENT)
"""Attention types that only the loaded model can confirm."""

_SHAPE: Final = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
"""Fields of `ModelInfo` that validation relies on: the loaded model must have the same."""


class ExecutorType(StrEnum):
    """The way an executor is used. One executor serves the first four types; several ranks serve them all."""

    SEQUENTIAL = "Sequential"
    BATCH = "Batch"
    CONTINUOUS_BATCH = "ContinuousBatch"
    SPECULATIVE = "Speculative"
    PIPELINE_PARALLEL = "PipelineParallel"
    TENSOR_PARALLEL = "TensorParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAttentionConfig(JsonRecord):
    """Options of attention.

    Attributes:
        attention_type: kind that the model must have; None accepts any.
        enable_flash_attention: always true: attention processes keys in blocks and never holds a whole row of scores.
        enable_paged_attention: always true: the only KV store is paged.
        block_size: tokens per page; None takes the default.
        sliding_window_size: window that some layer of the model must have; None accepts any. The checkpoint sets it.
    """

    attention_type: AttentionType | None = None
    enable_flash_attention: bool = True
    enable_paged_attention: bool = True
    block_size: int | None = None
    sliding_window_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMemoryConfig(JsonRecord):
    """Memory limits.

    Attributes:
        enable_memory_pooling: always true: keys and values live in a pool.
        memory_pool_size: maximum bytes of the KV pool; None takes what memory allows.
        enable_kv_cache_sharing: always true: forks share pages.
        max_memory_usage: maximum bytes in total, or a share in (0, 1] of the memory that the process has available at
            the creation, on the CPU only; creating a larger executor fails.
    """

    enable_memory_pooling: bool = True
    memory_pool_size: int | None = None
    enable_kv_cache_sharing: bool = True
    max_memory_usage: int | float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig(JsonRecord):
    """Options of speed.

    Attributes:
        enable_cuda_graphs: run a step on a GPU as one graph; False launches its kernels one by one. None does so on a
            GPU. True is refused on the CPU.
        enable_kernel_fusion: always true.
        enable_mixed_precision: whether products have 16-bit inputs and float32 sums; None follows the dtype.
        optimization_level: 0 walks the network with the reference kernels, 1 replays it with them, 2 walks it with the
            fastest kernels, 3 replays it with them.
        custom_flags: always empty: every option has a name in `executor_options`.
    """

    enable_cuda_graphs: bool | None = None
    enable_kernel_fusion: bool = True
    enable_mixed_precision: bool | None = None
    optimization_level: int = 3
    custom_flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig(JsonRecord):
    """The description of an executor to create.

    Attributes:
        model_info: the model; `model_id` is the directory, GGUF file or hub id to load.
        executor_type: the way it is used: Sequential, Batch, ContinuousBatch, Speculative or TensorParallel.
        device: device to compute on: the CPU, or a GPU by `Device.CUDA(i)`.
        dtype: format of the weights: float32, bfloat16 or float16.
        max_batch_size: maximum sequences in one step; None takes 1 for a Sequential executor, else as `ModelConfig`.
        max_sequence_length: maximum tokens of a sequence; None takes the model's context.
        attention_config, memory_config, optimization_config: the configurations below.
        executor_options: further options of `load_executor`, listed below.
    """

    model_info: ModelInfo
    executor_type: ExecutorType = ExecutorType.CONTINUOUS_BATCH
    device: Device = Device.CPU
    dtype: DataType = DataType.BFLOAT16
    max_batch_size: int | None = None
    max_sequence_length: int | None = None
    attention_config: ExecutorAttentionConfig = field(default_factory=ExecutorAttentionConfig)
    memory_config: ExecutorMemoryConfig = field(default_factory=ExecutorMemoryConfig)
    optimization_config: OptimizationConfig = field(default_factory=OptimizationConfig)
    executor_options: Mapping[str, Any] = field(default_factory=dict)


class ModelExecutorFactory:
    """A factory of executors.

    Args:
        load: `load_executor`, or a function with the same arguments; None takes `load_executor`.
        devices: devices that this build can compute on. One that the machine lacks is refused at the creation.
        memory: returns the bytes available to the process; None takes the system's.
    """

    def __init__(
        self,
        load: Callable[..., ModelExecutor] | None = None,
        *,
        devices: frozenset[Device] = frozenset({Device.CPU, Device.CUDA}),
        memory: Callable[[], int] | None = None,
    ) -> None:
        if load is None:
            from ferrum.verbs.load_executor import load_executor as load  # imports numpy and the kernels
        if not callable(load):
            raise ConfigError(f"must be a function like load_executor, not {shown(load)}", param="load")
        if memory is not None and not callable(memory):
            raise ConfigError(f"must be a function that returns bytes, not {shown(memory)}", param="memory")
        self._load = load
        self._memory = memory
        self._devices = devices

    def supported_types(self) -> list[ExecutorType]:
        """Return the executor types that can be created."""
        return [kind for kind in ExecutorType if kind is not ExecutorType.PIPELINE_PARALLEL]

    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        """Create an executor that is ready.

        Raises:
            ConfigError, Unsupported: as `validate_config`, or the loaded model's shape or attention differs.
            CapacityError: the executor needs more than `max_memory_usage`.
        """
        config = self._validated(config)
        limit = config.memory_config.max_memory_usage
        if isinstance(limit, float):
            from ferrum.runtime.memory import available_memory

            limit = int(limit * (self._memory or available_memory)())
        executor = self._load(config.model_info.model_id, **_arguments(config))
        try:
            _check_loaded(executor, config)
            _check_memory(executor, limit)
            executor.warmup()
        except BaseException:
            executor.shutdown()
            raise
        return executor

    def create_batch_executor(self, config: ExecutorConfig) -> ModelExecutor:
        """Create an executor that serves several sequences in one pass.

        Raises:
            ConfigError: the config asks for a Sequential executor; otherwise as `create_executor`.
        """
        check_kind(config, ExecutorConfig, param="config")
        if config.executor_type is ExecutorType.SEQUENTIAL:
            raise ConfigError("a Sequential executor serves one sequence at a time", param="executor_type")
        return self.create_executor(config)

    def validate_config(self, config: ExecutorConfig) -> None:
        """Refuse a config that cannot run.

        Raises:
            ConfigError: a wrong value or combination; `param` names the first wrong field, the message all of them.
            Unsupported: a feature that this build lacks; `feature` names the field.
            RequestError: `config` is not an `ExecutorConfig`.
        """
        self._validated(config)

    def _validated(self, config: ExecutorConfig) -> ExecutorConfig:
        """Return a valid config, with enums for strings. Raises as `validate_config`."""
        check_kind(config, ExecutorConfig, param="config")
        try:
            config = ExecutorConfig.from_dict(config.to_dict())
        except RequestError as error:
            raise ConfigError(error.message, param=error.param) from None
        self._check_features(config)
        if problems := list(_problems(config)):
            (first, reason), *others = problems
            raise ConfigError("; ".join([reason, *(f"{name}: {why}" for name, why in others)]), param=first)
        return config

    def _check_features(self, config: ExecutorConfig) -> None:
        """Raise Unsupported for a field that asks for an unimplemented feature."""
        if config.executor_type is ExecutorType.PIPELINE_PARALLEL:
            reason = "stages wait for each other: use TensorParallel for a large model, replicas for many requests"
            raise Unsupported(f"executor_type={config.executor_type}", reason)
        if config.device.kind not in self._devices:
            check_device(config.device.value, "auto")
            raise Unsupported(f"device={config.device}", f"this build computes on {', '.join(sorted(self._devices))}")
        if config.optimization_config.enable_cuda_graphs and config.device.kind is not Device.CUDA:
            raise Unsupported("enable_cuda_graphs", "a CPU has no graphs: use device=cuda, or leave it unset")


def _problems(c: ExecutorConfig) -> Iterator[tuple[str, str]]:
    """Yield the field and the reason of each problem that shows before the model is loaded."""
    try:
        ModelConfig(model=c.model_info.model_id or "-", **_model_options(c))
    except ConfigError as error:
        yield str(error.param), error.message
    yield from _wrong_options(c.executor_options)
    attention, memory, speed = c.attention_config, c.memory_config, c.optimization_config
    context = c.model_info.max_sequence_length
    length = context if c.max_sequence_length is None else c.max_sequence_length
    sharing = head_sharing(c.model_info.num_heads, c.model_info.num_kv_heads)
    block, window, kind = attention.block_size, attention.sliding_window_size, attention.attention_type
    pool, usage, page = memory.memory_pool_size, memory.max_memory_usage, _page_bytes(c)
    least = c.model_info.num_parameters // 2 + page
    limit = None if isinstance(usage, float) else usage
    mixed, plain = c.dtype is not DataType.FLOAT32, is_one_of(c.executor_options.get("kernels", "auto"), _PLAIN)
    level, replays = speed.optimization_level, c.executor_options.get("replay") is True
    parallel = c.executor_type is ExecutorType.TENSOR_PARALLEL
    split = is_one_of(c.executor_options.get("tensor_parallel_size", 1), [1])
    speculative, sequential = (c.executor_type is kind for kind in (ExecutorType.SPECULATIVE, ExecutorType.SEQUENTIAL))
    fixed = [
        (section, name, getattr(section, name) == value, requirement)
        for section in (attention, memory, speed)
        for name, (value, requirement) in _FIXED.items()
        if hasattr(section, name)
    ]
    table: tuple[tuple[object, str, bool, str], ...] = (
        *fixed,
        (c, "max_batch_size", c.max_batch_size in (None, 1) or not sequential, "1 for a Sequential executor"),
        (c, "max_sequence_length", length <= context, f"at most the model's context, {shown(context)}"),
        (c, "max_sequence_length", length > 1 or not speculative, "at least 2 for a Speculative one"),
        (c, "executor_options", c.executor_options.keys() <= OPTIONS, f"of no names but {', '.join(sorted(OPTIONS))}"),
        (c, "executor_options", not (parallel and split), "with tensor_parallel_size above 1 for a TensorParallel one"),
        (attention, "sliding_window_size", window is None or window >= 1, "at least 1"),
        (attention, "block_size", block is None or 1 <= block <= MAX_PAGE_SIZE, f"in [1, {MAX_PAGE_SIZE}]"),
        (attention, "attention_type", kind in (None, sharing, *_READING), f"{sharing} as in the model"),
        (memory, "memory_pool_size", pool is None or pool >= page, f"at least {shown(page)} bytes, one page"),
        (memory, "max_memory_usage", not isinstance(usage, float) or 0 < usage <= 1, "bytes, or a share in (0, 1]"),
        (memory, "max_memory_usage", not isinstance(usage, float) or c.device is Device.CPU, f"bytes on {c.device}"),
        (memory, "max_memory_usage", limit is None or limit >= (pool or 1), "at least the size of the pool"),
        (memory, "max_memory_usage", limit is None or limit >= least, f"at least {shown(least)}"),
        (speed, "enable_mixed_precision", speed.enable_mixed_precision in (None, mixed), f"{mixed} with {c.dtype}"),
        (speed, "optimization_level", level in _LEVELS, "0, 1, 2 or 3"),
        (speed, "optimization_level", level > 1 or plain, "2 or 3 if executor_options names kernels"),
        (speed, "optimization_level", level > 1 or c.device is Device.CPU, f"2 or 3 on {c.device}"),
        (speed, "optimization_level", level in (1, 3) or not replays, "1 or 3 if executor_options asks for replay"),
    )
    for section, name, holds, requirement in table:
        if not holds:
            value = getattr(section, name)
            yield name, f"must be {requirement}, not {value if isinstance(value, StrEnum) else shown(value)}"


def _wrong_options(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the reason of each wrong option that `ModelConfig` does not have."""
    try:
        if "max_rows" in options:
            check_number("max_rows", options["max_rows"], 1)
        for name in ("replay", "log_tokens"):
            if options.get(name) is not None:
                check_flag(name, options[name])
        check_kind(options.get("cache_prefix", ""), str, param="cache_prefix")
    except RequestError as error:
        yield str(error.param), error.message


def _page_bytes(config: ExecutorConfig) -> int:
    """Return the bytes of one page of keys and values, without padding, which only the loaded kernels know."""
    asked = config.executor_options.get("kv_dtype", "auto")
    auto = DataType(auto_kv_dtype(config.dtype))
    kv_dtype = next((each for each in DataType if is_one_of(asked, [each])), auto)
    info, page_size = config.model_info, config.attention_config.block_size or PAGE_SIZE
    return page_size * info.kv_bytes_per_token(kv_dtype)


def _model_options(config: ExecutorConfig) -> dict[str, Any]:
    """Return the options that a config has in common with `ModelConfig`."""
    names = ("device", "dtype", "max_batch_size", "max_sequence_length")
    options = {name: value for name, value in config.executor_options.items() if name in _MODEL_OPTIONS}
    if config.max_batch_size is None and config.executor_type is ExecutorType.SEQUENTIAL:
        options["max_batch_size"] = 1
    return {name: getattr(config, name) for name in names} | options


def _arguments(config: ExecutorConfig) -> dict[str, Any]:
    """Return the arguments of `load_executor` for a config."""
    page_size = config.attention_config.block_size or PAGE_SIZE
    bounds = {"page_size": page_size, "memory_pool_size": config.memory_config.memory_pool_size}
    others = {name: value for name, value in config.executor_options.items() if name not in _MODEL_OPTIONS}
    level = _LEVELS[config.optimization_config.optimization_level]
    launched = config.device.kind is Device.CUDA and config.optimization_config.enable_cuda_graphs is False
    graphs = {"cuda_graphs": False} if launched else {}
    return {**_model_options(config), **bounds, **others, **level, **graphs}


def _check_loaded(executor: ModelExecutor, config: ExecutorConfig) -> None:
    """Refuse a loaded model that differs from the config's description."""
    for name in _SHAPE:
        expected, found = getattr(config.model_info, name), getattr(executor.info, name)
        if expected != found:
            raise ConfigError(f"the model's {name} is {found}, not {expected}", param="model_info")
    wanted = config.attention_config.attention_type
    has = executor.capabilities().attention_mechanisms
    if wanted is not None and wanted not in has:
        raise ConfigError(f"the model has {', '.join(sorted(has))}, not {wanted}", param="attention_type")
    window, windows = config.attention_config.sliding_window_size, {group.window for group in executor.pages.groups}
    if window is not None and window not in windows:
        sizes = ", ".join(str(each) for each in windows if each is not None) or "none"
        raise ConfigError(f"the model's windows are {sizes}, not {window}", param="sliding_window_size")


def _check_memory(executor: ModelExecutor, limit: float | None) -> None:
    """Refuse an executor beyond a number of bytes. Raises CapacityError."""
    total = executor.memory_plan.total
    if limit is not None and total > limit:
        raise CapacityError(f"the executor needs {total} bytes, more than max_memory_usage = {limit}")
