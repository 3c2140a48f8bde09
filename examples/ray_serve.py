"""Serve a model with two replicas on Ray Serve, ask it, and end. See docs/scale.md."""

from __future__ import annotations

import json
import urllib.request


def main() -> None:
    """Deploy, ask, and end."""
    try:
        import ray
        from ray import serve

        from ferrum.server.deploy.application import application
    except ImportError as error:
        print(f"{error.name} is missing: pip install 'ferrum-llm[ray]'")
        return
    from ferrum.server.deploy.scale import Scale

    ray.init(num_cpus=4, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 8010})
    scale = Scale(replicas="2", replica_cpus=1)
    serve.run(application("ferrum-tiny", {"threads": 1}, scale=scale), name="ferrum")
    body = {"model": "ferrum-tiny", "prompt": "def main():", "max_tokens": 16, "seed": 1}
    request = urllib.request.Request(
        "http://127.0.0.1:8010/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        print(json.load(reply)["choices"][0]["text"])
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
