"""Stream two completions from a server at the same time.

Start `ferrum serve` first, then run `python examples/streaming_client.py [URL]`. Needs `pip install openai`.
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


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
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        model = (await client.models.list()).data[0].id
        prompts = ("class Stack:\n", "def main():\n")
        texts = await asyncio.gather(*(complete(client, model, prompt) for prompt in prompts))
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"--- {prompt.strip()}\n{text}")


if __name__ == "__main__":
    asyncio.run(main())
