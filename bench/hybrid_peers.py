"""Ferrum and llama.cpp on one hybrid model in one run: decoding alone and with company, and a prompt.

    python bench/hybrid_peers.py --python ENV/bin/python --out bench/results/hybrid_peers.json

The model is a GGUF file of random weights in the shape of Qwen3.5-0.8B (18 layers with states, 6 with attention), in
q8_0 or q4_0. Samples of both engines alternate, and medians count. ENV needs llama-cpp-python; this process needs the
package `gguf`. `llamacpp_steps.py` runs in ENV.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from ferrum.bench.bench_run import Prober
from ferrum.bench.limits import seconds_of
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.bench import load_subject
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from llamacpp_process import LlamaCppSteps
from script import needs, positive, run_script

with needs("gguf"):
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
    from gguf.quants import quantize

ARCHITECTURE: Final = "qwen35"
VOCABULARY, HIDDEN, WIDTH, LAYERS = 248_320, 1024, 3584, 24
HEADS, KV_HEADS, HEAD = 8, 2, 256
KEY_HEADS, VALUE_HEADS, STATE = 16, 16, 128
INTERVAL: Final = 4
"""Every fourth layer has attention."""
WORKLOADS: Final = (
    Workload("decode", Kind.DECODE, 1, 256, 32),
    Workload("8 sequences", Kind.DECODE, 8, 256, 8),
    Workload("prefill 512", Kind.PREFILL, 1, 0, 512),
)
METADATA: Final = {
    "block_count": LAYERS,
    "context_length": 32_768,
    "embedding_length": HIDDEN,
    "feed_forward_length": WIDTH,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
    "rope.dimension_count": HEAD // 4,
    "rope.dimension_sections": [11, 11, 10, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": STATE,
    "ssm.group_count": KEY_HEADS,
    "ssm.time_step_rank": VALUE_HEADS,
    "ssm.inner_size": VALUE_HEADS * STATE,
    "full_attention_interval": INTERVAL,
    "vocab_size": VOCABULARY,
}
TYPES: Final = {float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32, list: GGUFValueType.ARRAY}


def shapes_of(layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's tensors by their names."""
    mixed = (2 * KEY_HEADS + VALUE_HEADS) * STATE
    found: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "post_attention_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (WIDTH, HIDDEN),
        "ffn_up.weight": (WIDTH, HIDDEN),
        "ffn_down.weight": (HIDDEN, WIDTH),
    }
    if (layer + 1) % INTERVAL:
        return found | {
            "attn_qkv.weight": (mixed, HIDDEN),
            "attn_gate.weight": (VALUE_HEADS * STATE, HIDDEN),
            "ssm_a": (VALUE_HEADS,),
            "ssm_alpha.weight": (VALUE_HEADS, HIDDEN),
            "ssm_beta.weight": (VALUE_HEADS, HIDDEN),
            "ssm_conv1d.weight": (mixed, 4),
            "ssm_dt.bias": (VALUE_HEADS,),
            "ssm_norm.weight": (STATE,),
            "ssm_out.weight": (HIDDEN, VALUE_HEADS * STATE),
        }
    return found | {
        "attn_q.weight": (2 * HEADS * HEAD, HIDDEN),
        "attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
        "attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * HEAD),
        "attn_q_norm.weight": (HEAD,),
        "attn_k_norm.weight": (HEAD,),
    }


def write_model(path: Path, kind: GGMLQuantizationType) -> None:
    """Write random weights. Vectors, convolutions and matrices of few outputs are in float32, as in published files."""
    writer, rng = GGUFWriter(path, ARCHITECTURE), np.random.default_rng(0)
    for key, value in METADATA.items():
        writer.add_key_value(f"{ARCHITECTURE}.{key}", value, TYPES[type(value)])
    writer.add_tokenizer_model("no_vocab")
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in shapes_of(layer).items()}
    for name, shape in shapes.items():
        values = 0.02 * rng.standard_normal(shape, np.float32)
        if name.endswith("norm.weight"):
            values += 1
        elif name.endswith("ssm_a"):
            values = -np.exp(values)
        if len(shape) == 1 or "conv1d" in name or shape[0] < HIDDEN // 4:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(python: Path, model: Path, rounds: int, given: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row per workload: tokens per second of both engines, and the share of the limit."""
    probe, peer = Prober(None), LlamaCppSteps(python, model, *given)
    seconds: dict[str, tuple[list[float], list[float], list[float]]] = {each.name: ([], [], []) for each in WORKLOADS}
    with load_subject(str(model), None, WORKLOADS, {}) as subject:
        for turn in range(rounds + 1):
            print(f"round {turn} of {rounds}", file=sys.stderr)
            for workload in WORKLOADS:
                times = subject.run(workload).whole, peer.run(workload)
                work = subject.costs_of(workload).work(workload.passes(subject.max_rows))
                if turn:  # the first one warms up
                    for sample, value in zip(seconds[workload.name], (*times, seconds_of(work, probe())), strict=True):
                        sample.append(value)
    peer.close()
    rows = []
    for workload in WORKLOADS:
        ours, theirs, limit = (median(sample) for sample in seconds[workload.name])
        rows.append(
            {
                "workload": workload.name,
                "ferrum": round(workload.counted_tokens / ours, 1),
                "llama.cpp": round(workload.counted_tokens / theirs, 1),
                "times": round(theirs / ours, 2),
                "of_limit": round(limit / ours, 2),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--quantize", default="q8_0", choices=("q8_0", "q4_0"), help="type of the file's matrices")
    parser.add_argument("--plain", action="store_true", help="llama.cpp repacks no matrices, where its AMX code fails")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        print("writing the file", file=sys.stderr)
        write_model(model, GGMLQuantizationType[options.quantize.upper()])
        rows = measure(options.python, model, options.rounds, ["--plain"] if options.plain else [])
    print_table(
        [("WORKLOAD", "FERRUM", "LLAMA.CPP", "TIMES", "OF LIMIT"), *(tuple(map(str, r.values())) for r in rows)]
    )
    if options.out is not None:
        report = {"shape": "Qwen3.5-0.8B", "quantize": options.quantize, "machine": processor_name(), "rows": rows}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
