"""Tools and the choice among them, in hub terms. Pure.

A tool with an ``input_schema`` is a function, whatever its ``type``. One without is either run by Anthropic
(``web_search_…``) or built into its models (``bash_…``): the schema is not in the request, no other model knows it, so
it is dropped and recorded as ``tools.TYPE``. Where the choice forces a dropped tool, the request is refused.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.messages.reading import Ignored, optional, require, wrong

_TOOL = frozenset({"name", "description", "input_schema", "strict"})
_CHOICE = frozenset({"name", "disable_parallel_tool_use"})


def read_tools(tools: Any, added: list[Any], ignored: Ignored) -> list[dict[str, Any]]:
    """``tools`` and those that messages added, each name once, the later definition in the earlier one's place.

    Raises BadRequest.
    """
    if tools is not None and not isinstance(tools, list):
        raise wrong("tools", "must be an array")
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate([*(tools or ()), *added]):
        path = f"tools.{index}"
        if not isinstance(tool, dict):
            raise wrong(path, "must be an object")
        if function := _read_tool(tool, path, ignored):
            found[function["name"]] = {"type": "function", "function": function}
    return list(found.values())


def _read_tool(tool: dict[str, Any], path: str, ignored: Ignored) -> dict[str, Any] | None:
    kind = optional(tool, "type", str, "a string", path)
    if "input_schema" not in tool and kind not in (None, "custom"):
        ignored.add(f"tools.{kind}")
        return None
    ignored.fields(tool, _TOOL, "tools")
    function: dict[str, Any] = {"name": require(tool, "name", str, "a string", path)}
    if (description := optional(tool, "description", str, "a string", path)) is not None:
        function["description"] = description
    function["parameters"] = require(tool, "input_schema", dict, "an object", path)
    if (strict := optional(tool, "strict", bool, "a boolean", path)) is not None:
        function["strict"] = strict
    return function


def read_choice(choice: Any, tools: list[dict[str, Any]], ignored: Ignored) -> dict[str, Any]:
    """The hub's fields for ``tool_choice``. Raises BadRequest."""
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise wrong("tool_choice", "must be an object")
    ignored.fields(choice, _CHOICE, "tool_choice")
    fields: dict[str, Any] = {}
    kind = choice.get("type")
    if kind == "tool":
        name = require(choice, "name", str, "a string", "tool_choice")
        if not any(tool["function"]["name"] == name for tool in tools):
            raise wrong("tool_choice.name", f"{name!r} is none of the tools that are served here")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind == "any":
        if not tools:
            raise wrong("tool_choice", "'any' needs a tool, and none of the request's is served here")
        fields["tool_choice"] = "required"
    elif kind not in ("auto", "none"):
        raise wrong("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'")
    elif tools:  # without tools there is nothing to choose from
        fields["tool_choice"] = kind
    if tools and optional(choice, "disable_parallel_tool_use", bool, "a boolean", "tool_choice"):
        fields["parallel_tool_calls"] = False
    return fields
