"""What the harness tests stand on: the director makes the model say its texts with tokens that it really samples, and
the judges of token histories see a fork."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from harness_adapters.protocol import Endpoint, Outcome
from spanlog.records import SpanRecord
from tests.harnesses.lines import divergence, extends, lines
from tests.harnesses.script import Turns, answer, call, think
from tests.harnesses.world import MODEL, Run, World

pytestmark = pytest.mark.engine

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}
ARGUMENTS = '{"text":  "a \\"b\\"\\n\\u00e4 {x}"}'
"""Two spaces and an escape that no serialiser would choose."""
SCRIPT = Turns(
    [call("write", ARGUMENTS, text="I write.", before=think("How?")), answer("Done: 1 + 1."), answer("Bye.")]
)


def ask(world: World, key: str, messages: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
    """One turn: the reply as a message, as a client echoes it."""
    with openai.OpenAI(base_url=world.proxy.url + "/v1", api_key=key, max_retries=0) as client:
        create: Any = client.chat.completions.create
        options = {"model": MODEL, "messages": messages, "tools": [TOOL]}
        if not stream:
            return create(**options).choices[0].message.model_dump(exclude_none=True)
        with client.chat.completions.stream(**options) as events:  # type: ignore[arg-type]
            for _ in events:
                pass
            return events.get_final_completion().choices[0].message.model_dump(exclude_none=True)


def talk(world: World, *, stream: bool) -> tuple[Run, list[dict[str, Any]]]:
    """The script's whole conversation, by a client that echoes each reply as it came; the run and the replies."""
    said: list[dict[str, Any]] = []

    def work(rollout: str, endpoint: Endpoint) -> tuple[Outcome, None]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        for _ in SCRIPT.texts:
            reply = ask(world, endpoint.api_key, messages, stream=stream)
            said.append(reply)
            messages.append(reply)
            for one in reply.get("tool_calls") or []:
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": "ok"})
            if not reply.get("tool_calls"):
                messages.append({"role": "user", "content": "and?"})
        return Outcome(), None

    return world.observe(work, "go", SCRIPT), said


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_says_the_script(world: World, stream: bool) -> None:
    run, said = talk(world, stream=stream)
    run.check(SCRIPT, side=0)
    arguments = said[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == json.loads(ARGUMENTS)
    assert (arguments == ARGUMENTS) == stream, "vLLM's parser writes them anew in whole replies only"
    assert said[0]["content"].strip() == "I write."
    assert [reply["content"].strip() for reply in said[1:]] == ["Done: 1 + 1.", "Bye."]
    first = run.spans[0].completion_tokens
    assert first is not None and first.size > 20, "sampled under a grammar, not written down"


def test_without_exact_mode_the_judges_see_every_fork(observing: World) -> None:
    """The same conversation, rendered anew for each turn: thinking is dropped, and text is spelled as the tokenizer
    would. So a proxy that did not splice could not pass ``Run.check``."""
    run, _ = talk(observing, stream=True)
    run.check(SCRIPT, side=0)
    assert [turn for turn, _, _ in run.forks()] == [2, 3]
    assert len(run.longest_line()) == 1


def test_a_script_that_has_no_text_is_a_failure(world: World) -> None:
    def work(rollout: str, endpoint: Endpoint) -> tuple[Outcome, None]:
        messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "x"}] * 3
        with pytest.raises(openai.BadRequestError):
            ask(world, endpoint.api_key, [*messages, {"role": "user", "content": "go"}], stream=False)
        return Outcome(), None

    run = world.observe(work, "go", SCRIPT)
    assert run.failures == ["AssertionError: turn 4 of a line of 3"]


def test_everything_else_passes_unchanged(world: World) -> None:
    world.director.direct(None)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 3,
        "seed": 7,
        "temperature": 0,
    }
    for path in ("/v1/models", "/version", "/nowhere"):
        there, here = (
            httpx.get(url + path, trust_env=False) for url in (world.engine.base_url, world.director.url)
        )
        assert (there.status_code, there.content.split(b'"created"')[0]) == (
            here.status_code,
            here.content.split(b'"created"')[0],
        )
    texts = []
    for url in (world.engine.base_url, world.director.url):
        with httpx.stream(
            "POST", url + "/v1/chat/completions", json={**body, "stream": True}, trust_env=False, timeout=60
        ) as response:
            chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        texts.append(
            "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        )
    assert texts[0] == texts[1]


def span(name: str, prompt: list[int], completion: list[int]) -> SpanRecord:
    blank = dict.fromkeys(SpanRecord.__dataclass_fields__)
    fields = {"id": name, "prompt_tokens": np.array(prompt), "completion_tokens": np.array(completion)}
    return SpanRecord(**{**blank, **fields})  # type: ignore[arg-type]


def test_lines_are_found_by_tokens() -> None:
    first = span("1", [1, 2], [3])
    side = span("2", [9], [9])
    second = span("3", [1, 2, 3, 4], [5])
    branch = span("4", [1, 2, 3, 7], [8])
    assert [[one.id for one in line] for line in lines([second, side, branch, first])] == [
        ["1", "3"],
        ["2"],
        ["4"],
    ]
    assert extends(second, first) and not extends(second, side) and not extends(first, second)
    fork = replace(second, prompt_tokens=np.array([1, 2, 4, 4]))
    assert not extends(fork, first)
    assert (divergence(fork, first), divergence(second, first)) == (2, 3)
