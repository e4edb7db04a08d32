"""The demo from start to end: processes up, teacher traffic, form, before, reinforcement, after, result.

Five kinds of process, as in any deployment: vLLM, proxy, teacher, runner, trainer. They meet only over HTTP and in
the span log; this module starts them, waits and reads. Each phase does nothing but run one of the public commands.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singletree.demo import plot, report, tasks
from singletree.demo.control import Control, Results, answers
from singletree.demo.errors import ProcessFailed
from singletree.demo.model import ensure_model
from singletree.demo.plan import (
    POLICY,
    TEACHER,
    Phase,
    Plan,
    make_room,
    phase_tasks,
    stage_names,
    write_recipe,
    write_run_config,
)
from singletree.demo.processes import Child, MemoryWatch, Supervisor, free_port
from singletree.demo.screen import Screen

START_TIMEOUT_S = 180.0
PHASE_TIMEOUT_S = 600.0
"""Without any progress; a slow phase that moves is left alone."""
LONGEST_STEP_S = 30.0
"""What a step may take that is under way when the time is up: stopping waits for its publish."""
MISSING_ALLOWED = 0.05
"""Share of an evaluation's rollouts that may lack a reward (the harness or the engine failed)."""
KEPT_VARIABLES = ("SINGLETREE_ENGINE_HOME", "SINGLETREE_CACHE")
"""Of our own; others could point the demo's processes at somebody's real proxy."""
SLEEP_AT_BARRIERS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""By default OpenMP's threads spin where they wait for each other; with two of them on two cores, any other busy
process then makes a step many times longer."""
SINGLETREE = (sys.executable, "-c", "from singletree.cli import main; main()")


def has_bfloat16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX). Others emulate it many times slower than
    float32; the trainer decides in the same way, so both sides compute in one type."""
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.split())


