"""The option tree, and the environment variables that it reads."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from ferrum.core.config import USUAL_BATCH, EngineConfig, ModelConfig, Switches
from ferrum.core.errors import ConfigError

contract = pytest.mark.contract


@contract("4.switches")
@pytest.mark.parametrize("name", ["FERRUM_DISABLE_GRAPHS", "FERRUM_DISABLE_CUDA_RUNNER"])
def test_both_variables_disable_graphs(name):
    assert Switches.from_environment({name: "1"}).disable_graphs
    assert Switches.from_environment({name: "true"}).disable_graphs
    assert not Switches.from_environment({name: "0"}).disable_graphs


@contract("4.switches")
def test_an_empty_environment_gives_the_defaults():
    assert Switches.from_environment({}) == Switches()
    assert Switches.from_environment({"FERRUM_LOG_TOKENS": "1", "FERRUM_PAGED_KV": "1"}) == Switches(log_tokens=True)


@contract("4.switches")
@pytest.mark.parametrize("environment", [{"FERRUM_PAGED_KV": "0"}, {"FERRUM_LOG_TOKENS": "maybe"}])
def test_an_invalid_switch_is_refused_by_name(environment):
    with pytest.raises(ConfigError) as caught:
        Switches.from_environment(environment)
    assert caught.value.param == next(iter(environment))


def test_an_unknown_variable_is_warned_of_once(caplog):
    for _ in range(2):
        assert Switches.from_environment({"FERRUM_DISABLE_GRAPH": "1", "FERRUM_LOG_TOKENS": "0"}) == Switches()
    assert ["FERRUM_DISABLE_GRAPH" in each.message for each in caplog.records] == [True]


def test_the_tree_is_frozen_and_every_option_has_a_help_text():
    config = EngineConfig(model=ModelConfig(model="ferrum-tiny"))
    with pytest.raises(FrozenInstanceError):
        config.policy = "priority"  # type: ignore[misc]
    for kind in (EngineConfig, ModelConfig, Switches):
        for item in fields(kind):
            assert item.metadata["help"].endswith(".")


def test_the_tree_round_trips_through_json():
    config = EngineConfig(model=ModelConfig(model="m", kv_capacity=640, switches=Switches(log_tokens=True)))
    assert EngineConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "tpu"),
        ("dtype", "float8"),
        ("quantize", "int3"),
        ("quantize", "int4-all"),
        ("kv_dtype", "int4"),
        ("kernels", "fast"),
        ("max_batch_size", 0),
        ("max_batch_size", True),
        ("max_batch_size", 1 << 62),
        ("max_sequence_length", -1),
        ("kv_capacity", 0),
        ("kv_capacity", 1.5),
        ("threads", 0),
        ("threads", 1025),
        ("threads", 10**20),
        ("model", 3),
        ("model", b"m"),
        ("kernels", np.array([1, 2])),
        ("kv_capacity", np.array([1, 2])),
        ("switches", {"log_tokens": True}),
    ],
)
def test_invalid_model_options_are_refused_by_field(field, value):
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**{"model": "m", field: value})
    assert caught.value.param == field
    assert value is None or "None" not in str(caught.value), "that is no choice on a command line"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "lifo"),
        ("host", "cloud"),
        ("max_queue", 0),
        ("prefix_cache", "yes"),
        ("prefix_cache_gib", 0),
        ("swap_gib", -1),
        ("generation_config", "maybe"),
        ("max_tokens_per_step", 0),
        ("decode_seconds", -0.1),
        ("decode_seconds", math.nan),
        ("decode_seconds", math.inf),
        ("decode_seconds", "soon"),
        ("record_dir", ""),
        ("record_dir", 3),
        ("speculative", True),
        ("prefix_cache_dir", ""),
        ("max_tokens_per_step", None),
        ("decode_seconds", None),
        ("max_queue", None),
        ("swap_gib", None),
        ("num_speculative_tokens", None),
    ],
)
def test_invalid_engine_options_are_refused_by_field(field, value):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=ModelConfig(model="m"), **{field: value})
    assert caught.value.param == field


def test_batch_size_follows_the_step_unless_it_is_given():
    assert EngineConfig(model=ModelConfig(model="m")).max_sequences == USUAL_BATCH
    assert EngineConfig(model=ModelConfig(model="m"), max_tokens_per_step=8).max_sequences == 8
    assert EngineConfig(model=ModelConfig(model="m", max_batch_size=32)).max_sequences == 32
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=ModelConfig(model="m", max_batch_size=32), max_tokens_per_step=31)
    assert caught.value.param == "max_tokens_per_step"


@pytest.mark.parametrize("model", [None, "m", {"model": "m"}])
def test_an_engine_config_needs_a_model_config(model):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=model)
    assert caught.value.param == "model"


def test_adapters_are_named_paths() -> None:
    def lora(*given: Any) -> tuple[str, ...]:
        return EngineConfig(model=ModelConfig(model="m"), lora=given).lora

    assert lora("a=/x=1", '{"name": "b", "path": "y", "base_model_name": "m"}') == ("a=/x=1", "b=y")
    for wrong in ("a", "=x", "a=", "{", '{"name": "a"}', '{"name": "a", "path": "x", "rank": 1}', 3):
        with pytest.raises(ConfigError) as caught:
            lora(wrong)
        assert caught.value.param == "lora"
    with pytest.raises(ConfigError, match="'a' twice"):
        lora("a=x", "a=y")
