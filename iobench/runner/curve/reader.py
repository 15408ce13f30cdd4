"""Who reads the places of a curve: this host, by fio or by threads, or several hosts together."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from ...base.errors import StorageError
from ...host import fio
from ...host.depth import Depth
from ...host.fio_depth import Engine, engines, read_at_depth
from ...host.fio_jobs import MAX_REPLAYED, MAX_REPLAYED_FILES
from ...record.curve import MeasuredWith
from ...storage.base import Files, Storage
from ..agent import HostAgent
from .places import Place, Places
from .threads import ThreadReader

log = logging.getLogger(__name__)

_ALIGN = 4096
"""Bytes. With O_DIRECT fio can't read what follows a file's last whole block."""


class FioReader:
    """Reads places of files. The first reads choose fio's engine: the best one that works here."""

    def __init__(self, storage: Files, *, direct: bool, once: bool, run_dir: Path) -> None:
        self.storage = storage
        self.direct = direct
        self.once = once
        self.run_dir = run_dir
        self.engine: Engine | None = None
        self._files: dict[str, tuple[Path, int]] = {}  # key -> path, readable bytes

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read the places in their order for ``seconds``, again from the first one up to ``most``.

        Raises StorageError, also if fio can't read any of them.
        """
        reads = self._reads(places, in_flight)
        if not reads:
            raise StorageError("fio cannot read these files: each has less than 4 KiB")
        given = len(reads)
        reads = (reads * -(-most // given))[: max(given, min(most, MAX_REPLAYED))]
        failure: StorageError | None = None
        tried: Sequence[Engine] = (
            (self.engine,) if self.engine else engines(direct=self.direct, once=self.once)
        )
        for engine in tried:
            try:
                found = read_at_depth(
                    reads,
                    engine=engine,
                    in_flight=in_flight,
                    once=self.once,
                    direct=self.direct,
                    seconds=seconds,
                    run_dir=self.run_dir,
                )
            except StorageError as error:
                log.info("fio's engine %s failed: %s", engine, error)
                failure = failure or error
                continue
            self.engine = engine
            used = min(found.used, given)
            return replace(found, used=used)
        raise failure or StorageError("fio has no engine to read with")

    def _reads(self, places: Sequence[Place], in_flight: int) -> list[tuple[Path, int, int]]:
        """What fio has to read, within its limits of reads and of files."""
        files = MAX_REPLAYED_FILES * (in_flight if self.once else 1)
        known: set[str] = set()
        reads: list[tuple[Path, int, int]] = []
        for key, offset, length, _ in islice(places, MAX_REPLAYED):
            known.add(key)
            if len(known) > files:
                break
            path, size = self._file(key)
            length = min(length, size - offset)
            if length > 0:
                reads.append((path, offset, length))
        return reads

    def _file(self, key: str) -> tuple[Path, int]:
        if key not in self._files:
            path = self.storage.local_path(key)
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise StorageError(f"cannot look at {path}: {error.strerror}") from error
            self._files[key] = path, size // _ALIGN * _ALIGN if self.direct else size
        return self._files[key]


class PlaceReader(Protocol):
    """Reads places with a number of them in flight.

    ``by`` and ``program``: with what, once something was read. ``notes``: what is to be said of it.
    ``hosts``: how many share the reads in flight, so that their number is a multiple of it.
    """

    @property
    def by(self) -> MeasuredWith: ...

    @property
    def program(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def hosts(self) -> int: ...

    @property
    def agent(self) -> HostAgent: ...

    def read(
        self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int
    ) -> Depth: ...


class Together(Protocol):
    """Several hosts that measure curves together."""

    @property
    def names(self) -> Sequence[str]: ...

    def reader(self, places: Places, name: str, members: Sequence[int]) -> JointReader:
        """What reads on some of the hosts, by their numbers, at the same time."""


class JointReader(PlaceReader, Protocol):
    """``points``: for each point what each of its hosts read."""

    @property
    def points(self) -> Sequence[Sequence[Depth]]: ...


class HostReader:
    """Reads on this host: by fio, or by threads where fio can't read what it was given first."""

    hosts = 1

    def __init__(self, storage: Storage, *, max_bytes: int, once: bool, run_dir: Path) -> None:
        """``max_bytes``: of the longest place. ``once``: each object is one place."""
        self.storage = storage
        self.agent = HostAgent(storage)
        self.notes: list[str] = []
        self._threads = ThreadReader(storage, max_bytes=max_bytes, once=once)
        self._fio: FioReader | None = None
        self._began = False
        if isinstance(storage, Files) and fio.available():
            direct = storage.traits.direct
            self._fio = FioReader(storage, direct=direct, once=once, run_dir=run_dir)
        elif isinstance(storage, Files):
            self.notes.append(f"measured without fio: {self.agent.why_no_fio()}")

    @property
    def by(self) -> MeasuredWith:
        return "fio" if self._fio else "engine"

    @property
    def program(self) -> str:
        return f"fio {self._fio.engine}" if self._fio else "threads of this process"

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read the places in their order for ``seconds``, again from the first one up to ``most``.

        Raises StorageError, NoMemoryError.
        """
        if self._fio is not None:
            try:
                found = self._fio.read(places, in_flight=in_flight, seconds=seconds, most=most)
                self._began = True
                return found
            except StorageError as error:
                if self._began:
                    raise
                self.notes.append(f"measured without fio: {error.what}")
                self._fio = None
            if not self.storage.traits.uncached:  # fio may have read some of the bytes
                self.agent.empty_cache(list({place.key for place in places}))
        return self._threads.read(places, in_flight=in_flight, seconds=seconds, most=most)
