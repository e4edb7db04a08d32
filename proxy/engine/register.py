"""Probes an engine before it may serve a policy, by what it does rather than by what it says.

Each setting that the design needs is tried with a small call; the first that is missing is named with the flag that
mends it. Probes are sent straight to the engine: they are never rollouts.
"""

from __future__ import annotations

from typing import Any

import httpx

from proxy.splice import find_closer

PROBE_TIMEOUT_S = 60.0
"""A first call with logprobs warms the engine up, on a CPU for seconds."""
_MESSAGES = [{"role": "user", "content": "Say something."}]
_MASKED = -9000.0


class EngineRefused(Exception):
    """The engine cannot serve the policy; the message names the setting to change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def probe_engine(
    base_url: str, *, kind: str, model: str, training: bool, exact: bool, key: str | None
) -> tuple[dict[str, Any], str | None]:
    """What the engine can do, and the label of its weights (vLLM only). Raises EngineRefused.

    ``training``: the policy trains, so the logged logprobs must be those of the sampling distribution.
    ``exact``: the policy's prompts are spliced, so the engine must sample from tokens that are given to it [I1].
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=PROBE_TIMEOUT_S, trust_env=False) as client:
        try:
            if kind == "openai":
                return _probe_openai(client, model), None
            return _Prober(client, model).run(training, exact)
        except httpx.HTTPError as error:
            raise EngineRefused(
                "engine_unreachable",
                f"No answer from {base_url} ({type(error).__name__}: {error}): start the engine, or correct base_url.",
            ) from error


def _probe_openai(client: httpx.Client, model: str) -> dict[str, Any]:
    """Any answer will do; a list of models must hold the policy's."""
    response = client.get("/v1/models")
    if response.status_code == 200 and (names := _model_names(_json(response))):
        _require_model(model, names)
    return {"kind": "openai"}


class _Prober:
    def __init__(self, client: httpx.Client, model: str) -> None:
        self.client = client
        self.model = model

    def run(self, training: bool, exact: bool) -> tuple[dict[str, Any], str | None]:
        version = _json(self.client.get("/version")).get("version")
        if not version:
            raise EngineRefused(
                "not_vllm", "GET /version gave no vLLM version: register it with kind 'openai'."
            )
        window = self._window()
        label = self._label()
        prompt = self._render()
        reply = self._chat({"top_k": 1, "temperature": 1.0, "top_logprobs": 2})
        processed = self._is_processed(reply)
        if training and not processed:
            raise EngineRefused(
                "logprobs_mode",
                "Logprobs are not those of the sampling distribution: start vLLM with "
                "--logprobs-mode processed_logprobs.",
            )
        feeds = self._feeds_exact_tokens(prompt)
        closer = self._turn_closer()
        if exact and not (feeds and closer):
            what = (
                "samples from no prompt tokens given to it"
                if closer
                else "ends no assistant's turn with a token"
            )
            raise EngineRefused(
                "exact_tokens",
                f"The policy's mode is exact, but the engine {what}: use vLLM 0.32 or newer and a chat template that "
                "closes turns, or set the policy's mode to observe.",
            )
        capabilities = {
            "kind": "vllm",
            "vllm_version": version,
            "max_model_len": window,
            "processed_logprobs": processed,
            "exact_tokens": feeds,
            "turn_closer": closer,
            "tools": self._parses_tools(),
        }
        return capabilities, label

    def _window(self) -> int | None:
        document = _json(self.client.get("/v1/models"))
        _require_model(self.model, _model_names(document))
        cards = [card for card in document["data"] if card.get("id") == self.model]
        return cards[0].get("max_model_len")

    def _label(self) -> str:
        response = self.client.get("/weight_info")
        label = _json(response).get("weight_version") if response.status_code == 200 else None
        if not isinstance(label, str):
            raise EngineRefused(
                "dev_mode",
                "GET /weight_info is missing: start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment.",
            )
        if _json(self.client.get("/is_paused")).get("is_paused"):
            raise EngineRefused("engine_paused", "The engine is paused: POST /resume to it, or restart it.")
        return label

    def _render(self, *more: dict[str, str], **fields: Any) -> list[int]:
        response = self.client.post(
            "/v1/chat/completions/render",
            json={"model": self.model, "messages": [*_MESSAGES, *more], **fields},
        )
        if response.status_code in (403, 404, 405):
            raise EngineRefused(
                "scale_out", "The render route is closed: start vLLM with --enable-scale-out."
            )
        self._require_ok(response, "render a prompt")
        return _json(response).get("token_ids") or []

    def _chat(self, fields: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": _MESSAGES,
            "max_tokens": 2,
            "logprobs": True,
            "return_token_ids": True,
            **fields,
        }
        response = self.client.post("/v1/chat/completions", json=body)
        self._require_ok(response, "answer a chat completion")
        reply = _json(response)
        if not reply.get("prompt_token_ids") or not reply["choices"][0].get("token_ids"):
            raise EngineRefused("token_ids", "The engine returns no token ids: use vLLM 0.32 or newer.")
        return reply

    def _is_processed(self, reply: dict[str, Any]) -> bool:
        """Under top_k 1 all but one token are masked; raw logprobs would still give the runner-up a real value."""
        entries = reply["choices"][0]["logprobs"]["content"]
        others = [
            top["logprob"]
            for entry in entries
            for top in entry["top_logprobs"]
            if top["logprob"] is not None and top["token"] != entry["token"]
        ]
        return all(entry["logprob"] == 0.0 for entry in entries) and all(other <= _MASKED for other in others)

    def _feeds_exact_tokens(self, prompt: list[int]) -> bool:
        """Whether a chat call samples from token ids given to it: these are none that its messages render to."""
        if not prompt:
            return False
        ids = [*prompt, prompt[-1]]
        reply = self._chat({"kv_transfer_params": {"prompt_token_ids": ids}, "max_tokens": 1})
        return reply["prompt_token_ids"] == ids

    def _turn_closer(self) -> list[int]:
        """What the template puts after an assistant's text, by the difference of two renderings."""
        texts = ("no", "yes")  # with other last letters, which are tokens of their own in some vocabularies
        return find_closer(
            *(
                self._render({"role": "assistant", "content": text}, add_generation_prompt=False)
                for text in texts
            )
        )

    def _parses_tools(self) -> bool:
        tool = {
            "type": "function",
            "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
        }
        body = {
            "model": self.model,
            "messages": _MESSAGES,
            "max_tokens": 1,
            "tools": [tool],
            "tool_choice": "auto",
        }
        return self.client.post("/v1/chat/completions", json=body).status_code == 200

    def _require_ok(self, response: httpx.Response, what: str) -> None:
        if response.status_code != 200:
            raise EngineRefused(
                "engine_failed",
                f"The engine could not {what}: {response.status_code} {response.text[:300]}".replace(
                    "\n", " "
                ),
            )


def _require_model(model: str, names: list[str]) -> None:
    if model not in names:
        raise EngineRefused(
            "model_name",
            f"The engine serves {', '.join(map(repr, names)) or 'no model'}, the policy's model is '{model}': "
            f"start vLLM with --served-model-name {model}, or change the policy's model.",
        )


def _model_names(document: dict[str, Any]) -> list[str]:
    data = document.get("data")
    return (
        [card["id"] for card in data if isinstance(card, dict) and "id" in card]
        if isinstance(data, list)
        else []
    )


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
