"""What an adapter adds to a decoding step of ferrum and of llama.cpp, on the same two files, in one run.

    python bench/adapter_peers.py --python ENV/bin/python --out bench/results/adapter_peers.json

The model is a GGUF file of random weights in the shape of Qwen3-0.6B, which llama.cpp quantises to q4_k_m, and the
adapter a GGUF file of rank 16 in bfloat16 for all seven projections of a layer. Steps of both engines alternate, and
medians count. ENV needs llama-cpp-python; this process needs the package `gguf`. `adapter_llamacpp.py` runs in ENV.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from adapters import PROMPT, RANK, SHAPE, Cell
from ferrum.bench.bench_run import Prober
from ferrum.bench.shapes import shape_config
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from ferrum.client.client_base import engine_config
from ferrum.core.step import AdapterUse
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.random_checkpoint import RandomCheckpoint
from quality_peers import quantize
from script import needs, positive, run_script

with needs("gguf"):
    from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map

PEER: Final = Path(__file__).with_name("adapter_llamacpp.py")
ARCHITECTURE: Final = "qwen3"
BLOCK: Final = 20
"""Steps of a cell before the next cell."""
PROJECTIONS: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def write_model(path: Path, store: TensorStore) -> dict[str, tuple[int, ...]]:
    """Write the random model in bfloat16; return the shapes of its tensors by GGUF's names."""
    config: Mapping[str, Any] = shape_config(SHAPE)
    writer = GGUFWriter(path, ARCHITECTURE)
    describe(writer, config, config["num_hidden_layers"])
    known, shapes = get_tensor_name_map(MODEL_ARCH.QWEN3, config["num_hidden_layers"]), dict[str, tuple[int, ...]]()
    for name in store.tensors:
        values = store.read(name)
        stored = known.get_name(name, (".weight",))
        if stored is None:
            raise SystemExit(f"GGUF has no name for {name}")
        shapes[stored] = values.shape
        add(writer, stored, values if values.ndim == 2 else values.astype(np.float32))
    finish(writer)
    return shapes


def describe(writer: GGUFWriter, config: Mapping[str, Any], layers: int) -> None:
    """Add the metadata of a Qwen3 model of this number of layers."""
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def write_adapter(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write an adapter of all projections."""
    writer, rng = GGUFWriter(path, ARCHITECTURE), np.random.default_rng(0)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", RANK)
    for name, shape in shapes.items():
        if name.split(".")[-2] in PROJECTIONS:
            outputs, inputs = shape
            for end, size in (("a", (RANK, inputs)), ("b", (outputs, RANK))):
                numbers = 0.01 * rng.standard_normal(size).astype(np.float32)
                add(writer, f"{name}.lora_{end}", numbers.astype(ml_dtypes.bfloat16))
    finish(writer)


def add(writer: GGUFWriter, name: str, values: NDArray[Any]) -> None:
    """Add a tensor in float32 or bfloat16."""
    if values.dtype == np.float32:
        writer.add_tensor(name, values)
    else:
        bits = np.ascontiguousarray(values).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=GGMLQuantizationType.BF16)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class PeerProcess:
    """llama.cpp in its environment.

    Args:
        python: its interpreter.
        model, adapter: files.
    """

    def __init__(self, python: Path, model: Path, adapter: Path) -> None:
        command = [str(python), str(PEER), str(model), str(adapter), str(PROMPT)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.seconds: dict[str, list[float]] = {"base": [], "adapter": []}

    def step(self, kind: str, count: int) -> None:
        """Decode tokens with the adapter or without, and keep the times."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(kind, count, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.cpp ended with code {self._process.wait()}")
        self.seconds[kind] += json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(python: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Write the files and time the steps of both engines."""
    plain, model, adapter = (folder / name for name in ("plain.gguf", "model.gguf", "adapter.gguf"))
    print("writing the files", file=sys.stderr)
    write_adapter(adapter, write_model(plain, RandomCheckpoint(SHAPE, shape_config(SHAPE))))
    quantize(str(python), plain, model, "q4_k_m")
    plain.unlink()
    capacity = 2 * (PROMPT + steps + 128)
    executor = build_executor(LocalStepExecutor, engine_config(str(model), {"kv_capacity": capacity}).model)
    lm, peer, reads = executor.lm, PeerProcess(python, model, adapter), list[float]()
    executor.load_adapter("0", executor.read_adapter(str(adapter))[1])
    ours = {"base": Cell("base", [None]), "adapter": Cell("adapter", [AdapterUse("0")])}
    for cell in ours.values():
        cell.begin(executor)
    probe = Prober(None)
    for block in range(0, steps, BLOCK):
        if block % (2 * BLOCK) == 0:
            reads.append(probe().read)
        for kind, cell in ours.items():
            for _ in range(BLOCK):
                cell.step(executor)
            peer.step(kind, BLOCK)
    peer.close()
    nbytes = lm.adapters.nbytes
    executor.shutdown()
    return {
        "adapter_bytes": nbytes,
        "read_bytes_per_second": round(max(reads)),
        "reading_ms": round(1e3 * nbytes / max(reads), 3),
        "ferrum": _row({kind: cell.seconds for kind, cell in ours.items()}),
        "llama.cpp": _row(peer.seconds),
    }


def _row(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    base, adapted = (1e3 * median(seconds[kind]) for kind in ("base", "adapter"))
    return {"base_ms": round(base, 3), "adapter_ms": round(adapted, 3), "added_ms": round(adapted - base, 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--steps", type=positive, default=100, help="steps of a cell")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        host = {"shape": SHAPE, "quantize": "q4_k_m", "rank": RANK, "machine": processor_name()}
        report = {**host, **measure(options.python, Path(folder), options.steps)}
    rows = [(name, *(f"{value:.2f}" for value in report[name].values())) for name in ("ferrum", "llama.cpp")]
    print_table([("ENGINE", "BASE MS", "ADAPTER MS", "ADDED MS"), *rows])
    print(f"reading {report['adapter_bytes'] / 1e6:.1f} MB takes {report['reading_ms']:.2f} ms")
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
