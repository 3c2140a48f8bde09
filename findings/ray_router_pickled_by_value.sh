#!/usr/bin/env bash
# Ray Serve 2.60.0: the module of a request router is pickled by value, with every object that it names.
#
# Guess: RequestRouterConfig(request_router_class=...) sends the class by its import path, so its module's globals are
# those of each process. Seen: the class goes by value although its module can be imported everywhere. An instance that
# the module imports from another one is copied: the router changes the copy. If the instance has a lock, the
# configuration cannot be made at all. A module that is imported whole goes by reference, and its instance is the real one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'ray[serve]==2.60.0'
cat >"$folder/shared_state.py" <<'PY'
import threading


class WithLock:
    def __init__(self):
        self.lock = threading.Lock()


SEEN = []
LOCKED = WithLock()
PY
router() {
  printf 'from ray.serve.request_router import RequestRouter\n%s\n\n\nclass Router(RequestRouter):\n    async def choose_replicas(self, candidate_replicas, pending_request=None):\n        %s\n        return [candidate_replicas]\n' "$2" "$3" >"$folder/$1.py"
}
router by_name "from shared_state import SEEN" "SEEN.append(1)"
router by_module "import shared_state" "shared_state.SEEN.append(1)"
router locked "from shared_state import LOCKED" "LOCKED.lock.acquire()"
PYTHONPATH=$folder "$folder/venv/bin/python" - <<'PY'
import asyncio

import ray
import shared_state
from ray.serve.config import RequestRouterConfig

print("ray", ray.__version__)
for name, expected in (("by_name", 0), ("by_module", 1)):
    shared_state.SEEN.clear()
    router = RequestRouterConfig(request_router_class=f"{name}.Router").get_request_router_class()
    asyncio.run(router.choose_replicas(None, []))
    print(f"{name}: the shared list has {len(shared_state.SEEN)} entries after one call")
    assert len(shared_state.SEEN) == expected, "this has changed"
try:
    RequestRouterConfig(request_router_class="locked.Router")
except TypeError as error:
    print(f"locked: TypeError: {error}")
else:
    raise SystemExit("this has changed")
PY
