"""Each harness against a real vLLM, through the real proxy under a training policy.

The model is random, so what the harness reads is noise: what counts is that the harness ends as it should, and that
each call is in the log with the engine's own token ids, which are those of the text that the harness saw.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine_fixture import EngineProcess
from tests.harness_adapters.conftest import ROOT, ProxyProcess
from tests.harness_adapters.test_through_the_proxy import HERE, singletree, write_config

pytestmark = pytest.mark.engine

HARNESSES: dict[str, dict[str, Any]] = {
    "pydantic-ai": {"kind": "pydantic-ai", "agent": f"{HERE}:clerk", "model_settings": {"max_tokens": 12}},
    "openai-agents": {
        "kind": "openai-agents",
        "agent": f"{HERE}:openai_clerk",
        "model_settings": {"max_tokens": 12},
        "max_turns": 2,
    },
    "mini-swe-agent": {
        "kind": "mini-swe-agent",
        "config": [str(ROOT / "tests/harness_adapters/mini_short.yaml")],
    },
    "command": {"kind": "command", "argv": [sys.executable, "examples/my_agent.py"]},
}


@pytest.mark.parametrize("name", HARNESSES)
def test_calls_are_logged_with_exact_tokens(
    name: str,
    proxy: ProxyProcess,
    base_weights: EngineProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.chdir(ROOT)
    policy = f"real-{name}"
    body = {
        "kind": "train",
        "model": base_weights.served_name,
        "group_size": 2,
        "sampling": {"temperature": 0.7},
    }
    proxy.call("PUT", f"/api/policies/{policy}", body)
    engine = {"policy": policy, "base_url": base_weights.base_url, "kind": "vllm"}
    assert proxy.call("PUT", "/api/engines/real", engine)["state"] == "ready"
    config = write_config(
        tmp_path,
        proxy,
        policy,
        harness=HARNESSES[name],
        tasks={"kind": "inline", "tasks": [{"prompt": "What is the price of tea?", "prices": {"tea": 3}}]},
        reward={"kind": "contains", "field": "prompt", "score_failures": ["agent"], "failure_reward": 0.0},
    )
    code, output = singletree(str(config))
    tokenizer = AutoTokenizer.from_pretrained(base_weights.model)
    (group,) = proxy.groups(policy)
    assert group["state"] == "settled", output
    rows = [proxy.rollout(rollout["id"]) for rollout in group["rollouts"]]
    # Noise is no tool call: the libraries take it for the answer, mini asks again until its limit.
    expected = ("failed", "agent") if name == "mini-swe-agent" else ("succeeded", None)
    assert [(row["state"], row["info"]["failure"]) for row in rows] == [expected] * 2, output
    assert code == 0, output  # every rollout has its reward, as asked
    for row in rows:
        assert row["reward"] == 0.0 and row["harness"] == name
        spans = proxy.spans(row["id"])
        assert len(spans) == (2 if name == "mini-swe-agent" else 1)
        for span in spans:
            check_span(span, base_weights, tokenizer)


def check_span(span: dict[str, Any], engine: EngineProcess, tokenizer: Any) -> None:
    """The span is whole, and its ids are those of the request that was sent and of the text that came back."""
    assert (span["status"], span["trainable"], span["untrainable_reason"]) == ("ok", True, None)
    request = {**span["request"], "model": engine.served_name}
    for tool in request.get("tools", []):
        tool["function"].pop(
            "strict", None
        )  # the sampling contract strips it: vLLM would switch on a grammar
    rendered = httpx.post(f"{engine.base_url}/v1/chat/completions/render", json=request, trust_env=False)
    assert span["prompt_tokens"] == rendered.raise_for_status().json()["token_ids"]
    count = len(span["completion_tokens"])
    assert count > 0 and len(span["logprobs"]) == len(span["version_low"]) == count
    assert span["version_low"] == span["version_high"] == [0] * count
    assert all(logprob <= 0.0 for logprob in span["logprobs"])
    assert span["sampling"]["temperature"] == 0.7
    sampled = tokenizer.decode(span["completion_tokens"])
    if "<tool_call>" not in sampled:  # which the parser takes out of the text
        assert readable(sampled) == readable(span["reply"]["message"]["content"] or "")


def readable(text: str) -> str:
    """Without the special tokens that noise samples (vLLM shows them where there are tools, else not), and without
    what a cut-off end leaves: half a character, white space."""
    for special in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "\ufffd"):
        text = text.replace(special, "")
    return text.strip()
