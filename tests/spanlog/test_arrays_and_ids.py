"""Arrays come back as they went in; ids sort by time."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

from spanlog import arrays
from spanlog.blobs import blob_row, unpack
from spanlog.ids import PREFIXES, new_id
from spanlog.text import storable

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.one_of(st.lists(INT32), st.lists(st.sampled_from([0, 1, -1]), max_size=200)))
def test_integers_round_trip(values: list[int]) -> None:
    data = arrays.encode_ints(values)
    decoded = arrays.decode_ints(data)
    assert decoded.dtype == np.int32 and decoded.tolist() == values
    assert len(data) <= 1 + 4 * len(values), "an encoding never costs room"


@given(st.integers(300, 3000), st.integers(0, 2**32))
def test_token_ids_take_three_bytes_at_most(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 151_936, count)
    data = arrays.encode_ints(values)
    assert data[0] == arrays.DEFLATED_INTS and len(data) <= 3.1 * count + 64
    assert arrays.decode_ints(data).tolist() == values.tolist()


@given(numpy_arrays(np.float32, st.integers(0, 50)))
def test_floats_round_trip_bit_by_bit(values: np.ndarray) -> None:
    decoded = arrays.decode_floats(arrays.encode_floats(values))
    assert decoded.dtype == np.float32 and decoded.tobytes() == values.tobytes()


def test_the_bytes_are_those_of_the_format() -> None:
    assert arrays.encode_ints([1, 2]) == b"\x00\x01\0\0\0\x02\0\0\0"
    assert arrays.encode_ints([7] * 5) == b"\x02\x07\0\0\0\x05\0\0\0"
    assert arrays.encode_floats([1.0]) == b"\x01\x00\x00\x80\x3f"
    assert arrays.encode_ints([]) == b"\x00"


@pytest.mark.parametrize("values", [[2**31], [-(2**31) - 1], [0.5], [[1]], ["1"]])
def test_what_is_no_int32_is_refused(values: list) -> None:
    with pytest.raises(ValueError):
        arrays.encode_ints(values)


@pytest.mark.parametrize("data", [b"", b"\x01\0\0\0\0", b"\x09"])
def test_another_codec_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        arrays.decode_ints(data)
    with pytest.raises(ValueError):
        arrays.decode_floats(b"\x00" + data[1:])


@given(st.binary(max_size=2000), st.integers(0, 3))
def test_blobs_round_trip_and_are_named_by_content(data: bytes, repeats: int) -> None:
    row = blob_row(data * repeats)
    assert unpack(row["codec"], row["data"]) == data * repeats
    assert row["hash"] == blob_row(data * repeats)["hash"]
    assert len(row["data"]) <= len(data * repeats)


def test_ids_of_one_process_increase() -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(new_id("spn") for _ in range(500))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == len(ids) == 1500
    alone = [new_id("spn") for _ in range(500)]
    assert alone == sorted(alone)


@given(st.floats(0, 4e9), st.floats(1e-5, 1e6))
def test_ids_sort_by_the_time_they_are_given(at: float, later: float) -> None:
    assert new_id("spn", at) < new_id("spn", at + later)
    assert len(new_id("rol", at)) == len("rol_") + 26


def test_prefixes_are_known() -> None:
    assert {new_id(prefix)[:4] for prefix in PREFIXES} == {f"{prefix}_" for prefix in PREFIXES}
    with pytest.raises(ValueError):
        new_id("xyz")


def test_unstorable_text_is_replaced_at_any_depth() -> None:
    assert storable({"a\x00": ["\ud800x", 1, None, math.pi]}) == {"a�": ["�x", 1, None, math.pi]}
