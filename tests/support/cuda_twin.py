"""The kernels of the emulated CUDA device and the reference on the same step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from emulated_cuda import emulated_kernels
from ferrum.kernels.interface import PoolGroup, StepTables
from ferrum.kernels.reference import ReferenceKernels
from native_twin import same_bits


class Pair(NamedTuple):
    """A vector or a rope table of the device, and of the reference."""

    cuda: Any
    reference: Any


class CudaTwin:
    """Kernels of the emulated device and the reference, with equal pools."""

    def __init__(self, *groups: PoolGroup) -> None:
        self.kernels = emulated_kernels(), ReferenceKernels()
        self.cuda, self.reference = self.kernels
        for kernels in self.kernels:
            kernels.allocate(groups)
        self._groups = groups
        self.send_pages()  # unwritten codes of keys are 0 in one and 128 in the other

    def vector(self, values: np.ndarray) -> Pair:
        """Return a vector of both."""
        return Pair(*(kernels.vector(values) for kernels in self.kernels))

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> Pair:
        """Return a rope table of both. It is filled when a step begins."""
        return Pair(*(kernels.rope_table(frequencies, scaling, length) for kernels in self.kernels))

    def send_pages(self) -> None:
        """Copy the pages of the reference to the device."""
        for group in self._groups:
            for page in range(group.num_pages):
                self.cuda.write_page(group.name, page, self.reference.read_page(group.name, page))

    def begin(self, tables: StepTables) -> None:
        """Begin a step on both."""
        for kernels in self.kernels:
            kernels.begin(tables)

    def same(self, name: str, *arguments: Any, **named: Any) -> list[np.ndarray]:
        """Return the results of an operation, after both were seen to have the same bits."""
        with np.errstate(all="ignore"):
            ours, theirs = (self._results(index, name, arguments, named) for index in range(2))
        for our, their in zip(ours, theirs, strict=True):
            same_bits(our, their)
        return theirs

    def _results(self, index: int, name: str, arguments: Any, named: dict[str, Any]) -> list[np.ndarray]:
        def given(argument: Any) -> Any:
            return argument[index] if isinstance(argument, Pair) else argument

        kernels = self.kernels[index]
        keywords = {key: given(each) for key, each in named.items()}
        found = getattr(kernels, name)(*map(given, arguments), **keywords)
        return [kernels.host(each) for each in (found if isinstance(found, tuple) else (found,))]
