"""llama.cpp's part of comparisons on one file, in its own environment: needs llama-cpp-python and numpy.

    python bench/llamacpp_steps.py MODEL.gguf [--plain] [--flash 0]

Reads lines of standard input and writes the seconds that each took: "prefill N" computes a prompt of N tokens up to its
first logits, "decode S C N" computes N steps of S sequences that hold C tokens. --plain repacks no matrices; without
--flash llama.cpp decides on flash attention. Sequences stay in memory between lines, so that their prompts are computed
once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, TextIO, TypeAlias

from script import needs

with needs("llama-cpp-python"):
    import llama_cpp as api

THREADS = len(os.sched_getaffinity(0))
BATCH = 2048
Row: TypeAlias = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are needed."""


class Context:
    """Sequences of a model; `length` tokens fit into each."""

    def __init__(self, model: Any, flash: int | None, sequences: int, length: int) -> None:
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = sequences * length, BATCH, sequences
        options.n_threads = options.n_threads_batch = THREADS
        if flash is not None:
            options.flash_attn_type = flash
        self._context = api.llama_init_from_model(model, options)
        if not self._context:
            raise SystemExit("llama.cpp could not make a context")
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        self._held = 0

    def hold(self, sequences: int, length: int) -> None:
        """Let each sequence hold a prompt of that length and nothing else."""
        kept = [self._held >= length and api.llama_memory_seq_rm(self._memory, s, length, -1) for s in range(sequences)]
        if not all(kept):  # states of recurrent layers do not go back
            self.clear()
            self.run([row for sequence in range(sequences) for row in prompt_of(length, sequence)])
        self._held = length

    def clear(self) -> None:
        """Let no sequence hold anything."""
        api.llama_memory_clear(self._memory, True)
        self._held = 0

    def run(self, rows: list[Row]) -> None:
        """Compute rows, and wait for them."""
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


def prompt_of(length: int, sequence: int) -> list[Row]:
    """Return the rows of a prompt; the last one has logits."""
    return [(1 + (7 * at + sequence) % 1000, at, sequence, at == length - 1) for at in range(length)]


class Steps:
    """A model, and a context for each size of measurement."""

    def __init__(self, model: Any, flash: int | None) -> None:
        self._model, self._flash = model, flash
        self._contexts: dict[tuple[int, int], Context] = {}

    def prefill(self, length: int) -> float:
        """Return the seconds of a prompt."""
        context = self._context(1, length + 256)
        context.clear()
        context.run(prompt_of(32, 0))  # the first step allocates
        rows = [(token, at + 32, sequence, logits) for token, at, sequence, logits in prompt_of(length, 0)]
        begun = time.perf_counter()
        context.run(rows)
        return time.perf_counter() - begun

    def decode(self, sequences: int, length: int, steps: int) -> float:
        """Return the seconds of the steps after one that does not count."""
        context = self._context(sequences, length + steps + 256)
        context.hold(sequences, length)
        context.run([(7, length, sequence, True) for sequence in range(sequences)])
        begun = time.perf_counter()
        for step in range(steps):
            context.run([(7, length + 1 + step, sequence, True) for sequence in range(sequences)])
        return time.perf_counter() - begun

    def _context(self, sequences: int, length: int) -> Context:
        key = sequences, length
        if key not in self._contexts:
            self._contexts[key] = Context(self._model, self._flash, *key)
        return self._contexts[key]


def serve(model_file: str, plain: bool, flash: int | None, out: TextIO) -> None:
    """Answer every line of standard input."""
    options = api.llama_model_default_params()
    options.use_extra_bufts = not plain  # repacked matrices
    model = api.llama_model_load_from_file(model_file.encode(), options)
    if not model:
        raise SystemExit("llama.cpp could not load the file")
    measured = Steps(model, flash)
    for line in sys.stdin:
        kind, *sizes = line.split()
        numbers = [int(size) for size in sizes]
        print(measured.prefill(*numbers) if kind == "prefill" else measured.decode(*numbers), file=out, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--flash", type=int, choices=(0, 1))
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library may print
    serve(given.model, given.plain, given.flash, answers)
