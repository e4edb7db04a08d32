"""Recorded traffic of real harnesses, natural language replaced by invented words; see docs/dialects/ for what it taught.

Each file is one run of one harness, each line a request as it was sent: ``method``, ``path``, ``query``, ``headers``,
``body`` (None where it had none).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traffic"


def requests(name: str) -> list[dict[str, Any]]:
    """The requests of ``traffic/NAME.jsonl``, in order."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
