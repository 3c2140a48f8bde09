"""Checkpoint directories, valid and inconsistent; the safetensors library writes the files."""

from __future__ import annotations

import json
import os
from errno import EACCES
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.sources.checkpoint import Checkpoint, read_config
from ferrum.sources.parameters import Parameters

BF16 = ml_dtypes.bfloat16
MATRIX = np.linspace(-3, 3, 35, dtype=np.float32).reshape(7, 5)
VECTOR = np.array([0.1, -2.5, 7.0], np.float32)


def write(
    directory: Path, tensors: dict[str, np.ndarray], config: object = None, name: str = "model.safetensors"
) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({} if config is None else config))
    save_file(tensors, directory / name)
    return directory


def write_shards(directory: Path, shards: dict[str, dict[str, np.ndarray]], **changes: str) -> Path:
    """Write one file per shard, and an index that is right except for `changes`."""
    for name, tensors in shards.items():
        write(directory, tensors, name=name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors} | changes
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def refused(directory: Path, *words: str) -> None:
    """Assert that opening it raises an error with all of these words."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(directory)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_values_are_those_saved_and_stay_in_the_file(tmp_path, dtype):
    values = MATRIX.astype(dtype)
    parameters = Parameters(Checkpoint(write(tmp_path, {"w": values, "b": VECTOR.astype(dtype)})))
    weight = parameters.matrix("w", (7, 5))
    assert weight.format == np.dtype(dtype).name
    assert weight.nbytes == values.nbytes
    np.testing.assert_array_equal(weight.dequantize(), values.astype(np.float32))
    np.testing.assert_array_equal(weight.rows(np.array([6, 0, 6], np.int32)), values.astype(np.float32)[[6, 0, 6]])
    vector = parameters.vector("b", 3)
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, VECTOR.astype(dtype).astype(np.float32))
    parameters.finish()


@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_a_conversion_rounds_once(tmp_path, source, target):
    torch = pytest.importorskip("torch")
    values = torch.randn(300, 40, generator=torch.Generator().manual_seed(1)).to(getattr(torch, source))
    array = values.float().numpy().astype(np.dtype(BF16) if source == "bfloat16" else source)
    weight = Parameters(Checkpoint(write(tmp_path, {"w": array})), dtype=target).matrix("w", (300, 40))
    assert weight.format == target
    np.testing.assert_array_equal(weight.dequantize(), values.to(getattr(torch, target)).float().numpy())


def test_a_number_beyond_the_dtype_is_refused(tmp_path):
    directory = write(tmp_path, {"w": np.array([[1.0, 70000.0]], np.float32)})
    with pytest.raises(ConfigError, match=r"'w'.*70000.*float16") as caught:
        Parameters(Checkpoint(directory), dtype="float16").matrix("w", (1, 2))
    assert caught.value.param == "dtype"
    assert Parameters(Checkpoint(directory), dtype="bfloat16").matrix("w", (1, 2)).format == "bfloat16"


def test_infinities_and_nan_survive_a_conversion(tmp_path):
    directory = write(tmp_path, {"w": np.array([[np.inf, -np.inf, np.nan]], np.float32)})
    weight = Parameters(Checkpoint(directory), dtype="float16").matrix("w", (1, 3))
    np.testing.assert_array_equal(weight.dequantize(), [[np.inf, -np.inf, np.nan]])


def test_products_round_their_inputs_to_the_format(tmp_path):
    """Adding 2^-9 to 1 is lost in bfloat16's 8 bits of mantissa, and kept in the other formats."""
    x = np.array([[1 + 2**-9]], np.float32)
    one = np.ones((1, 1), np.float32)
    parameters = Parameters(Checkpoint(write(tmp_path, {"f": one, "h": one.astype(np.float16), "b": one.astype(BF16)})))
    assert parameters.matrix("f", (1, 1)).matmul(x) == x
    assert parameters.matrix("h", (1, 1)).matmul(x) == x
    assert parameters.matrix("b", (1, 1)).matmul(x) == 1
    large = np.array([[1e6]], np.float32)
    assert parameters.matrix("h", (1, 1)).matmul(large) == 1e6


def test_shards_make_one_checkpoint(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"w": MATRIX}, "b.safetensors": {"b": VECTOR}})
    parameters = Parameters(Checkpoint(tmp_path))
    np.testing.assert_array_equal(parameters.matrix("w", (7, 5)).dequantize(), MATRIX)
    np.testing.assert_array_equal(parameters.vector("b", 3), VECTOR)
    parameters.finish()


def test_shards_behind_links_are_found(tmp_path):
    """The hub's cache consists of links."""
    write(tmp_path / "blobs", {"w": MATRIX})
    (tmp_path / "snapshot").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    assert list(Checkpoint(tmp_path / "snapshot").tensors) == ["w"]


def test_a_missing_shard_is_named(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"w": MATRIX}}, x="b.safetensors", y="c.safetensors")
    refused(tmp_path, "'b.safetensors', 'c.safetensors' of 3")


@pytest.mark.parametrize(
    "shard", ["../evil.safetensors", "/etc/passwd", "a/b.safetensors", "..\\e.safetensors", "x.bin", "", 7, None,
              "nul\0.safetensors", "n" * 300 + ".safetensors", ["a.safetensors"]],
)  # fmt: skip
def test_a_shard_must_be_in_the_directory_of_the_index(tmp_path, shard):
    write_shards(tmp_path / "model", {"a.safetensors": {"w": MATRIX}}, x=shard)
    write(tmp_path, {"x": MATRIX}, name="evil.safetensors")
    refused(tmp_path / "model", "'x'", "of the same directory")


