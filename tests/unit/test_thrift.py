"""Thrift's compact protocol: what is written is read, and what lies about itself is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.formats.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    MAX_DEPTH,
    STRUCT,
    Compact,
    ThriftWriter,
    listed,
    zigzag,
)

I64S = st.integers(-(2**63), 2**63 - 1)


@given(
    numbers=st.lists(I64S, max_size=40),
    text=st.binary(max_size=300),
    last=st.integers(-(2**31), 2**31 - 1),
)
def test_what_is_written_is_read(numbers: list[int], text: bytes, last: int) -> None:
    inner = ThriftWriter().number(1, I32, last).finish()
    data = (
        ThriftWriter()
        .list(2, listed(I64, [zigzag(number) for number in numbers]))
        .binary(3, text)
        .struct(7, inner)
        .finish()
    )
    reader = Compact(data)
    found: dict[int, object] = {}
    for field, kind in reader.fields():
        if kind == LIST:
            _, count = reader.elements()
            found[field] = [reader.number(I64) for _ in range(count)]
        elif kind == BINARY:
            found[field] = reader.binary()
        else:
            found[field] = [(f, reader.number(k)) for f, k in reader.fields()]
    assert found == {2: numbers, 3: text, 7: [(1, last)]}
    assert reader.position == len(data)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_skipped_or_refused(data: bytes) -> None:
    reader = Compact(data)
    try:
        reader.skip(STRUCT)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert reader.position <= len(data)


@given(data=st.binary(max_size=60))
def test_what_is_read_field_by_field_is_skipped_alike(data: bytes) -> None:
    """Both ways over a struct must agree on where it ends."""
    walked, skipped = Compact(data), Compact(data)
    try:
        for _, kind in walked.fields():
            walked.skip(kind)
    except ValueError:
        return  # the one that reads is stricter: a field may not come twice
    skipped.skip(STRUCT)
    assert skipped.position == walked.position


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x18\xff\xff\xff\xff\x0f", "more than what is left|ends too early"),  # a long text
        (b"\x19\xf8\xff\xff\xff\xff\x0f", "longer|ends too early"),  # a list of 2^32 texts
        (b"\x19\xf1\xff\xff\xff\xff\x0f", "longer|ends too early"),  # of 2^32 bools, without bytes
        (b"\x1b\xff\xff\xff\xff\x0f\x88", "longer|ends too early"),  # a map
        (b"\x15" + b"\xff" * 20, "ends too early"),  # a number without an end
        (b"\x1c" * (MAX_DEPTH + 2), f"nested more than {MAX_DEPTH} deep"),
        (b"\x19\x19" * (MAX_DEPTH + 2), f"nested more than {MAX_DEPTH} deep"),
        (b"\x1e\x00", "type 14"),
    ],
)
def test_claims_are_refused_before_anything_is_taken(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Compact(data).skip(STRUCT)


@pytest.mark.parametrize(
    ("data", "kind"), [(b"\xff\xff\x07", I16), (b"\xff\xff\xff\xff\x1f", I32), (b"\x80" * 11, I64)]
)
def test_numbers_have_the_bits_of_their_type(data: bytes, kind: int) -> None:
    with pytest.raises(ValueError, match=r"more than|no end"):
        Compact(data).number(kind)


def test_a_field_may_not_come_twice() -> None:
    reader = Compact(b"\x15\x02\x05\x02\x04\x00")  # field 1, and field 1 again by its number
    fields = reader.fields()
    _, kind = next(fields)
    reader.skip(kind)
    with pytest.raises(ValueError, match="field 1 comes twice"):
        next(fields)


def test_writers_go_up() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        ThriftWriter().number(2, I32, 1).number(2, I32, 1)
