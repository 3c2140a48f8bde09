"""Choice of the backend. Only this module knows which there are.

The native library is used if it was built and an instruction tier passes the self-check, else the reference kernels,
with one warning of the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.kernels.cpu.library import tiers
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.self_check import self_check


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
) -> ChosenKernels:
    """Return the kernels of that name for a device.

    Args:
        device: to compute on; "cpu" is the only one so far.
        kernels: "auto", "native" or "reference"; "auto" falls back to the reference with a warning, unless an
            instruction tier is given.
        isa, threads, head_dim, planning: see `NativeKernels`.

    Raises:
        Unsupported: another device, or kernels that this installation lacks, that lack this head size or fail the
            self-check.
        ConfigError: an instruction tier that this machine lacks, or an option that the reference lacks.
    """
    if device != "cpu":
        raise Unsupported(f"device={device}", "this release computes on the CPU")
    if kernels == "reference":
        for name, given in (("isa", isa != "auto"), ("threads", threads is not None)):
            if given:
                raise ConfigError("needs the native kernels", param=name)
        return ChosenKernels(ReferenceKernels())
    if kernels not in ("auto", "native"):
        raise Unsupported(f"kernels={kernels}", "this release computes on the CPU")
    try:
        return _native(isa, threads, head_dim=head_dim, planning=planning)
    except Unsupported as error:
        if kernels == "native" or isa != "auto":
            raise
        note = f"using the slow reference kernels: {error.reason}"
        warn_once(note)
        return ChosenKernels(ReferenceKernels(), (note,))


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
