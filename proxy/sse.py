"""Server-sent events, read at byte level.

Why of our own: an event, a line ending or a UTF-8 character may be split anywhere by the network, and what is held
back or let through [I3] is decided per event, so events must come out exactly as they were sent. Pure: bytes in,
payloads out. Format: WHATWG HTML, section 9.2 "Server-sent events".
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Feed it what the socket gave; it returns the ``data`` payloads of the events completed by it.

    Lines may end in LF, CRLF or CR, also when the CR is the last byte of one read and the LF the first of the next.
    Comments and the fields ``event``, ``id`` and ``retry`` are skipped: chat completions use none. Bytes after the
    last blank line stay in the parser; ``pending`` tells whether the stream ended inside an event.
    """

    __slots__ = ("_data", "_first", "_skip_lf", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []  # pieces of the line that is not yet ended
        self._data: list[bytes] = []
        self._skip_lf = False
        self._first = True

    @property
    def pending(self) -> bool:
        return bool(self._data or self._tail)

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if not chunk:
            return []
        if b"\n" not in chunk and b"\r" not in chunk:
            self._tail.append(chunk)
            return []
        self._skip_lf = chunk[-1] == 0x0D
        if self._tail:
            chunk = b"".join([*self._tail, chunk])
        lines = chunk.splitlines()  # on bytes: LF, CRLF and CR only
        self._tail = [] if chunk[-1] in b"\r\n" else [lines.pop()]
        return self._dispatch(lines)

    def _dispatch(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        data = self._data
        for line in lines:
            if not line:
                if data and (payload := b"\n".join(data)):
                    events.append(payload)
                data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                data.append(b"")
        return events


def encode(payload: bytes) -> bytes:
    """One event holding ``payload`` (JSON or ``[DONE]``: no line breaks in it)."""
    return b"data: " + payload + b"\n\n"
