"""A tower for images next to the machine's arithmetic peak and llama.cpp's mtmd, on the same GGUF files.

    python bench/images.py --layers 3 --peer PYTHON --out images.json

The tower has SigLIP-400M's shape (1152 wide, 4304 in feed-forwards, 16 heads) and sees one image of 896 x 896 pixels as
4096 patches, whose 4 x 4 blocks become rows of 2560 numbers, as in Gemma 3 4B. Layers are alike, so a few of the 27 are
enough. Time is the processor's, of all threads, so that other processes count less; the peak is that of one thread, the
best of probes around each round. PYTHON is an interpreter with llama-cpp-python; rounds of both engines alternate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from ferrum.bench.bench_run import Prober
from ferrum.core.config import ModelConfig
from ferrum.images.decoding import image_of
from ferrum.runtime.image_tower import ImageTower, open_tower
from ferrum.sources.open_model import open_model
from script import needs, positive, run_script

with needs("gguf"):
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

WIDE, INNER, HEADS, EDGE, PATCH, MERGE, TEXT = 1152, 4304, 16, 896, 14, 4, 2560
PEER: Final = Path(__file__).with_name("images_llamacpp.py")
ATTENTION: Final = "attend_all"


def operations(layers: int) -> dict[str, float]:
    """Return the operations of the tower, of products and of attention; a multiply-add is two."""
    patches = (EDGE // PATCH) ** 2
    products = layers * (4 * WIDE**2 + 2 * WIDE * INNER) + 3 * PATCH**2 * WIDE + WIDE * TEXT
    return {"products": 2.0 * patches * products, "attention": 4.0 * layers * patches**2 * WIDE}


def write_files(folder: Path, layers: int, kind: str) -> Path:
    """Write a tiny text model and the projector next to it; return the model's path."""
    writer, add = tower_of(folder / "mmproj-model.gguf", "idefics3", layers, kind)
    writer.add_vision_preproc_image_size(EDGE)
    add.matrix("mm.model.fc", TEXT, WIDE * MERGE**2)
    finish(writer)
    return _write_text(folder / "model.gguf")


