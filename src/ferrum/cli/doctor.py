"""`ferrum doctor`: this machine and this installation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final

import typer

from ferrum.cli.tables import print_table
from ferrum.core.config import KERNELS, Switches
from ferrum.core.devices import cuda_name
from ferrum.core.errors import ConfigError, FerrumError, Unsupported
from ferrum.core.memory_plan import size
from ferrum.core.version import installed_version

PACKAGES: Final = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "huggingface_hub", "jinja2")

FEATURES: Final = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
"""CPU features relevant to kernels, by their names in /proc/cpuinfo."""


def doctor() -> None:
    """Show Python, libraries, CPU, memory, environment switches and kernels of this machine."""
    print_table([*_installation(), *_machine(), *_cuda(), *_switches(), *_backends()])


def kernel_tier() -> str:
    """Return the instruction tier of the native kernels, or `reference` if they are not built."""
    from ferrum.kernels.cpu.library import load

    try:
        return str(load().tiers()[0])
    except Unsupported:
        return "reference"


def _installation() -> Iterator[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    yield "ferrum", installed_version()
    yield "python", f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "missing: install ferrum again"


def _machine() -> Iterator[tuple[str, str]]:
    from ferrum.kernels.cpu.library import available_threads  # imports numpy
    from ferrum.runtime.memory import available_memory

    described = _cpuinfo()
    flags = set((described.get("flags") or described.get("Features") or "").split())
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "cpu", processor_name()
    yield "cpu features", " ".join(each for each in FEATURES if each in flags) or "unknown"
    yield "cores allowed", f"{available_threads()} of {os.cpu_count()}"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield "memory", f"{size(total)}, {size(available_memory())} of it available"


def processor_name() -> str:
    """Return the CPU's name."""
    return _cpuinfo().get("model name") or platform.processor() or "unknown"


def _cpuinfo() -> dict[str, str]:
    """Return the entries of the first processor in /proc/cpuinfo, if there is one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _switches() -> Iterator[tuple[str, str]]:
    try:
        switches = Switches.from_environment()
    except ConfigError as error:
        yield "switches", f"refused: {error}"
        return
    for field in fields(switches):
        yield field.name.replace("_", " "), "on" if getattr(switches, field.name) else "off"


def _cuda() -> Iterator[tuple[str, str]]:
    """Yield what CUDA needs: the driver, devices, and the compiler of kernels; or why something is missing."""
    from ferrum.kernels.cuda.device_code import compiler_version
    from ferrum.kernels.cuda.driver import Driver

    try:
        devices = [Driver(0)]
        devices += [Driver(ordinal) for ordinal in range(1, devices[0].count)]
    except FerrumError as error:
        yield "cuda driver", f"no: {getattr(error, 'reason', error)}"
    else:
        yield "cuda driver", f"for CUDA {devices[0].version // 1000}.{devices[0].version % 1000 // 10}"
        for ordinal, device in enumerate(devices):
            free, total = device.memory()
            capability = "{}.{}".format(*device.capability)
            memory = f"{size(total)}, {size(free)} of it free"
            yield f"device {cuda_name(ordinal)}", f"{device.name}, compute capability {capability}, {memory}"
    try:
        yield "cuda compiler", f"NVRTC {compiler_version()}"
    except Unsupported as error:
        yield "cuda compiler", f"no: {error.reason}"


def _backends() -> Iterator[tuple[str, str]]:
    from ferrum.runtime.backend import choose_kernels

    for name in (each for each in KERNELS if each != "auto"):
        try:
            kernels = choose_kernels("cuda" if name == "cuda" else "cpu", name).kernels
            yield f"backend {name}", f"yes: {kernels.description}, arithmetic {kernels.numerics_id}"
        except FerrumError as error:
            yield f"backend {name}", f"no: {getattr(error, 'reason', error)}"


# ---- `ferrum selfcheck`: whether every instruction tier of this machine computes the same bits as the reference ----

DIFFERENT: Final = 1
"""Exit code if kernels differ."""

DeviceOption = Annotated[str, typer.Option("--device", help="Device to check: cpu, cuda, or a number as in cuda:1.")]


def selfcheck(device: DeviceOption = "cpu") -> None:
    """Compare the kernels of each instruction tier, or of a GPU, with known answers; exit with 1 if one differs."""
    from ferrum.runtime.backend import choose_kernels, machine_kernels
    from ferrum.runtime.self_check import self_check

    rows, same = [], True
    for kernels in machine_kernels() if device == "cpu" else [choose_kernels(device, "auto").kernels]:
        result = self_check(kernels)
        same &= not result.wrong
        outcome = f"differs: {', '.join(result.wrong)}" if result.wrong else "same bits"
        if result.refused:
            outcome += f"; not available: {', '.join(result.refused)}"
        rows.append((kernels.description, str(result.checked), f"{1000 * result.seconds:.1f}", outcome))
    print_table([("KERNELS", "CHECKS", "MS", "RESULT"), *rows])
    if not same:
        raise typer.Exit(DIFFERENT)
