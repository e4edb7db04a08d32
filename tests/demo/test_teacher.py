"""The scripted teacher, asked by the official OpenAI client over a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import openai
import pytest
import uvicorn

from singletree.demo import tasks
from singletree.demo.teacher import MODEL, create_app

SEED, COUNT = 3, 36


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    server = uvicorn.Server(
        uvicorn.Config(create_app(SEED, COUNT), host="127.0.0.1", port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as made:
        yield made
    server.should_exit = True
    thread.join(5)


def test_it_calls_the_tool_of_the_table_and_repeats_the_result(client: openai.OpenAI) -> None:
    for task, tool in tasks.teacher_tasks(SEED, COUNT):
        asked = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": task.prompt}]
        )
        [call] = asked.choices[0].message.tool_calls or []
        assert call.type == "function" and call.function.name == tool
        assert json.loads(call.function.arguments) == {"item": task.item}
        assert asked.choices[0].finish_reason == "tool_calls"
    told = client.chat.completions.create(
        model=MODEL, messages=[{"role": "tool", "tool_call_id": "c1", "content": "$17"}]
    )
    assert told.choices[0].message.content == "$17" and told.choices[0].finish_reason == "stop"


def test_it_streams_the_same(client: openai.OpenAI) -> None:
    task, tool = tasks.teacher_tasks(SEED, COUNT)[0]
    messages = [{"role": "user", "content": task.prompt}]
    chunks = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))  # pyright: ignore
    [call] = chunks[0].choices[0].delta.tool_calls
    assert call.function.name == tool and chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_unknown_question_about_a_known_item_gets_a_wellformed_call(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "And the sofa?"}]
    )
    [call] = asked.choices[0].message.tool_calls or []
    assert call.type == "function" and json.loads(call.function.arguments) == {"item": "sofa"}


def test_another_question_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Who are you?"}])


def test_the_models_route_names_it(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
