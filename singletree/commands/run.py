"""``singletree run``: a harness on tasks, each rollout rewarded and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness_adapters.config import RunConfig, parse_config, read_config
from harness_adapters.errors import ConfigError, NothingSucceeded
from harness_adapters.runner.report import EventLog, Observer, Totals

if TYPE_CHECKING:
    from harness_adapters.client import ControlPlane
    from harness_adapters.protocol import Adapter
    from harness_adapters.rewards import RewardFunction
    from harness_adapters.runner.local import Plan
    from harness_adapters.runner.rollout import Terms

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG.yaml] [-- COMMAND...]", show_default=False)
    ] = None,
    proxy: Annotated[str | None, typer.Option(help="The proxy's root URL.")] = None,
    key: Annotated[str | None, typer.Option(help="Runner key.", envvar="SINGLETREE_KEY")] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            help="The proxy's keys.json; default: the one in this folder.", envvar="SINGLETREE_KEYS_FILE"
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The policy that answers.")] = None,
    purpose: Annotated[str | None, typer.Option(help="train or eval.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="A task's prompt; may be repeated.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Tasks as JSON lines.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="module:function, or exact, contains, exit-code, reasoning-gym, none.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(help="Rollouts per task.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Rollouts at once.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds for one rollout.")] = None,
    deadline_s: Annotated[float | None, typer.Option(help="Seconds after which a group settles.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Times through the tasks; 0 is without end.")] = None,
    limit: Annotated[int | None, typer.Option(help="Tasks at most.")] = None,
    rollouts: Annotated[int | None, typer.Option(help="Rollouts at most, in whole groups.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="End once the policy has had so many versions more.")
    ] = None,
    events: Annotated[Path | None, typer.Option(help="Append JSON events to this file.")] = None,
) -> None:
    """Run a harness on tasks and reward its rollouts.

    Either with a file, singletree run config.yaml, or in short for any program that reads OPENAI_BASE_URL and
    OPENAI_API_KEY: singletree run --policy P --task "text" --reward module:function -- python my_agent.py
    """
    given = {
        "proxy": proxy,
        "key": key,
        "keys_file": str(keys_file) if keys_file else None,
        "policy": policy,
        "purpose": purpose,
        "group_size": group_size,
        "concurrency": concurrency,
        "timeout_s": timeout_s,
        "deadline_s": deadline_s,
        "limit": limit,
        "rollouts": rollouts,
        "steps": steps,
    }
    config_path, command = split_arguments(arguments or [])
    values = read_config(config_path) if config_path else {}
    values.update({name: value for name, value in given.items() if value is not None})
    if epochs is not None:
        values["epochs"] = epochs or None
    if command:
        values["harness"] = {"kind": "command", "argv": command}
    if task and tasks:
        raise ConfigError("give --task or --tasks, not both")
    if task or tasks:
        values["tasks"] = {"kind": "inline", "tasks": task} if task else {"kind": "jsonl", "path": str(tasks)}
    if reward is not None:
        values["reward"] = {"kind": "function", "function": reward} if ":" in reward else {"kind": reward}
    elif command:
        values.setdefault("reward", {"kind": "none"})
    config = parse_config(values, where=str(config_path or "singletree run"))
    totals = asyncio.run(run_config(config, events=events))
    print_summary(totals)
    if totals.stopped:
        raise typer.Exit(130)
    if totals.succeeded == totals.rewarded == 0:
        raise NothingSucceeded(
            f"no rollout succeeded ({totals.failed} failed, {totals.lost} lost): {totals.first_error}"
        )


def split_arguments(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """A configuration file, or the command after ``--``, or both in this order. Raises ``ConfigError``."""
    if arguments and Path(arguments[0]).suffix in (".yaml", ".yml"):
        rest = arguments[1:]
        return Path(arguments[0]), rest[1:] if rest[:1] == ["--"] else rest
    if not arguments:
        raise ConfigError("give a configuration file, or a program after --; see: singletree run --help")
    return None, arguments


def runner_key(config: RunConfig) -> str:
    """The key from the configuration, the command line or the keys file. Raises ``ConfigError`` without one."""
    if config.keys_file is not None:
        try:
            keys: Any = json.loads(config.keys_file.read_text())
            return str(keys["runner"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read the runner key from {config.keys_file} ({error}); `singletree serve` writes that file"
            ) from None
    if config.key:
        return config.key
    if Path("keys.json").is_file():
        return runner_key(config.model_copy(update={"keys_file": Path("keys.json")}))
    raise ConfigError("no key: pass --keys-file (the proxy's keys.json), or set SINGLETREE_KEY")


async def run_config(config: RunConfig, *, events: Path | None = None) -> Totals:
    """Build everything from the configuration, run it until done or signalled, and give the totals."""
    from harness_adapters.build import all_epochs, make_adapter, make_reward, make_tasks
    from harness_adapters.client import ControlPlane
    from harness_adapters.runner.local import LocalRunner
    from singletree.commands.run_display import LiveLine

    key = runner_key(config)
    source, reward, adapter = (
        make_tasks(config.tasks),
        make_reward(config.reward),
        make_adapter(config.harness),
    )
    async with ControlPlane(config.proxy, key) as client:
        await client.health()
        terms = make_terms(config, client, adapter, reward)
        with contextlib.ExitStack() as stack:
            observers: list[Observer] = [stack.enter_context(LiveLine(sys.stderr))]
            if events is not None:
                try:
                    observers.append(stack.enter_context(contextlib.closing(EventLog(events))))
                except OSError as error:
                    raise ConfigError(
                        f"--events {events}: {error.strerror}; give a file that can be written"
                    ) from None
            runner = LocalRunner(make_plan(config), terms, all_epochs(source, config.epochs), observers)
            for signum in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(signum, runner.stop)
            return await runner.run()


def make_terms(config: RunConfig, client: ControlPlane, adapter: Adapter, reward: RewardFunction) -> Terms:
    """What holds for each rollout. Raises ``ConfigError`` for a workspace folder that is not there."""
    from harness_adapters.runner.executors import executor_for
    from harness_adapters.runner.rollout import Terms

    template: Path | None = getattr(config.harness, "workspace", None)
    for folder in (template, config.workspaces):
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; make it, or correct the configuration")
    return Terms(
        client=client,
        executor=executor_for(adapter),
        reward=reward,
        runner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        harness=adapter.name,
        base_url=f"{client.url}/v1",
        timeout_s=config.timeout_s,
        score_failures=frozenset(config.reward.score_failures),
        failure_reward=config.reward.failure_reward,
        template=template,
        workspaces=config.workspaces.resolve() if config.workspaces else None,
        keep_workspaces=config.keep_workspaces,
    )


def make_plan(config: RunConfig) -> Plan:
    """What to run. An evaluation has one rollout per task unless told otherwise."""
    from harness_adapters.runner.local import Plan

    return Plan(
        policy=config.policy,
        purpose=config.purpose,
        concurrency=config.concurrency,
        deadline_s=config.deadline_s,
        group_size=config.group_size or (1 if config.purpose == "eval" else None),
        limit=config.limit,
        rollouts=config.rollouts,
        steps=config.steps,
    )


def print_summary(totals: Totals) -> None:
    """The table at the end, on standard output."""
    from rich.console import Console

    from singletree.commands.run_display import summary_table

    Console().print(summary_table(totals))
