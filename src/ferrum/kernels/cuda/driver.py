"""The calls of the CUDA driver, by ctypes: libcuda of the machine, or one with the same calls.

Source: the CUDA driver API reference, version 13.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from threading import RLock
from typing import Any, Final, NamedTuple

from ferrum.core.config import visible_devices
from ferrum.core.devices import cuda_name
from ferrum.core.errors import CapacityError, EngineDead, Unsupported
from ferrum.core.memory_plan import size

THREADS: Final = 256
"""Threads of every block (`native/cuda/device.hpp`)."""

LEAST_CAPABILITY: Final = (8, 0)
"""The oldest processors with the instructions that kernels use."""

_LEAST_DRIVER: Final = 12000
_OUT_OF_MEMORY: Final = 2
_NOT_INITIALIZED: Final = 3
_NO_DEVICE: Final = (100, 101)
_CAPABILITY: Final = (75, 76)
_MULTIPROCESSORS: Final = 16

_FORKED: Final = "this process was forked from one that uses it; start it another way (spawn)"

_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_uint64),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}
"""The calls and the types of their arguments. Each returns an error number, 0 for none."""


class DeviceError(EngineDead):
    """A call of the driver that failed. The device is lost for this process, and an engine on it ends.

    Attributes:
        code: the driver's number.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        explained = f"{name}: {text}" if text else name
        super().__init__(f"the CUDA driver failed in {call} ({explained}): restart the process, or use device=cpu")
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return EngineDead, self.args


