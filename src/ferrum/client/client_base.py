"""`EngineClient`: what `LLM` and `AsyncEngine` share, from opening an engine to closing it.

How requests are sent and read is in the two clients.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, Self

from ferrum.client.build import build
from ferrum.client.model_client import ModelClient, Parts
from ferrum.core.params import SamplingParams
from ferrum.engine.messages import EngineInfo


class EngineClient(ABC):
    """A client of one engine; the engine ends with the interpreter if it is not closed before.

    It serves the process that opened it. In a forked process every request is refused with EngineDead.

    Args:
        model: a directory, a GGUF file, a hub id, or the name of the built-in model.
        options: of the model and the engine, see `ferrum.core.config`; and `source`, see `build`.

    Attributes:
        client: the tokenizer, chat template and request queue of the model.
        info: what is served, and how.

    Raises:
        FerrumError: the model cannot be found or loaded, or the options cannot run.
    """

    client: ModelClient
    info: EngineInfo

    def __init__(self, model: str, **options: Any) -> None:
        self._open(build(model, **options))

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """Return a client of an engine that is already assembled, or of a fake."""
        client = cls.__new__(cls)
        client._open(parts)
        return client

    def _open(self, parts: Parts) -> None:
        self.client = self._start(parts)
        self.info = self.client.info
        # The engine's thread would keep itself and the model alive after the last reference to this object is gone,
        # and a thread that computes while the interpreter ends aborts the process.
        self._finalizer = weakref.finalize(self, self.client.router.close)
        try:
            self.client.adapters.load_all(() if parts.config is None else parts.config.lora)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _start(self, parts: Parts) -> ModelClient:
        """Start the engine."""

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The checkpoint's recommended parameters, used for requests that name none."""
        return self.client.default_params

    def close(self) -> None:
        """End every live request, and the engine. Idempotent."""
        self.client.router.close()
        self._finalizer.detach()
