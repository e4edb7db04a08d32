"""A real vLLM whose load really fails, beside one whose load does not; restarts; tied heads.

The tests of this module share a second engine and run in the order in which they stand: the one that breaks it comes
before the one that restarts it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from spanlog.states import EngineState
from tests.conftest import StartEngine
from tests.end_to_end.world import Call, run_loop
from tests.engine_fixture import EngineProcess
from tests.fault_proxy import Fault, fault_proxy, replaced_during, truncated_during
from tests.proxy.conftest import wait_for
from tests.publish.world import POLICY, World, complete, control_state
from tests.rescore import TOLERANCE, largest_gap
from tests.tiny_model import build_tiny_model
from trainer.publish import SwapStatus
from trainer.publish.errors import PublishFailed

pytestmark = pytest.mark.engine

PROMPT = [1, 50, 60, 70, 80, 2]
HELLO = [{"role": "user", "content": "the user adds a number and stops."}]


@pytest.fixture(scope="module")
def second(start_engine: StartEngine, tiny_model: Path) -> EngineProcess:
    """Another engine with the same base weights."""
    return start_engine(tiny_model).wait()


@pytest.fixture(scope="module")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tied") / "base", tied=True)


@pytest.fixture(scope="module", autouse=True)
def tied(start_engine: StartEngine, tied_model: Path) -> EngineProcess:
    """Starts while the others do, and is waited for when it is needed."""
    return start_engine(tied_model)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "v1", seed=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.create(tmp_path)
    yield made
    made.database.close()


def serves(base_url: str, folder: Path) -> bool:
    """Whether the engine computes with exactly the weights in ``folder``."""
    choice = complete(base_url, PROMPT, 32)["choices"][0]
    return largest_gap(folder, PROMPT, choice["token_ids"], choice["logprobs"]["token_logprobs"]) < TOLERANCE


def test_where_no_engine_loads_the_former_weights_come_back(
    second: EngineProcess, world: World, trained: Path, tiny_model: Path
) -> None:
    """The engine is paused with half a model in it; version 0 is loaded again and it goes on."""
    cut = Fault("singletree_load", truncated_during(trained / "model.safetensors"))
    with fault_proxy(second.base_url, cut) as url:
        world.add_engine("second", url)
        with pytest.raises(PublishFailed, match="no engine loaded version 1"):
            world.publish(trained)
    row = world.engine("second")
    assert (row.state, row.version, world.version()) == (EngineState.READY, 0, 0)
    assert control_state(second.base_url) == (f"{POLICY}:0", False)
    assert serves(second.base_url, tiny_model)


def test_a_failed_load_quarantines_its_engine_and_the_other_serves(
    base_weights: EngineProcess, second: EngineProcess, trained: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """A call that waits in the poisoned engine is answered by the other one, a stream that has begun ends in an error,
    none hangs. Restarted, the engine serves its base weights and calls itself healthy: no traffic until republished."""
    weights = load_file(trained / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    misshapen = save(weights | {name: weights[name][:10].clone()}, metadata={"format": "pt"})
    poison = Fault("singletree_load", replaced_during(trained / "model.safetensors", misshapen))
    with run_loop(tmp_path) as loop, fault_proxy(second.base_url, poison) as url:
        loop.add_engine("second", url)
        whole = Call(loop, {"messages": HELLO, "max_tokens": 1500}).start()
        streams = [
            Call(loop, {"messages": HELLO, "max_tokens": 1500, "stream": True}).start() for _ in range(4)
        ]
        wait_for(lambda: all(call.events > 5 for call in streams))
        loop.add_engine("third", base_weights.base_url)
        report = loop.publish(trained)
        outcomes = {outcome.engine_id: outcome.status for outcome in report.engines}
        assert outcomes == {"second": SwapStatus.QUARANTINED, "third": SwapStatus.LOADED}
        lost, fine = loop.engine("second"), loop.engine("third")
        assert (lost["state"], lost["version"]) == (EngineState.QUARANTINED, None)
        assert "did not load" in lost["error"] and "restart it" in lost["error"]
        assert (fine["state"], fine["version"]) == (EngineState.READY, 1)
        assert control_state(second.base_url)[1], "a poisoned engine is never resumed"
        assert whole.join().status == 200
        ends = [call.join().text for call in streams]
        assert all("engine_aborted" in text or "[DONE]" in text for text in ends)
        assert any("engine_aborted" in text for text in ends), "no stream was in flight"
        assert serves(base_weights.base_url, trained)
        assert loop.republish() == [], "a quarantined engine is left alone until it has been restarted"

        poison.trigger = None
        second.restart()
        assert control_state(second.base_url) == ("default", False)
        assert serves(second.base_url, tiny_model)
        wait_for(lambda: loop.engine("second")["state"] == EngineState.STALE)
        ask = {"messages": HELLO, "max_tokens": 5}
        assert {Call(loop, ask).start().join().span().engine_id for _ in range(4)} == {"third"}
        assert [outcome.status for outcome in loop.republish()] == [SwapStatus.LOADED]
        assert control_state(second.base_url) == (f"{POLICY}:1", False)
        assert serves(second.base_url, trained)
        wait_for(lambda: Call(loop, ask).start().join().span().engine_id == "second")


def test_tied_embeddings_are_published_whole(
    tied: EngineProcess, tied_model: Path, world: World, tmp_path: Path
) -> None:
    """vLLM's own reload keeps the old head; see singletree_worker."""
    engine = tied.wait()
    world.add_engine("tied", engine.base_url)
    assert serves(engine.base_url, tied_model)
    first = build_tiny_model(tmp_path / "first", seed=1, tied=True)
    assert "lm_head.weight" not in load_file(first / "model.safetensors")
    world.publish(first)
    assert serves(engine.base_url, first)
    second = build_tiny_model(tmp_path / "second", seed=2, tied=True)
    explicit = load_file(second / "model.safetensors")
    explicit["lm_head.weight"] = explicit["model.embed_tokens.weight"].clone()
    (second / "model.safetensors").write_bytes(save(explicit, metadata={"format": "pt"}))
    world.publish(second, expected_version=1)
    assert serves(engine.base_url, second)
    shutil.rmtree(first)
    with pytest.raises(PublishFailed, match="another model: tie_word_embeddings"):
        world.publish(build_tiny_model(tmp_path / "untied"), expected_version=2)
