"""llama.cpp's part of `quality_peers.py`, and its quantiser, in its own environment: needs llama-cpp-python and numpy.

    python bench/quality_llamacpp.py quantize SOURCE.gguf OUT.gguf TYPE
    python bench/quality_llamacpp.py logits FILE.gguf [ADAPTER.gguf]
    python bench/quality_llamacpp.py tokens FILE.gguf

`logits` reads one JSON list of token ids per line of standard input, and writes for each the size of the vocabulary
(uint32) and the logits after each token (float32), as ADAPTER changes them. `tokens` reads one JSON string per line,
and writes its token ids as a JSON list; special tokens are tokens, and none is added.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import numpy as np

from script import needs

with needs("llama-cpp-python"):
    from llama_cpp import Llama, llama_cpp

FILE_TYPES = {
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "q5_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q5_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
}
CONTEXT = 512


def quantize(source: str, out: str, kind: str) -> None:
    """Write a file of that type with llama.cpp's quantiser."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = FILE_TYPES[kind]
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(options)):
        raise SystemExit(f"llama.cpp could not make {kind} of {source}")


def serve_logits(file: str, adapter: str | None = None) -> None:
    """Answer every line of standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library may print
    model = Llama(file, n_ctx=CONTEXT, n_batch=CONTEXT, logits_all=True, verbose=False, lora_path=adapter)
    for line in sys.stdin:
        tokens = json.loads(line)
        model.reset()
        model.eval(tokens)
        logits = np.ascontiguousarray(model.scores[: len(tokens)], np.float32)
        answers.write(np.uint32(logits.shape[1]).tobytes() + logits.tobytes())
        answers.flush()


def serve_tokens(file: str) -> None:
    """Answer every line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    model = Llama(file, vocab_only=True, verbose=False)
    for line in sys.stdin:
        ids = model.tokenize(json.loads(line).encode(), add_bos=False, special=True)
        print(json.dumps(ids), file=answers, flush=True)


if __name__ == "__main__":
    {"quantize": quantize, "logits": serve_logits, "tokens": serve_tokens}[sys.argv[1]](*sys.argv[2:])
