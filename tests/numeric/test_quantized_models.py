"""Models quantised on load: formats of their matrices, and logits that differ only by rounding."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ferrum.core import config
from ferrum.core.errors import ConfigError
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.quant.backend_quantizer import quantize
from ferrum.quant.block_format import BLOCK_FORMATS, data_type
from ferrum.quant.panels import panel_shape
from ferrum.quant.schemes import SCHEMES
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.parameters import Parameters
from ferrum.verbs.load_executor import load_executor
from tiny import directory_of, find, tokens_of

NAMES = tuple(sorted({scheme.name for scheme in SCHEMES.values()}))
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
    assert {None, *SCHEMES} == set(config.QUANTIZATIONS)
    assert (SCHEMES["int8"], SCHEMES["int4"]) == (SCHEMES["q8_0"], SCHEMES["q4_k_m"])


@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize("name", CASES)
def test_logits_match_the_dequantised_model_up_to_the_rounding_of_inputs(name, scheme, tmp_path):
    """Inputs of every product are rounded to 1/127 of the largest of their 32: logits change by a few per cent.

    Wrong scales, shifted codes or swapped nibbles give far larger differences.
    """
    directory = directory_of(find(name))
    ours = logits_of(directory, name, quantize=scheme)
    twin = logits_of(dequantised(directory, scheme, tmp_path / "twin"), name)
    error = np.sqrt(np.mean((ours - twin) ** 2) / np.mean(twin**2))
    assert 1e-4 < error < 0.03


@pytest.mark.parametrize("scheme", NAMES)
def test_matrices_have_the_formats_of_the_scheme_and_the_plan_their_bytes(scheme):
    for name in ("llama3", "qwen3-mqa-wide-head-tied"):
        with load_executor(directory_of(find(name)), quantize=scheme, kernels="reference") as executor:
            weights = executor.lm.network.weights
            found = {name: weight.format for name, weight in weights.items()}
            assert found == SCHEMES[scheme].formats({name: weight.shape for name, weight in weights.items()})
            assert executor.info.dtype in {data_type(format) for format in found.values()}
            assert executor.info.dtype in executor.capabilities().supported_dtypes
            shapes = (panel_shape(BLOCK_FORMATS[weight.format], weight.shape) for weight in weights.values())
            assert executor.memory_plan.weights == sum(map(math.prod, shapes))


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
    np.testing.assert_array_equal(both.dequantize(), quantize("q8_0", rounded).dequantize())
    exact = Parameters(Checkpoint(directory), quantize="int8").matrix(name, shape)
    assert (both.dequantize() != exact.dequantize()).any()


def write(directory: Path, values: np.ndarray) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({}))
    save_file({"w": values}, directory / "model.safetensors")
    return Checkpoint(directory)


def test_error_names_the_matrix_that_cannot_be_quantised(tmp_path):
    broken = np.full((3, 40), np.nan, np.float32)
    with pytest.raises(ConfigError, match=r"'w'.*not finite") as caught:
        Parameters(write(tmp_path, broken), quantize="q4_0").matrix("w", (3, 40))
    assert caught.value.param == "quantize"


def test_progress_reaches_the_end(tmp_path):
    reports: list[tuple[int, int]] = []
    parameters = Parameters(
        write(tmp_path, np.ones((3, 40), np.float32)), progress=lambda *each: reports.append(each), quantize="int8"
    )
    parameters.matrix("w", (3, 40))
    assert reports == [(480, 480)]


def test_unknown_scheme_error_lists_the_known_ones(tmp_path):
    checkpoint = write(tmp_path, np.ones((1, 1), np.float32))
    with pytest.raises(ConfigError, match="q4_k_m") as caught:
        Parameters(checkpoint, quantize="int5")
    assert caught.value.param == "quantize"


def test_removed_scheme_is_refused_with_its_successors():
    with pytest.raises(ConfigError, match="int4-all was removed: use q4_0, or q4_k_m") as caught:
        load_executor("ferrum-tiny", quantize="int4-all")
    assert caught.value.param == "quantize"
