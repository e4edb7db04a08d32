"""Stages that the tests run."""

from __future__ import annotations

from typing import Any

SFT: dict[str, Any] = {
    "name": "form",
    "objective": "sft",
    "source_policy": "teacher",
    "rollouts": 8,
    "batch": 4,
    "steps": 4,
    "lr": 1e-3,
    "warmup_steps": 1,
    "decay": "second_half",
}
RL: dict[str, Any] = {
    "name": "skill",
    "objective": "rl",
    "steps": 2,
    "groups_per_step": 2,
    "lr": 1e-3,
    "micro_batch": 4,
}
