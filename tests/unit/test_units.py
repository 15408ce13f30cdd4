"""Sizes, durations and rates: what people write, and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import UsageError
from iobench.base.units import (
    MAX_BYTES,
    format_bytes,
    format_duration,
    format_rate,
    parse_duration,
    parse_size,
)

SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("146.6 MB", 146_600_000),
        ("64MiB", 64 << 20),
        (" 1 GiB ", 1 << 30),
        ("146,600,628", 146_600_628),
        ("1_000", 1000),
        (".5 KiB", 512),
        (0.6, 1),
        ("0", 0),
    ],
)
def test_a_size_is_read(text: str | int | float, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("323ms", 0.323),
        ("2 min", 120.0),
        (0.5, 0.5),
        ("1h", 3600.0),
        ("250µs", 250e-6),
    ],
)
def test_a_duration_is_read(text: str | int | float, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("value", [-1, math.nan, 10**400, "9" * 5000, True, "", "1,5 MB", "٣"])
@pytest.mark.parametrize("parse", [parse_size, parse_duration])
def test_what_makes_no_sense_is_refused_in_one_short_line(parse: object, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse(value)  # type: ignore[operator]
    message = str(caught.value)
    assert len(message) < 200
    assert "Write it like" in message


@pytest.mark.parametrize("value", [MAX_BYTES + 1, "1e300", 1e300, "16 EiB"])
def test_a_size_that_no_file_can_have_is_refused(value: str | float) -> None:
    with pytest.raises(UsageError, match="8 EiB"):
        parse_size(value)


@pytest.mark.parametrize("text", ["100Gb", "1.5 Mb", "20Tb", "1,000Gb", "1e3 Gib"])
def test_bits_are_not_taken_for_bytes(text: str) -> None:
    with pytest.raises(UsageError, match=r"is a number of bits. Write [MGT]i?B for bytes"):
        parse_size(text)


@given(
    st.integers(0, 8000),
    st.sampled_from(sorted(SIZE_UNITS)),
    st.sampled_from(["", " "]),
    st.booleans(),
)
def test_a_unit_multiplies(count: int, unit: str, gap: str, lower: bool) -> None:
    assert parse_size(f"{count}{gap}{unit.lower() if lower else unit}") == count * SIZE_UNITS[unit]


@given(st.floats(0, 2**50))
def test_what_is_printed_reads_back(count: float) -> None:
    assert parse_size(format_bytes(count)) == pytest.approx(count, rel=0.006, abs=0.51)


def test_large_rates_and_sizes_have_large_units() -> None:
    assert format_rate(186_327e12) == "186 PB/s"
    assert format_bytes(3 * 2**60) == "3.00 EiB"


def test_what_is_rounded_up_has_the_next_unit_and_what_is_zero_is_left_out() -> None:
    seconds = (999.6e-6, 0.9997, 9.997, 3599.6, 1800, 7200, -150)
    printed = [format_duration(each) for each in seconds]
    assert printed == ["1.00 ms", "1.00 s", "10.0 s", "1 h", "30 min", "2 h", "-2 min 30 s"]
    assert [format_rate(99.97e6), format_bytes(1023.7 * 1024)] == ["100 MB/s", "1.00 MiB"]


@given(st.floats(1e-6, 99))
def test_a_printed_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.006)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            value = parse(text)
        except UsageError:
            continue
        assert math.isfinite(value)
        assert value >= 0
