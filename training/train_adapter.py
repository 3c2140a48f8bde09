"""Train a LoRA adapter on a GGUF file with PEFT, on a CPU: orders in plain English become JSON.

    pip install peft gguf torch transformers
    python training/train_adapter.py MODEL.gguf ADAPTER_DIRECTORY

SmolLM2-135M-Instruct takes a minute or two on two cores.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

ITEMS = ("apples", "pencils", "blue cups", "chairs", "batteries", "red shoes", "lemons", "stamps", "towels")
NAMES = ("Ada", "Omar", "Lena", "Mr. Park", "Ines", "Tom", "Dr. Weiss", "Priya")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ORDERS = (
    "Please send {number} {item} to {name}.",
    "{name} would like {number} {item}.",
    "Could {name} get {number} {item} by Friday?",
    "We owe {name} {number} {item}.",
)
STEPS, BATCH, RATE = 30, 4, 3e-3


def example(draw: random.Random) -> tuple[str, str]:
    """Return an order and its JSON."""
    name, item, count = draw.choice(NAMES), draw.choice(ITEMS), draw.randrange(10)
    order = draw.choice(ORDERS).format(name=name, item=item, number=NUMBERS[count])
    return order, json.dumps({"name": name, "item": item, "count": count + 1})


def tokens_of(tokenizer: PreTrainedTokenizerBase, draw: random.Random) -> tuple[list[int], int]:
    """Return the tokens of a conversation, and where its answer begins."""
    order, answer = example(draw)
    question = [{"role": "user", "content": order}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    begin = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    return tokenizer(f"{prompt}{answer}<|im_end|>", add_special_tokens=False).input_ids, begin


def batch(tokenizer: PreTrainedTokenizerBase, draw: random.Random) -> dict[str, torch.Tensor]:
    """Return padded conversations; only tokens of answers count."""
    rows = [tokens_of(tokenizer, draw) for _ in range(BATCH)]
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.zeros(BATCH, width, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, (tokens, begin) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, begin : len(tokens)] = ids[row, begin : len(tokens)]
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def main(model_path: Path, adapter: Path) -> None:
    """Train and save."""
    torch.manual_seed(0)
    where = {"pretrained_model_name_or_path": str(model_path.parent), "gguf_file": model_path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    lora = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    optimiser = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), RATE)
    draw = random.Random(1)
    for step in range(STEPS):
        loss = model(**batch(tokenizer, draw)).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - (step + 1) / STEPS)
        if step % 5 == 0:
            print(f"step {step:2d} of {STEPS}: loss {loss.item():.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(adapter)
    print(f"saved {adapter}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
