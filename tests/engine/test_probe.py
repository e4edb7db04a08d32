"""A real vLLM passes; with one setting missing it is refused by that setting's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from singletree.engine.errors import EngineUnfit
from singletree.engine.probe import check_engine
from tests.engine_fixture import SERVED_NAME, WINDOW, EngineProcess
from tests.fault_proxy import Fault, Forward, answered_without_doing, fault_proxy

pytestmark = pytest.mark.engine


def refused(status: int) -> Fault:
    return Fault(act=lambda _: httpx.Response(status, json={"detail": "Not Found"}))


def test_a_well_started_engine_is_fit(base_weights: EngineProcess) -> None:
    report = check_engine(base_weights.base_url + "/v1")
    assert (report.model, report.window, report.weights) == (SERVED_NAME, WINDOW, "default")
    assert report.version.startswith("0.32.0")
    command = [str(Path(sys.executable).with_name("singletree")), "engine", "check", base_weights.base_url]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fit: vLLM 0.32.0")


@pytest.mark.parametrize(
    ("trigger", "fault", "says"),
    [
        ("/weight_info", refused(404), "VLLM_SERVER_DEV_MODE=1"),
        ("/collective_rpc", refused(500), "--worker-extension-cls"),
        ("/render", refused(403), "--enable-scale-out"),
        ("/is_paused", Fault(act=answered_without_doing({"is_paused": True})), "POST /resume"),
        ("/version", Fault(act=answered_without_doing({"version": "0.31.2"})), "0.31.2 is too old"),
        ("/version", refused(404), "not as vLLM does"),
    ],
)
def test_a_missing_setting_is_named(
    base_weights: EngineProcess, trigger: str, fault: Fault, says: str
) -> None:
    fault.trigger = trigger
    with fault_proxy(base_weights.base_url, fault) as url, pytest.raises(EngineUnfit, match=says):
        check_engine(url)


def test_logprobs_before_temperature_are_found_out(base_weights: EngineProcess) -> None:
    """An engine in vLLM's default mode reports the same numbers at every temperature."""
    kept: list[httpx.Response] = []

    def same_at_every_temperature(forward: Forward) -> httpx.Response:
        kept.append(forward())
        return kept[0]

    with fault_proxy(base_weights.base_url, Fault("/v1/completions", same_at_every_temperature)) as url:
        with pytest.raises(EngineUnfit, match="--logprobs-mode processed_logprobs"):
            check_engine(url)


def test_a_chat_that_ignores_given_tokens_is_found_out(base_weights: EngineProcess) -> None:
    def with_other_tokens(forward: Forward) -> httpx.Response:
        body = forward().json()
        return httpx.Response(200, json=body | {"prompt_token_ids": [1, *body["prompt_token_ids"]]})

    with fault_proxy(base_weights.base_url, Fault("kv_transfer_params", with_other_tokens)) as url:
        with pytest.raises(EngineUnfit, match="kv_transfer_params"):
            check_engine(url)
