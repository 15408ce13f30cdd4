"""A few lines on a terminal that are drawn again in place, by a thread.

The lines are below an empty line, on which the cursor stays. So what another process writes to the
terminal stays there and spoils nothing, and "clear from here to the end" removes the lines even if
the terminal's width has changed. There is no other mode to restore: the cursor is never hidden, and
no part of the terminal is taken over, so that a killed process leaves at most the lines.

The thread alone writes. While it runs, ``sys.stderr`` collects text, which the thread writes above
the lines. So a terminal that takes no output (Ctrl-S, a slow connection) stops the thread and
nothing else. There is no lock, so a process that is forked in the meantime finds none held; there,
``sys.stderr`` writes to the terminal, each line over what is there.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
import threading
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from ..base.units import format_share

log = logging.getLogger(__name__)

PERIOD_S = 0.25
"""At most four drawings per second."""

DEFAULT_SIZE = (80, 24)
MAX_WAITING = 10_000
"""Texts that are kept while the terminal takes none; later ones are counted alone."""

_CLEAR = "\r\x1b[J"

Rows = Callable[[int, int], Sequence[str]]
"""(columns, rows) of the terminal -> the lines to show, without control characters."""

_shown: Screen | None = None


class Screen:
    """The lines while they are shown. There is one at a time.

    ``cpu_s`` and ``wall_s``: what the thread has used, and for how long it has run.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._stream: TextIO = sys.stderr
        self._above = _Above(self._stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="iobench-screen", daemon=True)
        self._drawn = ""
        self._lost = self._failed = False
        self.cpu_s = self.wall_s = 0.0

    def open(self) -> None:
        """Begin to draw; until ``close``, ``sys.stderr`` is written above the lines."""
        global _shown
        _shown, sys.stderr = self, self._above
        self._thread.start()

    def close(self) -> None:
        """Remove the lines, and write what was not yet written."""
        self._ended.set()
        try:
            if self._thread.is_alive():
                self._thread.join()
        finally:
            self.leave()
            self._stream.write(self._above.taken(everything=True))  # by another thread, just now
        if self.wall_s > 0:
            share = format_share(self.cpu_s / self.wall_s)
            log.info("the progress on the terminal took %s of a core", share)

    def leave(self) -> None:
        """Give ``sys.stderr`` back."""
        global _shown
        if sys.stderr is self._above:
            sys.stderr = self._stream
        self._above.direct = True
        _shown = None

    def go_on_in_child(self) -> None:
        """There is no thread in a forked process, which writes by itself."""
        global _shown
        self._above.newline, self._above.direct = "\x1b[K\n", True
        self._above.taken(everything=True)  # the parent writes it
        _shown = None

    def _work(self) -> None:
        # Signals are for the main thread. A background job may write to its terminal, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        began = time.monotonic()
        while not self._ended.wait(PERIOD_S):
            self._draw(self._lines())
            self.cpu_s, self.wall_s = time.thread_time(), time.monotonic() - began
        self._draw([])

    def _lines(self) -> list[str]:
        if self._failed or not _in_foreground(self._stream):
            return []
        columns, rows = size_of(self._stream)
        try:
            lines = self._rows(columns, rows)
        except Exception:  # a progress that can't be shown must not disturb what it is about
            self._failed = True
            log.debug("the progress can't be shown", exc_info=True)
            return []
        return [fitted(line, columns - 1) for line in lines[: max(0, rows - 2)]]

    def _draw(self, lines: Sequence[str]) -> None:
        """Write the text of others, and the lines below it; nothing if neither is new."""
        text = self._above.taken(everything=self._ended.is_set())
        below = f"\n{chr(10).join(lines)}\x1b[{len(lines)}A\r" if lines else ""
        if below == self._drawn and not text:
            return
        clear = _CLEAR if self._drawn else ""
        self._drawn = below
        self._write(f"{clear}{text}{below}")

    def _write(self, text: str) -> None:
        if self._lost:
            return
        encoding, errors = self._stream.encoding or "utf-8", self._stream.errors or "replace"
        data = memoryview(text.encode(encoding, errors))
        try:
            output = self._stream.fileno()
            while data:
                try:
                    data = data[os.write(output, data) :]
                except BlockingIOError:  # somebody has made the terminal non-blocking
                    select.select([], [output], [])
        except (OSError, ValueError):
            self._lost = True  # the terminal is gone


class _Above(io.TextIOBase):
    """``sys.stderr`` while a screen is shown: keeps whole lines until the screen writes them.

    ``direct``: the screen is closed, or this process was forked; text goes to the stream. In a
    forked process, a line may lie over one of the screen, whose rest it removes (``newline``).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: deque[str] = deque()
        self._rest = ""
        self._left_out = 0
        self.direct = False
        self.newline = "\n"

    def write(self, text: str, /) -> int:
        if self.direct:
            self._stream.write(text.replace("\n", self.newline))
            return len(text)
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(text)
        else:
            self._left_out += len(text)
        return len(text)

    def taken(self, *, everything: bool) -> str:
        """The text that has come until its last newline, or all of it, which is then forgotten."""
        text = self._rest + "".join(self._waiting.popleft() for _ in range(len(self._waiting)))
        self._rest = "" if everything else text[text.rfind("\n") + 1 :]
        text = text[: len(text) - len(self._rest)]
        if text and self._left_out:
            text += f"iobench: {self._left_out} more characters are not shown\n"
            self._left_out = 0
        return text

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def flush(self) -> None:
        if self.direct:
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True


def _in_child() -> None:
    if _shown is not None:
        _shown.go_on_in_child()


os.register_at_fork(after_in_child=_in_child)


def is_drawable() -> bool:
    """Whether standard error is a terminal on which lines can be drawn in place."""
    return os.environ.get("TERM", "") not in ("", "dumb") and sys.stderr.isatty()


def has_blocks(stream: TextIO) -> bool:
    """Whether a terminal has block characters: in its encoding, and not the Linux console."""
    try:
        "▁▂▃▄▅▆▇█".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM", "") != "linux"


def size_of(stream: TextIO) -> tuple[int, int]:
    """(columns, rows) of a terminal at this moment; DEFAULT_SIZE where it does not tell."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    return columns or DEFAULT_SIZE[0], rows or DEFAULT_SIZE[1]


def fitted(line: str, width: int) -> str:
    """A line cut to ``width`` columns; wide characters (Unicode's East Asian Width) take two."""
    if len(line) <= width and line.isascii():
        return line
    used = 0
    for place, character in enumerate(line):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            return line[:place]
    return line


def _in_foreground(stream: TextIO) -> bool:
    """Whether this process may draw on its terminal: not as a background job of a shell."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True  # not the controlling terminal: there are no jobs
