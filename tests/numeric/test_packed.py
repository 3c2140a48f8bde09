"""Packed directories: the bits of quantising on load, no copies, and every mismatch detected."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ferrum.bench.shapes import shape_config
from ferrum.cli.main import execute
from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.core.types import Pooling
from ferrum.models.tensor_names import EMBEDDING
from ferrum.quant.backend_quantizer import quantize
from ferrum.quant.block_weight import PanelWeight
from ferrum.quant.scale_search import THOROUGH
from ferrum.quant.schemes import SCHEMES
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.packed import PackedParameters, _config_checksum
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.text.chat_template import load_chat_template
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.pooling import load_pooling
from ferrum.verbs.load_executor import load_executor
from packed_kit import copy_of, logits_of, packed_of
from tiny import directory_of, find

NAMES = ("llama3", "qwen3-mqa-wide-head-tied", "qwen3-bias")
MATRIX = "model.layers.0.mlp.up_proj.weight"


def change(directory: Path, **values: object) -> Path:
    """Rewrite the header with other values."""
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"].update(values)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_packed_model_has_the_bits_of_one_quantised_on_load(name, scheme):
    ours = logits_of(packed_of(name, scheme), name, kernels="reference")
    np.testing.assert_array_equal(ours, logits_of(directory_of(find(name)), name, kernels="reference", quantize=scheme))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_kernels_give_the_bits_of_quantising_on_load(scheme):
    ours = logits_of(packed_of("llama3", scheme), "llama3")
    np.testing.assert_array_equal(ours, logits_of(directory_of(find("llama3")), "llama3", quantize=scheme))


def test_matrices_are_cache_lines_of_the_mapped_file():
    directory = packed_of("llama3", "q4_0")
    with safe_open(directory / "model.safetensors", framework="numpy") as file:
        assert MATRIX in file.keys()  # noqa: SIM118 - not a mapping
    checkpoint = Checkpoint(directory)
    file_bytes = (directory / "model.safetensors").stat().st_size
    header = file_bytes - checkpoint.nbytes
    weight = PackedParameters(checkpoint).matrix(MATRIX, (80, 48))
    assert isinstance(weight, PanelWeight)
    assert not weight.panels.flags.owndata and not weight.panels.flags.writeable
    for info in checkpoint.tensors.values():
        assert info.dtype != "U8" or info.begin % 64 == 0
    assert header % 64 == 0


def test_the_other_files_of_a_model_are_copied(tmp_path):
    source = copy_of(directory_of(find("llama3")), tmp_path / "in")
    (source / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    for name in ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "model.onnx"):
        (source / name).write_bytes(b"weights once more")
    (source / "tokenizer.json").write_text('{"model": {"merges": [["a", "b"]]}}')
    (source / "chat_template.jinja").write_text("plain")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (source / "modules.json").write_text('[{"path": "1_Pooling", "type": "Pooling"}]')
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    pack_directory(DirectoryModel(source), tmp_path / "out", "q8_0")
    assert load_pooling(DirectoryFiles(tmp_path / "out")) is Pooling.LAST
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == '{"model_max_length": 7}'
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"model":{"merges":["a b"]}}'
    template = load_chat_template(DirectoryFiles(tmp_path / "out"))
    assert template is not None
    assert [template.render([{"role": "user"}], tools=tools) for tools in (None, [{}])] == ["plain", "tools"]
    for name in ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "model.onnx"):
        assert not (tmp_path / "out" / name).exists()


def test_parameter_count_and_formats_match_the_model():
    directory = packed_of("llama3", "q4_0", "bfloat16")
    with load_executor(directory, kernels="reference") as ours:
        source = directory_of(find("llama3"))
        with load_executor(source, dtype="bfloat16", quantize="q4_0", kernels="reference") as theirs:
            assert ours.info.num_parameters == theirs.info.num_parameters
            assert ours.info.dtype == theirs.info.dtype == "int4"
            assert ours.traits.kv_dtype == theirs.traits.kv_dtype == "bfloat16"


def mixed(target: Path) -> Path:
    """Write a checkpoint with matrices of several formats."""
    source = copy_of(directory_of(find("llama3")), target)
    tensors = load_file(source / "model.safetensors")
    tensors[MATRIX] = tensors[MATRIX].astype(np.float16)
    save_file(tensors, source / "model.safetensors")
    return source


def test_a_packed_directory_records_all_original_formats(tmp_path):
    source = mixed(tmp_path / "in")
    pack_directory(DirectoryModel(source), tmp_path / "out", "q4_0")
    with load_executor(source, quantize="q4_0", kernels="reference") as theirs:
        wanted = theirs.traits.weights
    assert "float16+float32" in wanted
    with load_executor(tmp_path / "out", kernels="reference") as ours:
        assert ours.traits.weights == wanted
    for dtype in ("float32", "float16"):
        with pytest.raises(ConfigError, match=r"was packed as float16\+float32") as caught:
            load_executor(tmp_path / "out", dtype=dtype)
        assert caught.value.param == "dtype"


def test_a_header_without_formats_means_the_one_dtype(tmp_path):
    config = json.loads((packed_of("llama3", "q4_0") / "config.json").read_text())
    del config["quantization_config"]["formats"]
    config["quantization_config"]["config_checksum"] = _config_checksum(config)
    directory = copy_of(packed_of("llama3", "q4_0"), tmp_path / "old")
    (directory / "config.json").write_text(json.dumps(config))
    with load_executor(directory, dtype="float32", kernels="reference") as executor:
        assert executor.traits.weights == "q4_0 of float32"


def test_only_options_that_match_the_directory_are_accepted():
    directory = packed_of("llama3", "q4_0")
    load_executor(directory, quantize="q4_0", dtype="float32", kernels="reference").shutdown()
    load_executor(packed_of("llama3", "q8_0"), quantize="int8", kernels="reference").shutdown()
    for name, value in (("quantize", "q8_0"), ("dtype", "bfloat16")):
        with pytest.raises(ConfigError, match="was packed as") as caught:
            load_executor(directory, **{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("version", 2, Unsupported),
        ("version", None, Unsupported),
        ("numerics_id", "grouped-0", Unsupported),
        ("scheme", "int3", CheckpointError),
        ("scheme", ["q8_0"], CheckpointError),
        ("dtype", "float8", CheckpointError),
        ("formats", [], CheckpointError),
        ("formats", "float32", CheckpointError),
        ("formats", [["float32"]], CheckpointError),
        ("formats", ["float32", "float8"], CheckpointError),
        ("blocks", [], CheckpointError),
        ("blocks", {}, CheckpointError),
        ("blocks", {MATRIX: "q4_0"}, CheckpointError),  # not all matrices
        ("checksums", {}, CheckpointError),
        ("checksums", [], CheckpointError),
    ],
)
def test_an_inconsistent_header_is_refused(name, value, error, tmp_path):
    directory = change(copy_of(packed_of("llama3", "q4_0"), tmp_path / "m"), **{name: value})
    with pytest.raises(error, match=str(tmp_path)):
        load_executor(directory)


def test_a_header_that_is_no_object_is_refused(tmp_path):
    directory = copy_of(packed_of("llama3", "q4_0"), tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": "ferrum"}))
    with pytest.raises(CheckpointError, match="must be an object"):
        load_executor(directory)


@pytest.mark.parametrize(
    "change", [{"intermediate_size": 200}, {"tie_word_embeddings": True}, {"rms_norm_eps": 1e-4}, {"rope_theta": 500.0}]
)
def test_a_changed_configuration_is_refused(change, tmp_path):
    """Some changes would load as another model: a head that becomes tied leaves its own matrix unread."""
    directory = copy_of(packed_of("llama3", "q8_0"), tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=r"config.json is damaged"):
        load_executor(directory)


@pytest.mark.parametrize("format", ["q8_0", "q4_9", 7, ["q4_0"]])
def test_a_matrix_of_another_or_an_unknown_format_is_refused(format, tmp_path):
    directory = copy_of(packed_of("llama3", "q4_0"), tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    header = config["quantization_config"]
    assert header["blocks"][MATRIX] == "q4_0"
    header["blocks"][MATRIX] = format
    header["config_checksum"] = _config_checksum(config)
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=MATRIX):
        load_executor(directory)


def test_a_large_file_is_written_and_mapped_whole(tmp_path):
    """More than one block of the writer: headers, matrices and vectors are restored byte for byte."""
    store = RandomCheckpoint("random", {**shape_config("tiny"), "vocab_size": 200_000})
    pack_directory(store, tmp_path / "out", "q8_0")
    packed = Checkpoint(tmp_path / "out")
    assert packed.nbytes > 12 << 20
    weight = PackedParameters(packed).matrix(EMBEDDING, (200_000, 64))
    np.testing.assert_array_equal(weight.dequantize(), quantize("q8_0", store.read(EMBEDDING)).dequantize())


def test_only_an_empty_target_is_written_to(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists") as caught:
        pack_directory(DirectoryModel(directory_of(find("llama3"))), tmp_path / "used", "q8_0")
    assert caught.value.param == "out"
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    pack_directory(DirectoryModel(directory_of(find("llama3"))), tmp_path / "empty", "q8_0")


def test_a_packed_directory_is_not_packed_again(tmp_path):
    with pytest.raises(ConfigError, match="already packed") as refusal:
        pack_directory(DirectoryModel(packed_of("llama3", "q8_0")), tmp_path / "out", "q8_0")
    assert refusal.value.param == "model" and not (tmp_path / "out").exists()


def test_the_command_searches_thoroughly_and_prints_the_target(tmp_path, capsys):
    out = tmp_path / "out"
    assert execute(["quantize", str(directory_of(find("llama3"))), str(out), "--quantize", "int4"]) == 0
    assert str(out) in capsys.readouterr().out
    pack_directory(DirectoryModel(directory_of(find("llama3"))), tmp_path / "same", "int4", search=THOROUGH)
    ours, same, quick = (
        (path / "model.safetensors").read_bytes() for path in (out, tmp_path / "same", packed_of("llama3", "q4_k_m"))
    )
    assert ours == same != quick


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("--quantize", "int3", "q4_k_m"), ("--quantize", "int4-all", "or q4_k_m"), ("--dtype", "float8", "auto")],
)
def test_the_command_refuses_unknown_options(option, value, known, tmp_path, capsys):
    assert execute(["quantize", str(directory_of(find("llama3"))), str(tmp_path / "out"), option, value]) == 2
    error = capsys.readouterr().err
    assert value in error and known in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["file/out", "dangling", "long" * 99])
def test_a_target_that_cannot_be_created_is_named(out, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be created") as refusal:
        pack_directory(DirectoryModel(directory_of(find("llama3"))), tmp_path / out, "q8_0")
    assert refusal.value.param == "out"
