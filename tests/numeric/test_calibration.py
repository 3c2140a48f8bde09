"""Calibration: the importance of inputs is their mean square, packing uses it, and every run gives the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from family_twin import MODELS
from ferrum.cli.main import execute
from ferrum.core.errors import ConfigError, RequestError
from ferrum.kernels.operations import F32
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.scale_search import THOROUGH
from ferrum.runtime.calibration import SPAN, Calibrator
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.packed import PackedParameters
from gguf_twin import TOKENIZER, write_gguf
from packed_kit import copy_of
from text_samples import write
from tiny import Case, directory_of, find, model_of
from tiny_with_tokenizer import letters, spoken

LLAMA, TIED = "llama3", "qwen3-mqa-wide-head-tied"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = Case("llama-wide", "LlamaConfig", {**SIZES, "head_dim": 32})
TEXT = "".join(map(chr, np.random.default_rng(0).integers(32, 127, 700)))
NORM, GATE = "model.layers.1.post_attention_layernorm.weight", "model.layers.1.mlp.gate_proj.weight"


def importance_of(directory: Path) -> dict[str, F32]:
    with Calibrator(DirectoryModel(directory), TEXT) as calibrator:
        return calibrator.run(lambda _: None)


def twins_importance(name: str, spans: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the mean square of the input of every linear module of `transformers`."""
    model, seen = model_of(find(name)).float(), {}

    def watch(module: str) -> Callable[..., None]:
        return lambda _, given, __: seen.setdefault(module, []).append(given[0][0].numpy().astype(np.float64))

    linear = {each: module for each, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    hooks = [module.register_forward_hook(watch(each)) for each, module in linear.items()]
    with torch.no_grad():
        for span in spans:
            model(torch.tensor([span]))
    for hook in hooks:
        hook.remove()
    return {f"{each}.weight": np.square(np.concatenate(rows)).mean(axis=0) for each, rows in seen.items()}


@pytest.mark.parametrize("name", [LLAMA, TIED])
def test_importance_is_the_mean_square_of_each_input(name: str) -> None:
    with Calibrator(DirectoryModel(spoken(name)), TEXT) as calibrator:
        done: list[int] = []
        ours = calibrator.run(done.append)
        assert len(done) == len(calibrator.spans) > 1
    theirs = twins_importance(name, calibrator.spans)
    if name == TIED:
        theirs[EMBEDDING] = theirs.pop(HEAD)
    assert ours.keys() == theirs.keys()
    for matrix, found in ours.items():
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, theirs[matrix], rtol=2e-3, err_msg=matrix)


def test_inputs_that_are_always_zero_have_a_small_importance(tmp_path: Path) -> None:
    directory = copy_of(spoken(LLAMA), tmp_path / "in")
    tensors = load_file(directory / "model.safetensors")
    tensors[NORM][3] = 0
    save_file(tensors, directory / "model.safetensors")
    found = importance_of(directory)[GATE]
    assert 0 < found[3] < found.max() * 1e-5 and (np.delete(found, 3) > found[3]).all()


def numbers_of(directory: Path) -> dict[str, F32]:
    parameters = PackedParameters(Checkpoint(directory))
    kinds = json.loads((directory / "config.json").read_text())["quantization_config"]["blocks"]
    shapes = {name: info.shape for name, info in Checkpoint(directory_of(find(LLAMA))).tensors.items()}
    return {name: parameters.matrix(name, (shapes[name][0], shapes[name][1])).dequantize() for name in kinds}


