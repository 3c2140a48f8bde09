"""Answer a question from documents: embed them, find the nearest, and put it before the question.

Start `ferrum serve` first, then run `python examples/rag.py [URL]`. Needs `pip install openai`. Real use needs two
servers: one with an embedding model such as Qwen3-Embedding, and one with a chat model. The built-in model only shows
the steps.
"""

from __future__ import annotations

import sys

import numpy as np
from openai import OpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
DOCUMENTS = [
    "A page holds 64 tokens of keys and values.",
    "API keys are read from a file at the start.",
    "Weights in q4_0 take 0.5625 bytes each, scales included.",
]


def main() -> None:
    """Embed, search, complete."""
    client = OpenAI(base_url=f"{URL}/v1", api_key="none")
    model = client.models.list().data[0].id
    question = "How many tokens does a page hold?"

    reply = client.embeddings.create(model=model, input=[*DOCUMENTS, question])
    vectors = np.array([entry.embedding for entry in reply.data])  # [documents + 1, hidden], length 1 each
    similarity = vectors[:-1] @ vectors[-1]
    best = int(similarity.argmax())
    print(f"nearest: {DOCUMENTS[best]} ({similarity[best]:.3f})")

    prompt = f"Context: {DOCUMENTS[best]}\nQuestion: {question}\nAnswer:"
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=0, stop=["\n"])
    print(f"answer: {answer.choices[0].text.strip()}")
    client.close()


if __name__ == "__main__":
    main()
