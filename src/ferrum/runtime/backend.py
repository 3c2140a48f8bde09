"""Choice of the backend. Only this module knows which there are.

The native library is used if it was built, else the reference kernels, with one warning of the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels
from ferrum.kernels.reference import ReferenceKernels


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """Kernels, and warnings about the choice."""

    kernels: Kernels
    notes: tuple[str, ...] = ()


def choose_kernels(
    kernels: str, isa: str = "auto", threads: int | None = None, *, head_dim: int = 1, planning: bool = False
) -> ChosenKernels:
    """Return the kernels of that name.

    Args:
        kernels: "auto", "native" or "reference"; "auto" falls back to the reference with a warning, unless an
            instruction tier is given.
        isa, threads, head_dim, planning: see `NativeKernels`.

    Raises:
        Unsupported: kernels that this installation lacks, or that do not support this head size.
        ConfigError: an instruction tier that this machine lacks, or an option that the reference lacks.
    """
    if kernels == "reference":
        for name, given in (("isa", isa != "auto"), ("threads", threads is not None)):
            if given:
                raise ConfigError("needs the native kernels", param=name)
        return ChosenKernels(ReferenceKernels())
    if kernels not in ("auto", "native"):
        raise Unsupported(f"kernels={kernels}", "this release computes on the CPU")
    try:
        return ChosenKernels(NativeKernels(isa, threads, head_dim=head_dim, planning=planning))
    except Unsupported as error:
        if kernels == "native" or isa != "auto":
            raise
        note = f"using the slow reference kernels: {error.reason}"
        warn_once(note)
        return ChosenKernels(ReferenceKernels(), (note,))
