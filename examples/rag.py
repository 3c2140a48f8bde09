"""Answer a question from documents: embed them, find the nearest, and put it before the question.

Start `ferrum serve` first, then run `python examples/rag.py`. Needs `pip install openai`. For another server or one
with API keys, set OPENAI_BASE_URL and OPENAI_API_KEY. Real use needs two servers: one with an embedding model such as
Qwen3-Embedding, and one with a chat model. The built-in model only shows the steps.
"""

from __future__ import annotations

import os

import numpy as np
from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "none")  # a server without keys takes any
DOCUMENTS = [
    "A page holds 64 tokens of keys and values.",
    "API keys are read from a file at the start.",
    "Weights in q4_0 take 0.5625 bytes each, scales included.",
]


def main() -> None:
    """Embed, search, complete."""
    client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
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
