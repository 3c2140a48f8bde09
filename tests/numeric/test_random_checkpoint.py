"""Random checkpoints in the shapes of real models."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file

from ferrum.bench.shapes import SHAPES, shape_config, shape_title
from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.models.families import decoder_spec
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import DEVIATION, RandomCheckpoint
from ferrum.verbs.io_types import PrefillInput
from ferrum.verbs.load_executor import LocalExecutor
from own_server import write_shape

# Parameters without the embedding, from their model cards, in billions.
STATED = {
    "qwen3-0.6b": 0.44,
    "qwen3-1.7b": 1.4,
    "qwen3-4b": 3.6,
    "qwen3-8b": 6.95,
    "qwen3-30b-a3b": 29.9,
    "gpt-oss-20b": 19.76,
    "gemma-3-4b": 3.209,
    "deepseek-v2-lite": 15.28,
    "qwen3.6-35b-a3b": 33.64,
    "lfm2-8b-a1b": 8.2,
}


@pytest.mark.parametrize("name", STATED)
def test_shapes_have_the_sizes_that_their_model_cards_state(name):
    checkpoint = RandomCheckpoint(name, shape_config(name))
    tables = [info.nbytes for tensor, info in checkpoint.tensors.items() if "embed" in tensor or "lm_head" in tensor]
    assert (checkpoint.nbytes - sum(tables)) / 2 / 1e9 == pytest.approx(STATED[name], abs=0.05)


def test_an_unknown_shape_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"qwen3-8b") as refusal:
        shape_config("qwen3-9b")
    assert refusal.value.param == "shape"


def test_a_shape_may_have_its_first_layers_only_and_reports_say_so():
    layers = decoder_spec(shape_config("gpt-oss-20b", 3)).layers
    assert layers == decoder_spec(shape_config("gpt-oss-20b")).layers[:3]
    assert shape_title("gpt-oss-20b", 3) == "gpt-oss-20b (3 of 24 layers)"
    assert shape_title("gpt-oss-20b", 24) == shape_title("gpt-oss-20b") == "gpt-oss-20b"
    for invalid in (0, 25):
        with pytest.raises(ConfigError, match="24") as refusal:
            shape_config("gpt-oss-20b", invalid)
        assert refusal.value.param == "layers"


def test_an_embedding_that_is_not_the_head_is_large():
    checkpoint = RandomCheckpoint("tiny", {**SHAPES["tiny"], "tie_word_embeddings": False})
    assert checkpoint.read("model.embed_tokens.weight").astype(np.float64).std() == pytest.approx(10, rel=0.02)
    assert checkpoint.read("lm_head.weight").astype(np.float64).std() == pytest.approx(DEVIATION, rel=0.02)


def test_matrices_are_normal_norms_are_one_and_no_two_rows_are_equal():
    checkpoint = RandomCheckpoint("tiny", SHAPES["tiny"])
    matrix = checkpoint.read("model.embed_tokens.weight").astype(np.float64)
    assert matrix.std() == pytest.approx(DEVIATION, rel=0.02)
    assert abs(matrix.mean()) < DEVIATION / 20
    assert len(np.unique(matrix, axis=0)) == len(matrix)
    assert (checkpoint.read("model.norm.weight") == 1).all()


def test_a_matrix_longer_than_the_pool_repeats_it_without_repeating_a_row(monkeypatch):
    monkeypatch.setattr("ferrum.sources.random_checkpoint._POOL", 97)
    matrix = RandomCheckpoint("tiny", SHAPES["tiny"]).read("model.layers.1.mlp.up_proj.weight")
    assert matrix.size > 97
    assert len(np.unique(matrix.astype(np.float32), axis=0)) == len(matrix)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
def test_the_tensors_are_exactly_the_decoders(changes):
    """The loader itself refuses missing, misshapen and unexpected tensors."""
    store = RandomCheckpoint("tiny", {**SHAPES["tiny"], **changes})
    config = ModelConfig(model="tiny", kernels="reference", kv_capacity=64)
    with build_executor(LocalExecutor, config, checkpoint=store) as executor:
        assert executor.info.num_parameters == store.nbytes // 2


def test_a_written_shape_holds_the_same_tensors_one_at_a_time(tmp_path, monkeypatch):
    read, before = RandomCheckpoint.read, []

    def alone(self, name):
        assert all(each() is None for each in before)
        tensor = read(self, name)
        before.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(RandomCheckpoint, "read", alone)
    write_shape("tiny", SHAPES["tiny"], tmp_path)
    monkeypatch.undo()
    store, written = RandomCheckpoint("tiny", SHAPES["tiny"]), load_file(tmp_path / "model.safetensors")
    assert len(before) == len(store.tensors) and written.keys() == store.tensors.keys()
    for name, tensor in written.items():
        np.testing.assert_array_equal(tensor, store.read(name), strict=True)


def test_two_loads_give_the_same_bits():
    def logits() -> np.ndarray:
        config = ModelConfig(model="tiny", kernels="reference", kv_capacity=64)
        store = RandomCheckpoint("tiny", SHAPES["tiny"])
        with build_executor(LocalExecutor, config, checkpoint=store) as executor:
            return executor.prefill(PrefillInput([3, 1, 4])).last_token_logits()

    assert np.array_equal(logits(), logits())
