"""llama.cpp's part of `adapter_peers.py`, in its own environment: needs llama-cpp-python and numpy.

    python bench/adapter_llamacpp.py MODEL.gguf ADAPTER.gguf PROMPT

Sequences begin with PROMPT tokens. Reads lines "base N" or "adapter N" of standard input. For each it decodes N tokens
of a sequence of that kind and writes a JSON list of the seconds of each step.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any, TextIO

from script import needs

with needs("llama-cpp-python"):
    import llama_cpp as api

THREADS = len(os.sched_getaffinity(0))
CONTEXT = 4096


class Sequence:
    """A context with one sequence, after its prompt of that many tokens."""

    def __init__(self, model: Any, adapter: Any | None, prompt: int) -> None:
        options = api.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = CONTEXT, THREADS, THREADS
        self._context = api.llama_init_from_model(model, options)
        if adapter is not None:
            adapters = (api.llama_adapter_lora_p_ctypes * 1)(adapter)
            if api.llama_set_adapters_lora(self._context, adapters, 1, (ctypes.c_float * 1)(1.0)):
                raise SystemExit("llama.cpp refused the adapter")
        self._tokens = (api.llama_token * prompt)(*range(1, prompt + 1))
        self._run(prompt)

    def step(self) -> float:
        """Decode one token; return the seconds."""
        begun = time.perf_counter()
        self._tokens[0] = 7
        self._run(1)
        api.llama_get_logits_ith(self._context, -1)
        return time.perf_counter() - begun

    def _run(self, count: int) -> None:
        if api.llama_decode(self._context, api.llama_batch_get_one(self._tokens, count)):
            raise SystemExit("llama.cpp could not decode")


def serve(model_file: str, adapter_file: str, prompt: int, out: TextIO) -> None:
    """Answer every line of standard input."""
    model = api.llama_model_load_from_file(model_file.encode(), api.llama_model_default_params())
    adapter = api.llama_adapter_lora_init(model, adapter_file.encode())
    if adapter is None:
        raise SystemExit("llama.cpp could not read the adapter")
    sequences = {"base": Sequence(model, None, prompt), "adapter": Sequence(model, adapter, prompt)}
    for line in sys.stdin:
        kind, count = line.split()
        print(json.dumps([sequences[kind].step() for _ in range(int(count))]), file=out, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library may print
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), answers)
