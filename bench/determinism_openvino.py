"""OpenVINO GenAI answers a job of `determinism.py`, in its own environment: needs openvino-genai and numpy.

It reads GGUF files of the Llama and Qwen architectures itself. See `determinism_job.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from determinism_job import Answer, Facts, Job, NotOfferedError, run_job
from script import needs

with needs("openvino-genai"):
    import openvino as ov
    import openvino_genai as api

BLOCK = 32
"""Tokens of a block of its cache on processors."""


def pipeline_of(job: Job) -> Any:
    """Return a pipeline with continuous batching."""
    if job.other_tier:
        raise NotOfferedError("ONEDNN_MAX_CPU_ISA does not reach all of its kernels")
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": job.threads, **job.settings}
    if job.int8_kv:
        options["KV_CACHE_PRECISION"] = "u8"
    scheduler = api.SchedulerConfig()
    scheduler.max_num_seqs = job.batch
    scheduler.enable_prefix_caching = job.warm
    tokens = job.crowded_tokens if job.crowded else (job.batch + 4 * job.warm) * (job.longest + BLOCK)
    scheduler.num_kv_blocks = -(-tokens // BLOCK)
    return api.ContinuousBatchingPipeline(job.model, scheduler, "CPU", options)


def generate(pipeline: Any, prompts: list[list[int]], length: int, job: Job, first: int) -> list[Answer]:
    """Return greedy answers, all requests in the queue at once."""
    config = api.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample, config.logprobs = length, True, False, 1
    if job.drafts:
        config.num_assistant_tokens, config.max_ngram_size = 8, 2
    inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
    handles = [pipeline.add_request(first + index, each, config) for index, each in enumerate(inputs)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    outputs = [handle.read_all()[0] for handle in handles]
    return [(list(each.generated_ids), list(each.generated_log_probs)) for each in outputs]


def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer each prompt alone if the batch is of one, else all together."""
    if job.drafts:
        raise NotOfferedError("prompt lookup is another pipeline, without batches")
    pipeline = pipeline_of(job)
    generate(pipeline, [job.prompts[0][:8]], 2, job, 0)
    answers: list[Answer] = []
    groups = [[prompt] for prompt in job.prompts] if job.batch == 1 else [job.prompts]
    for group in groups:
        if job.warm:
            generate(pipeline, group, 1, job, 1_000_000 + len(answers))
        with facts.timed():
            answers += generate(pipeline, group, job.max_tokens, job, 1 + len(answers))
    return answers


if __name__ == "__main__":
    run_job(answer)
