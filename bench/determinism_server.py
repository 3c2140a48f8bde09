"""llama.cpp's own server answers a job of `determinism.py`, in its own environment: needs xllamacpp, which contains it.

Clients are threads that call the server's handler of `/v1/completions`. See `determinism_job.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from determinism_job import Answer, Facts, Job, NotOfferedError, run_job
from script import needs

with needs("xllamacpp"):
    import xllamacpp as api

SLOTS = 4
"""The server's default number of slots."""


def server_of(job: Job) -> Any:
    """Return a running server for a job."""
    if job.other_tier:
        raise NotOfferedError("the wheel has one tier")
    if job.drafts:
        raise NotOfferedError("the binding does not set the server's drafts")
    options = api.CommonParams()
    options.model.path = job.model
    options.n_parallel = max(job.batch, SLOTS if job.crowded else 1)
    options.kv_unified = job.crowded  # as the server chooses with its default slots
    context = job.crowded_tokens if job.crowded else options.n_parallel * (job.longest + 16)
    options.n_ctx = -(-context // 256) * 256
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = job.threads
    options.verbosity = 0
    if job.int8_kv:
        options.cache_type_k = options.cache_type_v = api.ggml_type.GGML_TYPE_Q8_0
    for name, value in job.settings.items():
        setattr(options, name, value)
    return api.Server(options)


def complete(server: Any, prompt: Sequence[int], length: int, *, cached: bool) -> Answer:
    """Return the answer to a prompt."""
    body = {"prompt": list(prompt), "n_predict": length, "temperature": 0.0, "n_probs": 1, "ignore_eos": True}
    reply = server.handle_completions({**body, "cache_prompt": cached})
    if "choices" not in reply:
        raise SystemExit(f"the server refused a request: {reply}")
    rows = reply["choices"][0]["logprobs"]["content"]
    return [row["id"] for row in rows], [row["logprob"] for row in rows]


def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer all prompts, as many at once as the batch has answers; a crowded server gets all of 32 clients."""
    server = server_of(job)
    complete(server, job.prompts[0][:8], 2, cached=False)
    answers: list[Answer] = []
    if job.warm:
        for prompt in job.prompts:
            complete(server, prompt, 1, cached=True)
            with facts.timed():
                answers.append(complete(server, prompt, job.max_tokens, cached=True))
        return answers
    with facts.timed(), ThreadPoolExecutor(job.batch) as clients:
        answers += clients.map(lambda prompt: complete(server, prompt, job.max_tokens, cached=False), job.prompts)
    return answers


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the library prints
    os.dup2(1, 2)
    run_job(answer)
