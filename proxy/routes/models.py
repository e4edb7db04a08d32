"""The models that an agent may ask for: its rollout's policy, under any name, in the shape of its dialect."""

from __future__ import annotations

from typing import Any

from proxy.auth import Caller
from proxy.dialects import gemini, messages
from proxy.routes.paths import Route
from proxy.services import Services


def list_models(services: Services, caller: Caller, route: Route) -> dict[str, Any]:
    """The list, or the one model that the path names: any name reaches the policy."""
    windows = [
        engine.capabilities.get("max_model_len")
        for engine in services.pool.engines.values()
        if engine.policy_id == caller.policy_id
    ]
    window = min((window for window in windows if window), default=None)
    name = route.model or caller.policy_id
    if route.dialect is gemini:
        model = gemini.model_info(name, window)
        return model if route.model else {"models": [model]}
    if route.dialect is messages:
        model = messages.model_info(name, window)
        return model if route.model else messages.model_list([model])
    model = {"id": name, "object": "model", "created": 0, "owned_by": "singletree"}
    if window:
        model["max_model_len"] = window
    return model if route.model else {"object": "list", "data": [model]}
