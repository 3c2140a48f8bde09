"""The factory validates a config by field, and creates the executor that it describes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from contract_kit import INFO, FakeContractExecutor, make_fake
from ferrum.contract.model_info import DataType, Device
from ferrum.contract.step_executor import ExecutorState
from ferrum.core.config import PAGE_SIZE
from ferrum.core.errors import CapacityError, ConfigError, RequestError, Unsupported
from ferrum.verbs.executor_reports import AttentionType
from ferrum.verbs.factory import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    ExecutorType,
    ModelExecutorFactory,
    OptimizationConfig,
)

contract = pytest.mark.contract

PER_TOKEN = 2 * 3 * 16 * 4 * 2
"""Bytes of a stored token: keys and values, KV heads, head_dim, float32, layers."""

BASE = ExecutorConfig(model_info=INFO, dtype=DataType.FLOAT32, max_batch_size=6, max_sequence_length=64)


def config(**changes: object) -> ExecutorConfig:
    return replace(BASE, **changes)


def attention(**changes: object) -> ExecutorConfig:
    return config(attention_config=ExecutorAttentionConfig(**changes))


def memory(**changes: object) -> ExecutorConfig:
    return config(memory_config=ExecutorMemoryConfig(**changes))


def optimization(**changes: object) -> ExecutorConfig:
    return config(optimization_config=OptimizationConfig(**changes))


REFUSED = {
    "max_batch_size": [
        *(config(max_batch_size=each) for each in (0, "x", True)),
        config(executor_type=ExecutorType.SEQUENTIAL),
        config(executor_type="Sequential", max_batch_size=4),
    ],
    "max_sequence_length": [
        *(config(max_sequence_length=each) for each in (0, 101, 2.5)),
        config(executor_type=ExecutorType.SPECULATIVE, max_sequence_length=1),
    ],
    "dtype": [config(dtype=DataType.INT8)],
    "device": [config(device="tpu")],
    "num_layers": [config(model_info=replace(INFO, num_layers=None))],
    "memory_config": [config(memory_config=None)],
    "executor_options": [config(executor_options=each) for each in (None, {"colour": "red"})],
    "attention_type": [attention(attention_type=each) for each in ("Grouped", AttentionType.MULTI_HEAD)],
    "block_size": [attention(block_size=each) for each in (0, 131072)],
    "sliding_window_size": [attention(sliding_window_size=0)],
    "memory_pool_size": [memory(memory_pool_size=each) for each in (5, PAGE_SIZE * PER_TOKEN - 1)],
    "max_memory_usage": [
        *(memory(max_memory_usage=each) for each in (1000, 0.0, 90.0, float("nan"), "half")),
        memory(memory_pool_size=10**6, max_memory_usage=10**5),
        replace(memory(max_memory_usage=0.5), device=Device.CUDA),  # a share of which memory?
    ],
    "enable_mixed_precision": [optimization(enable_mixed_precision=True)],
    "optimization_level": [
        *(optimization(optimization_level=each) for each in (-1, 4)),
        replace(optimization(optimization_level=0), executor_options={"kernels": "native"}),
        replace(optimization(optimization_level=2), executor_options={"replay": True}),
        replace(optimization(optimization_level=1), device=Device.CUDA),
    ],
    "quantize": [config(executor_options={"quantize": "int3"})],
    "kernels": [
        config(executor_options={"kernels": np.array(["auto", "native"])}),
        config(executor_options={"kernels": "cuda"}),
        config(device=Device.CUDA, executor_options={"kernels": "native"}),
    ],
    "max_rows": [config(executor_options={"max_rows": 0})],
    "replay": [config(executor_options={"replay": "no"})],
    "cache_prefix": [config(executor_options={"cache_prefix": 5})],
    # Fields of one value
    **{name: [attention(**{name: False})] for name in ("enable_flash_attention", "enable_paged_attention")},
    **{name: [memory(**{name: False})] for name in ("enable_memory_pooling", "enable_kv_cache_sharing")},
    "enable_kernel_fusion": [optimization(enable_kernel_fusion=False)],
    "custom_flags": [optimization(custom_flags={"fast": each}) for each in ("yes", True)],
}
"""Configs that cannot run, by the field that is to blame."""


class Loader:
    """A `load_executor` that records its arguments."""

    def __init__(self) -> None:
        self.asked: dict[str, object] = {}
        self.made: list[FakeContractExecutor] = []

    def __call__(self, model: str, **arguments: object) -> FakeContractExecutor:
        self.asked = {"model": model, **arguments}
        executor = make_fake().executor
        assert isinstance(executor, FakeContractExecutor)
        self.made.append(executor)
        return executor


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def factory(loader: Loader) -> ModelExecutorFactory:
    return ModelExecutorFactory(loader)


@contract("2.ModelExecutorFactory")
def test_the_factory_creates_every_supported_type(factory, loader):
    assert factory.supported_types() == [
        ExecutorType.SEQUENTIAL,
        ExecutorType.BATCH,
        ExecutorType.CONTINUOUS_BATCH,
        ExecutorType.SPECULATIVE,
        ExecutorType.TENSOR_PARALLEL,
    ]
    for kind, default in zip(factory.supported_types(), (1, None, None, None, None), strict=True):
        options = {"tensor_parallel_size": 2} if kind is ExecutorType.TENSOR_PARALLEL else {}
        wish = config(executor_type=kind, max_batch_size=default or 6, executor_options=options)
        assert factory.create_executor(wish) is loader.made[-1]
        assert loader.made[-1].status().is_ready
        factory.create_executor(ExecutorConfig(model_info=INFO, executor_type=kind, executor_options=options))
        assert loader.asked["max_batch_size"] == default
    assert factory.create_batch_executor(BASE) is loader.made[-1]
    with pytest.raises(ConfigError) as caught:
        factory.create_batch_executor(config(executor_type=ExecutorType.SEQUENTIAL, max_batch_size=1))
    assert caught.value.param == "executor_type"


@contract("2.ExecutorConfig")
def test_every_knob_reaches_the_loader(factory, loader):
    per_token = 2 * 3 * 16 * 2 * 2  # keys and values, KV heads, head_dim, bfloat16, layers
    factory.create_executor(
        ExecutorConfig(
            model_info=INFO,
            dtype=DataType.BFLOAT16,
            max_batch_size=3,
            max_sequence_length=50,
            attention_config=ExecutorAttentionConfig(block_size=16),
            memory_config=ExecutorMemoryConfig(memory_pool_size=100 * per_token + 1),
            optimization_config=OptimizationConfig(optimization_level=0, enable_mixed_precision=True),
            executor_options={"quantize": None, "kv_dtype": "auto"},
        )
    )
    assert loader.asked == {
        "model": "fake",
        "device": "cpu",
        "dtype": "bfloat16",
        "max_batch_size": 3,
        "max_sequence_length": 50,
        "page_size": 16,
        "memory_pool_size": 100 * per_token + 1,
        "kernels": "reference",
        "replay": False,
        "quantize": None,
        "kv_dtype": "auto",
    }


@contract("2.ExecutorConfig")
@pytest.mark.parametrize("field", REFUSED)
def test_an_invalid_config_is_refused_by_field_before_loading(factory, loader, field):
    for refused in REFUSED[field]:
        for call in (factory.validate_config, factory.create_executor):
            with pytest.raises(ConfigError) as caught:
                call(refused)
            assert caught.value.param == field
    assert not loader.made


@contract("2.ExecutorConfig")
def test_defaults_run_and_options_and_levels_reach_the_loader(factory, loader):
    factory.create_executor(ExecutorConfig(model_info=INFO))
    assert loader.asked["max_sequence_length"] is None and "replay" not in loader.asked
    options = {"threads": 2, "kv_capacity": 128, "max_rows": 7, "cache_prefix": "mine", "replay": False}
    factory.create_executor(config(executor_options=options))
    assert {name: loader.asked[name] for name in options} == options
    levels = []
    for level in range(4):
        factory.create_executor(optimization(optimization_level=level))
        levels.append((loader.asked.get("kernels"), loader.asked.get("replay")))
    assert levels == [("reference", False), ("reference", None), (None, False), (None, None)]


@contract("2.ExecutorConfig")
def test_a_share_of_memory_is_of_what_is_available(loader):
    total = make_fake().executor.memory_plan.total
    factory = ModelExecutorFactory(loader, memory=lambda: 2 * total)
    factory.create_executor(memory(max_memory_usage=0.5))
    with pytest.raises(CapacityError, match=f"max_memory_usage = {int(0.49 * 2 * total)}"):
        factory.create_executor(memory(max_memory_usage=0.49))
    assert loader.made[-1].closed == 1
    share = memory(max_memory_usage=0.9)
    assert ExecutorConfig.from_json(share.to_json()) == share
    with pytest.raises(ConfigError) as caught:
        ModelExecutorFactory(loader, memory=5)
    assert caught.value.param == "memory"


@contract("2.serialisation")
@pytest.mark.parametrize(
    ("spelling", "dtype"), [("FP32", "float32"), ("FP16", "float16"), ("BF16", "bfloat16"), ("Float32", "float32")]
)
def test_spellings_of_the_rust_engine_are_read(factory, loader, spelling, dtype):
    values = {**ExecutorConfig(model_info=INFO).to_dict(), "device": "CPU", "dtype": spelling}
    values["model_info"] = {**values["model_info"], "device": "CPU", "dtype": "FP32"}
    config = ExecutorConfig.from_json(json.dumps(values))
    assert (config.device, config.dtype, config.model_info) == (Device.CPU, DataType(dtype), INFO)
    factory.create_executor(config)
    assert (loader.asked["device"], loader.asked["dtype"]) == ("cpu", dtype)
    assert ExecutorConfig.from_dict({**values, "device": {"CUDA": 0}}).device is Device.CUDA
    assert ExecutorConfig.from_dict({**values, "device": {"CUDA": 3}}).device is Device.CUDA(3)
    wrong = [("device", each) for each in ("TPU", {"CUDA": -1}, {"CPU": 0, "CUDA": 1})]
    for field, other in (*wrong, ("dtype", "FP4"), ("dtype", None)):
        with pytest.raises(RequestError) as caught:
            ExecutorConfig.from_dict({**values, field: other})
        assert caught.value.param == field


@contract("2.ExecutorConfig")
def test_graphs_of_a_device_follow_the_config(factory, loader):
    for wish, expected in ((None, None), (True, None), (False, False)):
        factory.create_executor(replace(optimization(enable_cuda_graphs=wish), device=Device.CUDA(1)))
        assert (loader.asked["device"], loader.asked.get("cuda_graphs")) == ("cuda:1", expected)
    factory.create_executor(optimization(enable_cuda_graphs=False))
    assert "cuda_graphs" not in loader.asked, "a CPU has none"


@contract("2.ExecutorConfig")
def test_a_window_must_be_the_models_own():
    made = []

    def load(_: str, **__: object) -> FakeContractExecutor:
        made.append(make_fake(window=6).executor)
        return made[-1]

    assert ModelExecutorFactory(load).create_executor(attention(sliding_window_size=6)) is made[-1]
    with pytest.raises(ConfigError) as caught:
        ModelExecutorFactory(load).create_executor(attention(sliding_window_size=7))
    assert caught.value.param == "sliding_window_size" and made[-1].closed == 1


@contract("2.ExecutorConfig")
def test_one_error_lists_all_problems(factory):
    with pytest.raises(ConfigError, match="enable_paged_attention") as caught:
        factory.validate_config(replace(attention(enable_paged_attention=False), max_batch_size=0))
    assert caught.value.param == "max_batch_size"


@contract("2.ExecutorConfig")
@pytest.mark.parametrize(
    ("wish", "feature"),
    [
        (config(executor_type=ExecutorType.PIPELINE_PARALLEL), "executor_type=PipelineParallel"),
        (config(device=Device.METAL), "device=metal"),
        (optimization(enable_cuda_graphs=True), "enable_cuda_graphs"),
    ],
)
def test_unimplemented_features_are_refused_by_name(factory, wish, feature):
    with pytest.raises(Unsupported) as caught:
        factory.validate_config(wish)
    assert caught.value.feature == feature and caught.value.reason


@contract("2.ExecutorConfig")
@pytest.mark.parametrize("options", [{}, {"tensor_parallel_size": 1}])
def test_a_tensor_parallel_executor_needs_several_ranks(factory, options):
    with pytest.raises(ConfigError, match="tensor_parallel_size above 1") as caught:
        factory.validate_config(config(executor_type=ExecutorType.TENSOR_PARALLEL, executor_options=options))
    assert caught.value.param == "executor_options"


@contract("2.ExecutorConfig")
def test_the_loaded_model_is_checked_against_the_config(factory, loader):
    factory.create_executor(attention(attention_type=AttentionType.PAGED))
    factory.create_executor(attention(attention_type=AttentionType.GROUPED_QUERY))
    with pytest.raises(ConfigError) as caught:
        factory.create_executor(attention(attention_type=AttentionType.SLIDING_WINDOW))
    assert caught.value.param == "attention_type"
    assert loader.made[-1].status().state is ExecutorState.SHUTDOWN
    for changes in ({"vocab_size": 5}, {"hidden_size": 3}, {"num_layers": 1}, {"num_kv_heads": 2}, {"head_dim": 8}):
        with pytest.raises(ConfigError, match=f"the model's {next(iter(changes))} is") as caught:
            factory.create_executor(config(model_info=replace(INFO, **changes)))
        assert caught.value.param == "model_info" and loader.made[-1].closed == 1
    factory.create_executor(memory(memory_pool_size=PAGE_SIZE * PER_TOKEN))
    total = loader.made[-1].memory_plan.total
    assert factory.create_executor(memory(max_memory_usage=total)).memory_plan.total == total
    with pytest.raises(CapacityError):
        factory.create_executor(memory(max_memory_usage=total - 1))
    assert loader.made[-1].closed == 1


@contract("2.serialisation")
def test_a_config_round_trips_through_json():
    wish = ExecutorConfig(
        model_info=INFO,
        executor_type=ExecutorType.SPECULATIVE,
        attention_config=ExecutorAttentionConfig(attention_type=AttentionType.PAGED),
        optimization_config=OptimizationConfig(custom_flags={"a": True}),
        executor_options={"quantize": None, "kernels": "auto"},
    )
    assert ExecutorConfig.from_json(wish.to_json()) == wish


@contract("2.ModelExecutorFactory")
@pytest.mark.parametrize("other", [None, 5, "ferrum-tiny", {"device": "cpu"}])
def test_other_types_than_a_config_are_refused(factory, other):
    for verb in (factory.validate_config, factory.create_executor, factory.create_batch_executor):
        with pytest.raises(RequestError) as caught:
            verb(other)
        assert caught.value.param == "config"