@dataclass
class Demo:
    """One run in progress."""

    plan: Plan
    screen: Screen
    supervisor: Supervisor
    model: Path
    seconds: dict[str, float] = field(default_factory=dict)
    scores: dict[str, report.Score] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    engine: dict[str, Any] = field(default_factory=dict)
    """The engine's row, once it is registered."""

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - begin, 1)

    def command(
        self, name: str, *arguments: str | Path, service: bool, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a subcommand of ``singletree`` under ``name``, with ``env`` added to its environment."""
        return self.supervisor.start(name, [*SINGLETREE, *map(str, arguments)], service=service, env=env)

    def start_services(self) -> None:
        """Engine, proxy and teacher; returns when proxy and teacher answer. The engine takes longer."""
        proxy, teacher, engine = (free_port() for _ in range(3))
        self.proxy_url, self.engine_url = f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{engine}"
        teacher_url = f"http://127.0.0.1:{teacher}"
        seed = str(self.plan.seed)
        dtype = "bfloat16" if has_bfloat16_units() else "float32"
        served = ("--name", POLICY, "--port", str(engine), "--dtype", dtype, "--max-model-len", "512")
        memory = ("--kv-cache-gib", "0.5", "--threads", "2", "--seed", seed)
        # Small blocks: the prefix cache works in whole ones, and vLLM's 128 are longer than the prompt's fixed part.
        extra = ("--", "--block-size", "32")
        # Two threads, though the runner and the proxy need some of the second core: the trainer sleeps meanwhile.
        threads = {**SLEEP_AT_BARRIERS, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        start = ("engine", "start", self.model, *served, *memory, *extra)
        self.command("engine", *start, service=True, env=threads)
        database = f"sqlite:///{self.plan.database}"
        listen = ("--port", str(proxy), "--database", database, "--log-level", "warning")
        self.command("proxy", "serve", *listen, service=True)
        scripted = ("-m", "singletree.demo.teacher", "--port", str(teacher), "--seed", seed)
        count = ("--count", str(self.plan.teacher_rollouts))
        self.teacher = self.supervisor.start("teacher", [sys.executable, *scripted, *count])
        for name, url in (("proxy", self.proxy_url), ("teacher", teacher_url)):
            self.wait_for(name, url)
        self.control, self.results = Control(self.proxy_url, self.plan.keys), Results(self.plan.database)
        self.control.put_policy(
            POLICY,
            kind="train",
            model=POLICY,
            group_size=self.plan.group_size,
            rollouts_per_step=self.plan.rollouts_per_step,
            max_staleness=0,
        )
        self.control.put_policy(TEACHER, kind="frozen", model=TEACHER)
        self.control.put_engine("scripted", policy=TEACHER, base_url=teacher_url, kind="openai")

    def wait_for(self, name: str, url: str) -> None:
        self.supervisor.until(
            lambda: answers(f"{url}/health"), what=f"starting the {name}", timeout_s=START_TIMEOUT_S
        )

    def rollouts(self, phase: Phase, title: str) -> None:
        """Run all tasks of a phase to their end."""
        total = len(phase_tasks(self.plan, phase))
        config = write_run_config(self.plan, phase, self.proxy_url)
        with self.clock(phase), self.screen.counting(title, total) as show:
            runner = self.command(f"runner-{phase}", "run", config, service=False)

            def ended() -> int:
                done = self.results.ended(phase)
                show(done)
                return done

            self.supervisor.until(
                lambda: runner.ended, what=title, timeout_s=PHASE_TIMEOUT_S, poll_s=0.5, progress=ended
            )
            self.supervisor.check()
            ended()

    def evaluate(self, phase: Phase, title: str) -> None:
        self.rollouts(phase, title)
        score = self.scores[phase] = report.score_of(self.results.rewards(phase))
        if score.missing > MISSING_ALLOWED * (score.n + score.missing):
            raise ProcessFailed(
                f"{score.missing} of {score.n + score.missing} held-out rollouts have no reward; is the machine busy with "
                "something else?",
                self.plan.logs / f"runner-{phase}.log",
            )
        self.screen.say(f"  success {score.success:.3f} ± {score.standard_error:.3f} (n = {score.n})")

    def learn_form(self) -> None:
        """Start the trainer and wait until the first stage is published."""
        self.recipe = write_recipe(self.plan, self.model)
        with self.clock("form"):
            self.trainer = self.command("trainer", "train", self.recipe, service=False, env=SLEEP_AT_BARRIERS)
            self.supervisor.until(
                lambda: self.control.version(POLICY) >= 1,
                what="supervised stage",
                timeout_s=PHASE_TIMEOUT_S,
                poll_s=0.5,
                progress=lambda: self.results.steps_told(POLICY),
            )

    def reinforce(self) -> list[dict[str, Any]]:
        """RL until the trainer is done or the time is up. Returns its steps."""
        stage = stage_names(self.recipe)[-1]
        config = write_run_config(self.plan, "training", self.proxy_url)
        with self.clock("reinforcement"), self.screen.steps(self.plan.steps) as show:
            runner = self.command("runner-training", "run", config, service=False)

            def steps() -> list[dict[str, Any]]:
                found = [
                    step for step in self.control.steps(POLICY) if step["stage"] == stage and not step["void"]
                ]
                for number, step in enumerate(found, 1):
                    step["stage_step"] = number
                # A step's publish is added to its metrics just after its commit; show it when it is whole.
                return [step for step in found if "seconds/total" in step["metrics"]]

            def progress() -> int:
                now = steps()
                show(now)
                return len(now)

            self.supervisor.until(
                lambda: self.trainer.ended or self.time_is_up(len(steps())),
                what="reinforcement",
                timeout_s=PHASE_TIMEOUT_S,
                poll_s=1.0,
                progress=progress,
            )
            self.supervisor.check()
            self.supervisor.stop(runner)
            if not self.trainer.ended:
                self.screen.say("  time is up: the evaluation has to fit in")
                self.supervisor.stop(self.trainer, grace_s=2 * LONGEST_STEP_S)
            progress()
            return steps()

    def time_is_up(self, steps: int) -> bool:
        """Whether the last evaluation, which takes as long as the one before, would miss the end otherwise."""
        if not self.plan.budget_s or steps < self.plan.fewest_steps:
            return False
        left = self.plan.budget_s - (time.monotonic() - self.began)
        return left < self.seconds["before"] + LONGEST_STEP_S


def run_demo(plan: Plan, screen: Screen) -> dict[str, Any]:
    """Run everything; returns what ``result.json`` holds. Every process that it starts is gone when it returns or raises."""
    began = time.monotonic()
    model = ensure_model(say=screen.say)
    moved = make_room(plan.output)
    if moved is not None:
        screen.say(f"an earlier run was moved to {moved}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SINGLETREE_")}
    environment |= {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    supervisor = Supervisor(plan.logs, environment)
    demo = Demo(plan, screen, supervisor, model, began=began)
    with MemoryWatch().running() as memory:
        try:
            steps = run_phases(demo)
        finally:
            supervisor.stop_all()
    wall = time.monotonic() - began
    return conclude(demo, steps, wall, memory.peak_bytes)


def run_phases(demo: Demo) -> list[dict[str, Any]]:
    """All phases in order; returns the RL steps."""
    screen = demo.screen
    with demo.clock("start"):
        screen.say("starting vLLM, the proxy and the scripted teacher")
        demo.start_services()
        demo.rollouts("teacher", "teacher shows the form of a tool call")
        demo.supervisor.stop(demo.teacher)
        demo.wait_for("engine", demo.engine_url)
        demo.engine = demo.control.put_engine("vllm", policy=POLICY, base_url=demo.engine_url, kind="vllm")
    demo.evaluate("base", "held-out questions, untouched model")
    screen.say("supervised stage: the form of a call, not the choice of tool")
    demo.learn_form()
    demo.evaluate("before", "held-out questions before reinforcement")
    steps = demo.reinforce()
    demo.evaluate("after", "held-out questions after reinforcement")
    return steps


def conclude(demo: Demo, steps: list[dict[str, Any]], wall_s: float, peak_bytes: int) -> dict[str, Any]:
    """Table, curve, ``result.json``; returns its contents."""
    plan, scores = demo.plan, demo.scores
    held_out = phase_tasks(plan, "after")
    blind = tasks.blind_success(held_out)
    verdict = report.judge(scores["before"], scores["after"], blind)
    rewards = [step["metrics"].get("reward/mean", 0.0) for step in steps]
    result = {
        **{phase: scores[phase].to_json() for phase in ("base", "before", "after")},
        "blind": {"success": round(blind, 4), "n": len(held_out)},
        "improved": verdict.improved,
        "standard_errors": {
            "over_before": round(verdict.over_before, 2),
            "over_blind": round(verdict.over_blind, 2),
        },
        "wall_s": round(wall_s, 1),
        "seed": plan.seed,
        "control": plan.control,
        "steps": len(steps),
        "rewards": [round(reward, 4) for reward in rewards],
        "seconds": demo.seconds,
        "peak_rss_bytes": peak_bytes,
        "versions": versions(demo),
        "machine": {"cpus": len(os.sched_getaffinity(0)), "load_1m": round(os.getloadavg()[0], 2)},
    }
    report.write_json(plan.output / "result.json", result)
    marks = {phase: (scores[phase].success, scores[phase].standard_error) for phase in ("before", "after")}
    title = "A shop clerk learns which tool to use" + (
        "" if plan.control == "none" else f" (control: {plan.control})"
    )
    plot.save_png(plan.output / "curve.png", rewards, marks, blind=blind, title=title)
    demo.screen.say(plot.terminal_plot(rewards))
    demo.screen.table(scores, blind, verdict)
    demo.screen.say(report.sentence(verdict, plan.control))
    demo.screen.say(
        f"{wall_s / 60:.1f} minutes, at most {peak_bytes / 2**30:.1f} GiB; result.json, curve.png, logs and the span log "
        f"are in {plan.output}"
    )
    return result


def versions(demo: Demo) -> dict[str, str]:
    """Versions of what took part."""
    found = {
        "python": platform.python_version(),
        "vllm": str(demo.engine.get("capabilities", {}).get("vllm_version", "")),
    }
    for name in ("singletree", "torch", "transformers", "pydantic-ai-slim"):
        found[name] = importlib.metadata.version(name)
    return found
