"""Reads the census of published models: `tests/data/published/*.json`, one file a model.

`census_tool.py` writes the tensors in these files; `tests/data/README.md` describes their fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "published"

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}
"""Bytes of a number, by the names that safetensors files use."""

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of tensors, by name."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published model.

    Attributes:
        name: organisation and model.
        line: family and model line in the README's table.
        config: the fields of `config.json`.
        facts: the whole file.
    """

    name: str
    line: tuple[str, str]
    config: dict[str, Any]
    facts: dict[str, Any]

    @property
    def num_tensors(self) -> int:
        """Number of the text model's tensors without quantisation."""
        entries = self.facts["tensors"]["names"]
        return sum(len(numbers(each.get("layer", "0"))) * len(numbers(each.get("expert", "0"))) for each in entries)

    def tensors(self) -> Tensors:
        """Return the text model's tensors in the published files, with one of each tower and ignored layer."""
        facts = self.facts["tensors"]
        others = [{"name": prefix} for prefix in facts.get("towers", ())] + facts.get("ignored", [])
        blank = {"dtype": "BF16", "shape": [2, 2]}
        entries = [*facts["names"], *({**each, **blank, "name": f"{each['name']}weight"} for each in others)]
        return {name: value for entry in entries for name, value in expanded(entry)}

    def unquantized(self) -> Published:
        """Return the model as if its matrices were floats."""
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        names = [{k: v for k, v in entry.items() if k != "stored"} for entry in self.facts["tensors"]["names"]]
        return replace(self, config=config, facts={**self.facts, "tensors": {**self.facts["tensors"], "names": names}})


def read(path: Path) -> Published:
    """Return the model of a file."""
    facts = json.loads(path.read_text())
    family, line = facts["line"]
    return Published(facts["model"], (family, line), facts["config"], facts)


def models() -> list[Published]:
    """Return all models of the census."""
    return [read(path) for path in sorted(FOLDER.glob("*.json"))]


def expanded(entry: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Yield names, dtypes and shapes of the tensors of a pattern such as `model.layers.{layer}.mlp.up_proj.weight`."""
    dtype = entry["dtype"] or "F32"  # where it is not confirmed
    for layer in numbers(entry.get("layer", "0")):
        for expert in numbers(entry.get("expert", "0")):
            name = entry["name"].replace("{layer}", str(layer)).replace("{expert}", str(expert))
            yield from stored(name, dtype, tuple(entry["shape"]), entry.get("stored"))


def stored(
    name: str, dtype: str, shape: tuple[int, ...], scheme: Any
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Yield a matrix as files of a quantised model hold it."""
    if scheme is None:
        yield name, (dtype, shape)
    elif scheme == "mxfp4":  # [experts, inputs, outputs] as [experts, outputs, groups of 32 inputs, bytes]
        experts, inputs, outputs = shape
        yield f"{name}_blocks", ("U8", (experts, outputs, inputs // 32, 16))
        yield f"{name}_scales", ("U8", (experts, outputs, inputs // 32))
    else:  # FP8 with a scale a tile, a row or a matrix
        yield name, ("F8_E4M3", shape)
        for part, tile in scheme.items():
            scales = tuple(math.ceil(size / each) for size, each in zip(shape, tile, strict=True)) if tile else ()
            yield name.removesuffix("weight") + part, (dtype if part.endswith("_scale") else "F32", scales)


def numbers(text: str) -> list[int]:
    """Return the numbers of a text such as "0-4,6"."""
    ranges = (part.partition("-") for part in text.split(","))
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]


def write_headers(model: Published, folder: Path) -> Path:
    """Write a directory with a model's configuration and a sparse weight file that holds no numbers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(model.config))
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in model.tensors().items():
        begin, end = end, end + ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