def tower_of(path: Path, projector: str, layers: int, kind: str) -> tuple[GGUFWriter, Writer]:
    """Return the writer of a file with the tower, which lacks the tensors that the type of projector adds."""
    writer = GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(projector)
    writer.add_vision_projection_dim(TEXT)
    writer.add_vision_image_size(EDGE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDE)
    writer.add_vision_feed_forward_length(INNER)
    writer.add_vision_block_count(layers)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_projector_scale_factor(MERGE)
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    add = Writer(writer, kind)
    writer.add_tensor("v.patch_embd.weight", add.random(WIDE, 3, PATCH, PATCH))
    writer.add_tensor("v.position_embd.weight", add.random((EDGE // PATCH) ** 2, WIDE))
    add.vectors(("v.patch_embd.bias", "v.post_ln.bias", "v.post_ln.weight"), WIDE)
    for layer in range(layers):
        under = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add.matrix(f"{under}.{part}", WIDE, WIDE)
            add.vectors((f"{under}.{part}.bias",), WIDE)
        add.matrix(f"{under}.ffn_up", INNER, WIDE)
        add.matrix(f"{under}.ffn_down", WIDE, INNER)
        add.vectors((f"{under}.ffn_up.bias",), INNER)
        norms = (f"{under}.{name}" for name in ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "ffn_down.bias"))
        add.vectors(norms, WIDE)
    return writer, add


class Writer:
    """Adds tensors of random numbers to a file, matrices in a type of GGUF; those of one shape are the same."""

    def __init__(self, writer: GGUFWriter, kind: str) -> None:
        self._writer, self._type = writer, GGMLQuantizationType[kind]
        self._rng, self._made = np.random.default_rng(0), dict[tuple[int, int], np.ndarray]()

    def random(self, *shape: int) -> np.ndarray:
        """Return numbers of N(0, 0.02)."""
        return 0.02 * self._rng.standard_normal(shape, np.float32)

    def matrix(self, name: str, outputs: int, inputs: int) -> None:
        """Add a matrix."""
        if (outputs, inputs) not in self._made:
            self._made[outputs, inputs] = quantize(self.random(outputs, inputs), self._type)
        self._writer.add_tensor(f"{name}.weight", self._made[outputs, inputs], raw_dtype=self._type)

    def vectors(self, names: Any, size: int) -> None:
        """Add weights of norms, which are 1, and biases, which are 0."""
        for name in names:
            self._writer.add_tensor(name, np.full(size, 0 if name.endswith("bias") else 1, np.float32))


def _write_text(path: Path) -> Path:
    special = ["<end>", "<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>"]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(TEXT)
    writer.add_feed_forward_length(64)
    writer.add_head_count(TEXT // 64)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    count = add_tokenizer(writer, special)
    shapes = {"token_embd": (count, TEXT), "blk.0.attn_q": (TEXT, TEXT), "blk.0.attn_output": (TEXT, TEXT)}
    shapes |= {f"blk.0.attn_{part}": (64, TEXT) for part in "kv"}
    shapes |= {"blk.0.ffn_gate": (64, TEXT), "blk.0.ffn_up": (64, TEXT), "blk.0.ffn_down": (TEXT, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(TEXT, np.float32))
    finish(writer)
    return path


def add_tokenizer(writer: GGUFWriter, special: list[str]) -> int:
    """Add a vocabulary of printable ASCII and special tokens, the first of which ends texts; return its size."""
    tokens = [*map(chr, range(33, 127)), "\u0120", "\u010a", "\u010a\u010a"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *special])
    writer.add_token_types([1] * len(tokens) + [3] * len(special))
    writer.add_token_merges(["\u010a \u010a"])
    writer.add_eos_token_id(len(tokens))
    return len(tokens) + len(special)


def finish(writer: GGUFWriter) -> None:
    """Write what was added and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(tower: ImageTower, pixels: np.ndarray) -> tuple[Counter[str], int]:
    """Return seconds of the processor by operation, and the number of rows."""
    image = tower.prepare(image_of(pixels))
    names = [op.name for program in (tower.patches, tower.connector) for op in program.program.ops]
    seconds, work = Counter[str](), tower.rows_of(image)
    for name in names:
        begin = time.process_time()
        next(work)
        seconds[name] += time.process_time() - begin
    try:
        next(work)
    except StopIteration as end:
        return seconds, len(end.value)
    raise AssertionError("the image has several frames")


def measure(kind: str, layers: int, threads: int, rounds: int, peer: Path | None) -> dict[str, Any]:
    """Return the figures of files of a type."""
    work, pixels = operations(layers), np.random.default_rng(0).integers(0, 256, (EDGE, EDGE, 3)).astype(np.uint8)
    with TemporaryDirectory() as folder:
        model = write_files(Path(folder), layers, kind)
        tower = open_tower(open_model(str(model)), ModelConfig(model=str(model), threads=threads))
        prober, peak, theirs = Prober(1), 0.0, list[float]()
        samples = [ours(tower, pixels)]
        for _ in range(rounds):
            peak = max(peak, *(getattr(prober(), "bfloat16" if kind == "BF16" else "float32") for _ in range(3)))
            samples.append(ours(tower, pixels))
            if peer is not None:
                command = [peer, PEER, model, model.with_name("mmproj-model.gguf"), EDGE, threads, 1]
                made = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
                theirs += json.loads(made.stdout.splitlines()[-1])["processor"]
    parts = {name: median(sample[name] for sample, _ in samples[1:]) for name in samples[0][0]}
    total, attention = sum(parts.values()), parts[ATTENTION]
    found: dict[str, Any] = {"type": kind, "layers": layers, "rows": samples[0][1], "peak": peak}
    found |= {"seconds": total, "parts": parts, "of_peak": sum(work.values()) / total / peak}
    found |= {"attention_of_peak": work["attention"] / attention / peak}
    found |= {"products_of_peak": work["products"] / (total - attention) / peak}
    return found | ({"peer_seconds": median(theirs), "of_peer": total / median(theirs)} if theirs else {})


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--types", nargs="+", default=["BF16", "F16"], help="types of the matrices")
    parser.add_argument("--layers", type=positive, default=27)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--peer", type=Path, help="interpreter with llama-cpp-python")
    parser.add_argument("--out", type=Path, help="JSON report")
    given = parser.parse_args()
    found = [measure(kind, given.layers, given.threads, given.rounds, given.peer) for kind in given.types]
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
