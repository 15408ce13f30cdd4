"""The progress of a verb on standard error: a few lines that are drawn in place, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ..base.text import printable
from ..base.units import format_bytes, format_percent, format_rate
from ..runner.options import Observer
from .printing import finish
from .terminal import has_blocks, is_drawable, note, whole_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from ..record.run import RunRecord
    from ..runner.counters import Counters
    from .flags import ReportedRequest
    from .pace import Now, PhasePace
    from .screen import Screen

QUIET_S, FIRST_LINES_S, LINE_S, LATER_LINE_S = 10.0, 60.0, 5.0, 30.0
"""Without a terminal: nothing for QUIET_S, a line each LINE_S until FIRST_LINES_S have passed, and
then each LATER_LINE_S."""

MIN_RATED_S = 0.5
"""The rate of bytes is told when they have taken so long."""

IDLE_S = 5.0
"""A phase in which no rank ends a step for so long is told to stand still."""

MAX_HISTORY_COLUMNS, MIN_HISTORY_COLUMNS = 40, 8
_LABEL = 14
_FIGURE = 13
_BAR = 24

Tell = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


class Live(Observer):
    """The progress of a verb on stderr.

    On a terminal it is a screen of a few lines (see ``screen``), which a thread draws from what
    this object was told and from the ranks' counters. Without a terminal (or with TERM=dumb) it is
    a new line every few seconds. Nothing is shown with ``quiet``.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._on = not quiet and is_drawable()
        self._lines = not quiet and not self._on
        self._blocks = has_blocks(sys.stderr)
        self._screen: Screen | None = None
        self._title = self._detail = ""
        self._started = self._told = time.monotonic()
        self._expected: tuple[float, bool, float] | None = None
        # The screen's thread reads these, each of them once, since a new phase changes them.
        self._watched: tuple[Counters, PhasePace] | None = None
        self._bytes: _Bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def phase(self, title: str) -> None:
        """Start a new phase of the work."""
        self._title, self._detail = printable(title), ""
        self._watched = self._bytes = None
        if self._on and self._screen is None:
            from .screen import Screen

            self._screen = Screen(self._rows)
            self._screen.start()
        self._tell()

    def watch(self, counters: Counters) -> None:
        """The ranks of this phase count here what they do."""
        from .pace import PhasePace

        self._watched = counters, PhasePace(time.monotonic())

    def expect(self, seconds: float | None, *, more: bool = False) -> None:
        self._expected = None if seconds is None else (seconds, more, time.monotonic())

    def steps(self, done: int) -> None:
        """``done`` steps of the phase are done."""
        self.detail(f"{done} steps" if done else "")

    def bytes(self, done: int, total: int) -> None:
        """So many bytes of the phase are done. The rest should take as long for each byte."""
        now = time.monotonic()
        earlier = self._bytes
        began, before = (now, done) if earlier is None else (earlier.began, earlier.before)
        per_s = (done - before) / (now - began) if now - began > MIN_RATED_S else None
        self._bytes = _Bytes(began, before, done, total, per_s)
        self.expect((total - done) / per_s if per_s and done < total else None)
        self.detail(f"{format_bytes(done)} of {format_bytes(total)}")

    def detail(self, text: str) -> None:
        """Show how far the phase is."""
        self._detail = printable(text)
        self._tell()

    def note(self, line: str) -> None:
        """Write a line that stays, above the screen."""
        note(line, quiet=self._quiet)

    def left(self) -> str:
        """How much time is left of everything, in words; empty if that is not known."""
        if self._expected is None:
            return ""
        seconds, more, at = self._expected
        seconds -= time.monotonic() - at
        if seconds <= 0:
            return "" if more else "longer than expected"
        return f"{about(seconds, more=more)} left"

    def close(self) -> None:
        """Remove the screen. A further phase shows it again."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.stop()

    def _tell(self) -> None:
        """Write a line where there is no terminal, if the last one is long ago."""
        now = time.monotonic()
        passed = now - self._started
        pause = LINE_S if passed < FIRST_LINES_S else LATER_LINE_S
        if not self._lines or passed < QUIET_S or now - self._told < pause:
            return
        self._told = now
        shown = [self._detail, f"{whole_seconds(passed)} passed", self.left()]
        note(f"{self._title}: {', '.join(filter(None, shown))}")

    def _rows(self, columns: int) -> list[str]:
        """The lines of the screen. They are made in its thread, which only reads."""
        now = time.monotonic()
        passed = f"{whole_seconds(now - self._started)} passed"
        lines = [self._title, f"  {', '.join(filter(None, [passed, self.left()]))}"]
        if (done := self._bytes) is not None:
            return [*lines, *self._bar(done)]
        if (watched := self._watched) is None:
            return [*lines, *([f"  {self._detail}"] if self._detail else [])]
        counters, pace = watched
        found = pace.add(now, counters.read())
        width = min(MAX_HISTORY_COLUMNS, columns - 1 - 2 - _LABEL - _FIGURE - 1)
        if found.bytes_per_s is not None:
            top = max(pace.rates, default=0.0)
            lines.append(
                self._gauge("data", format_rate(found.bytes_per_s), pace.rates, top, width)
            )
        if found.utilization is not None:
            busy = f"{format_percent(found.utilization)} busy"
            lines.append(self._gauge("accelerators", busy, pace.utilizations, 1.0, width))
        return [*lines, f"  {', '.join(_steps(found))}"]

    def _gauge(
        self, label: str, figure: str, values: Sequence[float], top: float, width: int
    ) -> str:
        """A figure, and its history where at least a few values of it fit."""
        line = f"  {label:<{_LABEL}}{figure:<{_FIGURE}}"
        if width < MIN_HISTORY_COLUMNS:
            return line
        from .pace import history

        return f"{line} {history(values, top, width, blocks=self._blocks)}"

    def _bar(self, now: _Bytes) -> list[str]:
        share = min(1.0, now.done / now.total) if now.total > 0 else 0.0
        full, empty = ("█", "░") if self._blocks else ("#", ".")
        parts = round(share * _BAR)
        rate = f", {format_rate(now.per_s)}" if now.per_s else ""
        return [f"  {full * parts}{empty * (_BAR - parts)} {share:.0%}", f"  {self._detail}{rate}"]


@dataclass(frozen=True)
class _Bytes:
    """Progress in bytes: ``before`` were done at the time ``began``. ``per_s``: since then."""

    began: float
    before: int
    done: int
    total: int
    per_s: float | None


def _steps(found: Now) -> list[str]:
    told = [f"{found.steps:,} steps"]
    if found.slow is not None:
        times = found.slow.times
        how = "no step while others step" if times is None else f"{times:.2f} x the median step"
        told.append(f"slowest rank {found.slow.rank}: {how}")
    if found.retries:
        told.append(f"{found.retries:,} retries")
    if found.idle_s >= IDLE_S:
        told.append(f"no step for {whole_seconds(found.idle_s)}")
    return told


def about(seconds: float, *, more: bool) -> str:
    """A time that is expected, in words."""
    return f"{'at least' if more else 'about'} {whole_seconds(seconds)}"


@contextmanager
def progress_bar(what: str, *, quiet: bool) -> Iterator[Tell]:
    """Yield a function that shows the progress of bytes; it shows nothing if ``quiet``."""
    with Live(quiet=quiet) as live:
        live.phase(what)
        yield live.bytes


def measured(
    request: ReportedRequest,
    measure: Callable[[Live], tuple[RunRecord, Path]],
    *,
    fail_on: Sequence[str],
) -> int:
    """Measure with the progress on stderr, print the record, and return the exit code."""
    with Live(quiet=request.quiet) as live:
        doc, directory = measure(live)
    return finish(request, doc, directory, fail_on=fail_on)
