"""vLLM's control routes, each call with its own time-out and its failure by name.

Every call opens a connection of its own: after an error vLLM drops the connection that it answered on, and a kept one
could belong to a process that is no longer there. Calls here are few; a connection costs about a millisecond.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from trainer.publish.errors import EngineRefused, EngineSilent

PROBE_PROMPT = (1, 2, 3, 5, 8, 13, 21, 34)
"""Token ids that any vocabulary has. The probe compares an engine with itself, so what they mean is no matter."""
PROBE_TOKENS = 4
PROBE_TOP = 8


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    control: float = 30.0
    """Pause, resume, label: measured at 30 ms; a busy engine answers between two steps of its model."""
    load: float = 600.0
    """Reading the weights: 40 ms for a tiny model, minutes for a large one over a network."""
    probe: float = 300.0
    """The first token after a swap waits for the prefill of every request that was paused."""


class EngineControl:
    """One engine's control routes. Each method raises ``EngineSilent`` or ``EngineRefused``."""

    def __init__(self, base_url: str, timeouts: Timeouts | None = None, api_key: str | None = None) -> None:
        """``api_key``: only for /v1, where vLLM was started with one; default $SINGLETREE_ENGINE_KEY."""
        self.base_url = base_url.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        self._api_key = api_key or os.environ.get("SINGLETREE_ENGINE_KEY")

    def pause(self, mode: Literal["keep", "abort"]) -> None:
        """``keep``: requests freeze and later go on, their KV recomputed; caches are cleared. ``abort``: they end with
        finish reason "abort", also those that a former pause froze. New ones wait until ``resume`` in both."""
        self._post("/pause", self.timeouts.control, params={"mode": mode})

    def resume(self) -> None:
        self._post("/resume", self.timeouts.control)

    def is_paused(self) -> bool:
        return bool(self._get("/is_paused").get("is_paused"))

    def label(self) -> str:
        """The label of the weights."""
        return str(self._get("/weight_info").get("weight_version"))

    def stamp(self, label: str) -> None:
        """Sets the label; vLLM attaches no meaning to it."""
        self._post("/update_weight_version", self.timeouts.control, json={"new_version": label})

    def load(self, folder: Path | None) -> None:
        """Loads the weights in ``folder``, or those that the engine was started with; call it on a paused engine. After
        an error the engine must never resume."""
        self._rpc("singletree_load", self.timeouts.load, folder="" if folder is None else str(folder))

    def describe(self) -> dict[str, Any]:
        """{"base": folder of the weights it was started with, "config": plain values of the model's config.json}."""
        return self._rpc("singletree_describe", self.timeouts.control)[0]

    def read_proof(self, folder: Path, name: str) -> list[str]:
        """What each worker reads in the proof file, or why it cannot (never equal to a proof)."""
        results = self._rpc("singletree_read_proof", self.timeouts.control, folder=str(folder), name=name)
        return [str(result.get("proof", result.get("error"))) for result in results]

    def probe(self, model: str) -> tuple[float, ...]:
        """Logprobs of a short greedy continuation of fixed tokens: a fingerprint of the weights.

        Raises ``EngineRefused`` also for numbers that are not finite. Do not call it on a paused engine: it would wait.
        """
        body = {
            "model": model,
            "prompt": list(PROBE_PROMPT),
            "max_tokens": PROBE_TOKENS,
            "temperature": 0.0,
            "logprobs": PROBE_TOP,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }
        reply = self._post("/v1/completions", self.timeouts.probe, json=body)
        try:
            logprobs = reply["choices"][0]["logprobs"]
            values = [value for top in logprobs["top_logprobs"] for value in top.values()]
            values += logprobs["token_logprobs"]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineRefused(f"{self.base_url} answered the probe without logprobs") from error
        if not values or not all(value is not None and math.isfinite(value) for value in values):
            raise EngineRefused(f"{self.base_url} answered the probe with logprobs that are not finite")
        return tuple(values)

    def _rpc(self, method: str, timeout_s: float, **kwargs: str) -> list[dict[str, Any]]:
        reply = self._post("/collective_rpc", timeout_s, json={"method": method, "kwargs": kwargs})
        results = reply.get("results")
        if (
            not results
            or not isinstance(results, list)
            or not all(isinstance(result, dict) for result in results)
        ):
            raise EngineRefused(
                f"{self.base_url} has no weight loading for training: start it with `singletree engine start`"
            )
        return results

    def _get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path, self.timeouts.control)

    def _post(self, path: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        return self._call("POST", path, timeout_s, **arguments)

    def _call(self, method: str, path: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        headers = {"Connection": "close"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        timeout = httpx.Timeout(timeout_s, connect=min(5.0, timeout_s))
        try:
            with httpx.Client(timeout=timeout, headers=headers, trust_env=False) as client:
                reply = client.request(method, self.base_url + path, **arguments)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EngineSilent(f"{self.base_url} did not answer {method} {path}: {reason}") from error
        if reply.status_code != 200:
            raise EngineRefused(f"{self.base_url} answered {method} {path} with {_reason(reply)}")
        try:
            body = reply.json() if reply.content else {}
        except ValueError as error:
            raise EngineRefused(
                f"{self.base_url} answered {method} {path} with something else than JSON"
            ) from error
        return body if isinstance(body, dict) else {}


def _reason(reply: httpx.Response) -> str:
    """Status and vLLM's own words, on one line."""
    try:
        error = reply.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        message = reply.text
    return f"{reply.status_code}: {' '.join(str(message).split())[:300]}"
