"""A reward from a program's exit code: a test suite run in the rollout's workspace, say."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from harness_adapters.command import fill, is_local_file
from harness_adapters.environment import clean_environment
from harness_adapters.errors import ConfigError, RewardInvalid
from harness_adapters.protocol import Launch, Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.runner.process import run_process

NOT_A_VERDICT = frozenset({126, 127})
"""Shell's codes for a program that cannot be run or is not there: the check is broken, not the answer."""


def command_reward(argv: list[str], *, timeout_s: float) -> RewardFunction:
    """1 if ``argv`` exits 0, else 0. It runs in the workspace and reads the agent's answer on standard input.

    A script that is not in the workspace is taken from where the runner was started. A check that cannot start, is
    killed or runs out of time gives no reward, rather than 0 [I4]. Raises ``ConfigError`` for a program that is not there.
    """
    here = Path.cwd()
    if not argv or (shutil.which(argv[0]) is None and "{" not in argv[0]):
        raise ConfigError(
            f"reward.argv: program {(argv or [''])[0]!r} is not on PATH; install it or give its whole path"
        )

    def located(word: str, workspace: Path, values: dict[str, str]) -> str:
        if is_local_file(word) and not (workspace / word).exists():
            return str(here / word)
        return fill(word, values)

    async def reward(task: Task, outcome: Outcome) -> dict[str, float]:
        if outcome.workspace is None:
            raise RewardInvalid("the command reward needs the rollout's workspace, which is gone")
        values = {"workspace": str(outcome.workspace), "task_id": task.id or ""}
        launch = Launch(
            argv=[located(word, outcome.workspace, values) for word in argv],
            env=clean_environment(),
            cwd=outcome.workspace,
            stdin=outcome.final_text.encode(),
        )
        try:
            finished = await run_process(launch, marker=f"reward-{secrets.token_hex(8)}", timeout_s=timeout_s)
        except OSError as error:
            raise RewardInvalid(f"the reward command cannot start: {error}") from None
        if finished.timed_out:
            raise RewardInvalid(f"the reward command was ended after {timeout_s:g} s")
        code = finished.exit_code
        if code is None or code < 0 or code in NOT_A_VERDICT:
            last = finished.stderr.strip().splitlines()[-1:] or [""]
            raise RewardInvalid(f"the reward command gave no verdict (exit code {code}) {last[0]}".strip())
        return {"reward": float(code == 0)}

    return reward


def exit_code_reward() -> RewardFunction:
    """1: the harness's own exit code was 0. Other codes are failures, scored only through ``score_failures``."""

    async def reward(task: Task, outcome: Outcome) -> dict[str, float]:
        return {"reward": float(outcome.succeeded and outcome.exit_code in (0, None))}

    return reward
