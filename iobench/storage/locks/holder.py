"""Which process holds a target: its record in a lock object, and whether it still lives.

A process is identified by its number and its start time (proc(5), stat field 22), within one
process-number namespace of one boot of one host. Containers of one host share its boot but not its
process numbers, so a process of another namespace is never taken for a dead one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ...base.processes import stat_fields
from ...base.units import utc_now

BODY_BYTES = 1024
"""Every lock object is padded to this size, so that a read during a replacement is never cut."""

MAX_COMMAND = 120  # characters of a command line in messages

_TEXT = re.compile(r"[A-Za-z0-9_.:\[\] +-]{0,255}")
"""What a lock object's texts may hold: others write them, and they are shown on a terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The contents of a lock object. Times are ISO 8601, UTC, by the holder's clock."""

    token: str  # 32 random hex digits, which identify the writer of the object
    host: str
    boot: str  # /proc/sys/kernel/random/boot_id
    namespace: str  # the process-number namespace
    pid: int
    started: int  # clock ticks from the boot to the start of the process
    verb: str
    created: str
    heartbeat: str

    @classmethod
    def this_process(cls, verb: str) -> Holder:
        now = utc_now()
        return cls(
            token=secrets.token_hex(16),
            host=re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:255],
            boot=_boot(),
            namespace=_namespace(),
            pid=os.getpid(),
            started=start_of(os.getpid()) or 0,
            verb=verb,
            created=now,
            heartbeat=now,
        )

    def beaten(self) -> Holder:
        """The same holder with a heartbeat of now."""
        return replace(self, heartbeat=utc_now())

    def dump(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode().ljust(BODY_BYTES - 1) + b"\n"

    def here(self) -> bool:
        """Whether this host can see the process, or that it has ended."""
        return bool(self.boot) and (self.boot, self.namespace) == (_boot(), _namespace())

    def is_this_process(self) -> bool:
        return self.here() and (self.pid, self.started) == (
            os.getpid(),
            start_of(os.getpid()) or 0,
        )

    def is_dead(self) -> bool:
        """Whether the process has certainly ended."""
        if not self.here():
            return False
        started = start_of(self.pid)
        return not is_alive(self.pid) if started is None else started != self.started

    def age_s(self) -> float:
        """Seconds since the last heartbeat, at least 0; inexact, since two hosts' clocks differ."""
        return max(0.0, (datetime.now(UTC) - _time(self.heartbeat)).total_seconds())

    def __str__(self) -> str:
        return f"iobench {self.verb}, process {self.pid} on {self.host}"


def parse_holder(text: bytes) -> Holder | None:
    """A lock object's contents; None if iobench did not write it."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            return None
        holder = Holder(**{name: data[name] for name in Holder.__slots__})
        texts: Mapping[str, object] = {
            name: value for name, value in asdict(holder).items() if name not in _ENDS
        }
        if not all(isinstance(value, str) and _TEXT.fullmatch(value) for value in texts.values()):
            return None
        if not all(
            type(data[name]) is int and 0 <= data[name] < end for name, end in _ENDS.items()
        ):
            return None
        _time(holder.created), _time(holder.heartbeat)
        return holder
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


_ENDS = {"pid": 1 << 31, "started": 1 << 63}
"""Upper limits (exclusive) of the numbers: a pid_t, and clock ticks."""


def start_of(pid: int) -> int | None:
    """When a living process started, in clock ticks since the boot; None if there is none.

    A process that has ended and was not waited for (a zombie) holds nothing, and counts as none.
    """
    fields = stat_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, also if /proc hides those of other users (hidepid)."""
    if start_of(pid) is not None:
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # a zombie: /proc never hides a process that this user may send a signal to


def command_of(pid: int) -> str:
    """A process's command line, shortened and printable; '' if it can't be read."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return ""
    text = "".join(c if c.isprintable() else "?" for c in line.decode(errors="replace"))
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 3]}..."


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _time(text: str) -> datetime:
    """Parse a time. Raises ValueError, also for a time without a time zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("the time has no time zone")
    return found
