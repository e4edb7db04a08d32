"""Stored requests, put together again only when someone looks: a trainer that needs tokens alone parses none [I5].

A request is a chain of changes (see ``spanlog.delta``), one for each span up to the root. The chain is walked, never
recursed into: conversations have thousands of turns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from spanlog import delta
from spanlog.blobs import unpack
from spanlog.delta import EMPTY, Document

Packed = tuple[str, bytes]
"""A blob: codec and data."""


@dataclass(frozen=True)
class Change:
    """One span's columns of delta storage, not decoded yet."""

    key: str | None
    patch: Packed
    shared: int
    items: Packed | None
    tools: Packed | None

    def apply(self, before: Document) -> Document:
        return delta.decode(
            before,
            self.key,
            unpack(*self.patch),
            self.shared,
            None if self.items is None else unpack(*self.items),
            None if self.tools is None else unpack(*self.tools),
        )


class Stored:
    """A request, or what it is in hub terms."""

    __slots__ = ("_before", "_change", "_document", "_whole")

    def __init__(
        self, *, before: Stored | None = None, change: Change | None = None, whole: Packed | None = None
    ) -> None:
        """A ``change`` of ``before``, or a ``whole`` body, or neither: there was none."""
        self._before = before
        self._change = change
        self._whole = whole
        self._document = EMPTY if change is None else None

    def document(self) -> Document:
        """Taken apart, as children are compared with it; empty for a whole body."""
        line: list[Stored] = []
        node: Stored | None = self
        while node is not None and node._document is None:
            line.append(node)
            node = node._before
        document = EMPTY if node is None or node._document is None else node._document
        for node in reversed(line):
            assert node._change is not None
            document = node._change.apply(document)
        self._document = document
        return document

    def value(self) -> Any:
        """The JSON value; null if there is none. Parts of it belong to other requests, too: do not change it."""
        if self._change is not None:
            return self.document().value()
        body = self.body()
        if body is None:
            return None
        try:
            return json.loads(body)
        except RecursionError:
            return orjson.loads(body)
        except ValueError:
            return None

    def body(self) -> bytes | None:
        """The body byte for byte, where it was stored whole."""
        return None if self._whole is None else unpack(*self._whole)
