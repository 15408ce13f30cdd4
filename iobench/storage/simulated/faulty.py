"""Storage with faults on purpose, to test what depends on storage.

``faulty+URL?fail_every=100&short_every=50&stall_every=20&stall=5s&fail_write_at=3``

Reads and writes are counted from 1, over all threads and forked processes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from ...base.errors import StorageError, UsageError, in_option
from ...base.units import parse_duration
from ..base import Buffer, Sink, Storage, Syncing
from ..shared import SharedNumber
from ..wrapper import Wrapper

STALL_S = 5.0
_COUNTS = ("fail_every", "fail_at", "short_every", "stall_every", "fail_write_at")


class Count:
    """A counter that is shared by all processes forked from the one that made it."""

    def __init__(self) -> None:
        self._value = SharedNumber(ctypes.c_int64)

    def next(self) -> int:
        with self._value.alone():
            self._value.value = int(self._value.value) + 1
            return int(self._value.value)


class FaultyStorage(Wrapper):
    """Reads and writes with faults; 0 means never.

    Every ``fail_every``-th read, and the ``fail_at``-th, fails. Every ``short_every``-th delivers
    half of its bytes. Every ``stall_every``-th starts ``stall_s`` seconds late. The
    ``fail_write_at``-th write into a sink fails.
    """

    scheme = "faulty"
    OPTIONS: ClassVar[frozenset[str]] = frozenset({*_COUNTS, "stall"})

    def __init__(
        self,
        inner: Storage,
        *,
        fail_every: int = 0,
        fail_at: int = 0,
        short_every: int = 0,
        stall_every: int = 0,
        stall_s: float = STALL_S,
        fail_write_at: int = 0,
    ) -> None:
        super().__init__(inner)
        self.fail_every = fail_every
        self.fail_at = fail_at
        self.short_every = short_every
        self.stall_every = stall_every
        self.stall_s = stall_s
        self.fail_write_at = fail_write_at
        self._reads = Count()
        self._writes = Count()

    @classmethod
    def wrap(cls, inner: Storage, options: Mapping[str, str]) -> FaultyStorage:
        """Raises UsageError for an invalid count, and for a stall without stall_every."""
        counts = {}
        for name in _COUNTS:
            if name in options:
                if not (
                    options[name].isascii() and options[name].isdigit() and len(options[name]) < 19
                ):
                    raise UsageError(
                        f"faulty storage: {name} is '{options[name]}'",
                        remedy=f"use a whole number, for example {name}=100",
                    )
                counts[name] = int(options[name])
        if "stall" in options and not counts.get("stall_every"):
            raise UsageError(
                "faulty storage: stall states how long, but stall_every is missing",
                remedy="add stall_every, for example stall_every=100",
            )
        stall_s = STALL_S
        if "stall" in options:
            stall_s = in_option("stall", parse_duration, options["stall"])
        return cls(inner, stall_s=stall_s, **counts)

    def facts(self) -> dict[str, Any]:
        faults = {name: getattr(self, name) for name in _COUNTS if getattr(self, name)}
        return {
            **super().facts(),
            "faults": {**faults, **({"stall_s": self.stall_s} if self.stall_every else {})},
        }

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        number = self._reads.next()
        if _due(number, self.stall_every):
            time.sleep(self.stall_s)
        if _due(number, self.fail_every) or number == self.fail_at:
            raise StorageError(f"cannot read {key}: simulated input/output error (read {number})")
        count = self.inner.read_into(key, offset, buffer, once=once)
        return count // 2 if _due(number, self.short_every) else count

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        with self.inner.create(key, size_hint=size_hint, durable=durable) as sink:
            yield (
                FaultySink(sink, key, self._writes, self.fail_write_at)
                if self.fail_write_at
                else sink
            )


class FaultySink:
    """Fails one write. The error leaves the ``with`` block, so the object leaves no trace."""

    def __init__(self, inner: Sink, key: str, writes: Count, fail_at: int) -> None:
        self._inner = inner
        self._key = key
        self._writes = writes
        self._fail_at = fail_at

    def write(self, data: bytes | Buffer) -> None:
        number = self._writes.next()
        if number == self._fail_at:
            raise StorageError(
                f"cannot write {self._key}: simulated input/output error (write {number})"
            )
        self._inner.write(data)

    def sync(self) -> None:
        assert isinstance(self._inner, Syncing)
        self._inner.sync()


def _due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0
