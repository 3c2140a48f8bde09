"""Choice of the backend. Only this module knows which there are.

The native library is used if it was built and an instruction tier passes the self-check, else the reference kernels,
with one warning of the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ferrum.core.devices import check_device, cuda_ordinal
from ferrum.core.errors import ConfigError, FerrumError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.core.memory_plan import size
from ferrum.kernels.cpu.library import tiers
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.self_check import self_check

if TYPE_CHECKING:
    from ferrum.kernels.cuda.cuda_kernels import Platform


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """Kernels, and warnings about the choice."""

    kernels: Kernels
    notes: tuple[str, ...] = ()


def choose_kernels(
    device: str,
    kernels: str,
    isa: str = "auto",
    threads: int | None = None,
    *,
    head_dim: int = 1,
    planning: bool = False,
    graphs: bool = True,
) -> ChosenKernels:
    """Return the kernels of that name for a device.

    Args:
        device: to compute on: "cpu", "cuda" or "cuda:1".
        kernels: "auto", "native", "reference" or "cuda"; "auto" on the CPU falls back to the reference with a warning,
            unless an instruction tier is given.
        isa, threads, head_dim, planning: see `NativeKernels`.
        graphs: see `CudaKernels`.

    Raises:
        Unsupported: a device that cannot be used, or kernels that this installation lacks, that lack this head size or
            fail the self-check.
        ConfigError: an instruction tier that this machine lacks, or an option that these kernels lack.
    """
    check_device(device, kernels, isa, threads, cuda_graphs=graphs)
    if (ordinal := cuda_ordinal(device)) is not None:
        return _planned_cuda(ordinal) if planning else _cuda(ordinal, graphs=graphs)
    if kernels == "reference":
        for name, given in (("isa", isa != "auto"), ("threads", threads is not None)):
            if given:
                raise ConfigError("needs the native kernels", param=name)
        return ChosenKernels(ReferenceKernels())
    try:
        return _native(isa, threads, head_dim=head_dim, planning=planning)
    except Unsupported as error:
        if kernels == "native" or isa != "auto":
            raise
        note = f"using the slow reference kernels: {error.reason}"
        warn_once(note)
        return ChosenKernels(ReferenceKernels(), (note,))


def _cuda(ordinal: int, *, graphs: bool) -> ChosenKernels:
    """Return the kernels of a CUDA device. Raises Unsupported."""
    from ferrum.kernels.cuda.cuda_kernels import CudaKernels  # the CPU's start does not wait for it

    return ChosenKernels(CudaKernels(open_platform(ordinal), ordinal, graphs=graphs))


def _planned_cuda(ordinal: int) -> ChosenKernels:
    """Return kernels that plan for a CUDA device, which need not be there."""
    from ferrum.kernels.cuda.cuda_kernels import CudaKernels, Platform
    from ferrum.kernels.cuda.driver import Driver
    from ferrum.kernels.cuda.planned_device import ASSUMED_BYTES, NoImages, PlannedDriver

    notes: tuple[str, ...] = ()
    try:
        driver = PlannedDriver(Driver(ordinal))
    except FerrumError as error:
        driver = PlannedDriver()
        notes = (f"planned for a device of {size(ASSUMED_BYTES)}: {getattr(error, 'reason', error)}",)
    return ChosenKernels(CudaKernels(Platform(driver, NoImages(), planned=True), ordinal), notes)


def open_platform(ordinal: int) -> Platform:
    """Open a CUDA device. Raises Unsupported, also if its kernels could not be compiled later."""
    from ferrum.kernels.cuda.cuda_kernels import Platform
    from ferrum.kernels.cuda.device_code import DeviceCode, compiler_version
    from ferrum.kernels.cuda.driver import Driver

    driver = Driver(ordinal)
    compiler_version()
    return Platform(driver, DeviceCode(driver.capability))


def _native(isa: str, threads: int | None, *, head_dim: int, planning: bool) -> ChosenKernels:
    """Return native kernels of the first tier that passes the self-check. Raises as `choose_kernels`."""
    notes: list[str] = []
    first = NativeKernels(isa, threads, head_dim=head_dim, planning=planning)
    for tier in (first.tier, *(other for other in tiers() if isa == "auto" and other != first.tier)):
        wrong = wrong_answers(tier)
        if not wrong:
            made = first if tier == first.tier else NativeKernels(tier, threads, head_dim=head_dim, planning=planning)
            return ChosenKernels(made, tuple(notes))
        notes.append(f"instruction tier {tier} is not used, because it computes other bits in: {', '.join(wrong)}")
        warn_once(notes[-1])
    raise Unsupported("native CPU kernels", "; ".join(notes))


@cache
def wrong_answers(tier: str) -> tuple[str, ...]:
    """Return the operations of a tier that fail the self-check. It runs once per process."""
    return self_check(NativeKernels(tier, 1)).wrong


def machine_kernels() -> Iterator[Kernels]:
    """Yield all kernels that this machine runs: every instruction tier, best first, then the reference."""
    with suppress(Unsupported):  # there is no library
        yield from (NativeKernels(tier, 1) for tier in tiers())
    yield ReferenceKernels()
