"""A few lines on a terminal that are drawn again in place, by a thread of rich.

The lines are below an empty line, on which the cursor stays. So what another process writes to the
terminal stays there and spoils nothing, and "clear from here to the end" removes the lines even if
the terminal's width has changed.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.live_render import LiveRender
from rich.segment import ControlType, Segment
from rich.text import Text

PERIOD_S = 0.25
"""At most four drawings per second."""

Rows = Callable[[int], Sequence[str]]
"""Columns of the terminal -> the lines to show, without control characters."""


class Screen(Live):
    """The lines while they are shown; meanwhile ``sys.stderr`` is written above them."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._stream, self._ended = rows, sys.stderr, False
        super().__init__(
            console=Console(file=_alone(sys.stderr), highlight=False, soft_wrap=True),
            get_renderable=self._lines,
            refresh_per_second=1 / PERIOD_S,
            redirect_stdout=False,
        )
        os.register_at_fork(after_in_child=self._go_on_in_child)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is printed: the text of others, and the lines below it."""
        below = [] if self._ended else [_Below(self._live_render)]
        return [_Raw("\x1b[J"), *renderables, *below]

    def stop(self) -> None:
        """Remove the lines."""
        self._ended = True
        self._live_render = LiveRender("")
        super().stop()

    def _lines(self) -> Text:
        if self._ended or not _in_foreground(self._stream):
            return Text()
        columns, rows = self.console.size
        shown = [Text(line, end="") for line in self._rows(columns)[: max(0, rows - 2)]]
        for line in shown:
            line.truncate(columns - 1)
        return Text("\n").join(shown)

    def _go_on_in_child(self) -> None:
        """A forked process has no thread that draws, and writes by itself."""
        if self.is_started:
            sys.stderr = self._stream


class _Raw:
    """Codes for the terminal."""

    def __init__(self, codes: str) -> None:
        self.codes = codes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self.codes, None, [(ControlType.CARRIAGE_RETURN,)])


class _Below:
    """The lines, after which the cursor goes back to the empty line above them."""

    def __init__(self, lines: LiveRender) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment("\n")
        yield from self.lines.__rich_console__(console, options)
        yield from _Raw(f"\x1b[{self.lines.last_render_height}A\r").__rich_console__(
            console, options
        )


def _alone(stream: TextIO) -> TextIO:
    """Another stream to the same terminal: its lock is not one that a forked process may need."""
    raw = io.FileIO(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors)


def _in_foreground(stream: TextIO) -> bool:
    """Whether this process may draw on its terminal: not as a background job of a shell."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True  # not the controlling terminal: there are no jobs
