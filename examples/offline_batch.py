"""Complete many prompts in one call and print the most certain answers first."""

from __future__ import annotations

from ferrum import LLM, RequestOutput, SamplingParams

PROMPTS = [f"def {verb}_{noun}(" for verb in ("read", "write", "find") for noun in ("line", "file", "name")]


def certainty(output: RequestOutput) -> float:
    """Return the mean log-probability of the tokens of the first choice."""
    choice = output.outputs[0]
    return (choice.cumulative_logprob or 0.0) / max(1, len(choice.token_ids))


def main() -> None:
    """Generate, sort, print."""
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=0)
    with LLM("ferrum-tiny") as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    for output in sorted(outputs, key=certainty, reverse=True):
        print(f"{certainty(output):7.3f}  {output.prompt}{output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
