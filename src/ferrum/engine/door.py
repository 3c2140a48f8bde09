"""What the two front doors, `LLM` and `AsyncEngine`, share: opening, what is served, closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from ferrum.core.params import SamplingParams
from ferrum.engine.build import build
from ferrum.engine.front import Front, Parts
from ferrum.engine.messages import EngineInfo


class FrontDoor(ABC):
    """A client of one engine.

    Args:
        model: a directory, a hub id, or the name of the built-in model.
        options: the model's and the engine's, see `ferrum.core.config`.

    Raises:
        FerrumError: a model that cannot be found or loaded, or options that cannot run.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._front = self._start(build(model, **options))

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """A client of an engine that is put together already, or of a stand-in."""
        door = cls.__new__(cls)
        door._front = door._start(parts)
        return door

    @abstractmethod
    def _start(self, parts: Parts) -> Front:
        """Start the engine."""

    @property
    def info(self) -> EngineInfo:
        """What is served, and how."""
        return self._front.router.info

    @property
    def front(self) -> Front:
        """The model's side of the client: `render` for conversations, the tokenizer."""
        return self._front

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What a request gets that names no parameters: the checkpoint's recommended ones, unless switched off."""
        return self._front.default_params

    def close(self) -> None:
        """End every live request, and the engine. Idempotent."""
        self._front.router.close()
