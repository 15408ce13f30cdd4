"""Who reads the places of a curve: this host, by fio or by threads, or several hosts together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...errors import StorageError
from ...measure import fio
from ...measure.depth import Depth
from ...schema.curve import MeasuredWith
from ...storage.base import Files, Storage
from ..agent import HostAgent
from .fio import FioReader
from .places import Place, Places
from .threads import ThreadReader


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
