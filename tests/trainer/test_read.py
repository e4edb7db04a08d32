"""Reading a rollout follows its lineage: a title and a lost reply are no targets, and are counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from spanlog.writer import SpanDraft
from tests.trainer.world import POLICY, TOOLS, World
from trainer.data.read import read_groups
from trainer.data.samples import build_samples

USER = {"role": "user", "content": "What does tea cost?"}
TITLE = {"role": "system", "content": "Name the conversation."}
CALL = {"id": "c", "type": "function", "function": {"name": "get_price", "arguments": '{"item": "tea"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "7"}


def test_side_calls_and_lost_replies_are_left_out_and_counted(world: World) -> None:
    group = world._open_group(POLICY)
    rollout = group.rollouts[0]

    def write(
        at: float, messages: list[Any], tools: Any, prompt: list[int], completion: list[int], reply: Any
    ) -> str:
        draft = SpanDraft(
            rollout_id=rollout.id,
            policy_id=POLICY,
            engine_id=f"eng_{POLICY}",
            started_at=1_000.0 + at,
            ended_at=1_001.0 + at,
            request=json.dumps({"messages": messages, "tools": tools}).encode(),
            reply={"message": reply},
            prompt_tokens=prompt,
            completion_tokens=completion,
            logprobs=[-1.0] * len(completion),
            sampling={"temperature": 1.0},
        )
        return world.writer.submit(draft).result(30).id

    said = {"role": "assistant", "content": "A talk about tea and its price."}
    write(0.0, [TITLE, USER], None, [9, 8], [7, 7, 7], said)
    write(0.5, [USER], TOOLS, [1, 2], [3], said)  # its answer was lost
    first = write(5.0, [USER], TOOLS, [1, 2], [4], ASKED)
    second = write(7.0, [USER, ASKED, RESULT], TOOLS, [1, 2, 4, 5], [6], said)
    with world.database.read() as conn:
        ((read, *_),) = read_groups(conn, [group.id])
    samples, counts = build_samples(0, read.turns)
    assert [sample.span_ids for sample in samples] == [tuple(sorted((first, second)))]
    assert counts == Counter({"used": 2, "side": 1, "superseded": 1, "tokens_used": 2, "tokens_excluded": 4})
