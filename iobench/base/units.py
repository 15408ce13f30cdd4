"""Parse and format sizes, durations and rates, and format the time.

Data holds plain numbers in base units (bytes, seconds); text always has a unit. SI prefixes (kB,
MB, GB) are powers of 1000, IEC prefixes (KiB, MiB, GiB) powers of 1024 (IEC 80000-13).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from .errors import UsageError

_SIZE_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgtpe", start=1):
    _SIZE_UNITS[f"{_prefix}b"] = 1000**_power
    _SIZE_UNITS[f"{_prefix}ib"] = 1024**_power

_DURATION_UNITS = {
    "": 1.0,
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}

MAX_BYTES = 2**63 - 1
"""The largest size: offsets in files and in the manifest's tables are signed 64-bit integers."""

MIN_SECONDS, MAX_SECONDS = 1e-12, 1e12
"""Durations outside this range (1e12 s: 30,000 years) are typing errors. Within it, rates computed
from them stay finite."""

MIN_SHARE = 1e-9
"""A fraction of a time or a rate below this is a typing error."""

RESTART_S = 300.0
"""From an interruption until a training continues, without the restore, unless a user states it."""

_QUANTITY = re.compile(
    r"^\s*([+-]?(?:\d+(?:[_,]\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*$",
    re.ASCII,
)

