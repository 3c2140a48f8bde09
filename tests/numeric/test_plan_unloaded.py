"""A plan without the weights equals the plan of the loaded executor, to the byte."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from ferrum.bench.shapes import shape_config
from ferrum.cli.main import execute
from ferrum.core.config import PAGE_SIZE, ModelConfig
from ferrum.core.errors import CapacityError, CheckpointError, ConfigError
from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.runtime import memory
from ferrum.runtime.load import build_executor, plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.parameters import PlannedParameters
from ferrum.verbs.load_executor import LocalExecutor
from image_models import seeing_directory
from native_twin import require_native
from own_server import write_shape
from tiny import directory_of, find

OPTIONS = (
    {},
    {"dtype": "float32", "max_batch_size": 3, "max_sequence_length": 100},
    {"dtype": "float16", "kv_dtype": "int8"},
    {"quantize": "q8_0"},
    {"quantize": "q4_k_m"},
    {"quantize": "q4_0"},
)


def agrees(config: ModelConfig) -> None:
    plan = plan_model(config)
    with build_executor(LocalExecutor, config) as executor:
        assert plan.traits == executor.traits, "the memory plan is one of the traits"
        assert (plan.info, plan.kv_capacity) == (executor.info, executor.kv_capacity())


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_plan_equals_the_loaded_executors(kernels: str, options: dict[str, object]) -> None:
    if kernels == "native":
        require_native()
    agrees(ModelConfig(model=BUILT_IN, kernels=kernels, kv_capacity=2000, **options))  # type: ignore[arg-type]


def test_mapped_weights_leave_the_pool_no_more_memory_than_loaded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system counts mapped files as available; a pool of that size would evict them from memory at every step."""
    packed = tmp_path / "packed"
    pack_directory(DirectoryModel(resolve_model(BUILT_IN)), packed, "q8_0")
    monkeypatch.setattr(memory, "available_memory", lambda: 16 << 20)
    configs = [ModelConfig(model=BUILT_IN, quantize="q8_0"), ModelConfig(model=str(packed))]
    loaded, mapped = (plan_model(config).kv_capacity for config in configs)
    assert 0 < mapped < 64 * 1024 and abs(loaded - mapped) <= 2 * 64


@pytest.mark.parametrize("name", ["mistral-full", "mistral"])
def test_windows_and_padded_heads_are_planned_exactly(name: str) -> None:
    agrees(ModelConfig(model=str(directory_of(find(name))), kv_capacity=500))


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("scheme", ["q8_0", "q6_k", "q4_k_m", "q4_0"])
def test_quantised_matrices_are_planned_in_the_layout_of_the_kernels(kernels: str, scheme: str) -> None:
    """Matrices of 131, 80 and 48 outputs fill no whole panels."""
    if kernels == "native":
        require_native()
    model = str(directory_of(find("qwen3")))
    agrees(ModelConfig(model=model, kernels=kernels, quantize=scheme, kv_capacity=500))


def test_a_packed_directory_is_planned_without_reading_it(tmp_path: Path) -> None:
    pack_directory(DirectoryModel(resolve_model(BUILT_IN)), tmp_path / "packed", "q4_0")
    config = ModelConfig(model=str(tmp_path / "packed"), kv_capacity=2000)
    agrees(config)
    file = tmp_path / "packed" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1000] + bytes(1000))
    assert plan_model(config).traits.memory.weights, "only loading checks for damage"


