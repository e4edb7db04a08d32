"""A scripted teacher behind an OpenAI-compatible endpoint: it shows the student the form of a tool call, no skill.

It answers a question with one well-formed call of a tool chosen without regard to the question (see
``tasks.teacher_tasks``), and a tool's result by repeating it. The proxy records it as it records any model.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import zlib
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from singletree.demo import tasks

MODEL = "clerk-teacher"


def create_app(seed: int, count: int) -> FastAPI:
    """The endpoint; ``seed`` and ``count`` are those of the run's teacher tasks."""
    app = FastAPI(openapi_url=None)
    table = {task.prompt: (task.item, tool) for task, tool in tasks.teacher_tasks(seed, count)}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "singletree"}],
        }

    @app.post("/v1/chat/completions")
    async def chat(request: Request):  # noqa: ANN202 - two response classes; annotated they become a response model
        body = orjson.loads(await request.body())
        try:
            message = reply(body["messages"], table)
        except (KeyError, ValueError) as error:
            return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, 400)
        if body.get("stream"):
            return StreamingResponse(stream(message), media_type="text/event-stream")
        return completion(message)

    return app


def reply(messages: list[dict[str, Any]], table: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """The assistant message that follows ``messages``. Raises ValueError if no question is in them."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": text_of(last["content"])}
    question = text_of(last["content"])
    item, tool = table.get(question) or improvise(question)
    arguments = json.dumps({"item": item})
    call = {
        "id": f"call_{zlib.crc32(question.encode()):08x}",
        "type": "function",
        "function": {"name": tool, "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def improvise(question: str) -> tuple[str, str]:
    """Item and tool for a question outside the table; the tool hangs on the text's checksum alone."""
    named = [word for word in re.findall(r"\w+", question) if word in tasks.TRAIN_ITEMS + tasks.HELDOUT_ITEMS]
    if not named:
        raise ValueError("the scripted teacher knows the demo's questions only")
    return named[-1], tasks.TOOLS[zlib.crc32(question.encode()) % len(tasks.TOOLS)]


def text_of(content: str | list[dict[str, Any]] | None) -> str:
    """The text of a message's content, given as a string or as parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def envelope(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{time.time_ns():x}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
    } | {"choices": [{"index": 0, **choice}]}


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """The whole reply. Usage is a count of characters: nothing that is scripted has tokens."""
    finish = "tool_calls" if "tool_calls" in message else "stop"
    size = len(json.dumps(message))
    usage = {"prompt_tokens": 0, "completion_tokens": size, "total_tokens": size}
    return envelope("chat.completion", {"message": message, "finish_reason": finish}) | {"usage": usage}


async def stream(message: dict[str, Any]):  # noqa: ANN201 - an async generator of bytes
    """The same reply as server-sent events: one piece, then the finish reason, then the end mark."""
    delta = dict(message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": finish}):
        yield b"data: " + orjson.dumps(envelope("chat.completion.chunk", choice)) + b"\n\n"
    yield b"data: [DONE]\n\n"


def main() -> None:
    """Serve on loopback until stopped."""
    import uvicorn

    parser = argparse.ArgumentParser(description="the demo's scripted teacher")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    app = create_app(given.seed, given.count)
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning", timeout_keep_alive=600)


if __name__ == "__main__":
    main()