@pytest.mark.parametrize("scheme", ["q4_0", "q4_k_m"])
def test_calibrated_weights_have_less_error_by_importance(scheme: str, tmp_path: Path) -> None:
    source = DirectoryModel(spoken(LLAMA))
    importance, exact = importance_of(source.path), load_file(source.path / "model.safetensors")
    errors = []
    for target, given in ((tmp_path / "plain", None), (tmp_path / "calibrated", importance)):
        pack_directory(source, target, scheme, importance=given, search=THOROUGH)
        found = numbers_of(target)
        squares = {name: np.square(found[name].astype(np.float64) - exact[name]) for name in importance}
        errors.append({name: (each * importance[name]).sum() for name, each in squares.items()})
    plain, calibrated = errors
    assert sum(calibrated.values()) < 0.99 * sum(plain.values())
    assert all(calibrated[name] < plain[name] * 1.001 for name in importance)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    outs = [tmp_path / "a", tmp_path / "b", tmp_path / "plain"]
    for out in outs[:2]:
        assert execute(["quantize", str(spoken(LLAMA)), str(out), "--calibrate", str(text)]) == 0
    assert execute(["quantize", str(spoken(LLAMA)), str(outs[2])]) == 0
    first, second, plain = (
        [(out / file).read_bytes() for file in ("model.safetensors", "config.json")] for out in outs
    )
    assert first == second and first[0] != plain[0]
    headers = [json.loads(config)["quantization_config"] for _, config in (first, plain)]
    assert [header.get("calibrated") for header in headers] == [True, None]


def test_a_gguf_file_is_calibrated_as_it_lies(tmp_path: Path) -> None:
    """Its blocks run as they are, and are quantised from exactly their numbers."""
    write_gguf(directory_of(WIDE), tmp_path / "model.gguf", "Q8_0", **TOKENIZER)
    (tmp_path / "text").write_text("abcdefgh" * 80)
    out = tmp_path / "out"
    line = ["quantize", str(tmp_path / "model.gguf"), str(out), "--calibrate", str(tmp_path / "text")]
    assert execute(line) == 0
    assert json.loads((out / "config.json").read_text())["quantization_config"]["calibrated"] is True


@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v2"])
def test_experts_and_latent_attention_are_calibrated(name: str, tmp_path: Path) -> None:
    """Experts multiply the rows that are sent to them, and products of heads the heads of their input."""
    shutil.copytree(directory_of(MODELS[name]), tmp_path / "model")
    write(tmp_path / "model", letters())
    (tmp_path / "text").write_text(TEXT)
    outs = [tmp_path / "calibrated", tmp_path / "plain"]
    for out, options in zip(outs, (["--calibrate", str(tmp_path / "text")], []), strict=True):
        assert execute(["quantize", str(tmp_path / "model"), str(out), *options]) == 0
    calibrated, plain = (load_file(out / "model.safetensors") for out in outs)
    changed = {tensor for tensor, blocks in plain.items() if not np.array_equal(blocks, calibrated[tensor])}
    found = importance_of(tmp_path / "model")
    wanted = {each for each in found if each in plain and plain[each].dtype == np.uint8}
    assert any("experts.down_proj" in each for each in wanted)
    assert (wanted - changed, changed - wanted) == (set(), set())


def test_short_texts_and_models_without_a_tokenizer_are_refused() -> None:
    for text in ("", "." * (SPAN - 1)):
        with pytest.raises(RequestError, match=f"{len(text)} tokens, and 512") as caught:
            Calibrator(DirectoryModel(spoken(LLAMA)), text)
        assert caught.value.param == "calibrate"
    with pytest.raises(ConfigError, match="has no tokenizer") as other:
        Calibrator(DirectoryModel(directory_of(find(LLAMA))), TEXT)
    assert other.value.param == "model"


def test_what_cannot_be_packed_is_refused_before_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Calibrator, "__init__", lambda *_: pytest.fail("calibrates"))
    (tmp_path / "text").write_text(TEXT)
    pack_directory(DirectoryModel(spoken(LLAMA)), tmp_path / "packed", "q8_0")
    model, new = str(spoken(LLAMA)), str(tmp_path / "new")
    lines = {
        "already packed": [str(tmp_path / "packed"), new],
        "not an empty directory": [model, str(tmp_path / "packed")],
        "int3": [model, new, "--quantize", "int3"],
    }
    for reason, line in lines.items():
        assert execute(["quantize", *line, "--calibrate", str(tmp_path / "text")]) == 2
        assert reason in capsys.readouterr().err
    assert execute(["quantize", model, new, "--calibrate", str(tmp_path / "none")]) == 2
    assert "--calibrate: cannot read" in capsys.readouterr().err
