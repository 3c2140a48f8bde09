"""What NVRTC makes of the CUDA kernels: registers, spills and shared memory, and their fused operations.

`python tests/support/cuda_code.py` writes the table that `test_cuda_code.py` compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ferrum.kernels.cuda.device_code import compiled
from ferrum.quant.block_format import BLOCK_FORMATS

SOURCES: Final = Path(__file__).parents[2] / "native" / "cuda"
TABLE: Final = Path(__file__).parents[1] / "data" / "cuda" / "resources.txt"

FLOATS: Final = ("f32", "bf16", "f16", "fp8", "nf4")
"""Formats of modules of floats; those of other modules are the other blocks."""

POOLS: Final = ("float32", "bfloat16", "int8")
"""Formats of the pool."""

_FUSED: Final = re.compile(rb"\bfma\.rn[.a-z0-9]*")
_ENTRY: Final = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers(.*?)\n", re.DOTALL
)
_SHARED: Final = re.compile(r"(\d+) bytes smem")


class Resources(NamedTuple):
    """What a thread of a kernel takes, and a block. Bytes, but registers."""

    registers: int
    spills: int
    shared: int


def modules() -> list[str]:
    """Return all modules, with their formats."""
    blocks = [name for name in BLOCK_FORMATS if name not in FLOATS]
    formats = {
        **dict.fromkeys(("products", "embed"), blocks),
        **dict.fromkeys(("float_products", "float_embed"), FLOATS),
        **dict.fromkeys(("store", "attention", "attention_spread"), POOLS),
    }
    names = sorted(path.stem for path in SOURCES.glob("*.cu"))
    return [f"{name}:{format}" if format else name for name in names for format in formats.get(name, ("",))]


def resources(module: str, architecture: str = "sm_90") -> dict[str, Resources]:
    """Return what each kernel of a module takes."""
    log = compiled(module, SOURCES, f"--gpu-architecture={architecture}", "--ptxas-options=-v").log
    found = {}
    for name, spills, registers, rest in _ENTRY.findall(log):
        shared = _SHARED.search(rest)
        found[name] = Resources(int(registers), int(spills), int(shared[1]) if shared else 0)
    return found


def fused_operations(module: str, *options: str) -> list[bytes]:
    """Return the fused operations in the PTX of a module."""
    return _FUSED.findall(compiled(module, SOURCES, "--gpu-architecture=compute_80", *options, ptx=True).code)


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'module':24} {'kernel':24} {'registers':>9} {'spills':>6} {'shared':>6}"
    for module in modules():
        for kernel, used in resources(module).items():
            yield f"{module:24} {kernel:24} {used.registers:9} {used.spills:6} {used.shared:6}"


def table() -> dict[tuple[str, str], Resources]:
    """Return the table as it was written."""
    rows = (line.split() for line in TABLE.read_text().splitlines()[1:])
    return {(module, kernel): Resources(*map(int, numbers)) for module, kernel, *numbers in rows}


if __name__ == "__main__":
    TABLE.write_text("\n".join(lines()) + "\n")
