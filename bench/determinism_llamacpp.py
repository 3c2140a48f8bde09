"""llama.cpp's answers to a job of `determinism.py`, in its own environment: needs llama-cpp-python and numpy.

Requests take slots, as in llama.cpp's server: a step has the next token of every answer in progress, then as many
tokens of new prompts as fit. See `determinism_job.py`.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from determinism_job import Answer, Facts, Job, NotOfferedError, draft_of, run_job
from script import needs

with needs("llama-cpp-python"):
    import llama_cpp as api

BATCH = 2048
SERVER_SLOTS = 4
"""Slots of a crowded server; the other requests wait."""

GGML_Q8_0 = 8
Row = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are needed."""


@dataclass
class Slot:
    """A request in progress.

    Attributes:
        number: its sequence in the context.
        index: of the request.
        tokens: prompt and answer so far.
        computed: how many of them are in the context.
        draft: tokens that may follow.
        rows: of this step, with logits.
    """

    number: int
    index: int
    tokens: list[int]
    prompt: int
    computed: int = 0
    draft: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Context:
    """A context of a model, with one sequence a slot."""

    def __init__(self, job: Job, slots: int) -> None:
        self.job, self.slots = job, slots
        settings = dict(job.settings)
        self.singly = settings.pop("singly", False)
        of_model = api.llama_model_default_params()
        of_model.use_extra_bufts = settings.pop("repack", True)
        self.model = api.llama_model_load_from_file(job.model.encode(), of_model)
        if not self.model:
            raise SystemExit("llama.cpp could not load the file")
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = slots * -(-(job.longest + 8) // 256) * 256, BATCH, slots
        options.n_threads = options.n_threads_batch = job.threads
        if job.int8_kv:
            options.type_k = options.type_v = GGML_Q8_0
        for name, value in settings.items():
            setattr(options, name, value)
        self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp could not make a context")
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.accepted = 0

    def keep(self, slot: int, length: int) -> None:
        """Forget what a sequence holds beyond a length."""
        if not api.llama_memory_seq_rm(self.memory, slot, length, -1):
            raise NotOfferedError("this memory cannot go back")

    def step(self, active: Sequence[Slot]) -> None:
        """Compute the next tokens of all, and add those that follow."""
        rows: list[Row] = []
        generating = [slot for slot in active if slot.computed >= slot.prompt - 1 and len(slot.tokens) > slot.prompt]
        for slot in (*generating, *(each for each in active if each not in generating)):
            new = [*slot.tokens[slot.computed :], *slot.draft][: BATCH - len(rows)]
            slot.rows = []
            for offset, token in enumerate(new):
                position = slot.computed + offset
                wanted = position >= len(slot.tokens) - 1
                if wanted:
                    slot.rows.append(len(rows))
                rows.append((token, position, slot.number, wanted))
            slot.computed += len(new)
        logits: dict[int, NDArray[np.float32]] = {}
        size = 1 if self.singly else BATCH
        for begin in range(0, len(rows), size):
            self._decode(rows[begin : begin + size])
            logits |= {begin + at: self._logits(at) for at, row in enumerate(rows[begin : begin + size]) if row[3]}
        for slot in active:
            if slot.rows:
                self._take(slot, [logits[row] for row in slot.rows])

    def _decode(self, rows: Sequence[Row]) -> None:
        """Compute rows in one call."""
        self.batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[index], self.batch.pos[index] = token, position
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, sequence
            self.batch.logits[index] = wanted
        if api.llama_decode(self.context, self.batch):
            raise SystemExit("llama.cpp could not decode")

    def _logits(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the logits of a row of the last call."""
        return np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, row), (self.vocabulary,)).copy()

    def _take(self, slot: Slot, found: Sequence[NDArray[np.float32]]) -> None:
        """Add the most likely token after each row whose draft it confirms."""
        known = len(slot.tokens)
        for place, logits in enumerate(found):
            token = int(logits.argmax())
            wide = logits.astype(np.float64)
            slot.logprobs.append(float(wide[token] - wide.max() - np.log(np.exp(wide - wide.max()).sum())))
            slot.tokens.append(token)
            if place >= len(slot.draft) or slot.draft[place] != token:
                break
        right = len(slot.tokens) - known - 1
        self.accepted += right
        if slot.draft:
            slot.computed = known + right
            self.keep(slot.number, slot.computed)
        slot.draft = draft_of(slot.tokens) if self.job.drafts else []


def run(context: Context, prompts: Sequence[Sequence[int]], length: int, kept: int = 0) -> list[Answer]:
    """Return the answers, as many in progress at once as there are slots; the first `kept` tokens are computed."""
    waiting, answers = deque(enumerate(prompts)), dict[int, Answer]()
    free, active = list(range(context.slots)), list[Slot]()
    while waiting or active:
        while free and waiting:
            index, prompt = waiting.popleft()
            number = free.pop(0)
            context.keep(number, kept)
            active.append(Slot(number, index, list(prompt), len(prompt), kept))
        context.step(active)
        for slot in [each for each in active if len(each.tokens) - each.prompt >= length]:
            active.remove(slot)
            free.append(slot.number)
            answers[slot.index] = slot.tokens[slot.prompt :][:length], slot.logprobs[:length]
    return [answers[index] for index in range(len(prompts))]


def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer all prompts with as many slots as the batch has answers."""
    if job.other_tier:
        raise NotOfferedError("the tier is chosen when it is compiled")
    context = Context(job, SERVER_SLOTS if job.crowded else job.batch)
    run(context, [job.prompts[0][:8]], 2)  # the first step allocates
    answers: list[Answer] = []
    if job.warm:
        for prompt in job.prompts:
            run(context, [prompt], 1)
            with facts.timed():
                answers += run(context, [prompt], job.max_tokens, len(prompt) - 1)
    else:
        with facts.timed():
            answers = run(context, job.prompts, job.max_tokens)
    facts.seen = {"accepted_drafts": context.accepted, "slots": context.slots}
    return answers


@api.llama_log_callback
def quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Print no log."""


if __name__ == "__main__":
    os.dup2(2, 1)  # the library may print
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    run_job(answer)
