"""The demo's arithmetic and what it says about it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from singletree.demo import plot, report
from singletree.demo.report import Score


def test_a_missing_reward_is_not_a_failure() -> None:
    score = report.score_of([1.0, 0.0, None, 1.0])
    assert (score.successes, score.n, score.missing) == (2, 3, 1)
    assert score.success == pytest.approx(2 / 3)


def test_standard_error_is_the_binomials() -> None:
    assert Score(150, 300).standard_error == pytest.approx(math.sqrt(0.25 / 300))


def test_certainty_is_never_claimed() -> None:
    assert Score(0, 300).standard_error > 0 and Score(300, 300).standard_error > 0
    assert math.isnan(Score(0, 0).success) and math.isnan(Score(0, 0).standard_error)


def test_a_clear_gain_is_called_one() -> None:
    verdict = report.judge(Score(100, 300), Score(240, 300), 1 / 3)
    expected = (0.8 - 1 / 3) / math.hypot(Score(100, 300).standard_error, Score(240, 300).standard_error)
    assert verdict.over_before == pytest.approx(expected)
    assert verdict.over_blind == pytest.approx((0.8 - 1 / 3) / Score(240, 300).standard_error)
    assert verdict.improved and "It improved" in report.sentence(verdict, "none")


@pytest.mark.parametrize(
    ("before", "after", "blind"),
    [
        (100, 110, 1 / 3),  # within noise of before
        (10, 100, 1 / 3),  # far above before, but no better than always calling one tool
        (240, 100, 0.1),  # worse
    ],
)
def test_anything_less_is_not(before: int, after: int, blind: float) -> None:
    verdict = report.judge(Score(before, 300), Score(after, 300), blind)
    assert not verdict.improved and "NOT shown" in report.sentence(verdict, "none")


def test_a_control_that_improves_is_told_loudly() -> None:
    better = report.judge(Score(100, 300), Score(240, 300), 1 / 3)
    same = report.judge(Score(100, 300), Score(101, 300), 1 / 3)
    assert "MUST NOT" in report.sentence(better, "permute_rewards")
    assert "as it must" in report.sentence(same, "permute_rewards")


def test_the_result_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    report.write_json(path, {"before": Score(1, 3).to_json()})
    assert json.loads(path.read_text())["before"]["n"] == 3
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_the_terminal_plot_shows_each_step() -> None:
    text = plot.terminal_plot([0.0, 0.5, 1.0])
    rows = text.splitlines()
    assert len(rows) == 12
    assert rows[0].endswith("    ██") and rows[9].endswith("  ████")
    assert len(plot.sparkline([0.0, 0.5, 1.0])) == 3 and plot.sparkline([1.0]) == "█"


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    plot.save_png(path, [0.3, 0.6], {"before": (0.33, 0.03), "after": (0.7, 0.03)}, blind=1 / 3, title="t")
    assert path.read_bytes().startswith(b"\x89PNG")
