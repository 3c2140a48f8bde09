"""What the two front doors, `LLM` and `AsyncEngine`, share: opening, what is served, closing."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, Self

from ferrum.core.params import SamplingParams
from ferrum.engine.build import build
from ferrum.engine.messages import EngineInfo
from ferrum.engine.model_client import Front, Parts


class FrontDoor(ABC):
    """A client of one engine, which ends with the interpreter if nobody closes it before.

    It serves the process that opened it. In one that is forked from that every request is refused by EngineDead.

    Args:
        model: a directory, a hub id, or the name of the built-in model.
        options: the model's and the engine's, see `ferrum.core.config`.

    Raises:
        FerrumError: a model that cannot be found or loaded, or options that cannot run.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._open(build(model, **options))

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """A client of an engine that is put together already, or of a stand-in."""
        door = cls.__new__(cls)
        door._open(parts)
        return door

    def _open(self, parts: Parts) -> None:
        self._front = self._start(parts)
        # The engine's thread would keep itself and the model alive when the last user of this object is gone, and one
        # that computes while the interpreter ends aborts the process.
        self._unclosed = weakref.finalize(self, self._front.router.close)

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
        self._unclosed.detach()
