"""The emulated device: kernels of `native/cuda` compiled for this processor, behind the calls of the CUDA driver.

Libraries are compiled once for their sources, in the build folder of the repository. A module is compiled when a launch
of it is prepared, so that a test waits for what it uses.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, Final

import pytest

from ferrum.kernels.cuda.cuda_kernels import CudaKernels, Platform
from ferrum.kernels.cuda.driver import Driver
from ferrum.runtime.backend import ChosenKernels

SOURCES: Final = Path(__file__).parents[2] / "native" / "cuda"
BUILT: Final = SOURCES.parents[1] / "build" / "emulated-cuda"

_FLAGS: Final = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-march=native")
_WARNINGS: Final = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
_DRIVER: Final = ("emulation/block.cpp", "emulation/driver.cpp")


@dataclass(frozen=True)
class EmulatedImages:
    """Images of modules: the paths of their libraries.

    Attributes:
        flags: of the compiler, in addition.
        folder: of the modules.
    """

    flags: tuple[str, ...] = ()
    folder: Path = SOURCES

    def image(self, module: str) -> bytes:
        name, _, format = module.partition(":")
        defined = (f"-DFERRUM_FORMAT={format}",) if format else ()
        return os.fsencode(library((str(self.folder / f"{name}.cu"),), (*self.flags, *defined))) + b"\0"


@cache
def library(names: tuple[str, ...], flags: tuple[str, ...] = ()) -> Path:
    """Return the library of these sources, compiled unless it is there."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "clang++"
    sources = [SOURCES / name for name in names]
    command = [compiler, *_FLAGS, *_WARNINGS, *flags, f"-I{SOURCES}", "-x", "c++", *map(str, sources)]
    target = BUILT / f"{Path(names[0]).stem}-{_state_of(command, sources)}.so"
    if target.exists():
        return target
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{target.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not target.exists():
            made = target.with_suffix(".new")
            done = subprocess.run([*command, "-o", made, "-ldl"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
            made.rename(target)
    return target


def driver_library(flags: tuple[str, ...] = ()) -> Path:
    """Return the library with the driver's calls."""
    return library(_DRIVER, flags)


def _state_of(command: list[str], sources: list[Path]) -> str:
    """Return a hash of a command and of all sources."""
    digest = sha256("\n".join(command).encode())
    for path in sorted([*SOURCES.rglob("*"), *(SOURCES.parent / "src").glob("*format*.hpp"), *sources]):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_CALLS: Final = RLock()


class EmulatedDriver(Driver):
    """The driver of the emulated device.

    Attributes:
        emulation: what tests ask of it: `ferrum_emulation_seed`, ..., see `native/cuda/emulation/driver.cpp`.
    """

    def __init__(self, ordinal: int = 0, flags: tuple[str, ...] = ()) -> None:
        path = driver_library(flags)
        self.emulation: Any = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        super().__init__(ordinal, str(path))

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call; those of several threads take turns, since all devices of a process have one emulation."""
        with _CALLS:
            super().call(name, *arguments)

    def seed(self, number: int) -> None:
        """Set the order in which warps, lanes and blocks run from now on."""
        self.emulation.ferrum_emulation_seed(ctypes.c_uint64(number))


def emulated_kernels(*, graphs: bool = True, flags: tuple[str, ...] = ()) -> CudaKernels:
    """Return kernels on the emulated device."""
    return CudaKernels(Platform(EmulatedDriver(flags=flags), EmulatedImages(flags)), graphs=graphs)


@contextmanager
def emulated_device(*, graphs: bool = True) -> Iterator[None]:
    """Load models on the emulated device in this context, whichever kernels are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = "ferrum.runtime.load.choose_kernels"
        patch.setattr(chosen, lambda *_, **__: ChosenKernels(emulated_kernels(graphs=graphs)))
        yield
