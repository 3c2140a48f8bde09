"""From a description of an executor to the executor. Every knob has its effect or is refused; none is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from ferrum.contract.capabilities import AttentionType, head_sharing
from ferrum.contract.executor import ModelExecutor
from ferrum.contract.io_types import DataType, Device, ModelInfo
from ferrum.core.config import KERNELS, KV_DTYPES, PAGE_SIZE, QUANTIZATIONS
from ferrum.core.errors import CapacityError, ConfigError, Unsupported
from ferrum.core.json_record import JsonRecord, misfits
from ferrum.core.option_fields import listed
from ferrum.core.span_checks import check_kind, is_one_of
from ferrum.core.values import shown

_OPTIONS: Final[Mapping[str, tuple[str | None, ...]]] = {
    "quantize": QUANTIZATIONS,
    "kv_dtype": KV_DTYPES,
    "kernels": KERNELS,
}

_SHAPE: Final = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
"""What a config's problems are found by, so that the loaded model must have it."""


class ExecutorType(StrEnum):
    """How an executor is used. One executor serves the first four; they differ in what is asked of it."""

    SEQUENTIAL = "Sequential"
    BATCH = "Batch"
    CONTINUOUS_BATCH = "ContinuousBatch"
    SPECULATIVE = "Speculative"
    PIPELINE_PARALLEL = "PipelineParallel"
    TENSOR_PARALLEL = "TensorParallel"


