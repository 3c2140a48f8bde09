"""Measure the exported model and write training.json and MODEL_CARD.md to its folder.

Exits with an error unless the curve has converged and the model needs fewer bits per byte than xz.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from string import Template
from typing import Any

from data import HELD_OUT, Corpus, encode, read_corpus
from evaluate import SAMPLING, byte_count, complete, held_out_bits, xz_bits_per_byte
from export import ASSETS, CONFIG, load_exported, write_json
from train import BATCH_TOKENS, SEED

LAST_SHARE = 0.2  # last part of the steps, over which the curve must fall by less than LARGEST_FALL
LARGEST_FALL = 0.01
PROMPTS = (
    "def read_lines(path):\n",
    "import os\nimport sys\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
    "    def test_empty_string(self):\n",
    "for key, value in",
)
SAMPLE_TOKENS = 96


def read_curve(run: Path) -> list[dict[str, Any]]:
    """Return the evaluations in step order; if a resumed run evaluated a step twice, the later one."""
    points = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [point for _, point in sorted({point["step"]: point for point in points}.items())]


def late_fall(curve: list[dict[str, Any]]) -> dict[str, float]:
    """Return the fall of held-out bits per byte from the last evaluation in the first 80% of the steps to the last one.

    Also from the best evaluation of the first 80% to the best of all, because one lucky point could hide a fall.
    """
    border = curve[-1]["step"] * (1 - LAST_SHARE)
    early = [p for p in curve if p["step"] <= border]
    bits = "held_out_bits_per_byte"
    first, last = early[-1][bits], curve[-1][bits]
    best_early, best = min(p[bits] for p in early), min(p[bits] for p in curve)
    return {
        "from_step": early[-1]["step"],
        "relative_fall": 1 - last / first,
        "relative_fall_of_the_best": 1 - best / best_early,
    }


def measure(run: Path, folder: Path, corpus: Corpus) -> dict[str, Any]:
    """Return the content of training.json."""
    model, tokenizer = load_exported(folder)
    size = byte_count(corpus.held_out)
    files = encode(tokenizer, corpus.held_out)
    curve = read_curve(run)
    return {
        "python": platform.python_version(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_bytes": {"library": byte_count(corpus.library), "tests": byte_count(corpus.tests)},
        "steps": curve[-1]["step"],
        "tokens": curve[-1]["step"] * BATCH_TOKENS,
        "seconds": curve[-1]["seconds"],
        "seed": SEED,
        "held_out": {
            "modules": sorted(HELD_OUT),
            "files": [s.path for s in corpus.held_out],
            "bytes": size,
            "bits_per_byte": held_out_bits(model, files, CONFIG.max_position) / size,
            "xz_9e_bits_per_byte": xz_bits_per_byte(corpus.held_out),
        },
        "last_fifth": late_fall(curve),
        "samples": [
            {"prompt": p, "seed": seed, "text": complete(model, tokenizer, p, SAMPLE_TOKENS, seed)}
            for p in PROMPTS
            for seed in (None, 1)
        ],
        "dropped_as_tests_or_copies_of_held_out": list(corpus.dropped),
        "curve": curve,
    }


def sample_text(sample: dict[str, Any]) -> str:
    """Return a sample in Markdown: its sampling and prompt, then prompt and text as one block."""
    how = "greedy" if sample["seed"] is None else f"sampled with seed {sample['seed']}"
    prompt = json.dumps(sample["prompt"])
    return f"{how.capitalize()} from `{prompt}`:\n```python\n{sample['prompt']}{sample['text']}\n```\n"


def card(results: dict[str, Any]) -> str:
    """Return MODEL_CARD.md, made from the template in this folder."""
    held_out, late = results["held_out"], results["last_fifth"]
    template = Template((Path(__file__).parent / "MODEL_CARD.template.md").read_text())
    return template.substitute(
        parameters=f"{results['parameters']:,}",
        python=results["python"],
        layers=CONFIG.num_layers,
        hidden=CONFIG.hidden_size,
        heads=CONFIG.num_heads,
        kv_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        context=CONFIG.max_position,
        vocabulary=CONFIG.vocab_size,
        library_mb=f"{results['train_bytes']['library'] / 1e6:.1f}",
        tests_mb=f"{results['train_bytes']['tests'] / 1e6:.1f}",
        modules=", ".join(f"`{m}`" for m in held_out["modules"]),
        held_out_kb=f"{held_out['bytes'] / 1e3:.0f}",
        bits=f"{held_out['bits_per_byte']:.4f}",
        xz=f"{held_out['xz_9e_bits_per_byte']:.4f}",
        fall=f"{late['relative_fall']:.2%}",
        best_fall=f"{late['relative_fall_of_the_best']:.2%}",
        steps=results["steps"],
        tokens=f"{results['tokens'] / 1e6:.1f}",
        minutes=f"{results['seconds'] / 60:.0f}",
        sampling=", ".join(f"{name} {value}" for name, value in SAMPLING.items()),
        samples="\n".join(map(sample_text, results["samples"])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path(__file__).parent / "runs" / "tiny")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    args = parser.parse_args()
    results = measure(args.run, args.folder, read_corpus())
    write_json(args.folder / "training.json", results)
    (args.folder / "MODEL_CARD.md").write_text(card(results))
    fall = max(results["last_fifth"]["relative_fall"], results["last_fifth"]["relative_fall_of_the_best"])
    held_out = results["held_out"]
    print(f"fall {fall:.3%}; {held_out['bits_per_byte']:.4f} bits per byte, xz {held_out['xz_9e_bits_per_byte']:.4f}")
    if fall >= LARGEST_FALL or held_out["bits_per_byte"] >= held_out["xz_9e_bits_per_byte"]:
        raise SystemExit("check failed: the curve has not converged, or xz needs fewer bits per byte")


if __name__ == "__main__":
    main()
