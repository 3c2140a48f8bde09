"""llama.cpp's part of a comparison on one file, in its own environment: needs llama-cpp-python and numpy.

    python bench/llamacpp_steps.py MODEL.gguf [--plain]

With --plain, matrices are not repacked. Reads lines of standard input and writes the seconds that each took:
"prefill N" computes a prompt of N tokens up to its first logits, "decode S C N" computes N steps of S sequences that
hold C tokens. Flash attention is on, as by default.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from script import needs

with needs("llama-cpp-python"):
    import llama_cpp as api

THREADS = len(os.sched_getaffinity(0))
BATCH = 2048


class Context:
    """Sequences of a model; `length` tokens fit into each."""

    def __init__(self, model: Any, sequences: int, length: int) -> None:
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = sequences * length, BATCH, sequences
        options.n_threads = options.n_threads_batch = THREADS
        self._context = api.llama_init_from_model(model, options)
        if not self._context:
            raise SystemExit("llama.cpp could not make a context")
        self._batch = api.llama_batch_init(BATCH, 0, 1)

    def run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute rows of (token, position, sequence, whether its logits are needed), and wait for them."""
        for begin in range(0, len(rows), BATCH):
            part = rows[begin : begin + BATCH]
            self._batch.n_tokens = len(part)
            for index, (token, position, sequence, logits) in enumerate(part):
                self._batch.token[index], self._batch.pos[index] = token, position
                self._batch.n_seq_id[index], self._batch.seq_id[index][0] = 1, sequence
                self._batch.logits[index] = logits
            if api.llama_decode(self._context, self._batch):
                raise SystemExit("llama.cpp could not decode")
        api.llama_get_logits_ith(self._context, -1)

    def close(self) -> None:
        """Free the context."""
        api.llama_batch_free(self._batch)
        api.llama_free(self._context)


@contextmanager
def context_of(model: Any, sequences: int, length: int) -> Iterator[Context]:
    """Yield a context for a measurement."""
    context = Context(model, sequences, length)
    try:
        yield context
    finally:
        context.close()


def prompt_of(length: int, sequence: int) -> list[tuple[int, int, int, bool]]:
    """Return the rows of a prompt; the last one has logits."""
    return [(1 + (7 * at + sequence) % 1000, at, sequence, at == length - 1) for at in range(length)]


def prefill(model: Any, length: int) -> float:
    """Return the seconds of a prompt."""
    with context_of(model, 1, length + 256) as context:
        context.run(prompt_of(32, 0))  # the first step allocates
        rows = [(token, at + 32, sequence, logits) for token, at, sequence, logits in prompt_of(length, 0)]
        begun = time.perf_counter()
        context.run(rows)
        return time.perf_counter() - begun


def decode(model: Any, sequences: int, length: int, steps: int) -> float:
    """Return the seconds of the steps after one that does not count."""
    with context_of(model, sequences, length + steps + 256) as context:
        context.run([row for sequence in range(sequences) for row in prompt_of(length, sequence)])
        context.run([(7, length, sequence, True) for sequence in range(sequences)])
        begun = time.perf_counter()
        for step in range(steps):
            context.run([(7, length + 1 + step, sequence, True) for sequence in range(sequences)])
        return time.perf_counter() - begun


def serve(model_file: str, out: TextIO) -> None:
    """Answer every line of standard input."""
    options = api.llama_model_default_params()
    options.use_extra_bufts = "--plain" not in sys.argv  # repacked matrices
    model = api.llama_model_load_from_file(model_file.encode(), options)
    if not model:
        raise SystemExit("llama.cpp could not load the file")
    for line in sys.stdin:
        kind, *sizes = line.split()
        numbers = [int(size) for size in sizes]
        print(prefill(model, *numbers) if kind == "prefill" else decode(model, *numbers), file=out, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library may print
    serve(sys.argv[1], answers)
