"""Publishing to a real vLLM, compared with transformers on the same weights."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spanlog import steps
from spanlog.database import open_database
from spanlog.errors import Conflict, FenceLost
from spanlog.states import EngineState
from tests.engine_fixture import EngineProcess
from tests.fault_proxy import Fault, Forward, answered_without_doing, fault_proxy
from tests.publish.world import POLICY, Stream, World, complete, control_state
from tests.rescore import TOLERANCE, largest_gap, reference_logprobs
from tests.tiny_model import build_tiny_model
from trainer.publish import SwapStatus
from trainer.publish.control import EngineControl
from trainer.publish.errors import NoEngine, PublishFailed, WeightsInvalid

pytestmark = pytest.mark.engine

PROMPT = [1, 50, 60, 70, 80, 2]
ENGINE = "main"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the tiny model."""
    return build_tiny_model(tmp_path_factory.mktemp("trained") / "v1", seed=1)


@pytest.fixture
def world(base_weights: EngineProcess, tmp_path: Path) -> Iterator[World]:
    """The warm engine, ready at version 0, under a policy of its own."""
    made = World.create(tmp_path)
    made.add_engine(ENGINE, base_weights.base_url)
    yield made
    made.database.close()


def gap_of(reply: dict, folder: Path, prompt: list[int]) -> float:
    choice = reply["choices"][0]
    return largest_gap(folder, prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])


def test_the_engine_serves_exactly_the_published_weights(
    world: World, base_weights: EngineProcess, trained: Path
) -> None:
    report = world.publish(trained)
    assert (report.version, report.loaded, world.version()) == (1, 1, 1)
    row = world.engine(ENGINE)
    assert (row.state, row.version, row.error) == (EngineState.READY, 1, None)
    assert control_state(base_weights.base_url) == (f"{POLICY}:1", False)
    reply = complete(base_weights.base_url, PROMPT, 128)
    assert gap_of(reply, trained, PROMPT) < TOLERANCE
    assert gap_of(reply, base_weights.model, PROMPT) > 0.1
    assert not list(trained.glob(".proof-*"))


def test_no_cached_prefix_survives(world: World, base_weights: EngineProcess, trained: Path) -> None:
    prompt = [20 + n % 900 for n in range(400)]
    complete(base_weights.base_url, prompt, 4)
    warm = complete(base_weights.base_url, prompt, 4)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    world.publish(trained)
    reply = complete(base_weights.base_url, prompt, 32)
    assert not reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert gap_of(reply, trained, prompt) < TOLERANCE


def test_each_part_of_a_stream_in_flight_is_of_the_version_that_its_label_names(
    world: World, base_weights: EngineProcess, trained: Path
) -> None:
    """[I2]: the stream completes, and old and new tokens are told apart without a mistake."""
    streams: list[Stream] = []
    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(world.publish, trained)
        while not publishing.done() or len(streams) < 3:
            streams.append(Stream(base_weights.base_url, PROMPT, 300).start())
            time.sleep(0.2)
        publishing.result()
    crossing = 0
    for stream in streams:
        stream.join()
        assert (stream.finish_reason, stream.failure, len(stream.tokens)) == ("length", None, 300)
        low, high = world.label(ENGINE, stream)
        expected = [
            reference_logprobs(folder, PROMPT, stream.tokens) for folder in (base_weights.model, trained)
        ]
        gaps = np.abs(np.stack(expected) - np.asarray(stream.logprobs, np.float32))
        assert (gaps[0][high == 0] < TOLERANCE).all()
        assert (gaps[1][low == 1] < TOLERANCE).all()
        assert (gaps.min(axis=0) < TOLERANCE).all()
        assert (low < high).sum() <= 20, "the guard covers moments, not the stream"
        crossing += bool((high == 0).any() and (low == 1).any())
    assert crossing, "no stream was in flight"


