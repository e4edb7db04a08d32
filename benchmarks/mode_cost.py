"""What exact mode costs on a real vLLM: time of one turn through the proxy in each mode, over prompts of growing length.

The same conversations, turn by turn, on one engine with a tiny random model, so that generating is nearly free and what is
left is prompt handling: rendering, splicing, prefill. The two modes take turns. Prints milliseconds and the ratio.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.servers import free_port, running
from tests.engine_fixture import SERVED_NAME, EngineProcess
from tests.tiny_model import build_tiny_model

ADMIN = "st-admin-benchmark"
TURNS = 10
ROUNDS = 3
MODES = ("observe", "exact")
REPORT = "The user reads a number and the farmer counts every word before noon. " * 20
"""About what a tool returns: some 300 tokens a turn."""


def conversation(client: httpx.Client, key: str) -> list[float]:
    """Seconds of each turn."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": REPORT}]
    seconds = []
    for turn in range(TURNS):
        body = {"model": "any", "messages": messages, "max_tokens": 8}
        before = time.perf_counter()
        reply = client.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
        seconds.append(time.perf_counter() - before)
        reply.raise_for_status()
        messages.append(reply.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": f"{turn} {REPORT}"})
    return seconds


def call(client: httpx.Client, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One call of the control plane. Raises RuntimeError with its message."""
    reply = client.request(method, f"/api/{path}", json=body, headers={"Authorization": f"Bearer {ADMIN}"})
    if reply.is_error:
        raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text}")
    return reply.json()


def one_round(client: httpx.Client, mode: str, engine_url: str) -> list[float]:
    call(client, "PUT", "policies/bench", {"kind": "train", "model": SERVED_NAME, "mode": mode})
    call(client, "PUT", "engines/bench", {"policy": "bench", "base_url": engine_url})
    rollout = call(client, "POST", "rollouts", {"policy": "bench", "task": {}})["id"]
    key = call(client, "POST", f"rollouts/{rollout}/claim", {"runner": "bench"})["key"]
    return conversation(client, key)


def main() -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="singletree-bench-")))
        engine = EngineProcess(build_tiny_model(folder / "model"), folder / "vllm.log", max_model_len=4096)
        stack.callback(engine.stop)
        engine.start()
        port = free_port()
        settings = {
            "SINGLETREE_DATABASE_URL": f"sqlite:///{folder / 'bench.db'}",
            "SINGLETREE_PORT": str(port),
            "SINGLETREE_ADMIN_KEY": ADMIN,
            "SINGLETREE_RUNNER_KEY": "st-runner-benchmark",
            "SINGLETREE_HEARTBEAT_TIMEOUT_S": "3600",
        }
        serve = [str(Path(sys.executable).with_name("singletree")), "serve"]
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(running(serve, f"{url}/health", folder / "proxy.log", **settings))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
        taken: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
        for _ in range(ROUNDS):
            for mode in MODES:
                taken[mode].append(one_round(client, mode, engine.base_url))
    print(f"milliseconds of a turn, median of {ROUNDS} conversations; 8 tokens generated")
    print(f"{'turn':>6}{'observe':>10}{'exact':>10}{'ratio':>8}")
    for turn in range(TURNS):
        observe, exact = (1e3 * statistics.median(row[turn] for row in taken[mode]) for mode in MODES)
        print(f"{turn + 1:>6}{observe:>10.1f}{exact:>10.1f}{exact / observe:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
