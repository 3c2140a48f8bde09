"""Models quantised on load: formats of their matrices, and logits that differ only by rounding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ferrum.core import config
from ferrum.core.errors import ConfigError
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.formats import QUANTIZERS, SCHEMES
from ferrum.quant.scale_groups import GROUPS
from ferrum.runtime.checkpoint import Checkpoint
from ferrum.runtime.load import load_executor
from ferrum.runtime.parameters import Parameters
from tiny import directory_of, find, tokens_of

CASES = ("qwen3-windows", "llama3", "qwen3-mqa-wide-head-tied")


def logits_of(directory: Path, name: str, **options) -> np.ndarray:
    with load_executor(directory, kernels="reference", **options) as executor:
        span = Span("s", 0, tuple(tokens_of(find(name), 60)), Want.LOGITS, Rows.ALL)
        logits: np.ndarray = executor.submit(StepBatch((span,))).result().results[0].logits
        return logits


def dequantised(directory: Path, scheme: str, target: Path) -> Path:
    """Write a float32 checkpoint of the dequantised matrices."""
    shutil.copytree(directory, target)
    parameters = Parameters(Checkpoint(directory), quantize=scheme)
    tensors = load_file(directory / "model.safetensors")
    for name, values in tensors.items():
        if values.ndim == 2:
            tensors[name] = np.ascontiguousarray(parameters.matrix(name, values.shape).dequantize())
    save_file(tensors, target / "model.safetensors")
    return target


def test_options_of_quantize_are_the_schemes():
    assert (None, *SCHEMES) == config.QUANTIZATIONS
    assert (None, *GROUPS) == config.GROUPS
    assert {format for scheme in SCHEMES.values() for format in (scheme.layers, scheme.ends)} <= set(QUANTIZERS)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", CASES)
def test_logits_match_the_dequantised_model_up_to_activation_rounding(name, scheme, tmp_path):
    """Inputs of every product are rounded to 1/127 of the largest of their group: logits change by a few per cent.

    Wrong scales, shifted codes or swapped nibbles give far larger differences.
    """
    directory = directory_of(find(name))
    ours = logits_of(directory, name, quantize=scheme)
    twin = logits_of(dequantised(directory, scheme, tmp_path / "twin"), name)
    error = np.sqrt(np.mean((ours - twin) ** 2) / np.mean(twin**2))
    assert 1e-4 < error < 0.03


@pytest.mark.parametrize("scheme", SCHEMES)
def test_matrices_have_the_formats_of_the_scheme(scheme):
    for name in ("llama3", "qwen3-mqa-wide-head-tied"):
        with load_executor(directory_of(find(name)), quantize=scheme, kernels="reference") as executor:
            decoder = executor.lm.network
            ends = {id(weight): weight.format for weight in (decoder.embedding, decoder.head)}
            layers = {weight.format for weight in decoder.weights.values() if id(weight) not in ends}
            assert set(ends.values()) == {SCHEMES[scheme].ends}
            assert layers == {SCHEMES[scheme].layers} == {executor.info.dtype}
            assert executor.info.dtype in executor.capabilities().supported_dtypes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_memory_plan_counts_codes_and_scales(scheme):
    """A group of 32 has 34 bytes in int8 and 18 in int4, as in GGUF's Q8_0 and Q4_0."""
    group_bytes = {"int8": 34, "int4": 18}
    directory = directory_of(find("llama3"))
    expected = 0
    for name, values in load_file(directory / "model.safetensors").items():
        if values.ndim == 2:
            format = SCHEMES[scheme].ends if name in (EMBEDDING, HEAD) else SCHEMES[scheme].layers
            expected += len(values) * -(-values.shape[1] // 32) * group_bytes[format]
    with load_executor(directory, quantize=scheme, kernels="reference") as executor:
        assert executor.memory_plan.weights == expected


def test_kv_format_follows_dtype():
    directory = directory_of(find("llama3"))
    for dtype, kept in (("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")):
        with load_executor(directory, dtype=dtype, quantize="int8", kernels="reference") as executor:
            assert executor.traits.kv_dtype == kept


def test_dtype_is_applied_before_quantisation():
    """The numbers after conversion to `dtype` are quantised."""
    directory = directory_of(find("llama3"))
    name, shape = "model.layers.0.mlp.up_proj.weight", (80, 48)
    rounded = Parameters(Checkpoint(directory), "bfloat16").matrix(name, shape).dequantize()
    both = Parameters(Checkpoint(directory), "bfloat16", quantize="int8").matrix(name, shape)
    np.testing.assert_array_equal(both.dequantize(), QUANTIZERS["int8"](rounded, 32).dequantize())
    exact = Parameters(Checkpoint(directory), quantize="int8").matrix(name, shape)
    assert (both.dequantize() != exact.dequantize()).any()


@pytest.mark.parametrize("group", GROUPS)
def test_group_can_be_chosen(group):
    with load_executor(directory_of(find("llama3")), quantize="int4", group=group, kernels="reference") as executor:
        assert {weight.group for weight in executor.lm.network.weights.values()} == {group}


def test_group_without_quantize_is_refused():
    with pytest.raises(ConfigError, match="quantize") as caught:
        load_executor(directory_of(find("llama3")), group=64, kernels="reference")
    assert caught.value.param == "group"


def write(directory: Path, values: np.ndarray) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({}))
    save_file({"w": values}, directory / "model.safetensors")
    return Checkpoint(directory)


def test_error_names_the_matrix_that_cannot_be_quantised(tmp_path):
    broken = np.full((3, 40), np.nan, np.float32)
    with pytest.raises(ConfigError, match=r"'w'.*not finite") as caught:
        Parameters(write(tmp_path, broken), quantize="int4").matrix("w", (3, 40))
    assert caught.value.param == "quantize"


def test_progress_reaches_the_end(tmp_path):
    reports: list[tuple[int, int]] = []
    parameters = Parameters(
        write(tmp_path, np.ones((3, 40), np.float32)), progress=lambda *each: reports.append(each), quantize="int8"
    )
    parameters.matrix("w", (3, 40))
    assert reports == [(480, 480)]


@pytest.mark.parametrize(("name", "value", "known"), [("quantize", "int5", "int4-all"), ("group", 48, "128")])
def test_unknown_option_error_lists_the_known_ones(name, value, known, tmp_path):
    checkpoint = write(tmp_path, np.ones((1, 1), np.float32))
    with pytest.raises(ConfigError, match=known) as caught:
        Parameters(checkpoint, **{"quantize": "int8", name: value})
    assert caught.value.param == name
