"""The list of models as the Messages API's clients read it. Source: Anthropic's API reference, "Models". Pure."""

from __future__ import annotations

from typing import Any

UNKNOWN_DATE = "1970-01-01T00:00:00Z"
"""What the format has where the date of a release is not known."""


def model_info(model: str, window: int | None) -> dict[str, Any]:
    """``window``: tokens that a prompt and its reply may have together."""
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": UNKNOWN_DATE,
        "lifecycle": "active",
        "max_input_tokens": window,
        "max_tokens": window,
    }


def model_list(models: list[dict[str, Any]]) -> dict[str, Any]:
    """One page that holds all."""
    return {
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
