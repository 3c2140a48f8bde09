"""The time to the first token of a prompt with one image, next to llama.cpp's mtmd, on the same GGUF files.

    python bench/image_first_token.py --peer PYTHON --out image_first_token.json

The files have the shape of Gemma 3 4B, of random numbers: 34 layers in Q4_0, and a tower of 27 layers in F16 that makes
256 rows of 896 x 896 pixels. The vocabulary is small: a first token needs one row of the head. Every image is another
one, so that no cache answers. Both engines have one process that loads once; their rounds alternate.
PYTHON is an interpreter with llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, cast

import numpy as np
from PIL import Image

from ferrum import LLM, SamplingParams
from images import EDGE, TEXT, WIDE, Writer, add_tokenizer, finish, tower_of
from script import needs, positive, run_script

with needs("gguf"):
    from gguf import GGUFWriter

PEER: Final = Path(__file__).with_name("image_first_token_llamacpp.py")
LAYERS, QUERIES, KEYS, HEAD, FEED = 34, 8, 4, 256, 10240
TEMPLATE: Final = (
    "{% for m in messages %}{% for p in m['content'] %}{{ '<start_of_image>' if p['type'] == 'image' else p['text'] }}"
    "{% endfor %}{% endfor %}"
)


def write_tower(path: Path, layers: int) -> None:
    """Write the tower of Gemma 3 in F16."""
    writer, add = tower_of(path, "gemma3", layers, "F16")
    add.matrix("mm.input_projection", WIDE, TEXT)  # stored as inputs x outputs
    add.vectors(("mm.soft_emb_norm.weight",), WIDE)
    finish(writer)


def write_text(path: Path, layers: int) -> None:
    """Write the text model in Q4_0."""
    writer = GGUFWriter(path, "gemma3")
    writer.add_block_count(layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(TEXT)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(QUERIES)
    writer.add_head_count_kv(KEYS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(1024)
    count = add_tokenizer(writer, ["<end>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    add = Writer(writer, "Q4_0")
    add.matrix("token_embd", count, TEXT)
    add.vectors(("output_norm.weight",), TEXT)
    shapes = {"attn_q": (QUERIES * HEAD, TEXT), "attn_k": (KEYS * HEAD, TEXT), "attn_v": (KEYS * HEAD, TEXT)}
    shapes |= {"attn_output": (TEXT, QUERIES * HEAD), "ffn_gate": (FEED, TEXT), "ffn_up": (FEED, TEXT)}
    for layer in range(layers):
        for part, shape in (shapes | {"ffn_down": (TEXT, FEED)}).items():
            add.matrix(f"blk.{layer}.{part}", *shape)
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        add.vectors((f"blk.{layer}.{part}.weight" for part in norms), TEXT)
        add.vectors((f"blk.{layer}.{part}.weight" for part in ("attn_q_norm", "attn_k_norm")), HEAD)
    finish(writer)


def ours(llm: LLM, number: int) -> tuple[float, int]:
    """Return the seconds to the first token of an image of its number, and the tokens of the prompt."""
    pixels = np.random.default_rng(number).integers(0, 256, (EDGE, EDGE, 3)).astype(np.uint8)
    image = {"type": "image", "image": Image.fromarray(pixels)}
    asked = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    begin = time.perf_counter()
    [output] = llm.chat(asked, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    return time.perf_counter() - begin, len(output.prompt_token_ids)


def theirs(process: subprocess.Popen[str], number: int) -> tuple[float, int]:
    """Return the same of llama.cpp."""
    print(number, file=cast(IO[str], process.stdin), flush=True)
    answer = json.loads(cast(IO[str], process.stdout).readline())
    return answer["seconds"], answer["tokens"]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tower-layers", type=positive, default=27)
    parser.add_argument("--layers", type=positive, default=LAYERS, help="layers of the text model")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--peer", type=Path, required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--out", type=Path, help="JSON report")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        text, tower = Path(folder, "model.gguf"), Path(folder, "mmproj-model.gguf")
        write_text(text, given.layers)
        write_tower(tower, given.tower_layers)
        command = list(map(str, [given.peer, PEER, text, tower, EDGE, given.threads]))
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer,
            LLM(str(text), threads=given.threads, max_sequence_length=2048) as llm,
        ):
            rounds = [(ours(llm, number), theirs(peer, number)) for number in range(given.rounds)]
            cast(IO[str], peer.stdin).close()
    mine, other = ([sample[engine][0] for sample in rounds] for engine in (0, 1))
    found: dict[str, Any] = {"tower_layers": given.tower_layers, "layers": given.layers, "threads": given.threads}
    found |= {"tokens": rounds[0][0][1], "peer_tokens": rounds[0][1][1], "seconds": mine, "peer_seconds": other}
    found["of_peer"] = median(mine) / median(other)
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
