"""What the demo writes for its processes is what they accept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness_adapters.config import parse_config
from harness_adapters.protocol import Outcome, ToolCall
from singletree.demo import plan as demo_plan
from singletree.demo.errors import DemoError, ModelUnavailable
from singletree.demo.model import check_sha256
from singletree.demo.plan import Plan, make_room, phase_tasks, write_recipe, write_run_config
from singletree.demo.run import LONGEST_STEP_S, Demo, has_bfloat16_units
from trainer.config import RlStage, SftStage, load_recipe


@pytest.mark.parametrize("phase", ["teacher", "base", "before", "training", "after"])
def test_the_runner_accepts_each_phase(tmp_path: Path, phase: demo_plan.Phase) -> None:
    plan = Plan(tmp_path, steps=4)
    path = write_run_config(plan, phase, "http://127.0.0.1:1")
    config = parse_config(yaml.safe_load(path.read_text()), where="test")
    assert config.purpose == ("train" if phase in ("teacher", "training") else "eval")
    assert config.group_size == (8 if phase == "training" else 1)
    lines = [json.loads(line) for line in Path(config.tasks.path).read_text().splitlines()]  # pyright: ignore
    assert [line["id"] for line in lines[:2]] == [f"{phase}-0000", f"{phase}-0001"]
    assert len(lines) == len(phase_tasks(plan, phase))


def test_before_and_after_ask_the_same_and_the_untouched_model_a_part(tmp_path: Path) -> None:
    plan = Plan(tmp_path)
    assert phase_tasks(plan, "before") == phase_tasks(plan, "after")
    assert len(phase_tasks(plan, "after")) >= 300
    assert phase_tasks(plan, "base") == phase_tasks(plan, "after")[: plan.base_tasks]


@pytest.mark.parametrize("control", ["none", "permute_rewards"])
def test_the_trainer_accepts_the_recipe(tmp_path: Path, control: str) -> None:
    plan = Plan(tmp_path, seed=7, steps=5, control=control)
    recipe = load_recipe(write_recipe(plan, tmp_path / "model"))
    form, skill = recipe.stages
    assert isinstance(form, SftStage) and isinstance(skill, RlStage)
    assert (recipe.seed, skill.steps, skill.control) == (7, 5, control)
    assert form.rollouts == plan.teacher_rollouts and form.source_policy == demo_plan.TEACHER
    assert recipe.policy == demo_plan.POLICY and recipe.database.endswith(str(plan.database))


def test_an_earlier_run_is_moved_aside(tmp_path: Path) -> None:
    output = tmp_path / "runs" / "demo"
    assert make_room(output) is None and output.is_dir()
    (output / "result.json").write_text("{}")
    moved = make_room(output)
    assert moved is not None and (moved / "result.json").is_file() and not any(output.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match="--output"):
        make_room(tmp_path / "file" / "demo")


def test_a_changed_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"other")
    with pytest.raises(ModelUnavailable, match="SHA-256"):
        check_sha256(wheel, "0" * 64)


def test_bfloat16_units_are_read_from_the_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags : fpu avx2 avx512f\n")
    assert not has_bfloat16_units(cpuinfo)
    cpuinfo.write_text("flags : fpu avx512f avx512_bf16\n")
    assert has_bfloat16_units(cpuinfo)


def test_the_clerk_is_scored_by_what_the_harness_saw() -> None:
    from singletree.demo.clerk import score

    payload = {"tool": "get_price", "answer": "$17"}
    good = Outcome(final_text="$17", tool_calls=[ToolCall("get_price", {"item": "lamp"})])
    assert score(payload, good) == 1.0
    assert score(payload, Outcome(final_text="$17")) == 0.0
    failed = Outcome(failure="agent", final_text="$17", tool_calls=[ToolCall("get_price", {})])
    assert score(payload, failed) == 0.0


def test_reinforcement_ends_in_time_for_the_evaluation(tmp_path: Path) -> None:
    nothing: Any = None
    plan = Plan(tmp_path, budget_s=500.0, fewest_steps=3)
    demo = Demo(plan, nothing, nothing, tmp_path, seconds={"before": 60.0})
    demo.began = time.monotonic() - (500.0 - 60.0 - LONGEST_STEP_S - 5.0)
    assert not demo.time_is_up(10)
    demo.began -= 10.0
    assert demo.time_is_up(3)
    assert not demo.time_is_up(2), "fewer steps do not separate from noise"
    unlimited = Demo(Plan(tmp_path, budget_s=0.0), nothing, nothing, tmp_path, seconds={"before": 60.0})
    unlimited.began = demo.began
    assert not unlimited.time_is_up(30)
