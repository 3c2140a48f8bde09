"""Send a request, then run it again on the server and compare every bit.

Start `ferrum serve --record records` first, then run `python examples/replay.py [URL]`.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.request import Request, urlopen

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def call(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON reply to a GET request, or to a POST request if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(URL + path, data, {"content-type": "application/json"})) as reply:
        return dict(json.load(reply))


def main() -> None:
    """Complete, explain, replay."""
    model = call("/v1/models")["data"][0]["id"]
    reply = call("/v1/completions", {"model": model, "prompt": "def main():\n", "max_tokens": 12, "temperature": 0.8})
    for record in call(f"/v1/requests/{reply['id']}")["records"]:
        for row in record["schedule"]:
            print(row)
    again = call(f"/v1/requests/{reply['id']}/replay", {"top_logprobs": 2})
    print("same bits" if again["same"] else again)


if __name__ == "__main__":
    main()
