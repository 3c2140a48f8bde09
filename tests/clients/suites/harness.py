"""lm-evaluation-harness on two tiny tasks; writes every log-likelihood to PLACE/scores.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

QUESTIONS = [
    {"question": "import os\n\ndef exists(path):\n    return", "choices": [" os.path", " 1", " self"], "answer": 0},
    {
        "question": "class Reader:\n    def __init__(self, path):\n       ",
        "choices": [" self", " None", " path"],
        "answer": 0,
    },
    {"question": 'name = "Café"\nprint(', "choices": ["name)", '"日本語")', "0"], "answer": 0},
    {"question": "for index in range(", "choices": ["10):", "len(x)):", " "], "answer": 1},
]
TASK = """
task: ferrum_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def main() -> None:
    """Run the task, and keep what it got of each choice."""
    place, model = Path(os.environ["PLACE"]), os.environ["MODEL"]
    tasks = place / "tasks"
    tasks.mkdir(exist_ok=True)
    data = place / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tasks / "choices.yaml").write_text(TASK.format(data=data))
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "tiny",
            "base_url": f"{os.environ['REAL_URL']}/v1/completions",
            "tokenizer": model,
            "tokenizer_backend": "huggingface",
            "tokenized_requests": True,
            "num_concurrent": 4,
            "max_length": 1024,
        },
        tasks=["ferrum_choices"],
        task_manager=TaskManager(include_path=str(tasks)),
        log_samples=True,
        bootstrap_iters=0,
    )
    assert results is not None
    scores = [
        {"context": context, "continuation": continuation, "logprob": float(logprob)}
        for sample in results["samples"]["ferrum_choices"]
        for (context, continuation), [[logprob, _]] in zip(pairs(sample), sample["resps"], strict=True)
    ]
    (place / "scores.json").write_text(json.dumps(scores))


def pairs(sample: dict) -> list[tuple[str, str]]:
    """Context and continuation of each request of a sample."""
    arguments = sample["arguments"]
    values = arguments.values() if isinstance(arguments, dict) else arguments
    return [(each["arg_0"], each["arg_1"]) if isinstance(each, dict) else (each[0], each[1]) for each in values]


if __name__ == "__main__":
    main()
