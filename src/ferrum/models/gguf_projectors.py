"""`Projector`: what the GGUF file of a model's tower for images holds, as data by `clip.projector_type`.

Entries are in files of their own (`gguf_pixtral.py`), which add them to `PROJECTORS` on import. Sources: the key and
tensor lists of the format's library, and the converters of llama.cpp and ollama for what they change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.config_reader import MAX_INTEGER
from ferrum.models.families import load_families

CLIP: Final = "clip"
"""The architecture of files of projectors, and the beginning of their keys."""

_TYPES: Final = ("clip.vision.projector_type", "clip.projector_type")
"""Keys of the type. Files with a part that hears have one for each."""

_NUMBER: Final = re.compile(r"\.\d+\.")
_SOUND: Final = ("a.", "mm.a.", "audio.")
"""Beginnings of the tensors and keys of a part that hears."""

_WITHOUT_EFFECT: Final = frozenset(
    (
        *("projector_type", "vision.projector_type", "has_vision_encoder", "has_audio_encoder", "has_text_encoder"),
        "has_llava_projector",
        "vision.projection_dim",  # of files in Mistral's own format it is wrong; the tensors say it
    )
)
_VISION: Final = {
    "vision.embedding_length": "hidden_size",
    "vision.feed_forward_length": "intermediate_size",
    "vision.block_count": "num_hidden_layers",
    "vision.attention.head_count": "num_attention_heads",
    "vision.image_size": "image_size",
    "vision.patch_size": "patch_size",
}
"""Keys of all towers, and their fields of `vision_config`."""


@dataclass(frozen=True, slots=True)
class TowerHeader:
    """The header of a file with a tower.

    Attributes:
        where: the file, for messages.
        prefix: the architecture, with which its keys begin.
        values: metadata by keys without the prefix.
        shapes: of the tensors, outermost dimension first.
        text: the `config.json` of the text model.
    """

    where: str
    prefix: str
    values: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    text: Mapping[str, Any]

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer. Raises CheckpointError."""
        value = self.values.get(key, default)
        if type(value) is not int or not 0 < value <= MAX_INTEGER:
            found = "is missing" if value is None else f"must be a positive integer, not {value!r}"
            raise CheckpointError(f"{self.where}: GGUF metadata {self.prefix}.{key} {found}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number. Raises CheckpointError."""
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            found = "is missing" if value is None else f"must be a positive number, not {value!r}"
            raise CheckpointError(f"{self.where}: GGUF metadata {self.prefix}.{key} {found}")
        return float(value)

    def vision(self) -> dict[str, Any]:
        """Return the fields of `vision_config` that all towers have. Raises CheckpointError."""
        return {theirs: self.integer(key) for key, theirs in _VISION.items()}

    def flagged(self, key: str) -> list[int]:
        """Return the layers that a list of flags names, in order. Raises CheckpointError."""
        flags = self.values.get(key, [])
        if not isinstance(flags, list) or not all(type(each) is bool for each in flags):
            raise CheckpointError(f"{self.where}: GGUF metadata {self.prefix}.{key} must be a list of flags")
        return [layer for layer, each in enumerate(flags) if each]

    def rows(self, name: str) -> int:
        """Return the rows of a tensor. Raises CheckpointError."""
        if not self.shapes.get(name):
            raise CheckpointError(f"{self.where}: tensor {name!r} is missing")
        return self.shapes[name][0]

    def levels(self) -> dict[str, Any]:
        """Return the fields of the image processor that say what numbers pixels become."""
        found = {f"image_{name}": self.values.get(f"vision.image_{name}") for name in ("mean", "std")}
        return {name: value for name, value in found.items() if value is not None}

    def require(self, key: str, value: float | bool, reason: str) -> None:
        """Raise Unsupported unless a key has a value, or a number near to it; a file may lack it."""
        found = self.values.get(key, value)
        if type(value) is float and type(found) in (int, float) and math.isclose(found, value, rel_tol=1e-6):
            return
        if type(found) is not type(value) or found != value:
            raise self.refuse(key, reason)

    def refuse(self, key: str, reason: str) -> Unsupported:
        """Return the error of a key that is not read with its value."""
        return Unsupported(f"{self.where}: GGUF metadata {self.prefix}.{key}={self.values.get(key)!r}", reason)


class TowerConfig(NamedTuple):
    """The files of a directory with the same model.

    Attributes:
        config: `config.json` of the whole model.
        processor: `preprocessor_config.json`.
    """

    config: dict[str, Any]
    processor: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Patches:
    """A patch embedding whose numbers a file has in another order than a directory.

    Attributes:
        sources: its tensors in the file, each [N, 3, P, P]: one for each frame of a video that a patch joins.
        by_pixel: a directory has it as [N, frames, P, P, 3]; else as [N, 3, frames, P, P].
    """

    sources: tuple[str, ...]
    by_pixel: bool = False


@dataclass(frozen=True, slots=True)
class Projector:
    """What files with a type of projector hold.

    Attributes:
        names: tensors without `.weight` and `.bias`, and their names in a directory without the prefix `model.`; `{}`
            stands for the layer. A tensor may be there by its whole name, too.
        keys: metadata keys that `describe` reads, in addition to those of all towers.
        describe: returns the configurations. Raises CheckpointError and Unsupported.
        permuted: rows of q and k are ordered for rotation of adjacent pairs.
        ignored: tensors that are not used.
        raised: vectors, by their names in a directory, to which the converter has added 1.
        patches: patch embeddings, by their names in a directory.
        listed: beginning of the names of tensors of some layers, and the key of the flags that say of which. A
            directory numbers these layers from 0.
    """

    names: Mapping[str, str]
    keys: tuple[str, ...]
    describe: Callable[[TowerHeader], TowerConfig]
    permuted: bool = False
    ignored: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    patches: Mapping[str, Patches] = field(default_factory=dict)
    listed: tuple[str, str] | None = None


PROJECTORS: Final[dict[str, Projector]] = {}
"""Entries by type of projector, of files next to the text model's."""

EMBEDDED: Final[dict[str, Projector]] = {}
"""Entries by architecture, of files that hold text model and tower, as ollama writes them."""


def projector_of(where: str, metadata: Mapping[str, Any]) -> Projector:
    """Return the entry of a file of a projector. Raises CheckpointError without a type, Unsupported for others."""
    kind = next((metadata[key] for key in _TYPES if key in metadata), None)
    if not isinstance(kind, str):
        raise CheckpointError(f"{where}: GGUF metadata has no clip.projector_type; is it a file of a projector?")
    load_families()
    if kind not in PROJECTORS:
        raise Unsupported(f"{where}: projector type {kind!r}", f"known: {', '.join(sorted(PROJECTORS))}")
    return PROJECTORS[kind]


def embedded_projector(metadata: Mapping[str, Any], tensors: Collection[str]) -> Projector | None:
    """Return the entry of a file of a whole model; None if it has no tower, or one that is not implemented."""
    load_families()
    held = any(name.startswith("v.") for name in tensors)
    return EMBEDDED.get(str(metadata.get("general.architecture"))) if held else None


def describe(projector: Projector, header: TowerHeader) -> TowerConfig:
    """Return the configurations of a tower.

    Raises:
        CheckpointError: a key is missing or invalid.
        Unsupported: a key that may change results is not understood.
    """
    known = {*_VISION, *_WITHOUT_EFFECT, "vision.image_mean", "vision.image_std", *projector.keys}
    for key in header.values:
        of_tower = header.prefix == CLIP or key.startswith(("vision.", "mm."))
        if of_tower and key not in known and not key.startswith(_SOUND):
            raise header.refuse(key, "this key is not understood and may change results")
    return projector.describe(header)


def tower_tensors(projector: Projector, header: TowerHeader) -> dict[str, str]:
    """Return each tensor's name in a directory, and its name in the file; of patch embeddings, that of the first one.

    The first converters named the two layers of a feed-forward the other way round; widths show it.

    Raises:
        CheckpointError: a tensor of a patch embedding is missing or misshapen, or a layer of `listed` has no flag.
        Unsupported: a tensor is not known.
    """
    down = header.shapes.get("v.blk.0.ffn_down.weight")
    turned = down is not None and down[0] != header.integer("vision.embedding_length")
    found = {full: patches.sources[0] for full, patches in projector.patches.items()}
    joined = {name for each in projector.patches.values() for name in _checked(header, each.sources)}
    for name in header.shapes:
        stem, _, kind = name.rpartition(".")
        if name in projector.ignored or name in joined or name.startswith(_SOUND) or not name.startswith(("v.", "mm.")):
            continue
        if name in projector.names:
            found[projector.names[name]] = name
            continue
        number = _NUMBER.search(name)
        pattern = stem if number is None else stem.replace(number[0], ".{}.", 1)
        full = projector.names.get(_turned(pattern) if turned else pattern)
        if full is None or kind not in ("weight", "bias"):
            raise Unsupported(f"{header.where}: tensor {name!r}", "no tensor of such a tower is known by this name")
        layer = "" if number is None else _number_of(projector, header, name, number[0].strip("."))
        found[f"{full.format(layer)}.{kind}"] = name
    return found


def _checked(header: TowerHeader, names: Sequence[str]) -> Sequence[str]:
    """Return the names of tensors that must have equal shapes [N, 3, P, P]. Raises CheckpointError."""
    first = header.shapes.get(names[0], ())
    for name in names:
        found = header.shapes.get(name)
        if found is None:
            raise CheckpointError(f"{header.where}: tensor {name!r} is missing")
        if len(found) != 4 or found != first:
            wanted = list(first) if len(first) == 4 else "[N, 3, P, P]"
            raise CheckpointError(f"{header.where}: tensor {name!r}: expected shape {wanted}, found {list(found)}")
    return names


def _number_of(projector: Projector, header: TowerHeader, name: str, layer: str) -> str:
    """Return the number of a layer in the name of its tensor in a directory. Raises CheckpointError."""
    if projector.listed is None or not name.startswith(projector.listed[0]):
        return layer
    layers = [str(each) for each in header.flagged(projector.listed[1])]
    if layer not in layers:
        raise CheckpointError(f"{header.where}: {header.prefix}.{projector.listed[1]} lacks layer {layer} of {name!r}")
    return str(layers.index(layer))


def _turned(pattern: str) -> str:
    """Return a name with up and down exchanged."""
    if pattern.endswith("ffn_up"):
        return pattern.replace("ffn_up", "ffn_down")
    return pattern.replace("ffn_down", "ffn_up")
