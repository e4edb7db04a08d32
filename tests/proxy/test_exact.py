"""Exact mode through a served proxy on a fake engine whose template drifts from what it "samples" at every turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proxy.conftest import Served, chat_body
from tests.proxy.fake_engine import CLOSER, PROMPT_IDS, TOKENS, FakeEngine, Fault, render

TEXT = "".join(text for _, text, _ in TOKENS)
SAMPLED = [token for token, _, _ in TOKENS]
FIRST: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SECOND: list[dict[str, Any]] = [
    *FIRST,
    {"role": "assistant", "content": TEXT},
    {"role": "user", "content": "more"},
]


def tail(messages: list[dict[str, Any]], generate: bool = True) -> list[int]:
    """The template's tokens for messages after a reply."""
    whole = render({"messages": [FIRST[0], SECOND[1], *messages], "add_generation_prompt": generate})
    before = render({"messages": SECOND[:2], "add_generation_prompt": False})
    assert whole[: len(before)] == before
    return whole[len(before) :]


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_turn_extends_the_recorded_tokens(ready: Served, fake: FakeEngine, stream: bool) -> None:
    rollout, key = ready.rollout()
    assert ready.chat(key, messages=FIRST, stream=stream).status_code == 200
    assert fake.rendered == [], "nothing to splice, so nothing to render"
    assert ready.chat(key, messages=SECOND, stream=stream).status_code == 200
    first, second = ready.spans(rollout)
    expected = PROMPT_IDS + SAMPLED + tail(SECOND[2:])
    assert fake.requests[-1]["kv_transfer_params"] == {"prompt_token_ids": expected}
    assert second.prompt_tokens is not None and second.prompt_tokens.tolist() == expected
    assert (second.parent_id, second.fork_cause, second.mode) == (first.id, None, "exact")
    assert second.trainable and second.shared_tokens == len(PROMPT_IDS + SAMPLED)
    assert expected != render({"messages": SECOND}), "the template alone would have drifted"


@pytest.mark.parametrize(
    "echo",
    [
        {"role": "assistant", "content": [{"type": "text", "text": TEXT}]},
        {"role": "assistant", "content": TEXT, "reasoning_content": "hm", "tool_calls": None},
        {"role": "assistant", "content": TEXT, "refusal": None, "annotations": []},
    ],
)
def test_a_reply_that_comes_back_in_other_clothes_is_known(ready: Served, echo: dict[str, Any]) -> None:
    rollout, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    ready.chat(key, messages=[*FIRST, echo, {"role": "user", "content": "more"}])
    first, second = ready.spans(rollout)
    assert (second.parent_id, second.fork_cause) == (first.id, None)


def test_an_altered_reply_forks(ready: Served) -> None:
    rollout, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    ready.chat(key, messages=[*FIRST, {"role": "assistant", "content": TEXT + "!"}, SECOND[2]])
    first, second = ready.spans(rollout)
    assert (second.fork_cause, second.trainable) == ("unmatched", True)
    assert (second.parent_id, second.fork_token) == (first.id, len(PROMPT_IDS)), "the nearest that is known"


def test_another_rollout_is_no_history(ready: Served) -> None:
    _, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    rollout, other = ready.rollout()
    ready.chat(other, messages=SECOND)
    (span,) = ready.spans(rollout)
    assert (span.parent_id, span.fork_cause) == (None, "unmatched")