def broken(source: Path, folder: Path, how: str) -> Path:
    """A copy of ``source`` with one thing wrong."""
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    if how == "missing tensor":
        del weights[name]
    elif how == "unknown tensor":
        weights["model.layers.1.mlp.up_proj.bias"] = torch.zeros(4)
    elif how == "wrong shape":
        weights[name] = weights[name][:10].clone()
    elif how == "wrong dtype":
        weights[name] = weights[name].half()
    elif how == "not finite":
        weights[name][3, 4] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    if how == "cut off":
        file.write_bytes(file.read_bytes()[:-100])
    if how == "no file":
        file.unlink()
    return folder


@pytest.mark.parametrize(
    "how",
    ["missing tensor", "unknown tensor", "wrong shape", "wrong dtype", "not finite", "cut off", "no file"],
)
def test_bad_files_are_refused_before_any_engine_is_touched(
    base_weights: EngineProcess, tmp_path: Path, trained: Path, how: str
) -> None:
    world, fault = World.create(tmp_path), Fault()
    good, bad = shutil.copytree(trained, tmp_path / "good"), broken(trained, tmp_path / "bad", how)
    with fault_proxy(base_weights.base_url, fault) as url:
        world.add_engine(ENGINE, url)
        world.publish(good)
        fault.seen.clear()
        with pytest.raises(WeightsInvalid):
            world.publish(bad, expected_version=1)
    row = world.engine(ENGINE)
    assert fault.seen == []
    assert (row.state, row.version, world.version(), len(world.swaps(ENGINE))) == (EngineState.READY, 1, 1, 1)
    world.database.close()


def test_weights_of_another_model_leave_the_engine_alone(
    world: World, base_weights: EngineProcess, tmp_path: Path
) -> None:
    deeper = build_tiny_model(tmp_path / "deeper", layers=3)
    with pytest.raises(PublishFailed, match="num_hidden_layers is 2 there and 3"):
        world.publish(deeper)
    assert control_state(base_weights.base_url) == ("default", False)
    assert (world.engine(ENGINE).state, world.swaps(ENGINE)) == (EngineState.READY, [])


def test_an_engine_that_does_not_see_the_folder_is_left_alone(
    base_weights: EngineProcess, tmp_path: Path, trained: Path
) -> None:
    world = World.create(tmp_path)
    blind = answered_without_doing({"results": [{"error": "No such file or directory"}]})
    with fault_proxy(base_weights.base_url, Fault("singletree_read_proof", blind)) as url:
        world.add_engine(ENGINE, url)
        with pytest.raises(PublishFailed, match="mount that folder"):
            world.publish(trained)
    row = world.engine(ENGINE)
    assert (row.state, row.version, world.swaps(ENGINE)) == (EngineState.READY, 0, [])
    assert "mount that folder" in row.error
    world.database.close()


def test_a_load_that_did_nothing_is_caught_by_the_probe(
    base_weights: EngineProcess, tmp_path: Path, trained: Path
) -> None:
    """The engine says 200 and carries the new label, but computes as before: what it sampled since is void."""
    world = World.create(tmp_path)
    liar = Fault("singletree_load", answered_without_doing({"results": [{}]}))
    with fault_proxy(base_weights.base_url, liar) as url:
        world.add_engine(ENGINE, url)
        with pytest.raises(PublishFailed, match="those of the former weights"):
            world.publish(trained)
    assert world.version() == 0
    first, second = world.swaps(ENGINE)
    assert first.voided and not second.voided, "the second brought the former weights back"
    world.database.close()


def test_a_trainer_killed_before_its_publish_counts_does_not_cost_the_engine(
    world: World, base_weights: EngineProcess, trained: Path
) -> None:
    """The engine serves the version already: loading it again changes no logprob, and that is no failure."""
    child = os.fork()
    if child == 0:
        steps.publish_version = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        publish_and_die(world, trained, "never")
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (world.version(), world.engine(ENGINE).state, world.engine(ENGINE).version) == (0, "ready", 1)
    with world.database.begin() as conn:
        world.fence = steps.take_over(conn, POLICY)
    report = world.publish(trained, version=1)
    assert (report.loaded, world.version(), world.engine(ENGINE).state) == (1, 1, "ready")
    assert control_state(base_weights.base_url) == (f"{POLICY}:1", False)


