"""The code of modules for a device: compiled by NVRTC from the sources in this package, and kept in the user's cache.

NVRTC is NVIDIA's run-time compiler, a library of the package `nvidia-cuda-nvrtc` (the extra `cuda`) or of a CUDA
toolkit. A module compiles in seconds, once for each kind of device and each version of the sources.
Source: the NVRTC documentation, version 13.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferrum.core.errors import Unsupported

CACHE: Final = Path.home() / ".cache" / "ferrum" / "cuda"
"""Where compiled modules are kept."""

OPTIONS: Final = (
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
)
"""Every operation is rounded as it is written: no contraction, no approximation, no flush of subnormal numbers."""

_LIBRARIES: Final = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_FOLDERS: Final = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
"""Where packages of NVIDIA have the library, inside the folder of packages."""


def source_folder() -> Path:
    """Return the folder of the sources, which the native library is installed next to."""
    native = import_module("ferrum.kernels.cpu._native").__file__
    assert native is not None
    return Path(native).parents[1] / "cuda" / "source"


class DeviceCode:
    """Images of modules for a kind of device; see `launches.Images`.

    Args:
        capability: of the device.
        sources: folder of the sources.
        cache: where compiled modules are kept.
    """

    def __init__(self, capability: tuple[int, int], sources: Path | None = None, cache: Path = CACHE) -> None:
        self._architecture = "sm_{}{}".format(*capability)
        self._sources = sources or source_folder()
        self._cache = cache

    def image(self, module: str) -> bytes:
        """Return the code of a module, compiled if it is not in the cache.

        Raises:
            Unsupported: there is no NVRTC, or it does not know this kind of device.
        """
        digest = sha256(self._state + module.encode()).hexdigest()[:16]
        path = self._cache / self._architecture / f"{module.replace(':', '-')}-{digest}.cubin"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_suffix(f".{os.getpid()}")  # another process may compile it too
            made.write_bytes(compiled(module, self._sources, f"--gpu-architecture={self._architecture}").code)
            made.replace(path)
        return path.read_bytes()

    @cached_property
    def _state(self) -> bytes:
        """All sources, from which the names of files in the cache follow."""
        formats = self._sources.parent / "src" / "weight_formats.hpp"
        files = sorted(path for path in (*self._sources.rglob("*"), formats) if path.is_file())
        return b"".join(path.name.encode() + path.read_bytes() for path in files)


class Compiled(NamedTuple):
    """The code of a module, and what the compiler says of it."""

    code: bytes
    log: str


def compiled(module: str, sources: Path, *options: str, ptx: bool = False) -> Compiled:
    """Compile a module with NVRTC.

    Args:
        module: name, with its format.
        sources: folder of the sources.
        options: in addition to `OPTIONS`, at least the architecture.
        ptx: return the text of the virtual instruction set in place of code.

    Raises: see `DeviceCode.image`.
    """
    library = _library()
    name, _, format = module.partition(":")
    path = sources / f"{name}.cu"
    program = c_void_p()
    _check(library, library.nvrtcCreateProgram(byref(program), path.read_bytes(), str(path).encode(), 0, None, None))
    defined = (f"--define-macro=FERRUM_FORMAT={format}",) if format else ()
    every = [each.encode() for each in (*OPTIONS, f"--include-path={sources}", *defined, *options)]
    code = library.nvrtcCompileProgram(program, len(every), (c_char_p * len(every))(*every))
    log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    if code != 0:
        raise Unsupported("device=cuda", f"NVRTC cannot compile {module}: {log.strip() or _reason(library, code)}")
    return Compiled(_bytes(library, program, "PTX" if ptx else "CUBIN"), log)


def compiler_version() -> str:
    """Return the version of NVRTC, as "13.0". Raises Unsupported if there is none."""
    major, minor = c_int(), c_int()
    library = _library()
    _check(library, library.nvrtcVersion(byref(major), byref(minor)))
    return f"{major.value}.{minor.value}"


def _bytes(library: Any, program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, text))
    return text.raw


def _check(library: Any, code: int) -> None:
    if code != 0:
        raise Unsupported("device=cuda", f"NVRTC failed: {_reason(library, code)}")


def _reason(library: Any, code: int) -> str:
    library.nvrtcGetErrorString.restype = c_char_p
    reason: bytes = library.nvrtcGetErrorString(c_int(code))
    return reason.decode(errors="replace")


def _library() -> Any:
    """Open NVRTC. Raises Unsupported if there is none."""
    packages = find_spec("nvidia")
    roots = [Path(place).parent for place in (packages.submodule_search_locations or ())] if packages else []
    paths = [str(root / folder / name) for root in roots for folder in _FOLDERS for name in _LIBRARIES[:2]]
    for name in (*paths, *_LIBRARIES):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Unsupported("device=cuda", 'NVRTC is missing: pip install "ferrum-llm[cuda]"')
