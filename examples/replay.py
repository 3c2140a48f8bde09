"""Send a request, then run it again on the server and compare every bit.

Start `ferrum serve --record records` first, then run `python examples/replay.py`. For another
server or one with API keys, set OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import Request, urlopen

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "none")  # a server without keys takes any


def call(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON reply to a GET request, or to a POST request if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"}
    with urlopen(Request(BASE_URL + path, data, headers)) as reply:
        return dict(json.load(reply))


def main() -> None:
    """Complete, explain, replay."""
    model = call("/models")["data"][0]["id"]
    reply = call("/completions", {"model": model, "prompt": "def main():\n", "max_tokens": 12, "temperature": 0.8})
    for record in call(f"/requests/{reply['id']}")["records"]:
        for row in record["schedule"]:
            print(row)
    again = call(f"/requests/{reply['id']}/replay", {"top_logprobs": 2})
    print("same bits" if again["same"] else again)


if __name__ == "__main__":
    main()
