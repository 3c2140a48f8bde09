"""Parts of a reply in a terminal: reasoning dimmed, tool calls as calls, content as it is."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import typer

from ferrum.client.request_output import Delta
from ferrum.core.types import FinishReason
from ferrum.formats.output_parts import Message, Part, PartKind, message_of


@dataclass(slots=True)
class ShownParts:
    """The parts of one reply so far, and the text that shows them.

    Attributes:
        parts: those so far.
        styled: use the styles of a terminal.
        cut: the limit of tokens has ended the reply.
    """

    parts: list[Part] = field(default_factory=list)
    styled: bool = field(default_factory=lambda: sys.stdout.isatty())
    cut: bool = False

    def __call__(self, delta: Delta) -> str:
        """Return the text that shows a delta."""
        self.cut = delta.finish_reason is FinishReason.LENGTH
        new = (Part(PartKind.CONTENT, delta.text or ""),) if delta.parts is None else delta.parts
        return "".join(map(self._shown, new))

    @property
    def message(self) -> Message:
        """The reply so far, without a call that the limit of tokens has cut."""
        kinds = [part.kind for part in self.parts]
        if not self.cut or kinds[-1:] not in ([PartKind.CALL], [PartKind.ARGUMENTS], [PartKind.END]):
            return message_of(self.parts)
        return message_of(self.parts[: len(kinds) - 1 - kinds[::-1].index(PartKind.CALL)])

    def _shown(self, part: Part) -> str:
        before = self.parts[-1].kind if self.parts else None
        self.parts.append(part)
        match part.kind:
            case PartKind.REASONING:
                return typer.style(part.text, dim=True) if self.styled else part.text
            case PartKind.CALL:
                name = typer.style(part.text, bold=True) if self.styled else part.text
                return f"{'' if before is None else chr(10)}{name}("
            case PartKind.END:
                return ")"
        gap = "\n\n" if before is PartKind.REASONING and part.kind is PartKind.CONTENT else ""
        return gap + part.text
