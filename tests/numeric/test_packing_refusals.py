"""`ferrum quantize` accepts what a load accepts, refuses the rest before writing, and leaves nothing half done."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ferrum.cli.main import execute
from ferrum.contract.model_info import DataType
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, ConfigError, FerrumError, Unsupported
from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.runtime import packing
from ferrum.runtime.load import plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.parameters import model_spec
from ferrum.sources.remote_headers import RemoteHeaders
from ferrum.verbs.load_executor import load_executor
from native_twin import require_native
from packed_kit import copy_of, logits_of
from tiny import CASES, Case, directory_of, find, tokens_of

LAYER = "model.layers.1."
NORM, O_PROJ = LAYER + "input_layernorm.weight", LAYER + "self_attn.o_proj.weight"

Tensors = dict[str, np.ndarray]


def changed(name: str, target: Path, change: Callable[[Tensors], object]) -> Path:
    """Write a tiny model with changed tensors."""
    directory = copy_of(directory_of(find(name)), target)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def refused(directory: Path, out: Path) -> FerrumError:
    """Return the command's output and the error of packing."""
    assert execute(["quantize", str(directory), str(out)]) == 2
    with pytest.raises(FerrumError) as caught:
        pack_directory(DirectoryModel(directory), out, "int8")
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_decoders_tensor_names_match_transformers(case: Case) -> None:
    checkpoint = Checkpoint(directory_of(case))
    spec = decoder_spec(checkpoint.config)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    assert parameter_shapes(spec) == {
        name: shape for name, shape in shapes.items() if not any(fnmatchcase(name, each) for each in spec.ignored_names)
    }


FAULTS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "a tensor is missing": (lambda tensors: tensors.pop(O_PROJ), rf"tensor '{O_PROJ}' is missing"),
    "a name is another": (
        lambda tensors: tensors.update({"o_proj": tensors.pop(O_PROJ)}),
        rf"tensor '{O_PROJ}' is missing; unused so far: 'o_proj'$",
    ),
    "a tensor more": (
        lambda tensors: tensors.update({LAYER + "extra": np.ones((2, 2), np.float32)}),
        rf"1 unexpected tensors: '{LAYER}extra'",
    ),
    "a scalar more": (lambda tensors: tensors.update(scale=np.ones((), np.float32)), "1 unexpected .*'scale'"),
    "rows and columns are exchanged": (
        lambda tensors: tensors.update({O_PROJ: np.ascontiguousarray(tensors[O_PROJ].T)}),
        rf"'{O_PROJ}' in model\.safetensors: expected shape \[48, 192\], found \[192, 48\]",
    ),
    "a vector is a scalar": (
        lambda tensors: tensors.update({NORM: np.ones((), np.float32)}),
        rf"'{NORM}' in model\.safetensors: expected shape \[48\], found \[\]",
    ),
    "a vector is a matrix": (
        lambda tensors: tensors.update({NORM: np.ones((1, 48), np.float32)}),
        rf"'{NORM}' .* expected shape \[48\], found \[1, 48\]",
    ),
    "a matrix has a third dimension": (
        lambda tensors: tensors.update({O_PROJ: tensors[O_PROJ][None]}),
        rf"'{O_PROJ}' .* expected shape \[48, 192\], found \[1, 48, 192\]",
    ),
}


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_would_not_load_is_refused_before_reading_and_writing(
    fault: str, there: bool, tmp_path: Path
) -> None:
    change, message = FAULTS[fault]
    directory, out = changed("llama3", tmp_path / "in", change), tmp_path / "out"
    if there:
        out.mkdir()
    read: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError, match=message):
        load_executor(directory, kernels="reference", progress=lambda *at: read.append(at))
    assert not read
    told = refused(directory, out)
    assert isinstance(told, CheckpointError)
    with pytest.raises(CheckpointError, match=message):
        raise told
    assert list(out.iterdir()) == [] if there else not out.exists()


