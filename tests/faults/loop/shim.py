"""The ways to fail, and the state that ``shim.c`` shares with whoever arms it."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent / "shim.c"
_LAYOUT = struct.Struct("=qqqqq5qiiii1024s1024s")
_AHEAD = slice(32, 40)
_FAIL_AT = slice(8, 16)
_NEVER = 1 << 60

WRITE, SYNC, RENAME, CREATE, REMOVE = 1, 2, 4, 8, 16
SHORT_WRITE, KILL, JUMP = 1000, 1001, 1002
_ANY = WRITE | SYNC | RENAME | CREATE | REMOVE


@dataclass(frozen=True)
class Kind:
    """One way to fail. ``code`` is what a call answers, or what happens; ``mask`` which calls.

    ``sticky``: all later calls fail, too. ``jump_s``: how far the wall clock jumps.
    """

    name: str
    code: int
    mask: int = 0
    sticky: bool = False
    jump_s: int = 0

    @property
    def harmless(self) -> bool:
        """A program writes what a short write has left, and measures by the monotonic clock."""
        return self.code in (SHORT_WRITE, JUMP)


FILE_KINDS = (
    Kind("full-disk", errno.ENOSPC, WRITE | CREATE, sticky=True),
    Kind("write-error", errno.EIO, WRITE),
    Kind("sync-error", errno.EIO, SYNC),
    Kind("rename-error", errno.EIO, RENAME),
    Kind("no-permission", errno.EACCES, CREATE | RENAME | REMOVE),
    Kind("short-write", SHORT_WRITE, WRITE),
    Kind("killed", KILL, _ANY),
    Kind("clock-back", JUMP, _ANY, jump_s=-3600),
    Kind("clock-ahead", JUMP, _ANY, jump_s=86400),
)

REFUSED, UNANSWERED = 2000, 2001
"""What befalls a request: it is reset before the server has it, or when the server has done it."""

REQUEST_KINDS = (
    Kind("request-reset", REFUSED),
    Kind("answer-reset", UNANSWERED),
    Kind("requests-reset", REFUSED, sticky=True),
    Kind("answers-reset", UNANSWERED, sticky=True),
)


class Fired(NamedTuple):
    """What came of an armed fault: how many operations it hit, of how many, and the first."""

    count: int
    seen: int
    each: tuple[int, ...]  # operations of each class, in the order of the masks' bits
    first: str

    def operations(self, kind: Kind) -> int:
        """How many a kind could have hit."""
        if not kind.mask:
            return self.seen
        return sum(n for bit, n in enumerate(self.each) if kind.mask & 1 << bit)


class Shim:
    """The shared state. One process arms it; the library, or a proxy, acts on it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    @staticmethod
    def create(path: Path) -> None:
        path.write_bytes(bytes(_LAYOUT.size))

    def arm(self, kind: Kind, number: int, root: Path) -> None:
        """Let operation ``number`` (from 1) below ``root`` fail; 0: count them all."""
        text = os.fsencode(root)
        first = number or _NEVER
        numbers = (0, first, 0, kind.jump_s, 0, *[0] * 5)
        facts = (kind.code, kind.mask, kind.sticky, len(text))
        self._map[:] = _LAYOUT.pack(*numbers, *facts, text, b"")

    def disarm(self) -> Fired:
        """Nothing fails from now on, and the wall clock is right again."""
        found = _LAYOUT.unpack(self._map[:])
        self._map[_FAIL_AT] = bytes(8)
        self._map[_AHEAD] = bytes(8)
        first = found[15].rstrip(b"\0").decode(errors="replace")
        return Fired(found[2], found[0], tuple(found[5:10]), first)

    def request(self, line: str) -> int:
        """For a proxy, one call at a time: what befalls this request; 0: nothing."""
        found = list(_LAYOUT.unpack(self._map[:]))
        seen, fail_at, fired, kind, sticky = found[0] + 1, *found[1:3], found[10], found[12]
        if not fail_at or kind not in (REFUSED, UNANSWERED):
            return 0
        hit = seen == fail_at or (sticky and seen > fail_at)
        self._map[0:8] = struct.pack("=q", seen)
        if not hit:
            return 0
        self._map[16:24] = struct.pack("=q", fired + 1)
        if not fired:
            start = _LAYOUT.size - 1024
            self._map[start:] = line.encode()[:900].ljust(1024, b"\0")
        return int(kind)


def build_shim(folder: Path) -> Path:
    """Compile ``shim.c`` into ``folder``. Raises FileNotFoundError where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("gcc (apt-get install gcc libc6-dev)")
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library