def test_a_plan_does_not_read_a_tied_head(tmp_path: Path) -> None:
    built_in = Checkpoint(resolve_model(BUILT_IN))
    assert decoder_spec(built_in.config).tied_head
    tensors = {name: built_in.read(name) for name in built_in.tensors}
    save_file({**tensors, HEAD: tensors[EMBEDDING].copy()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(built_in.config))
    agrees(ModelConfig(model=str(tmp_path), kv_capacity=1000))


def blank_directory(target: Path, layers: int) -> Path:
    """Write a model with 8B's layers as a sparse file."""
    config = {**shape_config("qwen3-8b"), "num_hidden_layers": layers}
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in parameter_shapes(decoder_spec(config)).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (target / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return target


MEASURE = """
import sys
from ferrum.cli.main import execute
status = execute(sys.argv[1:])
print("peak", next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(status)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_a_huge_model_is_planned_in_little_memory(tmp_path: Path) -> None:
    require_native()
    model = str(blank_directory(tmp_path / "huge", layers=1000))  # 400 GB in bfloat16
    command = [sys.executable, "-c", MEASURE, "plan", model, "--quantize", "q8_0", "--max-sequence-length", "4096"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"weights +19\d\.\d GiB", shown) and "the largest part: weights" in shown
    assert re.search(r"for 64 tokens", shown), "no memory is left for the pool: it has one page"
    peak = int(re.findall(r"peak (\d+)", shown)[0]) << 10
    assert peak < 500 << 20, f"{peak >> 20} MiB"


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_there_are_rotations_for_the_longest_sequence_that_fits(kernels: str, tmp_path: Path) -> None:
    """Llama 4 Scout is configured for ten million positions: 5 GiB of tables, whatever the pool holds."""
    if kernels == "native":
        require_native()
    config = {**shape_config("tiny"), "max_position_embeddings": 10_485_760}
    write_shape("tiny", config, tmp_path)
    row, tables = 4 * config["head_dim"], []
    for capacity in (1000, 5000):
        pages = -(-capacity // PAGE_SIZE)
        model = ModelConfig(model=str(tmp_path), kernels=kernels, kv_capacity=capacity)
        traits = plan_model(model).traits
        assert traits.longest_sequence == pages * PAGE_SIZE < traits.max_sequence_length
        with build_executor(LocalExecutor, model) as executor:
            assert executor.traits == traits
        tables.append(traits.memory.tables - pages * PAGE_SIZE * row)
    assert tables[0] == tables[1] < PAGE_SIZE * row


def test_vectors_of_a_plan_are_shared(tmp_path: Path) -> None:
    write_shape("tiny", shape_config("tiny"), tmp_path)
    parameters = PlannedParameters(Checkpoint(tmp_path))
    norms = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(2)]
    assert parameters.vector(norms[0], 64) is parameters.vector(norms[1], 64)
    with pytest.raises(CheckpointError, match="expected shape"):
        parameters.vector(norms[0], 65)


def test_a_model_beyond_the_memory_is_refused_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    monkeypatch.setattr("ferrum.runtime.memory.free_memory", lambda: 64 << 30)
    model = str(blank_directory(tmp_path / "huge", layers=1000))
    for options, size in (({}, r"36\d\.\d"), ({"quantize": "q4_0"}, r"10\d\.\d")):
        with pytest.raises(CapacityError, match=rf"memory for {size} GiB of weights"):
            build_executor(LocalExecutor, ModelConfig(model=model, **options))


def test_the_error_says_how_much_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    config = ModelConfig(model=BUILT_IN)
    wanted = plan_model(config).traits.memory.weights
    monkeypatch.setattr("ferrum.runtime.memory.free_memory", lambda: wanted - 1000)
    with pytest.raises(CapacityError, match=r"(\d+\.\d MiB) of weights: \1 are free, 1000 B too little"):
        build_executor(LocalExecutor, config)


def test_a_pool_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.runtime.pool_sizes.free_memory", lambda: 64 << 20)
    with build_executor(LocalExecutor, ModelConfig(model=BUILT_IN, kv_capacity=1000)) as executor:
        fitting = executor.kv_capacity() * (64 << 20) // executor.memory_plan.kv_pool
    build_executor(LocalExecutor, ModelConfig(model=BUILT_IN, kv_capacity=fitting * 9 // 10)).shutdown()
    with pytest.raises(CapacityError, match="KV pool"):
        build_executor(LocalExecutor, ModelConfig(model=BUILT_IN, kv_capacity=fitting * 11 // 10))


def test_swap_buffers_beyond_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with build_executor(LocalExecutor, ModelConfig(model=BUILT_IN, kv_capacity=1000)) as executor:
        free = executor.memory_plan.kv_pool + (1 << 20)
        monkeypatch.setattr("ferrum.runtime.local_executor.free_memory", lambda: free)
        executor.keep_pages(swap_bytes=1 << 20)
        with pytest.raises(CapacityError, match=r"swapped pages \(swap_gib\)"):
            executor.keep_pages(swap_bytes=(1 << 20) + 1)


def test_plans_refuse_the_errors_of_loading() -> None:
    for options in ({"quantize": "int3"}, {"max_sequence_length": 10**6}):
        with pytest.raises(ConfigError) as refusal:
            plan_model(ModelConfig(model=BUILT_IN, **options))  # type: ignore[arg-type]
        assert refusal.value.param == next(iter(options))
    huge = ModelConfig(model=BUILT_IN, kv_capacity=1 << 50)
    assert plan_model(huge).kv_capacity >= 1 << 50
    with pytest.raises(CapacityError):
        build_executor(LocalExecutor, huge)


def test_a_batch_beyond_the_default_step_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", BUILT_IN, "--kv-capacity", "1024", "--max-batch-size", "600"]) == 0, capsys.readouterr().err


def test_swap_and_draft_memory_of_an_engine_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    totals = []
    for options in ([], ["--swap-gib", "3"]):
        assert execute(["plan", BUILT_IN, "--kv-capacity", "1024", *options]) == 0
        shown = capsys.readouterr().out
        assert ("swapped pages" in shown) == bool(options)
        amount, unit = re.findall(r"total +([\d.]+) (\w+)", shown)[0]
        totals.append(float(amount) * {"MiB": 1, "GiB": 1024}[unit])
    assert totals[1] - totals[0] == pytest.approx(3 * 1024, abs=60)


def test_a_tower_and_the_rows_of_images_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    pools = []
    for gib in (0, 0.5):
        options = ["--image-cache-gib", str(gib), "--kernels", "reference"]
        assert execute(["plan", str(seeing_directory("smolvlm")), "--kv-capacity", "1024", *options]) == 0
        shown = capsys.readouterr().out
        assert re.search(r"tower for images +\d", shown)
        pools.append(re.findall(r"rows of images +([\d.]+ \w+)", shown))
    assert pools == [["0 B"], ["512.0 MiB"]]
    config = ModelConfig(model=str(seeing_directory("smolvlm")), kernels="reference")
    assert plan_model(config, image_rows=1 << 50).kv_capacity < plan_model(config).kv_capacity
