"""ferrum's answers to a job of `determinism.py`. See `determinism_job.py`."""

from __future__ import annotations

from typing import Any

from determinism_job import Answer, Facts, Job, run_job
from determinism_plant import plant_reordering
from ferrum import LLM, SamplingParams
from ferrum.client.request_output import RequestOutput
from ferrum.core.types import Request
from ferrum.engine.messages import EngineStats
from ferrum.kernels.cpu.library import tiers

PAGE = 64


class Watch:
    """An observer that keeps the last report of the engine."""

    def __init__(self) -> None:
        self.stats = EngineStats()

    def step(self, stats: EngineStats) -> None:
        self.stats = stats

    def delta(self, request: Request, delta: Any) -> None:
        """Ignore deltas."""


def options_of(job: Job) -> dict[str, Any]:
    """Return the options of the engine for a job."""
    chosen: dict[str, Any] = {"threads": job.threads, "max_batch_size": job.batch, "prefix_cache": job.warm}
    if job.crowded:
        chosen["kv_capacity"] = -(-job.crowded_tokens // PAGE) * PAGE
    if job.drafts:
        chosen["speculative"] = "ngram"
    if job.other_tier:
        chosen["isa"] = "avx2" if "avx2" in tiers()[1:] else tiers()[-1]
    if job.int8_kv:
        chosen["kv_dtype"] = "int8"
    chosen |= {name: value for name, value in job.settings.items() if name != "planted"}
    if chosen.get("kernels") == "reference":  # one thread and one tier
        chosen = {name: value for name, value in chosen.items() if name not in ("threads", "isa")}
    return chosen


def answer(job: Job, facts: Facts) -> list[Answer]:
    """Answer each prompt alone if the batch is of one, else all together."""
    if job.settings.get("planted"):
        plant_reordering()
    options = options_of(job)
    greedy = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, logprobs=0)
    with LLM(job.model, **options) as llm:
        watch = Watch()
        llm.client.router.observers = (watch,)
        llm.generate([job.prompts[0][:8]], greedy, use_tqdm=False)  # the first step allocates
        outputs: list[RequestOutput] = []
        groups = [[prompt] for prompt in job.prompts] if job.batch == 1 else [job.prompts]
        for group in groups:
            if job.warm:
                llm.generate(group, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
            with facts.timed():
                outputs += llm.generate(group, greedy, use_tqdm=False)
    facts.seen = {
        "isa": options.get("isa", tiers()[0]),
        "preemptions": watch.stats.preemptions,
        "cached_tokens": sum(output.metrics.usage.cached_tokens for output in outputs),
        "accepted_drafts": watch.stats.speculation.accepted_tokens,
    }
    return [_answer(output) for output in outputs]


def _answer(output: RequestOutput) -> Answer:
    (choice,) = output.outputs
    choice.check_whole()
    assert choice.logprobs is not None
    return choice.token_ids, [next(iter(each.values())).logprob for each in choice.logprobs]


if __name__ == "__main__":
    run_job(answer)
