"""A terminal for tests: a pty that controls a command, and an emulator that draws it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence

import pyte

LIMIT_S = 120.0


class Emulator:
    """A command on a terminal of ``columns`` x ``rows``.

    ``data``: all that was written. ``history``: lines that have left the screen at the top.
    """

    def __init__(
        self, words: Sequence[object], *, columns: int = 80, rows: int = 24, **environment: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.data = b""
        self.ours, theirs = pty.openpty()
        self.resize(columns, rows)
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-u", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**kept, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
        )
        os.close(theirs)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def lines(self) -> list[str]:
        """All lines, also those above the screen, without the empty ones at the end."""
        above = [
            "".join(line[place].data for place in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        shown = [*above, *(line.rstrip() for line in self.screen.display)]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def text(self) -> str:
        return "\n".join(self.lines())

    def read(self, timeout_s: float = 0.1) -> bool:
        """Take what was written; False when the command has closed the terminal."""
        if not select.select([self.ours], [], [], timeout_s)[0]:
            return True
        try:
            chunk = os.read(self.ours, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.data += chunk
        self._stream.feed(chunk)
        return bool(chunk)

    def until(self, seen: Callable[[str], object]) -> str:
        """Wait until ``seen`` is true of the text on the terminal; return that text."""
        limit = time.monotonic() + LIMIT_S
        while not seen(self.text()):
            assert self.read(), f"the command has ended: {self.text()}"
            assert time.monotonic() < limit, self.text()
        return self.text()

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        """Read until the command has ended; return its exit code."""
        limit = time.monotonic() + LIMIT_S
        while self.read():
            assert time.monotonic() < limit, self.text()
        os.close(self.ours)
        return self.process.wait(timeout=LIMIT_S)
