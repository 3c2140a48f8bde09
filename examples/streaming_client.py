"""Stream two completions from a server at the same time.

Start `ferrum serve` first, then run `python examples/streaming_client.py`. Needs `pip install openai`. For another
server or one with API keys, set OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "none")  # a server without keys takes any


async def complete(client: AsyncOpenAI, model: str, prompt: str) -> str:
    """Return the whole text of one streamed completion, and print each piece as it arrives."""
    text = ""
    stream = await client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0, stream=True)
    async for event in stream:
        piece = event.choices[0].text
        text += piece
        print(f"{prompt!r}: {piece!r}", flush=True)
    return text


async def main() -> None:
    """Run two streams concurrently."""
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as client:
        model = (await client.models.list()).data[0].id
        prompts = ("class Stack:\n", "def main():\n")
        texts = await asyncio.gather(*(complete(client, model, prompt) for prompt in prompts))
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"--- {prompt.strip()}\n{text}")


if __name__ == "__main__":
    asyncio.run(main())
