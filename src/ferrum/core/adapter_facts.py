"""`AdapterFacts`: what clients of an engine know about an adapter, without its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What requests with an adapter depend on, and what servers report about it.

    Attributes:
        path: of the directory or the file.
        digest: of the tensors, and of what else changes the result.
        nbytes: bytes of all numbers.
        rank: the largest.
        scales: whether requests may scale it: it only adds low-rank products.
        invocation: tokens that switch it on (aLoRA); empty for any other adapter.
        about: of GGUF files: task_name and prompt_prefix.
    """

    path: str
    digest: bytes
    nbytes: int
    rank: int
    scales: bool = True
    invocation: tuple[int, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The digest as spans name it."""
        return self.digest.hex()


def start_of(invocation: tuple[int, ...], prompt: Sequence[int]) -> int | None:
    """Return the position of the first token that an adapter changes, or None if it changes none.

    An adapter with invocation tokens (aLoRA) begins at their last occurrence in the prompt.
    """
    size, tokens = len(invocation), tuple(prompt)
    if not size:
        return 0
    starts = range(len(tokens) - size, -1, -1)
    return next((at for at in starts if tokens[at : at + size] == invocation), None)
