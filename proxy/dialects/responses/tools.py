"""Tools: functions, custom tools and namespaces as the functions of a chat completion, and their names back again. Pure.

A tool in a namespace is called ``NAMESPACE__NAME`` towards the engine; a custom tool becomes a function with one
argument (``freeform``). Any other type of tool is one that OpenAI's servers or a client of theirs carry out: there is no
such thing here, so it is dropped and its type recorded, and a request that insists on it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.dialects.base import BadRequest
from proxy.dialects.responses import freeform
from proxy.dialects.responses.reading import objects, text_of

_KNOWN_FIELDS = frozenset({"type", "name", "description", "parameters", "strict", "format"})


@dataclass(frozen=True, slots=True)
class Origin:
    """What the caller knows a function of the hub by."""

    name: str
    namespace: str | None = None
    custom: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """The name towards the engine."""
    return f"{namespace}__{name}" if namespace else name


class Toolbox:
    """The tools of one request."""

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        """For the hub."""
        self.ignored: list[str] = []
        self._origins: dict[str, Origin] = {}

    def add(self, tools: Any, where: str, namespace: str | None = None) -> None:
        """Takes the tools of a list in. Raises BadRequest."""
        for index, tool in enumerate(objects(tools, where)):
            place = f"{where}[{index}]"
            kind = text_of(tool, "type", place)
            if kind == "namespace" and namespace is None:
                name = text_of(tool, "name", place)
                if tool.get("description"):
                    self.ignored.append("tools.namespace.description")
                self.add(tool.get("tools"), f"{place}.tools", name)
            elif kind in ("function", "custom"):
                self._add_function(tool, place, namespace)
            else:
                self.ignored.append(f"tools.{kind}")

    def origin(self, function: str) -> Origin:
        """What a function that the model called is to the caller; a name that nobody gave stays as it is."""
        return self._origins.get(function) or Origin(function)

    def choose(self, choice: Any) -> Any:
        """``tool_choice`` for the hub, None for the default. May take functions out. Raises BadRequest."""
        if choice in (None, "auto", "none", "required"):
            return self._simple(choice)
        if not isinstance(choice, dict):
            raise BadRequest(
                f"Invalid value: {choice!r}. Supported values are 'none', 'auto', 'required' and objects.",
                "tool_choice",
            )
        kind = choice.get("type")
        if kind in ("function", "custom"):
            return {"type": "function", "function": {"name": self._named(choice, "tool_choice")}}
        if kind == "allowed_tools":
            return self._allow(choice)
        raise BadRequest(
            f"tool_choice forces the hosted tool {kind!r}: this server has no hosted tools, only functions and custom "
            "tools that the caller carries out.",
            "tool_choice",
            code="unsupported_tool",
        )

    def _add_function(self, tool: Mapping[str, Any], where: str, namespace: str | None) -> None:
        origin = Origin(text_of(tool, "name", where), namespace, tool["type"] == "custom")
        name = flat_name(origin.name, namespace)
        if name in self._origins:
            raise BadRequest(f"Two tools have the name '{name}'.", f"{where}.name")
        self._origins[name] = origin
        function: dict[str, Any] = {"name": name}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if origin.custom:
            function["parameters"] = freeform.PARAMETERS
            if isinstance(form := tool.get("format"), dict) and form.get("type") != "text":
                self.ignored.append("tools.custom.format")
        else:
            function |= {key: tool[key] for key in ("parameters", "strict") if tool.get(key) is not None}
        self.ignored += [f"tools.{key}" for key in tool if key not in _KNOWN_FIELDS and tool[key] is not None]
        self.functions.append({"type": "function", "function": function})

    def _simple(self, choice: str | None) -> str | None:
        if self.functions:
            return choice
        if choice == "required":
            raise BadRequest(
                "tool_choice is 'required', but no function or custom tool is given.", "tool_choice"
            )
        return None

    def _named(self, choice: Mapping[str, Any], where: str) -> str:
        name = flat_name(text_of(choice, "name", where), choice.get("namespace"))
        if name not in self._origins:
            raise BadRequest(f"Tool choice '{name}' not found in 'tools' parameter.", where)
        return name

    def _allow(self, choice: Mapping[str, Any]) -> str | None:
        """Other functions are taken out, since no engine can be told to leave them alone."""
        mode, allowed = choice.get("mode", "auto"), set[str]()
        if mode not in ("auto", "required"):
            raise BadRequest("'tool_choice.mode' must be 'auto' or 'required'.", "tool_choice.mode")
        for index, tool in enumerate(objects(choice.get("tools"), "tool_choice.tools")):
            if tool.get("type") in ("function", "custom"):
                allowed.add(self._named(tool, f"tool_choice.tools[{index}]"))
            elif tool.get("type") == "namespace":
                space = text_of(tool, "name", f"tool_choice.tools[{index}]")
                allowed |= {name for name, origin in self._origins.items() if origin.namespace == space}
        self.functions = [tool for tool in self.functions if tool["function"]["name"] in allowed]
        return self._simple(mode)
