"""When requests arrive: an open loop, in which nobody waits for the answer before.

An instant is when a request is *meant* to arrive. Whoever issues it late has made it wait, and its
latency begins at the instant all the same: else a storage that stands still would keep requests
away from itself (coordinated omission).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.documents import read_regular
from ..base.errors import UsageError
from ..base.text import printable
from ..base.units import counted, format_bytes, format_duration
from ..settings.scenario import ArrivalSpec, TraceFormat

Seconds = npt.NDArray[np.float64]

Instants = npt.NDArray[np.int64]
"""Nanoseconds from the begin of a window, none before the one in front of it."""

MAX_REQUESTS = 2_000_000
"""Requests of one window: each is a row of the record."""

MAX_DRAWN = 20_000_000
"""Requests of sessions that are drawn for a window, most of which were before it."""

MAX_TRACE_BYTES = 1 << 30

_LIFETIMES = 8
"""A session began at most so many mean lengths before the window: one in 3,000 is longer."""

_SECOND = 1_000_000_000


class Arrivals:
    """The instants of one window after another, by a seed of their own. Raises UsageError.

    A trace is read once. A window begins at a place of it that the seed draws, and goes on at its
    first request where it ends.
    """

    def __init__(self, spec: ArrivalSpec) -> None:
        self.spec = spec
        self.trace = read_trace(spec.path, spec.format) if spec.path is not None else None

    def usual_rate(self) -> float | None:
        """Requests per second where nobody asks for a rate: those of the trace."""
        return self.trace.per_s if self.trace is not None else None

    def window(self, rate: float, seconds: float, seed: int, most: int | None = None) -> Instants:
        """The instants of a window of so many seconds, but at most ``most``.

        How many they are is as random as the arrivals are. Raises UsageError if they are more than
        a record holds.
        """
        expected = rate * seconds
        if min(expected, most or expected) > MAX_REQUESTS:
            raise UsageError(
                f"{rate:,.0f} requests/s for {format_duration(seconds)} are more than the "
                f"{MAX_REQUESTS:,} requests that one window can have",
                remedy=f"use a lower --rate, or a --duration below {MAX_REQUESTS / rate:.3g}s",
            )
        generator = np.random.default_rng(seed)
        most = most or 2 * MAX_REQUESTS
        if self.spec.kind == "sessions":
            times = _sessions(self.spec, generator, rate, seconds)[:most]
        else:
            times = self._renewals(generator, rate, seconds, most)
        return np.asarray(times[times < seconds] * _SECOND).astype(np.int64)

    def calls(self, rate: float, seconds: float, seed: int, history_s: float) -> Calls:
        """The requests of a window and of so long before it, by session.

        Requests that belong to no sessions are each one of their own. Raises UsageError if they are
        more than a record holds.
        """
        generator = np.random.default_rng(seed)
        if self.spec.kind == "sessions":
            calls = session_calls(self.spec, generator, rate, seconds, history_s)
        else:
            whole = history_s + seconds
            times = self._renewals(generator, rate, whole, MAX_DRAWN) - history_s
            calls = Calls(times, np.arange(len(times)), np.zeros(len(times), np.int64))
        if np.count_nonzero((calls.times_s >= 0) & (calls.times_s < seconds)) > MAX_REQUESTS:
            raise UsageError(
                f"a window has more than {MAX_REQUESTS:,} requests",
                remedy="use a lower --rate, or a shorter --duration",
            )
        return calls

    def _renewals(
        self, generator: np.random.Generator, rate: float, seconds: float, most: int
    ) -> Seconds:
        """Arrivals one after the other, some of them after the end."""
        expected = rate * seconds
        some = min(most, math.ceil(expected + 6 * math.sqrt(expected) + 16))
        end, drawn, parts = 0.0, 0, list[Seconds]()
        while end < seconds and drawn < most:
            times = end + np.cumsum(self._gaps(generator, some)) / rate
            parts.append(times)
            end, drawn = float(times[-1]), drawn + len(times)
        return np.concatenate(parts)[:most]

    def _gaps(self, generator: np.random.Generator, count: int) -> Seconds:
        """Times between requests, whose mean is 1."""
        kind = self.spec.kind
        if kind == "constant":
            return np.ones(count)
        if kind == "poisson":
            return generator.standard_exponential(count)
        if kind == "gamma":
            shape = self.spec.cv**-2
            return generator.standard_gamma(shape, count) / shape
        assert self.trace is not None
        gaps = np.diff(self.trace.times_s) * self.trace.per_s
        return np.resize(np.roll(gaps, -generator.integers(len(gaps))), count)


class Calls(NamedTuple):
    """The requests of sessions in the order of arrival; those before the window are below 0."""

    times_s: Seconds
    session: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int64]  # 0: the first one of its session


def _sessions(
    spec: ArrivalSpec, generator: np.random.Generator, rate: float, seconds: float
) -> Seconds:
    """When the requests of sessions arrive in the window. Raises UsageError for too many."""
    times = session_calls(spec, generator, rate, seconds).times_s
    return times[times >= 0]


def session_calls(
    spec: ArrivalSpec,
    generator: np.random.Generator,
    rate: float,
    seconds: float,
    history_s: float = 0.0,
) -> Calls:
    """The requests of sessions, those that began before the window among them.

    So as many sessions go on at its begin, and ``history_s`` seconds before it, as later. Raises
    UsageError if they are too many.
    """
    before = _LIFETIMES * max(1.0, spec.turns - 1) * spec.pause if spec.turns > 1 else 0.0
    before += history_s
    if rate * (before + seconds) > MAX_DRAWN:
        raise UsageError(
            f"sessions of {format_duration((spec.turns - 1) * spec.pause)} are too long for "
            f"{rate:,.6g} requests/s: too many of them go on at the same time",
            remedy="use a lower --rate, shorter pauses or fewer arrivals.turns",
        )
    count = int(generator.poisson(rate / spec.turns * (before + seconds)))
    turns = generator.geometric(1 / spec.turns, count)
    first = np.cumsum(turns) - turns  # the place of the first request of each session
    number = int(turns.sum())
    tools = generator.random(number) < spec.tool_share
    pauses = generator.standard_exponential(number)
    pauses *= np.where(tools, spec.tool_pause, spec.person_pause)
    pauses[first] = 0.0
    since = np.cumsum(pauses)
    begins = generator.uniform(-before, seconds, count) - since[first]
    times = since + np.repeat(begins, turns)
    order = np.argsort(times, kind="stable")
    session = np.repeat(np.arange(count), turns)
    turn = np.arange(number) - np.repeat(first, turns)
    return Calls(times[order], session[order], turn[order])


@dataclass(frozen=True, kw_only=True)
class Trace:
    """When requests arrived: seconds after the first one."""

    times_s: Seconds

    @property
    def per_s(self) -> float:
        """Requests per second, on average."""
        return (len(self.times_s) - 1) / float(self.times_s[-1])

    def lasts_s(self, rate: float) -> float:
        """How long it lasts where it is stretched or shrunk to this rate."""
        return (len(self.times_s) - 1) / rate

    @property
    def together(self) -> float:
        """The share of the requests that arrived at the very instant of the one before."""
        return float(np.mean(np.diff(self.times_s) == 0))


def read_trace(path: str, form: TraceFormat) -> Trace:
    """Read a trace: a CSV file with a header, or JSON lines. Raises UsageError with the line."""
    times = np.fromiter(_times(path, form, trace_lines(path)), np.float64)
    if form == "sessions":
        times.sort()
    if len(times) < 2 or times[-1] <= times[0]:
        raise UsageError(
            f"{path} is no trace: it has {counted(len(times), 'request')}, and a rate needs two at "
            "different times",
            remedy="name a longer trace",
        )
    return Trace(times_s=times - times[0])


def trace_lines(path: str) -> list[str]:
    """The lines of a trace. Raises UsageError."""
    try:
        return read_regular(path, MAX_TRACE_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no trace: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        most = format_bytes(MAX_TRACE_BYTES)
        raise UsageError(
            f"cannot read the trace {path}: {why}",
            remedy=f"name a CSV file or a file of JSON lines of at most {most}",
        ) from None


_COLUMNS: dict[TraceFormat, str] = {
    "plain": "timestamp",
    "mooncake": "timestamp",
    "bailian": "timestamp",
    "azure": "TIMESTAMP",
    "sessions": "turns",
}


def _times(path: str, form: TraceFormat, lines: list[str]) -> Iterator[float]:
    column, before = _COLUMNS[form], -math.inf
    remedy = "name another file, or set --trace-format to the one that this file has"
    for number, row in trace_rows(lines, path):
        where = f"line {number} of {path}"
        try:
            if form == "sessions":
                found = [time for time, _ in calls_of(row)]
            else:
                found = [_member(row, column)]
        except (KeyError, TypeError):
            raise UsageError(
                f"{where} has no '{column}', so it is no trace of format '{form}'", remedy=remedy
            ) from None
        for value in found:
            try:
                time = seconds_of(value, form)
            except (TypeError, ValueError, OverflowError):
                shown = printable(repr(value), 60)
                raise UsageError(
                    f"{where}: {shown} is no time of format '{form}'", remedy=remedy
                ) from None
            if time < before and form != "sessions":
                raise UsageError(
                    f"{where} goes back in time, by {format_duration(before - time)}",
                    remedy="sort the trace by its time",
                )
            yield time
            before = time


def _member(row: Any, name: str) -> Any:
    """Raises KeyError, TypeError."""
    if not isinstance(row, dict):
        raise TypeError
    return row[name]


def calls_of(row: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """When each call of a session arrived, and what is known of it. Raises KeyError, TypeError.

    GitHub Copilot's traces have a line for each session, with its turns (Azure/AzurePublicDataset,
    analysis/GitHubCopilotCodingAgents/schema.json). TraceLab's have one for each call: it arrives
    with the last input before its first output (uw-syfi/TraceLab, artifacts/utils/timing.py).
    """
    if "timing_events" in row:
        arrived = None
        for event in row["timing_events"]:
            if _member(event, "event_type") not in ("user_message", "tool_result"):
                break
            arrived = _member(event, "timestamp")
        if arrived is not None:
            yield arrived, row
        return
    for turn in _member(row, "turns"):
        for call in _member(turn, "llm_calls"):
            yield _member(call, "timestamp"), call


def trace_rows(lines: list[str], path: str) -> Iterable[tuple[int, object]]:
    """The rows of JSON lines or of CSV, with their line numbers. Raises UsageError."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        return ((number, _parsed(line)) for number, line in enumerate(lines, 1) if line.strip())
    return _csv_rows(lines, path)


def _csv_rows(lines: list[str], path: str) -> Iterator[tuple[int, object]]:
    rows = csv.DictReader(lines)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise UsageError(f"line {rows.line_num + 1} of {path} is no CSV: {error}") from None


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def seconds_of(value: object, form: TraceFormat) -> float:
    """A time in seconds. Raises TypeError, ValueError, OverflowError."""
    if form in ("azure", "sessions"):
        at = datetime.fromisoformat(str(value).strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise TypeError
    time = float(value) / (1000 if form == "mooncake" else 1)
    if not abs(time) < 1e12:
        raise ValueError
    return time