_BITS = re.compile(r"([MGT]i?)b")
"""Units of bits, in which networks are sold: the case of ``b`` tells them from those of bytes."""


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = _QUANTITY.match(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise UsageError(f"'{_short(text)}' is not a {what}", remedy=f"write it like {examples}")
    number = match.group(1).replace("_", "").replace(",", "")
    try:
        # Whole numbers stay integers, so that no byte is lost above 2^53.
        value = (int(number) if number.lstrip("+-").isdigit() else float(number)) * units[unit]
        finite = math.isfinite(value)
    except (OverflowError, ValueError):  # too large for a float, or too many digits for an integer
        finite = False
    if not finite:
        raise UsageError(
            f"'{_short(text)}' is not a finite {what}", remedy=f"write it like {examples}"
        )
    return value


def _short(value: object) -> str:
    """A value for a message of one line; integers may have thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def parse_size(text: str | int | float) -> int:
    """Bytes of ``"146.6 MB"``, ``"64MiB"`` or ``4096``, rounded to a whole number.

    Raises UsageError, also for more than MAX_BYTES, and for ``"100Gb"``, since networks are sold in
    such bits.
    """
    if isinstance(text, bool):
        raise UsageError(f"'{text}' is not a size", remedy="write it like '146.6 MB' or '64MiB'")
    given = _QUANTITY.match(text) if isinstance(text, str) else None
    if given is not None and (bits := _BITS.fullmatch(given[2])):
        prefix = bits[1]
        raise UsageError(
            f"'{_short(text)}' is a number of bits",
            remedy=f"write {prefix}B for bytes; 8 {prefix}b are 1 {prefix}B",
        )
    value = (
        text
        if isinstance(text, int | float)
        else _parse(text, _SIZE_UNITS, "size", "'146.6 MB' or '64MiB'")
    )
    if not 0 <= value < math.inf:  # NaN fails every comparison
        raise UsageError(
            f"'{_short(text)}' is not a size of zero or more bytes",
            remedy="write it like '146.6 MB' or '64MiB'",
        )
    if value > MAX_BYTES:
        raise UsageError(
            f"'{_short(text)}' is more than 8 EiB", remedy="write it like '146.6 MB' or '64MiB'"
        )
    return round(value)


def parse_count(text: str) -> int:
    """The number in ``"86.6M"``, ``"7B"`` or ``4096``, rounded to a whole one. Raises UsageError.

    The letters are those with which parameters of models are counted: k, M, B (or G) and T.
    """
    value = _parse(text, _COUNT_UNITS, "count", "'86.6M' or '7B'")
    if not 1 <= value <= MAX_BYTES:
        raise UsageError(
            f"'{_short(text)}' is not a count of one or more",
            remedy="write it like '86.6M' or '7B'",
        )
    return round(value)


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``"323ms"``, ``"2 min"`` or ``0.5``.

    Raises UsageError, also for what is not 0 and not in MIN_SECONDS to MAX_SECONDS.
    """
    if isinstance(text, bool):
        raise UsageError(f"'{text}' is not a duration", remedy="write it like '323ms' or '2min'")
    try:
        value = (
            float(text)
            if isinstance(text, int | float)
            else _parse(text, _DURATION_UNITS, "duration", "'323ms' or '2min'")
        )
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        what = "negative, not" if value < 0 else "not"
        raise UsageError(
            f"'{_short(text)}' is {what} a duration of zero or more seconds",
            remedy="write it like '323ms' or '2min'",
        )
    if value > MAX_SECONDS or 0 < value < MIN_SECONDS:
        raise UsageError(
            f"'{_short(text)}' is out of range for a duration",
            remedy="use 0, or 1e-12 to 1e12 seconds",
        )
    return value


def format_bytes(value: float) -> str:
    """Bytes with three significant digits and an IEC unit: ``1.37 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        # What would be rounded to 1024 is one of the next unit.
        if abs(value) < 1023.5 or unit == "EiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"


RATE_UNITS = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s")
"""Rates have the units in which storage and networks are sold; sizes have those of memory."""


def format_rate(bytes_per_s: float) -> str:
    """Bytes per second with three significant digits and an SI unit: ``1.47 GB/s``."""
    value = bytes_per_s
    for unit in RATE_UNITS:
        # What would be rounded to 1000 is one of the next unit.
        if abs(value) < 999.5 or unit == RATE_UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} B/s" if unit == "B/s" else f"{_three(value)} {unit}"


def counted(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun: ``1 sample``, ``1,234 samples``, ``2 batches``."""
    return f"{format_count(count)} {noun if count == 1 else plural or noun + 's'}"


def format_duration(seconds: float) -> str:
    """``3.50 ms``, ``12.0 s``, ``2 min 5 s``, ``30 min``, ``3 h 20 min``, ``12.5 d``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds == 0:
        return "0 s"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995e-3:  # what would be rounded to 1000 is one of the next unit
        return f"{_three(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 100:
        return f"{_three(seconds)} s"
    if seconds >= 4 * 86_400:
        return f"{_three(seconds / 86_400)} d"
    whole = round(seconds)
    if seconds < 3599.5:
        (large, small), units = divmod(whole, 60), ("min", "s")
    else:
        (large, small), units = divmod(whole // 60, 60), ("h", "min")
    return f"{large} {units[0]} {small} {units[1]}" if small else f"{large} {units[0]}"


def format_count(value: float) -> str:
    """A count with separators, ``1,281,167``; fractions below 100 with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value % 1 == 0 else _three(value)


def format_percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def percent_beside(ratio: float, limit: float) -> str:
    """A percentage with as many digits as show that it differs from ``limit``: ``89.97 %``."""
    for digits in range(1, 8):
        text = f"{ratio * 100:.{digits}f}"
        if text != f"{limit * 100:.{digits}f}":
            return f"{text} %"
    return format_percent(ratio)


def format_share(ratio: float) -> str:
    """A percentage with two significant digits: ``0.013 %``, ``4.2 %``, ``37 %``."""
    return f"{ratio * 100:.2g} %" if ratio < 0.995 else f"{ratio * 100:.0f} %"


def format_factor(factor: float) -> str:
    """With three significant digits, zeros kept: ``1.00 x``, ``0.985 x``, ``14.5 x``, ``120 x``."""
    return f"{factor:#.3g} x" if 0.001 <= abs(factor) < 99.95 else f"{factor:.3g} x"


def _three(value: float) -> str:
    magnitude = abs(value)
    return (
        f"{value:.0f}"
        if magnitude >= 99.95
        else f"{value:.1f}"
        if magnitude >= 9.995
        else f"{value:.2f}"
    )


def samples_per_usd(samples_per_s: float, usd_per_hour: float) -> float:
    """Samples that one USD buys on hosts of this price."""
    return samples_per_s * 3600 / usd_per_hour


@dataclass(frozen=True, slots=True)
class Quantity:
    """A new value, or a factor on the recorded one (``2x``)."""

    value: float
    relative: bool = False

    def of(self, recorded: float | None, what: str) -> float:
        """The new value. Raises UsageError for a factor if there is no recorded value."""
        if not self.relative:
            return self.value
        if recorded is None:
            raise UsageError(
                f"the run recorded no {what} to multiply by {self.value:g}",
                remedy="give the new value instead of a factor",
            )
        return self.value * recorded


def utc_now() -> str:
    """The time as ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
