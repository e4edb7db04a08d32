"""A model in Google's shape. Source: Gemini API reference, "Models"."""

from __future__ import annotations

from typing import Any

METHODS = ["generateContent", "streamGenerateContent", "countTokens"]


def model_info(model: str, window: int | None) -> dict[str, Any]:
    """``window``: tokens that a prompt and its reply may have together."""
    info: dict[str, Any] = {
        "name": f"models/{model}",
        "version": "1",
        "displayName": model,
        "supportedGenerationMethods": METHODS,
    }
    if window:
        info["inputTokenLimit"] = info["outputTokenLimit"] = window
    return info
