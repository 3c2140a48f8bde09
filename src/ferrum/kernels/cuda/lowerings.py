"""The lowering of each operation to launches: those that the backend computes, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ferrum.kernels.cuda import (
    attention_launches,
    embed_launches,
    expert_launches,
    product_launches,
    row_launches,
)
from ferrum.kernels.cuda.launches import Launch

LOWERINGS: Final[Mapping[str, Callable[..., list[Launch]]]] = {
    **attention_launches.LOWERINGS,
    **embed_launches.LOWERINGS,
    **expert_launches.LOWERINGS,
    **product_launches.LOWERINGS,
    **row_launches.LOWERINGS,
}
"""By the name of the operation. Arguments are the ground, then those of the operation (arrays as operands), then the
results."""