def test_an_index_that_contradicts_its_files_is_refused(tmp_path):
    both = {"a.safetensors": {"v": MATRIX, "w": MATRIX}, "b.safetensors": {"w": MATRIX}}
    refused(write_shards(tmp_path / "twice", both), "'w'", "a.safetensors", "b.safetensors")
    refused(write_shards(tmp_path / "absent", {"a.safetensors": {"w": MATRIX}}, x="a.safetensors"), "'x'")
    moved = {"a.safetensors": {"w": MATRIX}, "b.safetensors": {"x": MATRIX}}
    refused(write_shards(tmp_path / "moved", moved, w="b.safetensors"), "'w'")
    unlisted = write_shards(tmp_path / "unlisted", {"a.safetensors": {"w": MATRIX}})
    write(unlisted, {"w": MATRIX, "x": MATRIX}, name="a.safetensors")
    refused(unlisted, "'x'")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\udc80"])
def test_a_broken_index_is_refused(tmp_path, text):
    write_shards(tmp_path, {"a.safetensors": {"w": MATRIX}})
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(text.encode(errors="surrogateescape"))
    refused(tmp_path, str(index))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\udcff", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_a_broken_config_is_refused(tmp_path, text):
    write(tmp_path, {"w": MATRIX})
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(tmp_path, "config.json")


def test_a_config_must_be_a_plain_file_of_limited_size(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: there is no such file"):
        read_config(tmp_path)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(CheckpointError, match=r"config\.json: .*67108864 bytes"):
        read_config(tmp_path)


def test_an_unreadable_directory_is_refused(tmp_path, monkeypatch):
    """The error is simulated, since root may read any directory."""

    def refused(path, **_):
        raise PermissionError(EACCES, os.strerror(EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refused)
        with pytest.raises(CheckpointError, match=r"config.json: cannot be read: .*Permission denied"):
            read_config(tmp_path)


def test_directories_without_weights_have_a_next_step(tmp_path):
    refused(tmp_path / "nothing", "is not a directory")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    refused(tmp_path, "pytorch_model.bin", "save_pretrained")


def test_a_git_lfs_pointer_is_named_as_such(tmp_path):
    write(tmp_path, {"w": MATRIX})
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    refused(tmp_path, "model.safetensors: is a Git LFS pointer", "`git lfs pull`")


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    parameters = Parameters(Checkpoint(write(tmp_path, {"w": MATRIX, "b": VECTOR})))
    with pytest.raises(CheckpointError, match=r"'x' is missing.*'b'"):
        parameters.matrix("x", (7, 5))
    for shape in ((5, 7), (7, 6), (35, 1)):
        with pytest.raises(
            CheckpointError, match=rf"'w' in model\.safetensors: expected shape \[{shape[0]}, {shape[1]}\]"
        ):
            parameters.matrix("w", shape)
    with pytest.raises(CheckpointError, match=r"expected shape \[35\], found \[7, 5\]"):
        parameters.vector("w", 35)
    with pytest.raises(CheckpointError, match=r"expected shape \[1, 3\], found \[3\]"):
        parameters.matrix("b", (1, 3))


def test_unexpected_tensors_are_refused_unless_ignored(tmp_path):
    tensors = {f"layers.{i}.inv_freq": VECTOR for i in range(9)}
    parameters = Parameters(Checkpoint(write(tmp_path, {"w": MATRIX, **tensors})))
    parameters.matrix("w", (7, 5))
    with pytest.raises(CheckpointError, match=r"9 .*'layers\.0\.inv_freq'.* and 6 more"):
        parameters.finish()
    with pytest.raises(CheckpointError, match="9 unexpected"):
        parameters.finish(("inv_freq", "layers"))
    parameters.finish(("*.inv_freq",))


def test_an_ignored_tensor_may_have_any_dtype(tmp_path):
    tensors = {"w": MATRIX, "mask": np.ones((2, 2), np.bool_), "ids": np.arange(3)}
    parameters = Parameters(Checkpoint(write(tmp_path, tensors)))
    parameters.matrix("w", (7, 5))
    parameters.finish(("mask", "ids"))
    with pytest.raises(Unsupported, match=r"BOOL.*'mask'"):
        parameters.matrix("mask", (2, 2))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, r"\(gptq\)"),
        ({"quantization_config": {"load_in_8bit": True}}, r"\(bitsandbytes\)"),
        ({"quantization_config": {"quant_method": "torchao"}}, r"\(torchao\).*--quantize, or a GGUF"),
        ({"quantization": {"group_size": 64, "bits": 4}}, r"\(MLX\)"),
        ({"quantization_config": {"scheme": 1}}, "unnamed method"),
    ],
)
def test_quantised_checkpoints_are_refused_by_name(tmp_path, config, told):
    with pytest.raises(Unsupported, match=told):
        Parameters(Checkpoint(write(tmp_path, {"w": MATRIX}, config)))


def test_unknown_dtypes_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="float64"):
        Parameters(Checkpoint(write(tmp_path, {"w": MATRIX})), dtype="float64")


def test_progress_ends_at_the_total(tmp_path):
    seen: list[tuple[int, int]] = []
    tensors = {"w": MATRIX, "b": VECTOR, "spare": VECTOR}
    parameters = Parameters(Checkpoint(write(tmp_path, tensors)), progress=lambda *at: seen.append(at))
    parameters.matrix("w", (7, 5))
    parameters.vector("b", 3)
    parameters.finish(("spare",))
    whole = MATRIX.nbytes + 2 * VECTOR.nbytes
    assert seen == [(MATRIX.nbytes, whole), (MATRIX.nbytes + VECTOR.nbytes, whole), (whole, whole)]