_PARALLEL: Final = frozenset({ExecutorType.PIPELINE_PARALLEL, ExecutorType.TENSOR_PARALLEL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAttentionConfig(JsonRecord):
    """How attention is to be computed.

    Attributes:
        attention_type: what the model must turn out to have; None takes what it has.
        enable_flash_attention: attention always goes over the keys in steps and never holds a whole row of scores.
        enable_paged_attention: there is one store, and it is paged.
        block_size: tokens per page; None: as attention likes it best.
        sliding_window_size: the checkpoint says what each layer sees: None.
    """

    attention_type: AttentionType | None = None
    enable_flash_attention: bool = True
    enable_paged_attention: bool = True
    block_size: int | None = None
    sliding_window_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMemoryConfig(JsonRecord):
    """What the executor may hold.

    Attributes:
        enable_memory_pooling: keys and values always live in a pool.
        memory_pool_size: most bytes of the KV pool; None: as memory allows.
        enable_kv_cache_sharing: forks always share pages.
        max_memory_usage: most bytes of everything; an executor that needs more is not created.
    """

    enable_memory_pooling: bool = True
    memory_pool_size: int | None = None
    enable_kv_cache_sharing: bool = True
    max_memory_usage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig(JsonRecord):
    """What may be done for speed.

    Attributes:
        enable_cuda_graphs: CUDA only.
        enable_kernel_fusion: operations are always as coarse as the kernels fuse them.
        enable_mixed_precision: 16-bit inputs of products with float32 sums, which is what 16-bit weights mean; None: as
            the dtype says.
        optimization_level: 0 walks the network with the reference kernels, 3 replays it with the fastest there are;
            nothing lies between.
        custom_flags: there are none.
    """

    enable_cuda_graphs: bool = False
    enable_kernel_fusion: bool = True
    enable_mixed_precision: bool | None = None
    optimization_level: int = 3
    custom_flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig(JsonRecord):
    """An executor to be created.

    Attributes:
        model_info: the model; `model_id` is the directory or hub id that it is loaded from.
        executor_options: `quantize`, `kv_dtype` and `kernels`, as `load_executor` takes them.
    """

    model_info: ModelInfo
    executor_type: ExecutorType = ExecutorType.CONTINUOUS_BATCH
    device: Device = Device.CPU
    dtype: DataType = DataType.BFLOAT16
    max_batch_size: int = 32
    max_sequence_length: int = 4096
    attention_config: ExecutorAttentionConfig = field(default_factory=ExecutorAttentionConfig)
    memory_config: ExecutorMemoryConfig = field(default_factory=ExecutorMemoryConfig)
    optimization_config: OptimizationConfig = field(default_factory=OptimizationConfig)
    executor_options: Mapping[str, str | None] = field(default_factory=dict)


class ModelExecutorFactory:
    """Creates executors.

    Args:
        load: loads a model: `load_executor`, or something that takes the same arguments.
        devices: where this build can compute.
    """

    def __init__(
        self, load: Callable[..., ModelExecutor], *, devices: frozenset[Device] = frozenset({Device.CPU})
    ) -> None:
        self._load = load
        self._devices = devices

    def supported_types(self) -> list[ExecutorType]:
        """The kinds that can be created."""
        return [kind for kind in ExecutorType if kind not in _PARALLEL]

    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        """Create an executor.

        Raises:
            ConfigError, Unsupported: as `validate_config`, or the loaded model has another shape or kind of attention.
            CapacityError: it would hold more than `max_memory_usage`.
        """
        self.validate_config(config)
        executor = self._load(config.model_info.model_id, **_arguments(config))
        try:
            _check_loaded(executor, config)
        except BaseException:
            executor.shutdown()
            raise
        return executor

    def create_batch_executor(self, config: ExecutorConfig) -> ModelExecutor:
        """Create an executor that serves several sequences in one pass.

        Raises:
            ConfigError: the config asks for a sequential one; otherwise as `create_executor`.
        """
        check_kind(config, ExecutorConfig, param="config")
        if config.executor_type is ExecutorType.SEQUENTIAL:
            raise ConfigError("a Sequential executor serves one sequence at a time", param="executor_type")
        return self.create_executor(config)

    def validate_config(self, config: ExecutorConfig) -> None:
        """Refuse what cannot run.

        Raises:
            ConfigError: a value, or a combination, that makes no sense; `param` names the first such field, the message
                all of them.
            Unsupported: a feature that this build does not have; it names the field.
            RequestError: it is no config.
        """
        check_kind(config, ExecutorConfig, param="config")
        problems = list(misfits(config))  # the others compare and multiply
        if not problems:
            for name, reason in self._missing(config):
                raise Unsupported(name, reason)
            checks = (_limits, _attention, _memory, _optimization, _options)
            problems = [problem for check in checks for problem in check(config)]
        if problems:
            (first, reason), *others = problems
            raise ConfigError("; ".join([reason, *(f"{name}: {why}" for name, why in others)]), param=first)

    def _missing(self, config: ExecutorConfig) -> Iterator[tuple[str, str]]:
        """Fields that ask for a feature that is yet to be built, and why they are refused."""
        if config.executor_type in _PARALLEL:
            yield f"executor_type={config.executor_type}", "this build holds all layers on one device"
        if config.device not in self._devices:
            yield f"device={config.device}", f"this build computes on {', '.join(sorted(self._devices))}"
        if config.optimization_config.enable_cuda_graphs:
            yield "enable_cuda_graphs", "CUDA graphs need a CUDA device, and this build has no kernels for one"


Problems: TypeAlias = Iterator[tuple[str, str]]
"""Names of fields, and what is wrong with their values."""


def _limits(config: ExecutorConfig) -> Problems:
    for name in ("max_batch_size", "max_sequence_length"):
        if getattr(config, name) < 1:
            yield name, f"must be at least 1, not {getattr(config, name)}"
    if config.executor_type is ExecutorType.SEQUENTIAL and config.max_batch_size > 1:
        yield "max_batch_size", f"a Sequential executor serves 1 sequence, not {config.max_batch_size}"
    if config.max_sequence_length > config.model_info.max_sequence_length:
        yield "max_sequence_length", f"the model's context is {config.model_info.max_sequence_length}"
    if config.executor_type is ExecutorType.SPECULATIVE and config.max_sequence_length < 2:
        yield "max_sequence_length", "a draft needs a second position"
    if config.dtype in (DataType.INT8, DataType.INT4):
        yield "dtype", f"{config.dtype} is no format of dense weights: executor_options['quantize'] asks for it"


def _attention(config: ExecutorConfig) -> Problems:
    attention, info = config.attention_config, config.model_info
    if not attention.enable_paged_attention:
        yield "enable_paged_attention", "there is one KV store and it is paged"
    if not attention.enable_flash_attention:
        yield "enable_flash_attention", "attention always goes over the keys in steps"
    if attention.block_size is not None and attention.block_size < 1:
        yield "block_size", f"a page must hold at least 1 token, not {attention.block_size}"
    if attention.sliding_window_size is not None:
        yield "sliding_window_size", "the checkpoint says what each of its layers sees"
    has = head_sharing(info.num_heads, info.num_kv_heads)
    shared = (AttentionType.MULTI_HEAD, AttentionType.MULTI_QUERY, AttentionType.GROUPED_QUERY)
    if attention.attention_type in shared and attention.attention_type is not has:
        yield "attention_type", f"the model has {has}, not {attention.attention_type}"


def _memory(config: ExecutorConfig) -> Problems:
    memory = config.memory_config
    if not memory.enable_memory_pooling:
        yield "enable_memory_pooling", "keys and values live in a pool"
    if not memory.enable_kv_cache_sharing:
        yield "enable_kv_cache_sharing", "forks share their pages"
    page = config.attention_config.block_size or PAGE_SIZE
    if memory.memory_pool_size is not None and memory.memory_pool_size < page * _token_bytes(config):
        yield "memory_pool_size", f"{memory.memory_pool_size} bytes do not hold {page} tokens"
    if memory.max_memory_usage is not None and memory.max_memory_usage < (memory.memory_pool_size or 1):
        yield "max_memory_usage", f"{memory.max_memory_usage} bytes do not hold the pool"


def _optimization(config: ExecutorConfig) -> Problems:
    optimization, mixed = config.optimization_config, config.dtype is not DataType.FLOAT32
    if not optimization.enable_kernel_fusion:
        yield "enable_kernel_fusion", "operations are as coarse as the kernels fuse them"
    if optimization.enable_mixed_precision not in (None, mixed):
        yield "enable_mixed_precision", f"{config.dtype} weights {'mean' if mixed else 'exclude'} mixed precision"
    if optimization.optimization_level not in (0, 3):
        yield "optimization_level", f"there is 0 and 3, not {optimization.optimization_level}"
    if optimization.optimization_level == 0 and config.executor_options.get("kernels", "auto") not in (
        "auto",
        "reference",
    ):
        yield "optimization_level", "0 means the reference kernels, and executor_options names others"
    for flag in optimization.custom_flags:
        yield "custom_flags", f"there is no flag {shown(flag)}"


def _options(config: ExecutorConfig) -> Problems:
    for name, value in config.executor_options.items():
        if name not in _OPTIONS:
            yield "executor_options", f"there is no option {shown(name)}, only {', '.join(_OPTIONS)}"
        elif not is_one_of(value, _OPTIONS[name]):
            yield "executor_options", f"{name} must be one of {listed(_OPTIONS[name])}, not {shown(value)}"
        elif name == "kernels" and value == Device.CUDA and config.device is not Device.CUDA:
            yield "executor_options", f"kernels for cuda do not compute on {config.device}"


def _kv_dtype(config: ExecutorConfig) -> DataType:
    """The format of keys and values, as `load_executor` understands `auto`."""
    asked = config.executor_options.get("kv_dtype", "auto")
    if asked in (None, "auto"):
        return DataType.FLOAT32 if config.dtype is DataType.FLOAT32 else DataType.BFLOAT16
    return DataType(asked)


def _token_bytes(config: ExecutorConfig) -> int:
    """Bytes of a token's keys and values, without what pads them: that the loaded kernels know."""
    info = config.model_info
    return info.kv_bytes_per_token_and_layer(_kv_dtype(config)) * info.num_layers


def _arguments(config: ExecutorConfig) -> dict[str, Any]:
    """What `load_executor` is called with."""
    arguments: dict[str, Any] = {
        "device": config.device.value,
        "dtype": config.dtype.value,
        "max_batch_size": config.max_batch_size,
        "max_sequence_length": config.max_sequence_length,
        **config.executor_options,
    }
    if config.optimization_config.optimization_level == 0:
        arguments |= {"kernels": "reference", "replay": False}
    if config.attention_config.block_size is not None:
        arguments["page_size"] = config.attention_config.block_size
    if config.memory_config.memory_pool_size is not None:
        arguments["memory_pool_size"] = config.memory_config.memory_pool_size
    return arguments


def _check_loaded(executor: ModelExecutor, config: ExecutorConfig) -> None:
    """Refuse a loaded model that is not what the config described."""
    for name in _SHAPE:
        told, found = getattr(config.model_info, name), getattr(executor.info, name)
        if told != found:
            raise ConfigError(f"the model's {name} is {found}, not {told}", param="model_info")
    wanted = config.attention_config.attention_type
    has = executor.capabilities().attention_mechanisms
    if wanted is not None and wanted not in has:
        raise ConfigError(f"the model has {', '.join(sorted(has))}, not {wanted}", param="attention_type")
    limit, total = config.memory_config.max_memory_usage, executor.memory_plan.total
    if limit is not None and total > limit:
        raise CapacityError(f"the executor holds {total} bytes, max_memory_usage is {limit}")
