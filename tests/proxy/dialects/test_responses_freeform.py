"""The free text of a custom tool comes out of the arguments' JSON whole, however the engine cuts it up."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.dialects.responses.freeform import FreeText, arguments, whole_text

texts = st.text(st.one_of(st.sampled_from('"\\/\n\t\b\x7fu{}:é😀'), st.characters(exclude_categories=["Cs"])))
blanks = st.sampled_from(["", " ", "\n  "])


def read_in_pieces(written: str, cuts: list[int]) -> str:
    reader, at, text = FreeText(), 0, ""
    for cut in [*sorted(min(cut, len(written)) for cut in cuts), len(written)]:
        text += reader.feed(written[at:cut])
        at = cut
    return text + reader.finish()


@given(texts, st.booleans(), blanks, st.lists(st.integers(0, 200), max_size=12))
@example("😀", True, "", list(range(40)))
def test_any_text_in_any_pieces(text: str, ascii_only: bool, blank: str, cuts: list[int]) -> None:
    inner = json.dumps(text, ensure_ascii=ascii_only)
    written = f'{blank}{{{blank}"input"{blank}:{blank}{inner}{blank}}}'
    assert read_in_pieces(written, cuts) == text


@given(texts)
def test_arguments_are_its_inverse(text: str) -> None:
    assert whole_text(arguments(text)) == text
    assert json.loads(arguments(text)) == {"input": text}


@given(
    st.text(st.sampled_from('{"input: \\ud83d€e0n}x'), max_size=40), st.lists(st.integers(0, 40), max_size=8)
)
def test_whatever_a_model_writes_reads_the_same_in_pieces(written: str, cuts: list[int]) -> None:
    for text in (written, '{"input":"' + written):
        read = read_in_pieces(text, cuts)
        assert read == whole_text(text)
        read.encode()  # no lone surrogate, which could not be sent


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("plain", "plain"),
        ("{}", "{}"),
        ("", ""),
        ('{"input": 5}', '{"input": 5}'),
        ('{"inp', '{"inp'),
        ('{"input": "cut o', "cut o"),
        ('{"input": "a\\', "a"),
        ('{"input": "a", "more": "b"}', "a"),
        (r'{"input": "\ud83d"}', "\N{REPLACEMENT CHARACTER}"),
        (r'{"input": "\ud83d', "\N{REPLACEMENT CHARACTER}"),
        (r'{"input": "\ude00!"}', "\N{REPLACEMENT CHARACTER}!"),
        (r'{"input": "\ud83d\ud83d\ude00"}', "\N{REPLACEMENT CHARACTER}😀"),
        (r'{"input": "\x\uzzzz"}', r"\x\uzzzz"),
    ],
)
def test_other_forms(written: str, text: str) -> None:
    assert whole_text(written) == text
    assert read_in_pieces(written, list(range(len(written)))) == text
