"""transformers answers a job of `determinism.py`, in its own environment: needs torch and transformers.

Requests of a batch are padded on the left and end together. See `determinism_job.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from determinism_job import Answer, Facts, Job, NotOfferedError, run_job
from script import needs

with needs("torch transformers"):
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache


def model_of(job: Job) -> Any:
    """Return the model with the settings of a job."""
    if job.crowded:
        raise NotOfferedError("generate has no queue")
    if job.other_tier:
        raise NotOfferedError("ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA must be set before it starts")
    if job.int8_kv:
        raise NotOfferedError("its quantised cache needs a further package")
    torch.set_num_threads(job.threads)
    if job.settings.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    dtype, attention = getattr(torch, job.settings["dtype"]), job.settings["attention"]
    return AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype, attn_implementation=attention).eval()


def generate(model: Any, prompts: Sequence[Sequence[int]], length: int, **options: Any) -> list[Answer]:
    """Return greedy answers to prompts, padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(each)) + list(each) for each in prompts])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    tokens = out.sequences[:, width : width + length]
    wide = torch.stack(out.logits[:length], dim=1).double()  # [requests, length, vocabulary]
    chosen = torch.log_softmax(wide, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return list(zip(tokens.tolist(), chosen.tolist(), strict=True))


def warm_answer(model: Any, prompt: list[int], job: Job, facts: Facts) -> Answer:
    """Return the answer after all of the prompt but its last token was computed, as its guide to caches does."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([prompt[:-1]]), past_key_values=cache, use_cache=True)
    with facts.timed():
        return generate(model, [prompt], job.max_tokens, past_key_values=copy.deepcopy(cache))[0]


@torch.inference_mode()
def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer batches one after the other."""
    model = model_of(job)
    generate(model, [job.prompts[0][:8]], 2)
    if job.warm:
        return [warm_answer(model, prompt, job, facts) for prompt in job.prompts]
    options = {"prompt_lookup_num_tokens": 8} if job.drafts else {}
    answers: list[Answer] = []
    for begin in range(0, len(job.prompts), job.batch):
        with facts.timed():
            answers += generate(model, job.prompts[begin : begin + job.batch], job.max_tokens, **options)
    return answers


if __name__ == "__main__":
    run_job(answer)
