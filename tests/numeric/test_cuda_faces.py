"""A CUDA device as users see it: plans without one, loading, `ferrum doctor` and `ferrum selfcheck`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emulated_cuda import EmulatedDriver, EmulatedImages, driver_library
from ferrum.cli.doctor import DIFFERENT
from ferrum.cli.main import execute
from ferrum.core.config import ModelConfig
from ferrum.core.errors import Unsupported
from ferrum.kernels.cuda.cuda_kernels import CudaKernels, Platform
from ferrum.kernels.cuda.device_memory import STAGE
from ferrum.kernels.cuda.planned_device import ASSUMED_BYTES
from ferrum.runtime import self_check
from ferrum.runtime.load import build_executor, plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import LocalExecutor
from held_arrays import owned_arrays


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let device="cuda" be the emulated device."""
    monkeypatch.setattr("ferrum.kernels.cuda.driver.default_library", lambda: str(driver_library()))
    opened = "ferrum.runtime.backend.open_platform"
    monkeypatch.setattr(opened, lambda ordinal: Platform(EmulatedDriver(ordinal), EmulatedImages()))
    return


def rows_of(text: str) -> dict[str, str]:
    return {line[:14].strip(): line[15:].strip() for line in text.splitlines() if line}


@pytest.mark.parametrize("options", [{}, {"quantize": "q4_k_m"}, {"kv_dtype": "int8", "dtype": "float16"}], ids=str)
def test_a_plan_for_a_device_equals_the_loaded_executors(device: None, options: dict[str, str]) -> None:
    config = ModelConfig(model=BUILT_IN, device="cuda", kv_capacity=500, **options)  # type: ignore[arg-type]
    plan = plan_model(config)
    with build_executor(LocalExecutor, config) as executor:
        assert (plan.info, plan.traits) == (executor.info, executor.traits)
        memory = executor.memory_plan
        assert (memory.device, memory.on_device, memory.on_host) == ("cuda", memory.own, memory.libraries)


def test_a_plan_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_model(ModelConfig(model=BUILT_IN, device="cuda:1"))
    assert plan.device_memory == ASSUMED_BYTES and "there is no NVIDIA driver" in plan.traits.notes[0]
    assert plan.info.device == "cuda:1" and plan.traits.backend == "cuda"
    assert execute(["plan", BUILT_IN, "--device", "cuda", "--swap-gib", "2"]) == 0
    shown = rows_of(capsys.readouterr().out)
    assert shown["total"].endswith("2.0 GiB on the host") and "MiB on cuda, " in shown["total"]
    assert shown["available"].startswith("80.0 GiB on cuda, ")


def test_a_plan_says_by_how_much_a_device_is_too_small(device: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", BUILT_IN, "--device", "cuda", "--kv-capacity", "9000000"]) == 0
    assert "exceeds the available memory on cuda by" in capsys.readouterr().out


def test_doctor_names_the_device_or_the_reason_why_there_is_none(
    device: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def doctor() -> dict[str, str]:
        assert execute(["doctor"]) == 0
        return {line[:18].strip(): line[18:].strip() for line in capsys.readouterr().out.splitlines()}

    shown = doctor()
    assert shown["cuda driver"].split()[-1] == "13.0" and shown["backend cuda"].startswith("yes: cuda sm_90")
    assert shown["device cuda"].startswith("emulated device, compute capability 9.0, 8.0 GiB, ")
    monkeypatch.setattr("ferrum.kernels.cuda.driver.default_library", lambda: "libcuda-that-is-not-there.so")
    assert "no: there is no NVIDIA driver" in doctor()["cuda driver"]


def test_kernels_that_cannot_be_compiled_are_refused_at_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.kernels.cuda.driver.default_library", lambda: str(driver_library()))
    monkeypatch.setattr("ferrum.kernels.cuda.device_code._LIBRARIES", ("libnvrtc-that-is-not-there.so",) * 3)
    with pytest.raises(Unsupported, match=r"NVRTC is missing: pip install .*\[cuda\]"):
        plan = ModelConfig(model=BUILT_IN, device="cuda", kv_capacity=64)
        build_executor(LocalExecutor, plan)


def test_selfcheck_of_a_device_lists_what_it_lacks(
    device: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with few checks: those of all operations have tests of their own."""
    few = ("norms", "selection of rows", "adapters", "states")
    answers = self_check.answers
    monkeypatch.setattr(self_check, "answers", lambda kernels: ((n, f) for n, f in answers(kernels) if n in few))
    assert execute(["selfcheck", "--device", "cuda"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("cuda sm_90") and line.endswith("same bits; not available: adapters, states")
    monkeypatch.setattr(CudaKernels, "host", lambda _, array: array.host() * 2)
    assert execute(["selfcheck", "--device", "cuda"]) == DIFFERENT
    assert "differs: norms" in capsys.readouterr().out


@pytest.mark.parametrize("packs", [False, True], ids=["quantised on load", "mapped"])
def test_loading_reports_bytes_and_leaves_no_copy_on_the_host(packs: bool, device: None, tmp_path: Path) -> None:
    model, seen = BUILT_IN, list[tuple[int, int]]()
    if packs:
        model = str(tmp_path / "packed")
        pack_directory(DirectoryModel(resolve_model(BUILT_IN)), tmp_path / "packed", "q8_0")
    options = {} if packs else {"quantize": "q8_0"}
    config = ModelConfig(model=model, device="cuda", kv_capacity=64, **options)  # type: ignore[arg-type]
    with build_executor(LocalExecutor, config, max_rows=4, progress=lambda *pair: seen.append(pair)) as executor:
        stages, weights = 2 * STAGE, executor.memory_plan.weights
        assert sum(array.nbytes for array in owned_arrays(executor)) < stages + weights // 100
    done = [loaded for loaded, _ in seen]
    assert len(seen) > 10 and done == sorted(done) and seen[-1][0] == seen[-1][1] > 0
