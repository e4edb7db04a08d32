"""The reward curve: as a PNG, in the terminal, and as one line of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

BLOCKS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last ``width`` values, each in 0..1, as one block each."""
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[1 + round(min(max(value, 0.0), 1.0) * (steps - 1))] for value in values[-width:])


def terminal_plot(rewards: Sequence[float], *, height: int = 10) -> str:
    """Mean reward per step (0..1) as columns, with a scale; one column of two characters a step."""
    lines = []
    for row in range(height, 0, -1):
        low = (row - 1) / height
        cells = []
        for reward in rewards:
            part = min(max((reward - low) * height, 0.0), 1.0)
            cells.append(BLOCKS[round(part * 8)] * 2)
        label = f"{row / height:.1f} ┤" if row % 2 == 0 else "    │"
        lines.append(label + "".join(cells))
    lines.append("0.0 └" + "──" * len(rewards))
    ruler = "".join(f"{step:<10}" for step in range(1, len(rewards) + 1, 5))
    lines.append("     " + ruler.rstrip() + "  step")
    return "\n".join(lines)


def save_png(
    path: Path,
    rewards: Sequence[float],
    marks: Mapping[str, tuple[float, float]],
    *,
    blind: float,
    title: str,
) -> None:
    """Reward per step with ``marks`` "before" and "after" (success, standard error) at both ends, and the blind line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    steps = range(1, len(rewards) + 1)
    axes.plot(
        steps, rewards, color="#1f6f54", marker="o", markersize=3.5, linewidth=1.5, label="training reward"
    )
    axes.axhline(
        blind, color="#999999", linestyle="--", linewidth=1, label="best answer that ignores its question"
    )
    for name, position in (("before", 0), ("after", len(rewards) + 1)):
        if name in marks:
            success, error = marks[name]
            axes.errorbar(
                [position], [success], yerr=[2 * error], fmt="D", color="#b3401f", capsize=4, markersize=7,
                label="held-out success ± 2 standard errors" if name == "before" else None,
            )  # fmt: skip
            axes.annotate(
                f"{success:.2f}", (position, success), textcoords="offset points", xytext=(0, 12), ha="center"
            )
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("success")
    axes.set_ylim(0, 1.05)
    axes.set_title(title)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
