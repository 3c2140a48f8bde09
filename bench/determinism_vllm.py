"""vLLM on the processor answers a job of `determinism.py`, in its own environment: needs vllm-cpu.

See `determinism_job.py`.
"""

from __future__ import annotations

import os
from typing import Any

from determinism_job import Answer, Facts, Job, NotOfferedError, run_job
from script import needs

BLOCK = 128


def engine_of(job: Job) -> Any:
    """Return an engine with the settings of a job."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # OMP_NUM_THREADS counts
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if job.other_tier:
        raise NotOfferedError("the wheel has one tier")
    if job.int8_kv:
        raise NotOfferedError("its processor backend has keys and values in fp8, none in int8")
    with needs("vllm-cpu"):
        from vllm import LLM
    options: dict[str, Any] = {"max_num_seqs": job.batch, "enable_prefix_caching": job.warm}
    if job.crowded:
        options["num_gpu_blocks_override"] = -(-job.crowded_tokens // BLOCK) + 1
    if job.drafts:
        options["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 2}
    return LLM(
        job.model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=job.longest + 64,
        block_size=BLOCK,
        disable_log_stats=True,
        **options,
        **job.settings,
    )


def _rows(choice: Any) -> Any:
    return zip(choice.token_ids, choice.logprobs, strict=True)


def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer each prompt alone if the batch is of one, else all together."""
    engine = engine_of(job)
    from vllm import SamplingParams

    def generate(prompts: list[list[int]], length: int) -> list[Answer]:
        greedy = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False)
        choices = [output.outputs[0] for output in outputs]
        return [(list(choice.token_ids), [row[token].logprob for token, row in _rows(choice)]) for choice in choices]

    generate([job.prompts[0][:8]], 2)
    answers: list[Answer] = []
    groups = [[prompt] for prompt in job.prompts] if job.batch == 1 else [job.prompts]
    for group in groups:
        if job.warm:
            generate(group, 1)
        with facts.timed():
            answers += generate(group, job.max_tokens)
    return answers


if __name__ == "__main__":
    run_job(answer)