def test_an_engine_that_ignores_the_tokens_is_noticed(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    fake.fault = Fault("ignores_tokens")
    assert ready.chat(key, messages=SECOND).status_code == 200
    _, second = ready.spans(rollout)
    assert (second.trainable, second.untrainable_reason) == (False, "exact_prompt_ignored")
    assert second.fork_cause == "exact_prompt_ignored"
    assert second.prompt_tokens is not None and second.prompt_tokens.tolist() == render({"messages": SECOND})


def test_observe_mode_records_the_drift(ready: Served, fake: FakeEngine) -> None:
    ready.policy(mode="observe")
    rollout, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    ready.chat(key, messages=SECOND)
    assert fake.rendered == [] and "kv_transfer_params" not in fake.requests[-1]
    first, second = ready.spans(rollout)
    assert (second.parent_id, second.fork_cause) == (first.id, "drift")
    assert second.fork_token == second.shared_tokens == len(PROMPT_IDS)
    assert (first.mode, second.mode) == ("observe", "observe")


def test_a_prompt_beyond_the_window_is_refused_in_openais_words(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    response = ready.chat(key, messages=[*SECOND[:2], {"role": "user", "content": "x" * 600}])
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in response.json()["error"]["message"]
    assert len(fake.requests) == 1
    assert [span.status for span in ready.spans(rollout)] == ["ok", "refused"]


def test_what_may_be_generated_is_clamped_to_what_the_prompt_leaves(ready: Served, fake: FakeEngine) -> None:
    _, key = ready.rollout()
    ready.chat(key, messages=FIRST)
    ready.chat(key, messages=SECOND, max_tokens=65536)
    body = fake.requests[-1]
    assert body["max_tokens"] == 512 - len(body["kv_transfer_params"]["prompt_token_ids"])


def test_media_are_refused_in_exact_mode_and_pass_in_observe_mode(ready: Served, fake: FakeEngine) -> None:
    _, key = ready.rollout()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]
    refused = ready.chat(key, messages=messages)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "media_in_exact_mode")
    ready.policy(mode="observe")
    assert ready.chat(key, messages=messages).status_code == 200
    assert fake.requests[-1]["messages"] == messages


def test_media_are_refused_whatever_else_is_untrainable(ready: Served) -> None:
    _, key = ready.rollout()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    refused = ready.chat(key, messages=[{"role": "user", "content": [image]}], tool_choice="required")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "media_in_exact_mode")


@pytest.mark.parametrize("word", ["serve", "refuse"])
def test_the_policy_says_what_becomes_of_untrainable_requests(ready: Served, word: str) -> None:
    ready.policy(untrainable=word)
    rollout, key = ready.rollout()
    response = ready.chat(key, response_format={"type": "json_object"})
    if word == "refuse":
        assert (response.status_code, response.json()["error"]["code"]) == (400, "untrainable_request")
        assert "response_format" in response.json()["error"]["message"]
    else:
        assert response.status_code == 200
        assert ready.span(rollout).untrainable_reason == "response_format"


def test_an_engine_without_exact_tokens_cannot_serve_an_exact_policy(proxy: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("ignores_tokens")
    proxy.policy()
    body = {"policy": "pol", "base_url": fake.url}
    refused = proxy.api("PUT", "/api/engines/eng", body)
    assert refused.json()["error"]["code"] == "exact_tokens", refused.text
    proxy.policy(mode="observe")
    assert proxy.ok("PUT", "/api/engines/eng", body)["capabilities"]["exact_tokens"] is False


def test_what_registration_found_out_about_turns(ready: Served) -> None:
    assert ready.ok("GET", "/api/engines/eng")["capabilities"]["turn_closer"] == [CLOSER]


def test_the_harnesss_own_label_is_recorded(ready: Served) -> None:
    rollout, key = ready.rollout()
    headers = {"x-api-key": key, "x-session-id": "ses_7"}
    assert ready.http.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 200
    assert ready.span(rollout).thread == "ses_7"


def test_a_frozen_policy_keeps_the_callers_request(proxy: Served, fake: FakeEngine) -> None:
    proxy.policy("still", kind="frozen")
    proxy.engine(fake, "still")
    rollout, key = proxy.rollout("still")
    proxy.chat(key, **chat_body(messages=FIRST))
    proxy.chat(key, messages=SECOND)
    assert [span.mode for span in proxy.spans(rollout)] == ["observe", "observe"]
    assert "kv_transfer_params" not in fake.requests[-1]
