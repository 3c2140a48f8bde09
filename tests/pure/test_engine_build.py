"""Building the parts of a client from options and small files; nothing is loaded or started."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest

from ferrum.client.client_base import build, engine_config
from ferrum.client.engine_process import ProcessHost
from ferrum.core.errors import CheckpointError, ConfigError, ModelNotFound
from ferrum.core.logging import info_once, warn_once
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import EngineRecipe
from ferrum.sources.model_source import DirectoryModel
from text_samples import EOS, byte_level


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory without weights."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "renormalize_logits": True}))
    return tmp_path


def test_flat_options_set_nested_fields() -> None:
    config = engine_config("m", {"kv_capacity": 640, "policy": "priority"})
    assert (config.model.model, config.model.kv_capacity, config.policy) == ("m", 640, "priority")


@pytest.mark.parametrize("name", ["kv_capacty", "model", "switches"])
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="kv_capacity") as caught:
        engine_config("m", {name: 1})
    assert caught.value.param == name


def test_an_invalid_value_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config("m", {"host": "cloud"})
    assert caught.value.param == "host"


def test_the_host_option_selects_the_host(model: Path) -> None:
    assert isinstance(build(str(model)).host, ThreadHost)
    assert isinstance(build(str(model), host="process").host, ProcessHost)
    assert build(str(model), max_queue=5).max_requests == 5


def test_options_accept_paths(model: Path, tmp_path: Path) -> None:
    parts = build(model, record_dir=tmp_path / "records")  # type: ignore[arg-type]  # users pass paths
    assert parts.config is not None and parts.config.record_dir == str(tmp_path / "records")
    assert json.loads(parts.config.to_json())["model"]["model"] == str(model)


def test_a_recipe_can_be_pickled() -> None:
    recipe = EngineRecipe(engine_config("m", {"kv_capacity": 640}), "m", DirectoryModel(Path("m")))
    again = pickle.loads(pickle.dumps(recipe))
    assert (again.config, again.name, again.source.path) == (recipe.config, "m", Path("m"))


def test_recommended_parameters_apply_and_are_logged_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    info_once.cache_clear()
    warn_once.cache_clear()
    caplog.set_level(logging.INFO)
    assert build(str(model)).generation.sampling == {"temperature": 0.25}
    assert build(str(model)).generation.sampling == {"temperature": 0.25}
    (defaults, ignored) = caplog.records
    assert defaults.levelno == logging.INFO and "temperature=0.25" in defaults.getMessage()
    assert ignored.levelno == logging.WARNING and "renormalize_logits" in ignored.getMessage()
    assert build(str(model), generation_config="none").generation.sampling == {}


def test_ignored_recommendations_do_not_refuse_a_model(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 5.0, "eos_token_id": 7}))
    with pytest.raises(CheckpointError, match="temperature"):
        build(str(model))
    assert build(str(model), generation_config="none").generation.eos_token_ids == (7,)


def test_the_tokenizers_end_token_is_added_to_the_checkpoints(model: Path) -> None:
    assert build(str(model)).generation.eos_token_ids == ()
    byte_level().save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    parts = build(str(model))
    assert parts.tokenizer is not None and parts.generation.eos_token_ids == parts.tokenizer.eos_token_ids != ()
    (model / "config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert build(str(model)).generation.eos_token_ids == (7, 8, *parts.tokenizer.eos_token_ids)


def test_a_missing_model_is_not_found(model: Path) -> None:
    for name, options in (("nosuchmodel", {}), (str(model), {"speculative": "nosuchmodel"})):
        with pytest.raises(ModelNotFound) as refusal:
            build(name, **options)
        assert refusal.value.param == next(iter(options), "model")