def test_unused_tensors_are_left_out(tmp_path: Path) -> None:
    name = "qwen3-mqa-wide-head-tied"
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    spare = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float64),
        "model.rotary_emb.inv_freq": np.arange(8),
    }

    def add(tensors: Tensors) -> None:
        tensors.update(spare, **{head: tensors[embedding].copy()})

    directory, out = changed(name, tmp_path / "in", add), tmp_path / "out"
    pack_directory(DirectoryModel(directory), out, "int8")
    assert not {head, *spare} & Checkpoint(out).tensors.keys()
    loaded = logits_of(directory, name, kernels="reference", quantize="int8")
    np.testing.assert_array_equal(logits_of(out, name, kernels="reference"), loaded)


@pytest.mark.parametrize("name", ["qwen3-mqa-wide-head-tied", "llama3"])
def test_a_decoder_saved_without_its_head_is_the_same_model(name: str, tmp_path: Path) -> None:
    """Qwen3's embedding models are saved so; an untied head keeps its name."""

    def rename(tensors: Tensors) -> None:
        for full in list(tensors):
            tensors[full.removeprefix("model.")] = tensors.pop(full)

    directory, whole = changed(name, tmp_path / "in", rename), directory_of(find(name))
    assert "embed_tokens.weight" in load_file(directory / "model.safetensors")
    loaded = logits_of(whole, name, kernels="reference")
    np.testing.assert_array_equal(logits_of(directory, name, kernels="reference"), loaded)
    pack_directory(DirectoryModel(directory), tmp_path / "out", "int8")
    packed = logits_of(whole, name, kernels="reference", quantize="int8")
    np.testing.assert_array_equal(logits_of(tmp_path / "out", name, kernels="reference"), packed)


