"""The parser gives the same events however the bytes are split."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sse import SseParser, encode

PAYLOADS = [b'{"text": "w\xc3\xb6rld \xf0\x9f\x8c\xb3"}', b'{"a":\n1}', b"[DONE]"]


def parse(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def stream(line_end: bytes, space: bytes = b" ") -> bytes:
    """The payloads as a stream with comments and other fields between them."""
    lines = [b": keep-alive", b""]
    for number, payload in enumerate(PAYLOADS):
        data = [b"data:" + space + line for line in payload.split(b"\n")]
        lines += [b"id: %d" % number, b"event: chunk", *data, b""]
    return line_end.join(lines) + line_end


def test_every_split_in_two_and_three() -> None:
    for line_end in (b"\n", b"\r\n", b"\r"):
        raw = stream(line_end)
        for first in range(len(raw) + 1):
            assert parse(raw[:first], raw[first:]) == PAYLOADS
            for second in range(first, min(first + 9, len(raw) + 1)):
                assert parse(raw[:first], raw[first:second], raw[second:]) == PAYLOADS


def test_byte_by_byte_without_space() -> None:
    for line_end in (b"\n", b"\r\n", b"\r"):
        assert parse(*[bytes([byte]) for byte in stream(line_end, b"")]) == PAYLOADS


def test_cr_at_the_end_of_a_read_completes_the_event() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\r") == [b"1"]
    assert parser.feed(b"\ndata: 2\r") == []
    assert parser.feed(b"\n\r") == [b"2"]
    assert parser.feed(b"\n") == []
    assert not parser.pending


def test_several_data_lines_and_a_byte_order_mark() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\ndata: b\n\ndata\n\ndata:  c\n\n") == [b"a\nb", b" c"]


def test_an_unfinished_event_is_not_given_out() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.pending


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(documents=st.lists(JSON, max_size=6), data=st.data())
def test_any_documents_any_splits(documents: list[object], data: st.DataObject) -> None:
    payloads = [
        json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass") for document in documents
    ]
    raw = b"".join(encode(payload) for payload in payloads)
    if data.draw(st.booleans()):
        raw = raw.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parse(*pieces) == payloads
