"""Ferrum and llama.cpp on files of 2 to 8 bits a weight: decoding alone and with company, and a prompt.

    python bench/block_peers.py --python .venv-peers/bin/python --out bench/results/block_peers.json
    python bench/block_peers.py --python .venv-peers/bin/python --shape qwen3-30b-a3b --layers 12 --types iq2_xs iq3_xxs

Matrices are random blocks with scales that give weights of the usual size: speed does not depend on their values, and
the package `gguf`, which this process needs, quantises to few of these types. Embedding and head are in q6_k. Samples
of both engines alternate, and medians count; of llama.cpp the better of flash attention on and off counts in each row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adapter_peers import describe, finish
from ferrum.bench.shapes import shape_config
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from llamacpp_process import peer_version
from readme_table import measure
from script import needs, positive, run_script

with needs("gguf"):
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize

TYPES: Final = ("q8_0", "q4_k", "q3_k", "iq3_xxs", "q2_k", "iq2_xs")
SCALES: Final = {
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "iq2_xs": (0,),
    "iq3_xxs": (0,),
    "q4_k": (0, 2),
    "q6_k": (208,),
}
"""First bytes of a block's float16 scale and minimum."""
MIXES: Final = {"q2_k_xl": {"ffn_down": "q3_k", "attn": "q4_k", "ffn": "q2_k"}}
"""Types of a mixture by the beginnings of tensors' names, as in published files of that name."""
DEVIATION, EMBEDDING_DEVIATION = 0.02, 10.0
WORKLOADS: Final = (
    Workload("decode", Kind.DECODE, 1, 128, 32),
    Workload("16 sequences", Kind.DECODE, 16, 128, 8),
    Workload("prefill 512", Kind.PREFILL, 1, 0, 512),
)
_SAMPLE: Final = 1 << 14
"""Blocks drawn of a type. A matrix repeats them."""


def random_blocks(kind: str, deviation: float) -> NDArray[np.uint8]:
    """Return blocks [n, bytes] whose weights have that standard deviation."""
    _, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    blocks = np.random.default_rng(0).integers(0, 256, (_SAMPLE, nbytes), np.uint8)

    def with_scale(scale: float) -> None:
        for at in SCALES[kind]:
            blocks[:, at : at + 2] = np.array([scale], "<f2").view(np.uint8)

    with_scale(2.0**-8)
    scale = 2.0**-8 * deviation / float(np.std(dequantize(blocks[:256], GGMLQuantizationType[kind.upper()])))
    with_scale(scale)
    return blocks


def shapes_of(config: Mapping[str, Any], layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of all tensors."""
    hidden, head = config["hidden_size"], config["head_dim"]
    heads, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    yield "token_embd", (config["vocab_size"], hidden)
    yield "output_norm", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "output", (config["vocab_size"], hidden)
    experts = config.get("num_experts")
    width = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    many, end = ((experts,), "_exps") if experts else ((), "")
    for layer in range(layers):
        parts = {"attn_norm": (hidden,), "attn_q": (heads, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden)}
        parts |= {"attn_q_norm": (head,), "attn_k_norm": (head,), "attn_output": (hidden, heads), "ffn_norm": (hidden,)}
        parts |= {f"ffn_gate{end}": (*many, width, hidden), f"ffn_up{end}": (*many, width, hidden)}
        parts |= {f"ffn_down{end}": (*many, hidden, width)} | ({"ffn_gate_inp": (experts, hidden)} if experts else {})
        yield from ((f"blk.{layer}.{name}", shape) for name, shape in parts.items())


def write_model(path: Path, config: Mapping[str, Any], layers: int, kind: str) -> None:
    """Write the file."""
    experts = config.get("num_experts")
    writer = GGUFWriter(path, "qwen3moe" if experts else "qwen3", use_temp_file=True)
    describe(writer, config, layers)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    rng, mix = np.random.default_rng(1), MIXES.get(kind, {"": kind})
    blocks = {each: random_blocks(each, DEVIATION) for each in {"q6_k", *mix.values()}}
    if not config["tie_word_embeddings"]:
        blocks["embedding"] = random_blocks("q6_k", EMBEDDING_DEVIATION)
    for name, shape in shapes_of(config, layers):
        if len(shape) == 1 or name.endswith("ffn_gate_inp"):
            noise = DEVIATION * rng.standard_normal(shape, np.float32)
            writer.add_tensor(f"{name}.weight", noise + (len(shape) == 1))
            continue
        own = next((each for begin, each in mix.items() if name.split(".")[-1].startswith(begin)), "q6_k")
        own = own if name.startswith("blk.") else "q6_k"
        type_ = GGMLQuantizationType[own.upper()]
        size, nbytes = GGML_QUANT_SIZES[type_]
        drawn = blocks["embedding" if name == "token_embd" and "embedding" in blocks else own]
        data = np.resize(drawn, (int(np.prod(shape)) // size, nbytes)).reshape(*shape[:-1], -1)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=type_)
    finish(writer)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=("qwen3-0.6b", "qwen3-30b-a3b"))
    parser.add_argument("--layers", type=positive, help="layers of the shape (default: all)")
    parser.add_argument("--types", nargs="+", default=TYPES, choices=(*TYPES, *MIXES))
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--plain", action="store_true", help="llama.cpp repacks no matrices, where its AMX code fails")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = shape_config(options.shape)
    layers = options.layers or config["num_hidden_layers"]
    peer = peer_version(options.python) + " without repacked matrices" * options.plain
    about = {"shape": options.shape, "layers": layers, "machine": processor_name(), "peer": peer}
    given, files = ["--plain"] * options.plain, list[dict[str, Any]]()
    for kind in options.types:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / f"{kind}.gguf"
            print(f"writing a file in {kind}", file=sys.stderr)
            write_model(model, config, layers, kind)
            measured = measure(options.python, model, options.rounds, given, WORKLOADS)
            files.append({"type": kind, "bytes": model.stat().st_size, **measured})
        if options.out is not None:  # after each file: runs are long
            options.out.write_text(json.dumps({**about, "rounds": options.rounds, "files": files}, indent=1) + "\n")
    rows = [
        (file["type"], *(str(row[key]) for key in ("workload", "ferrum", "llama.cpp", "times", "of_limit")))
        for file in files
        for row in file["rows"]
    ]
    print_table([("TYPE", "WORKLOAD", "FERRUM", "LLAMA.CPP", "TIMES", "OF LIMIT"), *rows])


if __name__ == "__main__":
    run_script(main)
