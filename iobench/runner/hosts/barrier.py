"""The barrier at which the ranks of several hosts wait for each other after each step.

On each host it is ``StepBarrier``. The last rank of a host to arrive sets a key in the store with
the latest nominal end of the host's ranks, waits for the keys of all other hosts, and opens the
barrier of its host for the latest of all of them. Nominal ends are on the controller's clock.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress

from ...errors import WorkerError
from ..barrier import StepBarrier
from ..task import Flag
from .launch import Launch
from .store import Store

_LOOK_S = 0.2
"""How often a host that waits looks whether it is to stop."""

_LOST_S = 10.0
"""How long a rank that has lost the store waits for its agent to stop it."""

_EPOCH, _STEP = 0, 1
"""Places in the memory of the ranks of this host; then one for each host: in which epoch, counted
from 1, it is not or no longer."""

_LEFT = "left"


class HostsBarrier(StepBarrier):
    """Made before the ranks of this host are forked. ``launch``: where the store is.

    ``name``: of the phase, in the store. ``me``: this host, and ``hosts``: all that have ranks.
    ``offset_ns``: how far this host's clock is ahead of the controller's. Raises WorkerError from
    its methods if the store is lost.
    """

    def __init__(
        self, launch: Launch, name: str, *, me: int, hosts: Sequence[int], offset_ns: int
    ) -> None:
        super().__init__()
        self._launch, self._name, self._me = launch, name, me
        self._others = [host for host in hosts if host != me]
        self._offset_ns = offset_ns
        fork = multiprocessing.get_context("fork")
        count = 2 + len(self._others)
        self._met = memoryview(fork.RawArray("q", count)).cast("B").cast("q")
        self._opened: Store | None = None

    @property
    def _store(self) -> Store:
        """Of this process alone: each rank opens a connection before its first step."""
        if self._opened is None:
            self._opened = Store(self._launch)
        return self._opened

    def join(self, epoch: int, stopped: Flag) -> None:
        self._store.set(self._key(epoch, "in", self._me), "1")
        super().join(epoch, stopped)

    def _key(self, epoch: int, step: int | str, host: int) -> str:
        return f"barrier/{self._name}/{epoch}/{step}/{host}"

    def _agree(self, epoch: int, stopped: Flag) -> bool:
        try:
            return self._meet(epoch, stopped)
        except WorkerError as error:
            # The store ends with the controller, whose loss this host's agent notices, too. Then
            # the ranks are stopped, and what they recorded is kept.
            deadline = time.monotonic() + _LOST_S
            while not stopped.value:
                if time.monotonic() > deadline:
                    raise error
                time.sleep(0.05)
            return False

    def _meet(self, epoch: int, stopped: Flag) -> bool:
        """Meet the other hosts at the end of a step; False: the rank is to stop."""
        step = self._next_step(epoch)
        latest = self._latest() - self._offset_ns
        self._store.set(self._key(epoch, step, self._me), str(latest))
        present = [
            place for place, _ in enumerate(self._others) if self._met[2 + place] != epoch + 1
        ]
        keys = [self._key(epoch, step, self._others[place]) for place in present]
        found: list[str] | None = []
        while keys and not (found := self._store.get(keys, _LOOK_S)):
            if stopped.value:
                return False
        for place, said in zip(present, found or [], strict=True):
            if said == _LEFT:
                self._met[2 + place] = epoch + 1
            else:
                latest = max(latest, int(said))
        self._set_latest(latest + self._offset_ns)
        if step >= 2:  # every host has read the keys of two steps ago
            self._store.delete(self._key(epoch, step - 2, self._me))
        return True

    def _next_step(self, epoch: int) -> int:
        """The number of this opening in its epoch; the first one finds out who takes part."""
        if self._met[_EPOCH] != epoch + 1:
            self._met[_EPOCH], self._met[_STEP] = epoch + 1, 0
            for place, host in enumerate(self._others):
                if not self._store.has(self._key(epoch, "in", host)):
                    self._met[2 + place] = epoch + 1
        step = self._met[_STEP]
        self._met[_STEP] = step + 1
        return step

    def _end(self, epoch: int) -> None:
        with suppress(WorkerError):  # without a store, nobody waits for this host
            self._store.set(self._key(epoch, self._next_step(epoch), self._me), _LEFT)


def round_trip_s(
    launch: Launch, store: Store, name: str, *, hosts: Sequence[int], rounds: int = 100
) -> float:
    """The median seconds of a barrier of all hosts that arrive at once, over ``rounds`` of it."""
    took: list[float] = []
    for number in range(rounds):
        began = time.monotonic()
        store.set(f"{name}/{number}/{launch.index}", "1")
        while store.get([f"{name}/{number}/{host}" for host in hosts], _LOOK_S) is None:
            pass
        took.append(time.monotonic() - began)
        if number >= 2:
            store.delete(f"{name}/{number - 2}/{launch.index}")
    return sorted(took)[len(took) // 2]