def default_library() -> str:
    """Return the name of the driver's library on this system."""
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class Driver:
    """A device of the driver, with one stream. Calls come from any thread, one at a time.

    Args:
        ordinal: number of the device, among those that CUDA_VISIBLE_DEVICES shows.
        path: of the library, or its name.

    Attributes:
        version: of CUDA that the driver is for, as 13000.
        count: number of devices.
        name, capability, multiprocessors: of the device.
        stream: handle of the stream that all work is on.

    Raises:
        Unsupported: no driver, one that is too old, no such device, or one that is too old.
        CapacityError: other processes hold all of its memory.
    """

    def __init__(self, ordinal: int, path: str | None = None) -> None:
        self._device = cuda_name(ordinal)
        self._library = self._open(path or default_library())
        self._process = os.getpid()
        self._lock = RLock()
        self._start(ordinal)
        self.capability = (self._attribute(_CAPABILITY[0]), self._attribute(_CAPABILITY[1]))
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self._handle)
        self.name = text.value.decode(errors="replace")
        if self.capability < LEAST_CAPABILITY:
            raise self._unsupported(f"{self.name} has compute capability {_dotted(self.capability)}, 8.0 is needed")
        try:
            self._context = self.created("cuDevicePrimaryCtxRetain", self._handle)
        except MemoryError as error:
            reason = f"not enough device memory to open {self._device}: other processes hold it (see nvidia-smi)"
            raise CapacityError(reason) from error
        self.enter()
        self.stream = self.created("cuStreamCreate", 1)  # not ordered with other streams

    def _open(self, path: str) -> Any:
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            for name, types in _CALLS.items():
                getattr(library, name).argtypes = types
        except OSError as error:
            reason = f"there is no NVIDIA driver ({error}): install one, or use device=cpu"
            raise self._unsupported(reason) from error
        except AttributeError as error:
            raise self._unsupported(f"the NVIDIA driver is too old ({error}): install a newer one") from error
        return library

    def _start(self, ordinal: int) -> None:
        version, count, device = c_int(), c_int(), c_int()
        try:
            self.call("cuInit", 0)
            self.call("cuDriverGetVersion", byref(version))
            self.call("cuDeviceGetCount", byref(count))
        except DeviceError as error:
            if error.code in _NO_DEVICE:
                raise self._unsupported(f"the driver finds no device{_hidden()}: use device=cpu") from error
            if error.code == _NOT_INITIALIZED:
                raise self._unsupported(_FORKED) from error
            raise self._unsupported(f"no device can be used: {error}") from error
        if version.value < _LEAST_DRIVER:
            reason = f"the NVIDIA driver is for CUDA {version.value // 1000}, and 12 is needed: install a newer one"
            raise self._unsupported(reason)
        if count.value == 0:
            raise self._unsupported(f"the driver finds no device{_hidden()}: use device=cpu")
        if ordinal >= count.value:
            raise self._unsupported(f"the driver finds {count.value} in all{_hidden()}: use device=cuda")
        self.version, self.count = version.value, count.value
        self.call("cuDeviceGet", byref(device), ordinal)
        self._handle = device.value

    def _unsupported(self, reason: str) -> Unsupported:
        return Unsupported(f"device={self._device}", reason)

    def _attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self._handle)
        return value.value

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call.

        Raises:
            MemoryError: the device, or the host for pinned memory, has too little memory.
            DeviceError: another failure.
        """
        code = getattr(self._library, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise MemoryError("pinned host memory" if name == "cuMemHostAlloc" else self._shown_memory())
        if code != 0:
            raise DeviceError(name, code, self._text("cuGetErrorName", code), self._text("cuGetErrorString", code))

    def _text(self, call: str, code: int) -> str:
        text = c_char_p()
        known = getattr(self._library, call)(code, byref(text)) == 0
        return (text.value or b"").decode(errors="replace") if known else str(code)

    def _shown_memory(self) -> str:
        free, total = c_size_t(), c_size_t()
        if self._library.cuMemGetInfo_v2(byref(free), byref(total)) != 0:
            return f"the device memory of {self._device}"
        return f"{size(free.value)} of {size(total.value)} of device memory are free on {self._device}"

    def created(self, name: str, *arguments: Any) -> int:
        """Make a call that returns a handle or an address through its first argument."""
        found = c_void_p()
        self.call(name, byref(found), *arguments)
        return found.value or 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device in this thread, and keep work of other threads out of what this one begins on the stream.

        Threads that only wait, as for a step's results, need no more than `enter`.
        """
        with self._lock:
            self.enter()
            yield

    def enter(self) -> None:
        """Make the device that of this thread. Raises EngineDead in a process that was forked after it was opened."""
        if os.getpid() != self._process:
            raise EngineDead(f"device={self._device} cannot be used: {_FORKED}")
        self.call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        """Return the free and all bytes of the device."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Wait for all work."""
        self.call("cuStreamSynchronize", self.stream)

    @contextmanager
    def capture(self) -> Iterator[Callable[[], int]]:
        """Record the work of this context in a graph. The function given returns it, executable, after the context."""
        executable = 0
        self.call("cuStreamBeginCapture_v2", self.stream, 2)  # code may be loaded at its first launch, which 1 refuses
        graph = 0
        try:
            yield lambda: executable
        finally:
            graph = self._end_capture()
        executable = self.created("cuGraphInstantiateWithFlags", graph, 0)
        self.call("cuGraphDestroy", graph)

    def _end_capture(self) -> int:
        graph = c_void_p()
        self.call("cuStreamEndCapture", self.stream, byref(graph))
        return graph.value or 0


def _hidden() -> str:
    """Return the variable that hides devices, if it is set."""
    shown = visible_devices()
    return "" if shown is None else f' (CUDA_VISIBLE_DEVICES="{shown}" may hide others)'


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


class Event(NamedTuple):
    """A mark in the stream of a driver."""

    driver: Driver
    handle: int

    @classmethod
    def of(cls, driver: Driver, *, timed: bool = False) -> Event:
        """Create an event; one that is `timed` measures."""
        return cls(driver, driver.created("cuEventCreate", 0 if timed else 2))

    def record(self) -> None:
        """Mark the end of the work so far."""
        self.driver.call("cuEventRecord", self.handle, self.driver.stream)

    def wait(self) -> None:
        """Wait for the work before the mark."""
        self.driver.call("cuEventSynchronize", self.handle)

    def seconds_until(self, later: Event) -> float:
        """Return the seconds between two marks that were reached."""
        milliseconds = c_float()
        self.driver.call("cuEventElapsedTime", byref(milliseconds), self.handle, later.handle)
        return milliseconds.value / 1000
