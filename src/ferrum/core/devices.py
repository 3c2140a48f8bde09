"""Names of devices, and the options that go with them. What a device computes is in `kernels/`."""

from __future__ import annotations

import re
from typing import Final

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.values import shown

METAL: Final = "metal"
MAX_ORDINAL: Final = 999
"""Largest number of a device in a name."""

_CUDA: Final = re.compile("cuda(?::(0|[1-9][0-9]{0,2}))?")


def cuda_name(ordinal: int) -> str:
    """Return the name of a CUDA device by its number: "cuda" for the first, "cuda:1" for the second."""
    return f"cuda:{ordinal}" if ordinal else "cuda"


def cuda_ordinal(device: str) -> int | None:
    """Return the number of a CUDA device; None for the name of anything else."""
    found = _CUDA.fullmatch(device)
    return int(found[1] or 0) if found else None


def check_device(
    device: object, kernels: str, isa: str = "auto", threads: int | None = None, *, cuda_graphs: bool = True
) -> None:
    """Refuse a device, or an option of `ModelConfig` that has no effect on it. No device is opened.

    Raises:
        Unsupported: a device that ferrum has no kernels for.
        ConfigError: no name of a device, or another option; `param` names the option.
    """
    if device == METAL:
        raise Unsupported("device=metal", "Apple processors compute with the NEON tiers of the CPU: use device=cpu")
    if not isinstance(device, str) or (device != "cpu" and cuda_ordinal(device) is None):
        raise ConfigError(f"must be cpu, cuda, or a number as in cuda:1, not {shown(device)}", param="device")
    if device == "cpu":
        if kernels == "cuda":
            raise ConfigError("cuda computes on a GPU: use device=cuda", param="kernels")
        if not cuda_graphs:
            raise ConfigError(f"is for device=cuda, not for {device}", param="cuda_graphs")
        return
    if kernels not in ("auto", "cuda"):
        raise ConfigError(f"{kernels} computes on the CPU, not on {device}", param="kernels")
    for name, given in (("isa", isa != "auto"), ("threads", threads is not None)):
        if given:
            raise ConfigError(f"is for kernels of the CPU, not for {device}", param=name)
