"""What goes wrong with a CUDA device ends in one clear error each: at the start, at the load, and in mid-step."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_engine_real import PROMPTS

from emulated_cuda import EmulatedDriver, EmulatedImages, emulated_kernels
from ferrum import AsyncEngine, SamplingParams
from ferrum.core.errors import CapacityError, EngineDead, Unsupported
from ferrum.kernels.cuda.cuda_kernels import Platform
from ferrum.kernels.cuda.cuda_replay import CudaReplay
from ferrum.kernels.cuda.device_memory import DeviceMemory
from ferrum.kernels.cuda.driver import DeviceError, Driver
from ferrum.kernels.interface import PoolGroup
from ferrum.runtime.backend import choose_kernels
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.verbs.load_executor import load_executor
from tiny import directory_of, find
from tiny_with_tokenizer import spoken

CASE = find("qwen3-windows")
OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, LAUNCH_FAILED = 2, 3, 100, 719
WHOLE = 1 << 33
LOST = re.compile(r"the CUDA driver failed in \w+ .*CUDA_ERROR_LAUNCH_FAILED")


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The emulated machine, which device="cuda" opens; afterwards it is whole again."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    opened = "ferrum.runtime.backend.open_platform"
    monkeypatch.setattr(opened, lambda ordinal: Platform(EmulatedDriver(ordinal), EmulatedImages()))
    emulation = EmulatedDriver().emulation
    yield emulation
    emulation.ferrum_emulation_lose(0)
    emulation.ferrum_emulation_machine(13000, 1)
    fail(emulation, "", 0)
    limit(emulation, WHOLE)


def fail(emulation: Any, call: str, code: int, after: int = 0) -> None:
    emulation.ferrum_emulation_fail(call.encode(), after, code)


def limit(emulation: Any, nbytes: int) -> None:
    emulation.ferrum_emulation_memory(ctypes.c_size_t(nbytes))


def used(driver: Driver) -> int:
    free, total = driver.memory()
    return total - free


def test_a_machine_without_a_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.kernels.cuda.driver.default_library", lambda: "libcuda-that-is-not-there.so")
    for device in ("cuda", "cuda:1"):
        with pytest.raises(Unsupported, match=r"there is no NVIDIA driver.*use device=cpu") as caught:
            load_executor(directory_of(CASE), device=device, kv_capacity=256)
        assert caught.value.feature == f"device={device}"


def test_a_library_that_lacks_calls_is_an_old_driver() -> None:
    with pytest.raises(Unsupported, match="driver is too old"):
        Driver(0, "libm.so.6")


def test_a_driver_before_cuda_12_is_refused(emulation: Any) -> None:
    emulation.ferrum_emulation_machine(11080, 1)
    with pytest.raises(Unsupported, match="for CUDA 11, and 12 is needed"):
        choose_kernels("cuda", "auto")


def test_a_missing_device_is_refused_with_the_variable_that_hides_it(
    emulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsupported, match="device=cuda:1 is not supported: the driver finds 1 in all: use device=cuda"):
        choose_kernels("cuda:1", "auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(Unsupported, match='CUDA_VISIBLE_DEVICES="1" may hide others'):
        choose_kernels("cuda:1", "auto")
    emulation.ferrum_emulation_machine(13000, 2)
    assert choose_kernels("cuda:1", "cuda").kernels.device == "cuda:1"


def test_hidden_devices_are_none(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fail(emulation, "cuInit", NO_DEVICE)
    for _ in range(2):
        with pytest.raises(Unsupported, match=r'finds no device \(CUDA_VISIBLE_DEVICES="" may hide others\)'):
            choose_kernels("cuda", "auto")
        emulation.ferrum_emulation_machine(13000, 0)  # the driver may also start, and find none


def test_another_failure_of_the_driver_is_named(emulation: Any) -> None:
    fail(emulation, "cuDevicePrimaryCtxRetain", LAUNCH_FAILED)
    with pytest.raises(DeviceError, match=r"cuDevicePrimaryCtxRetain .*LAUNCH_FAILED.*use device=cpu") as caught:
        choose_kernels("cuda", "auto")
    assert type(pickle.loads(pickle.dumps(caught.value))) is EngineDead


def test_a_forked_process_is_refused(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = emulated_kernels()
    fail(emulation, "cuInit", NOT_INITIALIZED)
    with pytest.raises(Unsupported, match=r"forked .*start it another way \(spawn\)"):
        choose_kernels("cuda", "auto")
    child = os.getpid() + 1
    monkeypatch.setattr("os.getpid", lambda: child)
    with pytest.raises(EngineDead, match="forked"):
        kernels.vector(np.zeros(3, np.float32))


# ---- Memory ----


def test_weights_beyond_the_device_memory_are_refused_before_they_are_read(emulation: Any) -> None:
    limit(emulation, used(EmulatedDriver()) + 20_000)
    with pytest.raises(CapacityError, match=r"not enough device memory for .* of weights: .* are free on cuda"):
        load_executor(directory_of(CASE), device="cuda", kv_capacity=256)


def test_a_device_that_others_have_filled_is_named(emulation: Any) -> None:
    fail(emulation, "cuDevicePrimaryCtxRetain", OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="not enough device memory to open cuda: other processes"):
        choose_kernels("cuda", "auto")


def test_a_device_that_fills_up_during_the_load_is_named(emulation: Any) -> None:
    fail(emulation, "cuMemAlloc_v2", OUT_OF_MEMORY, after=3)
    with pytest.raises(CapacityError, match=r"for the weights.* of device memory are free on cuda"):
        load_executor(directory_of(CASE), device="cuda", kv_capacity=256)


def test_memory_is_freed_with_the_kernels(emulation: Any) -> None:
    before = used(EmulatedDriver())
    kernels = emulated_kernels()
    kernels.allocate((PoolGroup("g", 4, 64, 1, 2, 40, 40, "bfloat16"),))
    kernels.vector(np.zeros(3, np.float32))
    assert used(kernels.driver) > before
    del kernels
    gc.collect()
    assert used(EmulatedDriver()) == before


def test_pinned_memory_that_is_not_there_is_named(emulation: Any) -> None:
    fail(emulation, "cuMemHostAlloc", OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match="pinned host memory"):
        DeviceMemory(EmulatedDriver()).uploaded(np.zeros(3, np.float32))


# ---- A device that is lost ----


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_lost_device_ends_the_engine_and_every_request_once(run_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = 5
    forward = DecoderLM._forward

    def lost(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise DeviceError("cuGraphLaunch", LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "")
        return forward(*arguments)

    monkeypatch.setattr(DecoderLM, "_forward", lost)
    check_ends(run_ahead)


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuEventSynchronize", "cuMemcpyHtoDAsync_v2"])
def test_a_call_that_fails_in_mid_step_ends_the_engine(
    emulation: Any, call: str, run_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 5
    submit = CudaReplay.submit

    def submitted(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            fail(emulation, call, LAUNCH_FAILED)
        return submit(*arguments)

    monkeypatch.setattr(CudaReplay, "submit", submitted)
    check_ends(run_ahead, device="cuda")


def check_ends(run_ahead: int, **options: Any) -> None:
    """Serve requests on an engine whose device will be lost: each ends once, and later ones are refused."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)

    async def served(engine: AsyncEngine, prompt: str) -> list[Exception | None]:
        return [delta.error async for delta in engine.generate(prompt, params) if delta.finish_reason is not None]

    async def serve() -> None:
        model = str(spoken("qwen3-windows"))
        async with AsyncEngine(model, kv_capacity=4096, run_ahead=run_ahead, **options) as engine:
            ends = await asyncio.gather(*(served(engine, prompt) for prompt in PROMPTS))
            assert all(isinstance(error, EngineDead) and LOST.match(str(error)) for (error,) in ends)
            assert engine.num_live == 0
            with pytest.raises(EngineDead, match=LOST.pattern):
                await anext(engine.generate(PROMPTS[0], params))

    asyncio.run(serve())