def publish_and_die(world: World, path: Path, moment: str) -> NoReturn:
    """In a forked child: publishes, and is killed in place of the control call ``moment``."""
    try:
        setattr(EngineControl, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        World(open_database(world.url, migrate=False), world.fence).publish(path)
    finally:
        os._exit(1)


@pytest.mark.parametrize("moment", ["load", "stamp", "resume"])
def test_a_trainer_killed_in_the_middle_leaves_nothing_that_the_next_cannot_mend(
    world: World, base_weights: EngineProcess, trained: Path, moment: str
) -> None:
    """SIGKILL after the pause, after the load, and after the swap clock: the waiting stream goes on in the end."""
    stream = Stream(base_weights.base_url, PROMPT, 300).start()
    stream.wait_for(20)
    child = os.fork()
    if child == 0:
        publish_and_die(world, trained, moment)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (world.engine(ENGINE).state, control_state(base_weights.base_url)[1]) == (
        EngineState.SWAPPING,
        True,
    )
    with world.database.begin() as conn:
        world.fence = steps.take_over(conn, POLICY)
    assert [outcome.status for outcome in world.republish()] == [SwapStatus.LOADED]
    assert (world.engine(ENGINE).state, world.engine(ENGINE).version) == (EngineState.READY, 0)
    stream.join()
    assert (len(stream.tokens), stream.failure) == (300, None)
    assert largest_gap(base_weights.model, PROMPT, stream.tokens, stream.logprobs) < TOLERANCE
    low, high = world.label(ENGINE, stream)
    assert set(low[high == 0]) <= {0} and low[0] == 0, "known tokens are the base weights'"
    assert world.republish() == []
    assert world.publish(trained).version == 2, "a number that was loaded once is never used again"


def test_a_trainer_that_lost_the_policy_touches_nothing(
    world: World, base_weights: EngineProcess, trained: Path
) -> None:
    with world.database.begin() as conn:
        steps.take_over(conn, POLICY)
    with pytest.raises(FenceLost):
        world.publish(trained)
    assert control_state(base_weights.base_url) == ("default", False)
    assert (world.engine(ENGINE).state, world.swaps(ENGINE), world.version()) == (EngineState.READY, [], 0)


def test_a_trainer_that_loses_the_policy_in_the_middle_stops_there(
    base_weights: EngineProcess, tmp_path: Path, trained: Path
) -> None:
    """It commits nothing more; the engine stays swapping for the one that took over."""
    world = World.create(tmp_path)

    def take_over_and_load(forward: Forward) -> httpx.Response:
        with world.database.begin() as conn:
            steps.take_over(conn, POLICY)
        return forward()

    fault = Fault("singletree_load", take_over_and_load)
    with fault_proxy(base_weights.base_url, fault) as url:
        world.add_engine(ENGINE, url)
        with pytest.raises(FenceLost):
            world.publish(trained)
        row = world.engine(ENGINE)
        assert (row.state, row.version, world.version()) == (EngineState.SWAPPING, 0, 0)
        assert [swap.end_at for swap in world.swaps(ENGINE)] == [None]
        assert control_state(base_weights.base_url)[1], "not resumed by the one that lost it"
        fault.trigger = None
        world.fence += 1
        assert [outcome.status for outcome in world.republish()] == [SwapStatus.LOADED]
    reply = complete(base_weights.base_url, PROMPT, 16)
    assert gap_of(reply, base_weights.model, PROMPT) < TOLERANCE
    world.database.close()


def test_a_wrong_expectation_of_the_version_is_refused(world: World, trained: Path) -> None:
    with pytest.raises(Conflict):
        world.publish(trained, expected_version=3)
    assert world.swaps(ENGINE) == []


def test_a_policy_without_engines_says_so(tmp_path: Path, trained: Path) -> None:
    world = World.create(tmp_path)
    with pytest.raises(NoEngine, match="singletree engine start"):
        world.publish(trained)
    world.database.close()