def test_a_missing_head_is_the_embedding_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Qwen3-Embedding-8B is saved so: a decoder alone, with an untied configuration."""

    def behead(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]
        for full in list(tensors):
            tensors[full.removeprefix("model.")] = tensors.pop(full)

    bare, tied, out = changed("llama3", tmp_path / "bare", behead), tmp_path / "tied", tmp_path / "out"
    checkpoint = Checkpoint(bare)
    config = {**checkpoint.config, "tie_word_embeddings": True}
    (copy_of(bare, tied) / "config.json").write_text(json.dumps(config))
    pack_directory(DirectoryModel(bare), out, "int8")
    for directory, options in ((bare, {}), (out, {}), (bare, {"quantize": "int8"})):
        caplog.clear()
        planned = plan_model(ModelConfig(model=str(directory), kernels="reference", kv_capacity=64, **options))
        with load_executor(directory, kernels="reference", kv_capacity=64, **options) as executor:
            (note,) = executor.status().notes
            assert "meaningless" in note and planned.traits == executor.traits
            assert caplog.messages == [note][: not options], "once a process"
        asked = {} if directory == bare and not options else {"quantize": "int8"}
        expected = logits_of(tied, "llama3", kernels="reference", **asked)
        np.testing.assert_array_equal(logits_of(directory, "llama3", kernels="reference", **options), expected)
    own = {full.removeprefix("model."): info for full, info in checkpoint.tensors.items()}
    assert model_spec(RemoteHeaders("maker/bare", checkpoint.config, own), planning=True) == model_spec(checkpoint)
    with load_executor(tied, kernels="reference", kv_capacity=64) as executor:
        assert executor.status().notes == (), "a tied model generates text"
    whole = changed("llama3", tmp_path / "whole", lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match="lm_head"):
        load_executor(whole, kernels="reference")


@pytest.mark.parametrize("change", [1e-3, 0.5])
def test_a_tied_head_with_other_numbers_is_its_own_matrix(change: float, tmp_path: Path) -> None:
    """As in `transformers`, packed or not, even if only the last number differs."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name = "qwen3-mqa-wide-head-tied"

    def add(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["lm_head.weight"][-1, -1] += change

    directory = changed(name, tmp_path / "in", add)
    twin = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    with torch.no_grad():
        theirs = twin(torch.tensor([tokens_of(find(name), 40)])).logits[0].numpy()
    tied = logits_of(directory_of(find(name)), name, kernels="reference")
    ours = logits_of(directory, name, kernels="reference")
    np.testing.assert_array_equal(ours[:, :-1], tied[:, :-1])
    np.testing.assert_allclose(ours[:, -1] - tied[:, -1], theirs[:, -1] - tied[:, -1], atol=1e-5)
    assert (ours[:, -1] != tied[:, -1]).any()
    pack_directory(DirectoryModel(directory), tmp_path / "out", "int8")
    packed = logits_of(tmp_path / "out", name, kernels="reference")
    np.testing.assert_array_equal(packed, logits_of(directory, name, kernels="reference", quantize="int8"))


def test_gates_of_mixed_formats_have_the_bits_of_the_reference(tmp_path: Path) -> None:
    require_native()
    gate = LAYER + "mlp.gate_proj.weight"
    directory = changed("llama3", tmp_path / "in", lambda t: t.update({gate: t[gate].astype(np.float16)}))
    ours, theirs = (logits_of(directory, "llama3", kernels=kernels) for kernels in ("native", "reference"))
    np.testing.assert_array_equal(ours, theirs)


def test_a_tied_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    name = "qwen3-mqa-wide-head-tied"
    directory = changed(name, tmp_path / "in", lambda tensors: tensors.update({"lm_head.weight": np.ones((2, 2))}))
    told = refused(directory, tmp_path / "out")
    assert "lm_head.weight" in str(told) and "expected shape" in str(told)


def test_faults_found_while_reading_leave_no_files(tmp_path: Path) -> None:
    """With valid names and shapes: an unsupported dtype, and a number that no scale can hold."""
    whole = changed("llama3", tmp_path / "whole", lambda tensors: tensors.update({NORM: np.ones(48, np.int64)}))
    assert isinstance(refused(whole, tmp_path / "out"), Unsupported)
    infinite = changed("llama3", tmp_path / "infinite", lambda tensors: tensors[O_PROJ].fill(np.inf))
    assert isinstance(refused(infinite, tmp_path / "out"), ConfigError)
    assert not (tmp_path / "out").exists()


def files_under(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*")}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("where", ["checksum", "fast_form", "PackedHeader"])
@pytest.mark.parametrize("made", ["", "deep", "deep/out"])
def test_an_interrupted_run_leaves_the_target_as_it_was(
    made: str, where: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, place = copy_of(directory_of(find("llama3")), tmp_path / "in"), tmp_path / "place"
    (source / "tokenizer.json").write_text("{}")
    (source / "added_tokens.json").write_text("{}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "a_tool.jinja").write_text("")
    (place / made).mkdir(parents=True)
    before, out = files_under(place), place / "deep" / "out"
    seen: list[set[Path]] = []

    def fail(*_: object) -> None:
        seen.append(files_under(out))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(packing, where, fail)
        with pytest.raises(error):
            pack_directory(DirectoryModel(source), out, "int8")
    assert Path("model.safetensors") in seen[0], "the run had begun"
    assert files_under(place) == before
    pack_directory(DirectoryModel(source), out, "int8")
    load_executor(out, kernels="reference").shutdown()


def test_files_that_others_create_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def fail(*_: object) -> None:
        (out / "notes.txt").write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr(packing, "checksum", fail)
    with pytest.raises(KeyboardInterrupt):
        pack_directory(DirectoryModel(directory_of(find("llama3"))), out, "int8")
    assert files_under(out) == {Path("notes.txt")}


def test_of_two_runs_into_one_directory_the_second_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see an empty directory; the second starts when the first is about to write."""
    store, out = DirectoryModel(directory_of(find("llama3"))), tmp_path / "out"
    whole_or_nothing = packing._atomic_directory

    def overtaken(*arguments: Any) -> AbstractContextManager[None]:
        monkeypatch.setattr(packing, "_atomic_directory", whole_or_nothing)
        pack_directory(store, out, "int4")
        return whole_or_nothing(*arguments)

    monkeypatch.setattr(packing, "_atomic_directory", overtaken)
    with pytest.raises(ConfigError, match="another run") as caught:
        pack_directory(store, out, "int8")
    assert caught.value.param == "out"
    with load_executor(out, kernels="reference") as executor:
        assert executor.info.dtype == DataType.INT4
