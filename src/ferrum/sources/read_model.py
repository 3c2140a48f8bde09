"""A model's files before its weights are read: what it is, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.models.decoder import Inventory, inventory
from ferrum.models.families import decoder_spec
from ferrum.models.rank_cuts import ONE_RANK, Ranks
from ferrum.models.spec import DecoderSpec
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.sources.parameters import model_spec
from ferrum.sources.viewed_tensors import with_views


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model before its weights are read.

    Attributes:
        spec: of its decoder.
        own: the same as the configuration alone says it.
        asks: what the decoder asks for.
        store: has these parameters, under their names.
        context: maximum tokens of a sequence.
    """

    spec: DecoderSpec
    own: DecoderSpec
    asks: Inventory
    store: TensorStore
    context: int

    @property
    def widest(self) -> int:
        """Numbers of the widest key or value."""
        return max((max(kv.key_dim, kv.value_dim) for kv in self.asks.kv_layers), default=1)

    @property
    def first_stored(self) -> tuple[int, int]:
        """Heads and width of the keys of the first part that stores per token; zeros without one."""
        return next(((kv.num_heads, kv.key_dim) for kv in self.asks.kv_layers), (0, 0))


def read_spec(
    config: ModelConfig,
    store: TensorStore | None = None,
    *,
    planning: bool = False,
    ranks: Ranks = ONE_RANK,
) -> ReadModel:
    """Return what a model's files say that it is, or one rank of it.

    Raises: ConfigError, Unsupported, ModelNotFound, CheckpointError.
    """
    store = store or open_model(config.model, models_dir=config.models_dir, mmproj=config.mmproj).checkpoint()
    spec = model_spec(store, config.max_sequence_length, planning=planning)
    context, own = _context(spec, config.max_sequence_length), decoder_spec(store.config)
    asks = inventory(spec, ranks)
    return ReadModel(spec, own, asks, with_views(store, asks), context)


def _context(spec: DecoderSpec, asked: int | None) -> int:
    if asked is not None and asked > spec.max_sequence_length:
        raise ConfigError(
            f"{asked} exceeds the model's context of {spec.max_sequence_length}", param="max_sequence_length"
        )
    return asked or spec.max_sequence_length
