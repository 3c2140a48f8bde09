"""Whether there is memory for what is to be loaded: the system hands out more than it has, and kills who fills it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ferrum.core.config import ModelConfig
from ferrum.core.errors import CapacityError
from ferrum.core.memory_plan import size
from ferrum.models.decoder import parameter_shapes
from ferrum.models.spec import DecoderSpec
from ferrum.runtime.checkpoint import TensorStore
from ferrum.runtime.memory import free_memory
from ferrum.runtime.packed import is_packed
from ferrum.runtime.parameters import PlannedParameters


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Whatever a backend allocates by, that there is no memory is told in one way. Raises CapacityError."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(f"there is no memory for {what}") from error


def bytes_to_come(config: ModelConfig, checkpoint: TensorStore, spec: DecoderSpec, *, panels: bool) -> int:
    """Bytes that matrices will take once they are loaded; those of a packed directory stay in the file.

    Args:
        config, checkpoint, spec: the model.
        panels: see `PlannedParameters`.
    """
    if is_packed(checkpoint):
        return 0
    sized = PlannedParameters(checkpoint, config.dtype, quantize=config.quantize, group=config.group, panels=panels)
    shapes = parameter_shapes(spec).items()
    return sum(sized.matrix(name, (shape[0], shape[1])).nbytes for name, shape in shapes if len(shape) == 2)


def refuse_too_large(config: ModelConfig, checkpoint: TensorStore, spec: DecoderSpec) -> None:
    """Refuse weights of native kernels that there is no memory for. Raises CapacityError."""
    free = free_memory()
    if 2 * checkpoint.nbytes <= free:  # nearly always; formats hardly take more
        return
    wanted = bytes_to_come(config, checkpoint, spec, panels=True)
    if wanted > free:
        reason = f"{size(free)} are free, which is {size(wanted - free)} too little"
        raise CapacityError(f"there is no memory for the {size(wanted)} of the weights: {reason}")
