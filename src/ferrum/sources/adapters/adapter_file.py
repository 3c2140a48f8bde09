"""`AdapterFile`: an adapter as its files describe it, before a model holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ferrum.core.lora_option import start_of
from ferrum.kernels.adapters import Change


@dataclass(frozen=True, slots=True, eq=False)
class AdapterFile:
    """What the files of an adapter hold. Every tensor that they contain is in here.

    Attributes:
        path: of the directory or the file.
        changes: by the name of the matrix or norm, as `NamedWeight` and `NamedNorm` have it; those of logits by
            `tensor_names.HEAD`.
        digest: of the tensors, and of what else changes the result. A name or a path is no part of it.
        rank: the largest.
        invocation: tokens that switch it on (aLoRA); empty for any other adapter.
        about: of GGUF files: task_name and prompt_prefix.
    """

    path: str
    changes: Mapping[str, Change]
    digest: bytes
    rank: int
    invocation: tuple[int, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    def start(self, prompt: tuple[int, ...]) -> int | None:
        """Return the position of the first token that the adapter changes, or None if it changes none.

        An aLoRA begins at the last occurrence of its invocation tokens in the prompt.
        """
        return start_of(self.invocation, prompt)
