"""The demo's claim, each run some 13 minutes of two cores: `make test-slow`, on a machine that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MINUTES, GIB = 15, 10


@pytest.mark.slow
@pytest.mark.timeout(60 * 30)
@pytest.mark.parametrize(
    ("seed", "control"), [(1, "none"), (2, "none"), (1, "permute_rewards")], ids=["seed1", "seed2", "control"]
)
def test_held_out_success_rises_and_the_control_does_not(tmp_path: Path, seed: int, control: str) -> None:
    command = [str(Path(sys.executable).with_name("singletree")), "demo", "--output", str(tmp_path / "run")]
    subprocess.run([*command, "--seed", str(seed), "--control", control], check=False)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert min(result["before"]["n"], result["after"]["n"]) >= 300
    assert result["improved"] == (control == "none"), result
    assert result["wall_s"] < 60 * MINUTES
    assert result["peak_rss_bytes"] < GIB * 2**30
