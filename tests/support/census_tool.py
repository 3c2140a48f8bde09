"""Writes tensors and parameter counts of the census again, from the classes of the installed `transformers`.

    python tests/support/census_tool.py [FILE ...]

The class is built on the meta device, and its state is renamed as `transformers` renames it when it saves a checkpoint.
What a file says of dtypes, quantised matrices, and layers that are left out, stays.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from census import FOLDER

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
QUANTISED = ("quantization_config", "auto_map")
TYPES = {"kimi_k2": "deepseek_v3"}
"""Types of models that are another one's under a name of their own repository."""

CLASSES = {"Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM"}
"""Classes of architectures that are published under another name."""

Shapes = dict[str, tuple[int, ...]]


def config_of(config: Mapping[str, Any]) -> Any:
    """Return the configuration's object, without quantisation."""
    values = {name: value for name, value in config.items() if name not in QUANTISED}
    values["model_type"] = TYPES.get(config["model_type"], config["model_type"])
    return transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)


def class_tensors(config: Mapping[str, Any], own_head: bool, fused: bool = False) -> tuple[Shapes, Shapes]:
    """Return names and shapes of the text model in a checkpoint, and those of the parts that see and hear.

    Args:
        config: the fields of `config.json`.
        own_head: the files hold a head, although the class ties it to the embedding.
        fused: the files hold all experts of a layer in two tensors, as the class does.
    """
    own = config_of({**config, "tie_word_embeddings": False} if own_head else config)
    with torch.device("meta"):
        (name,) = config["architectures"]
        model = getattr(transformers, CLASSES.get(name, name))(own)
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    state = {name: value for name, value in model.state_dict().items() if name in once}
    saved = state if fused else revert_weight_conversion(model, state)
    shapes = {name: tuple(value.shape) for name, value in saved.items()}
    if "text_config" not in config:
        return shapes, {}
    text = {name: shape for name, shape in shapes.items() if "language_model" in name or name.startswith("lm_head")}
    return text, {name: shape for name, shape in shapes.items() if name not in text}


def patterns(shapes: Shapes, dtype: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return names as patterns over layers and experts, with the tensors of each shape together.

    Args:
        shapes: of the tensors, by name.
        dtype: of all, but those of which `given` says another one (null: it is not confirmed).
        given: what a file says of dtypes and of quantised matrices, by patterns of names.
    """
    dtypes, schemes = given.get("dtypes", {}), given.get("schemes", {})
    places: dict[tuple[str, tuple[int, ...]], list[tuple[str, str]]] = {}
    for name, shape in shapes.items():
        layer, expert = (re.search(rf"\.{kind}\.(\d+)\.", name) for kind in ("layers", "experts"))
        pattern = re.sub(
            r"\.experts\.\d+\.", ".experts.{expert}.", re.sub(r"\.layers\.\d+\.", ".layers.{layer}.", name)
        )
        at = (layer[1] if layer else "", expert[1] if expert else "")
        places.setdefault((pattern, shape), []).append(at)
    entries = []
    for (pattern, shape), found in places.items():
        layers, experts = ({each[axis] for each in found} - {""} for axis in (0, 1))
        assert len(found) == max(1, len(layers)) * max(1, len(experts)), f"{pattern}: not the same experts everywhere"
        own = next((value for regex, value in dtypes.items() if re.search(regex, pattern)), dtype)
        entry: dict[str, Any] = {"name": pattern, "dtype": own, "shape": list(shape)}
        entry |= {"layer": ranges(layers)} if layers else {}
        entry |= {"expert": ranges(experts)} if experts else {}
        scheme = next((value for regex, value in schemes.items() if re.search(regex, pattern)), None)
        entries.append(entry | ({"stored": scheme} if scheme else {}))
    return entries


def ranges(values: set[str]) -> str:
    """Return numbers as a text such as "0-4,6"."""
    texts: list[list[int]] = []
    for value in sorted(map(int, values)):
        if texts and texts[-1][1] == value - 1:
            texts[-1][1] = value
        else:
            texts.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in texts)


def rebuilt(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a model's facts with tensors and parameter count from its class."""
    config = facts["config"]
    text = config.get("text_config") or config
    kinds = (each[key] for each in (config, text) for key in ("dtype", "torch_dtype") if key in each)
    dtype = next(kinds, "bfloat16")  # that of gpt-oss, which states none
    own_head = facts.get("tensors", {}).get("own_head", False)
    shapes, others = class_tensors(config, own_head, facts.get("tensors", {}).get("fused", False))
    towers = sorted({"".join(re.findall(r"^(?:model\.)?[^.]+\.", name)) for name in others})
    seeing = sum(map(math.prod, others.values())) if "published" in facts.get("parameters", {}) else 0
    kept = {name: value for name, value in facts.get("tensors", {}).items() if name not in ("names", "towers")}
    kept.setdefault("from", f"{config['architectures'][0]} of transformers {transformers.__version__}")
    names = patterns(shapes, DTYPES[dtype], kept)
    tensors = {**kept, **({"towers": towers} if towers else {}), "names": names}
    parameters = {**facts.get("parameters", {}), "count": sum(map(math.prod, shapes.values()))}
    return {**facts, "tensors": tensors, "parameters": parameters | ({"towers": seeing} if seeing else {})}


def written(facts: Mapping[str, Any]) -> str:
    """Return the text of a file: one line a field, and one a tensor."""

    def lines(value: Any, indent: str, deep: int) -> str:
        if isinstance(value, dict) and value and deep:
            inner = (f"{indent} {json.dumps(k)}: {lines(v, indent + ' ', deep - 1)}" for k, v in value.items())
            return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(f"{indent} {json.dumps(each)}" for each in value) + f"\n{indent}]"
        return json.dumps(value, ensure_ascii=False)

    return lines(dict(facts), "", 3) + "\n"


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:] or sorted(FOLDER.glob("*.json"))):
        file.write_text(written(rebuilt(json.loads(file.read_text()))))
