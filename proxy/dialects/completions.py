"""Text completions: a prompt instead of messages, served by the engine's own route for them. Pure.

The hub request is the completions request itself. Replies are turned into chat shape for the capture and back for the
caller, so that tokens are read in one place for all dialects. Source of the format: OpenAI's API reference,
"Completions (legacy)"; what vLLM adds to it (``return_token_ids``, ``prompt_logprobs``) is sent to those who ask.
docs/dialects/completions.md says what is dropped, refused and kept from training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from proxy import hub, sse
from proxy.dialects import chat
from proxy.dialects.base import BadRequest, Failure, Target
from proxy.dialects.chat import error

__all__ = ["CompletionCall", "decode", "error"]

name = "completions"
engine_path = "/v1/completions"

_DROPPED = ("best_of", "messages")
"""Fields that vLLM's route does not have: it would ignore ``best_of`` without a word, and ``messages`` is the hub's
name for something else."""


def decode(raw: bytes, target: Target) -> CompletionCall:
    """Checks the types that the proxy itself relies on; the engine checks the rest. Raises BadRequest."""
    request = hub.parse_body(raw)
    hub.check_types(
        request,
        ("model", str, "a string"),
        ("stream", bool, "a boolean"),
        ("echo", bool, "a boolean"),
        ("n", int, "an integer"),
        ("logprobs", int, "an integer"),
        ("max_tokens", int, "an integer"),
        ("stream_options", dict, "an object"),
    )
    if request.get("prompt_embeds") is not None:
        raise BadRequest(
            "'prompt_embeds' is not served: the span could not hold what the model saw.", "prompt_embeds"
        )
    return CompletionCall(request, _prompts(request.get("prompt")))


class CompletionCall:
    """See ``base.Call``."""

    def __init__(self, request: dict[str, Any], prompts: list[Any]) -> None:
        """``prompts`` has a string or a list of token ids for each prompt."""
        self.hub = {key: value for key, value in request.items() if key not in _DROPPED}
        self.stream = request.get("stream") is True
        self.ignored = [key for key in _DROPPED if key in request]
        self.previous: str | None = None
        self._echo = request.get("echo") is True
        self._choices_each = max(1, request.get("n") or 1)
        self.untrainable = _untrainable(prompts, self._choices_each, self._echo)
        self._prompts = prompts
        self._asked = _read_asked(request)
        self.restart()

    def resume(self, messages: list[dict[str, Any]]) -> None:
        raise AssertionError("a text completion names no stored reply")

    def restart(self) -> None:
        self._prefixes: dict[int, str] = {}
        """What the text of a choice begins with, if it was not sent yet."""

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        """Gives each choice a ``message`` or ``delta``, and its logprobs the ``content`` that chat has. Changes and
        returns ``document``, which keeps the route's own form of the logprobs beside it."""
        for choice in document.get("choices") or ():
            index = choice.get("index", 0)
            text = choice.pop("text")
            if self.stream:
                choice["delta"] = {"content": text}
            else:
                choice["message"] = {"role": "assistant", "content": text}
            prompt_ids = choice.get("prompt_token_ids")
            if prompt_ids is not None and index == 0:
                document["prompt_token_ids"] = prompt_ids
            echoed = len(prompt_ids) if self._echo and prompt_ids is not None else 0
            if logprobs := choice.get("logprobs"):
                values = logprobs["token_logprobs"][echoed:]
                logprobs["content"] = [{"logprob": value} for value in values]
                if echoed and not values:
                    choice[
                        "token_ids"
                    ] = []  # max_tokens was 0: vLLM samples one token and withholds its text
            if echoed:
                self._prefixes[index] = self._prompt_text(index, logprobs, echoed)
        return document

    def whole(self, reply: dict[str, Any]) -> bytes:
        chat.clean_reply(reply, self._asked)
        self._encode(reply, "message")
        return orjson.dumps(reply)

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        if not chat.clean_chunk(chunk, self._asked):
            return b""
        self._encode(chunk, "delta")
        return sse.encode(orjson.dumps(chunk))

    def end(self) -> bytes:
        return chat.DONE

    def error_event(self, failure: Failure) -> bytes:
        return sse.encode(orjson.dumps(error(failure)))

    def _encode(self, document: dict[str, Any], message: str) -> None:
        """From chat shape back to the route's own, with what was asked for. Changes ``document``."""
        document.pop("prompt_token_ids", None)  # they belong into the choices
        for choice in document.get("choices") or ():
            index = choice.get("index", 0)
            choice["text"] = self._prefixes.pop(index, "") + (choice.pop(message).get("content") or "")
            if choice.get("logprobs") is not None:
                choice["logprobs"].pop("content", None)
            if not self._asked.token_ids:
                choice.pop("prompt_token_ids", None)
            if not self._asked.prompt_logprobs:
                choice.pop("prompt_logprobs", None)

    def _prompt_text(self, index: int, logprobs: Mapping[str, Any] | None, count: int) -> str:
        """What an echo begins with: vLLM leaves it out where it is asked for token ids, as the proxy always does."""
        prompt = self._prompts[index // self._choices_each]
        if isinstance(prompt, str):
            return prompt
        return "".join((logprobs or {}).get("tokens", ())[:count])


def _prompts(prompt: Any) -> list[Any]:
    """One string or list of token ids for each prompt. Raises BadRequest."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        texts = all(isinstance(one, str) for one in prompt)
        if texts or all(map(_is_ids, prompt)):
            return prompt
    raise BadRequest(
        "'prompt' must be a string, an array of token ids, or an array of one kind of these.", "prompt"
    )


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def _untrainable(prompts: list[Any], choices_each: int, echo: bool) -> str | None:
    if len(prompts) * choices_each != 1:
        return "multiple_choices"
    return "echo" if echo else None


def _read_asked(request: Mapping[str, Any]) -> chat.Asked:
    return chat.Asked(
        model=request.get("model"),
        logprobs=request.get("logprobs") is not None,  # a number here, and 0 asks for the sampled token's
        token_ids=bool(request.get("return_token_ids")),
        usage=bool((request.get("stream_options") or {}).get("include_usage")),
        reasoning=True,
        prompt_logprobs=request.get("prompt_logprobs") is not None,
        prompt_text=False,
    )
