"""Explore several continuations of one text without computing the shared part again."""

from __future__ import annotations

from ferrum import LLM, SamplingParams


def main() -> None:
    """Grow a text, fork it three times, keep the longest branch, and go back."""
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=24)
    with LLM("ferrum-tiny") as llm:
        session = llm.session("class Stack:\n    def push(self, item):\n")
        session.generate(params)
        length = len(session)

        branches = [session.fork() for _ in range(3)]
        for seed, branch in enumerate(branches):
            branch.append("\n    def pop(self):\n")
            branch.generate(SamplingParams(temperature=0.9, seed=seed, max_tokens=24))
        longest = max(branches, key=lambda branch: len(branch.text))
        print(longest.text)

        longest.truncate(length)
        print(f"back at {len(longest)} tokens; same text as before: {longest.text == session.text}")


if __name__ == "__main__":
    main()
