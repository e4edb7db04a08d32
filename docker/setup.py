"""Makes the policy that the compose file serves and registers its engine; runs once beside them and ends.

Everything it does is idempotent, so a second ``docker compose up`` changes nothing. It waits for the engine, which
loads its model for minutes, and gives up after half an hour.
"""

from __future__ import annotations

import os
import sys
import time

import httpx

PATIENCE_S = 1800.0
RETRY_S = 3.0


def main() -> int:
    policy, model = os.environ["POLICY"], os.environ["MODEL_NAME"]
    engine = {"policy": policy, "base_url": os.environ["ENGINE_URL"], "kind": "vllm"}
    headers = {"Authorization": f"Bearer {os.environ['SINGLETREE_KEY']}"}
    deadline = time.monotonic() + PATIENCE_S
    with httpx.Client(base_url=os.environ["SINGLETREE_URL"], headers=headers, timeout=60.0) as proxy:
        if proxy.get(f"/api/policies/{policy}").status_code == 404:
            proxy.put(f"/api/policies/{policy}", json={"kind": "train", "model": model}).raise_for_status()
        while time.monotonic() < deadline:
            reply = proxy.put("/api/engines/vllm", json=engine)
            if reply.is_success:
                print(f"engine registered: {reply.text}")
                return 0
            print(f"engine not registered yet: {reply.status_code} {reply.text}")
            time.sleep(RETRY_S)
    return 1


if __name__ == "__main__":
    sys.exit(main())
