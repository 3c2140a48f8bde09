"""`StateShape`: what a sequence stores in a recurrent layer. Slots, the memory plan and reports derive from it."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.json_record import JsonRecord


@dataclass(frozen=True, slots=True)
class StateShape(JsonRecord):
    """The state of a sequence in one layer, as large at any length. `KvShape` is its counterpart per token.

    Attributes:
        numbers: f32 numbers of the state, with the columns of a convolution.
        row_numbers: f32 numbers of a token that the state is advanced by. The rows of draft tokens are kept until it is
            known which of them count.
        num_layers: layers that store this shape.
    """

    numbers: int
    row_numbers: int
    num_layers: int = 1

    def slot_bytes(self, kept: int) -> int:
        """Return the bytes of a slot in all layers: states, `kept` rows each, and how many tokens each has seen."""
        return self.num_layers * (4 * (self.numbers + kept * self.row_numbers) + 8)
