"""Which kernels serve: the native library where it was built, else the reference, and then it is said once why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels
from ferrum.kernels.reference import ReferenceKernels
from ferrum.quant.formats import MatrixQuantizer, quantize
from ferrum.quant.native_quantizer import NativeQuantizer
from ferrum.runtime.kv_tiers.checksum import PageSums, native_page_sums, page_sums
from ferrum.sampling.native_sampler import NativeChooser
from ferrum.sampling.sampler import REFERENCE, Chooser


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """Kernels, and what a user should know of the choice."""

    kernels: Kernels
    notes: tuple[str, ...] = ()


def choose_kernels(
    kernels: str, isa: str = "auto", threads: int | None = None, *, head_dim: int = 1, planning: bool = False
) -> ChosenKernels:
    """The kernels of that name.

    Args:
        kernels: "auto", "native" or "reference"; "auto" falls back to the reference with a warning, once a process,
            unless an instruction tier was asked for.
        isa, threads, head_dim, planning: see `NativeKernels`.

    Raises:
        Unsupported: kernels that this installation does not have, or that cannot compute with such heads.
        ConfigError: an instruction tier that this machine does not have, or an option that the reference does not.
    """
    if kernels == "reference":
        for name, given in (("isa", isa != "auto"), ("threads", threads is not None)):
            if given:
                raise ConfigError("is an option of the native kernels, which the reference does not have", param=name)
        return ChosenKernels(ReferenceKernels())
    if kernels not in ("auto", "native"):
        raise Unsupported(f"kernels={kernels}", "this release computes on the CPU")
    try:
        return ChosenKernels(NativeKernels(isa, threads, head_dim=head_dim, planning=planning))
    except Unsupported as error:
        if kernels == "native" or isa != "auto":
            raise
        note = f"the slow reference kernels serve: {error.reason}"
        warn_once(note)
        return ChosenKernels(ReferenceKernels(), (note,))


def chooser_for(kernels: Kernels) -> Chooser:
    """Who samples beside these kernels: both give the same tokens, in different times."""
    return NativeChooser(kernels.lowering.runtime) if isinstance(kernels, NativeKernels) else REFERENCE


def quantizer_for(kernels: Kernels) -> MatrixQuantizer:
    """Who rounds matrices for these kernels: both give the same numbers, laid out as the kernels take them."""
    return NativeQuantizer(kernels.lowering.runtime) if isinstance(kernels, NativeKernels) else quantize


def page_sums_for(kernels: Kernels) -> PageSums:
    """Who sums a file's pages beside these kernels: both find the same damage, in different times."""
    return partial(native_page_sums, kernels.lowering.runtime) if isinstance(kernels, NativeKernels) else page_sums
