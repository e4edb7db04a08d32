"""Custom tools on an engine that only knows functions: the free text is the argument ``input`` of a function.

The text comes out of the engine as a JSON string, in fragments that may end anywhere, also inside an escape. It is
unescaped as it comes, so that the caller gets plain text without waiting for the end. Arguments of another form than
``{"input": "…"}`` (a model may write anything) are handed on as they are, as text. Pure.
"""

from __future__ import annotations

import re

import orjson

PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""JSON schema of the function that stands for a custom tool."""

_LEADING = ("{", '"input"', ":", '"')
"""What comes before the text; white space may stand before each."""
_BLANK = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNIT = re.compile(r"\\u([0-9a-fA-F]{4})")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def arguments(text: str) -> str:
    """The arguments that carry ``text``: the inverse of ``FreeText``."""
    return orjson.dumps({"input": text}).decode()


def whole_text(written: str) -> str:
    """The text in the whole arguments of a call."""
    reader = FreeText()
    return reader.feed(written) + reader.finish()


class FreeText:
    """Feed it the fragments of the arguments; it returns the text that they add."""

    __slots__ = ("_pending", "_state")

    def __init__(self) -> None:
        self._pending = ""
        self._state = "leading"

    def feed(self, fragment: str) -> str:
        if self._state == "raw":
            return fragment
        if self._state == "done":
            return ""
        self._pending += fragment
        if self._state == "leading":
            end = _after_leading(self._pending)
            if end is None:
                self._state = "raw"
                return self._take_all()
            if end < 0:
                return ""
            self._pending = self._pending[end:]
            self._state = "text"
        return self._unescape()

    def finish(self) -> str:
        """What is left when no more comes: arguments that were cut off before their text began, half a pair."""
        rest, self._pending = self._pending, ""
        if self._state == "leading":
            return rest
        return _REPLACEMENT if _UNIT.match(rest) else ""

    def _take_all(self) -> str:
        taken, self._pending = self._pending, ""
        return taken

    def _unescape(self) -> str:
        text, at, pieces = self._pending, 0, []
        while True:
            plain = _PLAIN.match(text, at)
            assert plain is not None  # it matches the empty string too
            pieces.append(plain[0])
            at = plain.end()
            if at < len(text) and text[at] == '"':
                self._state, at = "done", len(text)
            if at == len(text):
                break
            read = _escape(text, at)
            if read is None:
                break
            pieces.append(read[0])
            at = read[1]
        self._pending = text[at:]
        return "".join(pieces)


def _after_leading(text: str) -> int | None:
    """Where the text begins; -1 while that cannot be told yet; None where these are no such arguments."""
    at = 0
    for token in _LEADING:
        blank = _BLANK.match(text, at)
        assert blank is not None
        at = blank.end()
        found = text[at : at + len(token)]
        if found != token:
            return -1 if token.startswith(found) else None
        at += len(token)
    return at


def _escape(text: str, at: int) -> tuple[str, int] | None:
    """What the escape at ``at`` stands for and where it ends; None where its end has not come yet."""
    kind = text[at + 1 : at + 2]
    if not kind:
        return None
    if kind != "u":  # what is no escape in JSON stays as it is
        return _ESCAPES.get(kind, "\\" + kind), at + 2
    first = _UNIT.match(text, at)
    if first is None:
        return None if len(text) < at + 6 else ("\\u", at + 2)
    unit = int(first[1], 16)
    if not 0xD800 <= unit < 0xDC00:
        return _REPLACEMENT if 0xDC00 <= unit < 0xE000 else chr(unit), at + 6
    second = _UNIT.match(text, at + 6)
    if second is not None and 0xDC00 <= (low := int(second[1], 16)) < 0xE000:
        return chr(0x10000 + ((unit - 0xD800) << 10) + low - 0xDC00), at + 12
    if second is None and _may_become_unit(text[at + 6 :]):
        return None
    return _REPLACEMENT, at + 6


def _may_become_unit(rest: str) -> bool:
    """Whether ``rest``, the end of what has come, can be the beginning of ``\\uXXXX``."""
    if len(rest) >= 6:
        return False
    return "\\u".startswith(rest) or (
        rest.startswith("\\u") and all(digit in "0123456789abcdefABCDEF" for digit in rest[2:])
    )
