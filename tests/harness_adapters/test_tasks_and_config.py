"""What a run is given is checked, by name, before anything starts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness_adapters.build import all_epochs, make_adapter, make_tasks
from harness_adapters.config import CommandHarness, InlineTasks, ReasoningGymTasks, parse_config
from harness_adapters.errors import ConfigError, HarnessError, HarnessMissing
from harness_adapters.installed import require
from harness_adapters.tasks.function import open_function
from harness_adapters.tasks.jsonl import open_jsonl

HERE = "tests.harness_adapters.clerk_tasks"


def test_jsonl_takes_ids_out_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": 7, "prompt": "a", "answer": "1\u2028"}\n\n"just a prompt"\n')
    first, second = open_jsonl(path)(0)
    assert (first.id, first.prompt, first.payload["answer"]) == ("7", "a", "1\u2028")
    assert (second.id, second.prompt) == (None, "just a prompt")


def test_shuffling_is_the_same_each_time_and_another_each_epoch(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(f'"{number}"' for number in range(30)))
    source = open_jsonl(path, shuffle_seed=1)
    orders = [[task.prompt for task in source(epoch)] for epoch in (0, 1)]
    assert orders[0] == [task.prompt for task in open_jsonl(path, shuffle_seed=1)(0)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no task"), ('{"prompt": \n', ":1: not JSON"), ("[1]", "must be a JSON object")],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        open_jsonl(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read tasks"):
        open_jsonl(tmp_path / "none.jsonl")


def test_a_function_is_told_the_epoch(tmp_path: Path) -> None:
    tasks = list(all_epochs(open_function(f"{HERE}:price_tasks", {"count": 2}), 2))
    assert [next(iter(task.payload["prices"].values())) for task in tasks] == [0, 1, 10, 11]
    endless = all_epochs(open_function(f"{HERE}:price_tasks", {"count": 2}), None)
    assert len(list(islice(endless, 7))) == 7


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.args do not fit"):
        open_function(f"{HERE}:price_tasks", {"size": 2})


def test_unknown_reasoning_gym_dataset() -> None:
    with pytest.raises(ConfigError, match="no_such_thing"):
        make_tasks(ReasoningGymTasks(kind="reasoning-gym", dataset="no_such_thing"))


def test_a_task_that_is_not_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        make_tasks(InlineTasks(kind="inline", tasks=[{"prompt": "a", "x": float("nan")}]))


VALID: dict[str, Any] = {
    "policy": "p",
    "harness": {"kind": "command", "argv": ["true"]},
    "tasks": {"kind": "inline", "tasks": ["a"]},
    "reward": {"kind": "none"},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"polcy": "p"}, "polcy"),
        ({"harness": {"kind": "emacs"}}, "emacs"),
        ({"harness": {"kind": "command", "argv": ["true"], "turns": 3}}, "turns"),
        ({"tasks": {"kind": "csv"}}, "csv"),
        ({"reward": {"kind": "magic"}}, "magic"),
        ({"reward": {"kind": "exact", "failure_reward": float("nan")}}, "failure_reward"),
        ({"timeout_s": 100, "deadline_s": 10}, "deadline_s"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_an_unknown_key_or_kind_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    parse_config(VALID, where="run.yaml")
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config(VALID | change, where="run.yaml")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("run.yaml: ")
    assert caught.value.exit_code == 2


def test_a_harness_at_another_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        HarnessMissing, match=r"proved with 0\.0\.1; run: pip install 'singletree\[harnesses\]'"
    ):
        require("openai-agents", "0.0.1")
    assert require("openai-agents", "0.0.1", any_version=True)
    with pytest.raises(HarnessMissing, match="is not installed"):
        require("no-such-harness", "1")


def test_a_program_that_is_not_there_is_refused() -> None:
    for argv in (["no-such-program"], []):
        with pytest.raises(HarnessError):
            make_adapter(CommandHarness(kind="command", argv=argv))
