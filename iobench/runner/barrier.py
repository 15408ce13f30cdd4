"""The barrier at which the forked ranks of a phase wait for each other, after or before each step.

It stands for the all-reduce of data-parallel training. Each rank brings the nominal end of its
step, and the barrier opens nominally at the latest of these, whatever the machine's own delays.

Ranks that exchange gradients make all of their steps together. An exchange waits for every rank,
but ranks may have unequal numbers of batches, reach a limit at different times, or be told to stop.
So before each step they agree whether any of them has a batch. A rank without one then steps on
bytes in its memory, as a sampler of torch repeats samples where the ranks' shares differ. Such
steps are in no figure.

On several hosts each has a ``StepBarrier``. The last rank of a host to arrive tells the process
that has forked it the latest nominal end of the host's ranks, and that process tells the first
host. When the last host has arrived, the first host tells all of them the latest end of all, for
which each host opens its barrier. So a barrier costs a host one round trip to the first host.
Nominal ends are on the clock of the first host.
"""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.errors import HostLostError
from .hosts.wire import Message, Step, Wire, Wires
from .messages import Flag

_LOOK_S = 0.2
"""How often a rank that waits looks whether it is to stop: another rank may have died."""

_ARRIVED, _OPENED, _END, _MEMBERS = 0, 1, 2, 4
"""Places in the shared memory. The latest end has one for even and one for odd steps, and the
number of members one for even and one for odd epochs."""


class Opening(NamedTuple):
    """When the barrier opened nominally, in nanoseconds; and how often it has opened by then."""

    at_ns: int
    number: int


class StepBarrier:
    """Made before the ranks are forked, which share its memory.

    A rank joins an epoch before it tells its parent that it is ready for it. So all ranks of an
    epoch have joined before the first of them makes a step. A rank that has no more batches leaves
    the epoch, and the others do not wait for it. It may join the next epoch while others are still
    in this one. No rank waits longer than ``_LOOK_S`` after ``stopped`` has become true, even if
    another rank was killed in here.
    """

    def __init__(self, members: int = 0) -> None:
        """``members``: ranks that take part in all steps, and neither join nor leave an epoch."""
        fork = multiprocessing.get_context("fork")
        self._state = memoryview(fork.RawArray("q", 6)).cast("B").cast("q")
        self._state[_MEMBERS] = self._state[_MEMBERS + 1] = members
        self._lock = fork.Lock()
        # Ranks that wait at an even and at an odd step. A fast rank may already wait at the next
        # step while a slow one has not yet seen that this one is over.
        self._turnstiles = (fork.Semaphore(0), fork.Semaphore(0))

    def join(self, epoch: int, stopped: Flag) -> None:
        """Take part in the steps of this epoch."""
        with self._held(stopped) as held:
            if held and (self._state[_MEMBERS + epoch % 2] or self._begin(epoch, stopped)):
                self._state[_MEMBERS + epoch % 2] += 1

    def leave(self, epoch: int, stopped: Flag) -> None:
        """Take no more part in this epoch: the others do not wait for this rank."""
        with self._held(stopped) as held:
            if held:
                self._state[_MEMBERS + epoch % 2] -= 1
                waiting, members = self._state[_ARRIVED], self._state[_MEMBERS + epoch % 2]
                if not members:
                    self._end(epoch)
                elif waiting >= members and self._agree(epoch, stopped):
                    self._open(waiting)

    def wait(self, epoch: int, end_ns: int, stopped: Flag) -> Opening | None:
        """Wait until all ranks of the epoch are here; ``end_ns`` is the nominal end of this step.

        Returns None if the rank is to stop.
        """
        state = self._state
        with self._held(stopped) as held:
            if not held:
                return None
            number = state[_OPENED]
            place = _END + number % 2
            state[place] = max(state[place], end_ns)
            state[_ARRIVED] += 1
            last = state[_ARRIVED] >= state[_MEMBERS + epoch % 2]
            if last:
                if not self._agree(epoch, stopped):
                    return None
                self._open(state[_ARRIVED] - 1)
        turnstile = self._turnstiles[number % 2]
        while not last and not turnstile.acquire(timeout=_LOOK_S):
            if stopped.value and self._withdrawn(number, stopped):
                return None
        # Nobody writes here before this rank has come to the next step, or has left.
        return Opening(state[place], number + 1)

    def _withdrawn(self, number: int, stopped: Flag) -> bool:
        """Take this rank's arrival at step ``number`` back; False if all have come after all.

        So either all ranks make a step or none does.
        """
        with self._held(stopped) as held:
            if held and self._state[_OPENED] != number:
                return False
            if held:
                self._state[_ARRIVED] -= 1
            return True

    def _begin(self, epoch: int, stopped: Flag) -> bool:
        """The first rank of this host joins the epoch; False: it is to stop. The lock is held."""
        return True

    def _agree(self, epoch: int, stopped: Flag) -> bool:
        """All ranks of this host are here: agree with other hosts, while the lock is held.

        Returns False if the rank is to stop.
        """
        return True

    def _end(self, epoch: int) -> None:
        """The last rank of this host has left the epoch. The lock is held."""

    def _latest(self) -> int:
        """The latest nominal end of the current step, in nanoseconds."""
        return self._state[_END + self._state[_OPENED] % 2]

    def _set_latest(self, end_ns: int) -> None:
        self._state[_END + self._state[_OPENED] % 2] = end_ns

    def _open(self, waiting: int) -> None:
        """Let ``waiting`` ranks go on, and prepare the next step. The lock must be held."""
        number = self._state[_OPENED]
        self._state[_ARRIVED] = 0
        self._state[_END + (number + 1) % 2] = 0
        self._state[_OPENED] = number + 1
        for _ in range(waiting):
            self._turnstiles[number % 2].release()

    @contextmanager
    def _held(self, stopped: Flag) -> Iterator[bool]:
        """Hold the lock; yields False, without it, if the rank is to stop before it gets it."""
        while not self._lock.acquire(timeout=_LOOK_S):
            if stopped.value:
                yield False
                return
        try:
            yield True
        finally:
            self._lock.release()


_LOST_S = 10.0
"""Within this time the parent has noticed that a rank has ended."""


class StepAgreement:
    """What the ranks agree on. Made before they are forked; each call waits for all ranks.

    All ranks must make the same calls in the same order. ``barrier``: has all ranks as members.
    """

    def __init__(self, barrier: StepBarrier) -> None:
        self._barrier = barrier

    def any(self, own: bool, stopped: Flag) -> bool | None:
        """Whether it is true of any rank; None if this rank is to stop instead."""
        opening = self._barrier.wait(0, int(own), stopped)
        return None if opening is None else bool(opening.at_ns)


def stops_soon(stopped: Flag) -> bool:
    """Wait for the parent's stop, which follows when a rank was lost."""
    deadline = time.monotonic() + _LOST_S
    while not stopped.value and time.monotonic() < deadline:
        time.sleep(0.01)
    return stopped.value


_PATIENCE_S = 1.0
"""How long after a stop a host waits for the others, if all of them make a step or none does."""

_JOIN, _ARRIVE, _LEAVE = 1, 2, 3
_SAID = struct.Struct("!4q")  # what, phase, epoch, nominal end in nanoseconds
_ANSWER = struct.Struct("!2q")  # phase, the latest nominal end of all hosts; 0 for who has joined


class HostsBarrier(StepBarrier):
    """Made before the ranks of this host are forked. ``phase``: its number in the run.

    ``offset_ns``: how far this host's clock is ahead of the first one's. ``members``: as in
    ``StepBarrier``, ranks of this host that take part in all steps.
    """

    def __init__(self, phase: int, *, offset_ns: int = 0, members: int = 0) -> None:
        super().__init__(members)
        fork = multiprocessing.get_context("fork")
        self.said, self._saying = fork.Pipe(duplex=False)
        self._answers, self._answering = fork.Pipe(duplex=False)
        self.phase, self._offset_ns = phase, offset_ns
        self._patience_s = _PATIENCE_S if members else 0.0

    # In the process that has forked the ranks

    def open(self, answer: bytes) -> None:
        """Tell the rank that waits what the first host answers. Raises struct.error."""
        phase, _ = _ANSWER.unpack(answer)
        if phase == self.phase:
            self._answering.send_bytes(answer)

    def pass_on(self, first: Wire) -> Step:
        """On a host that is not the first one: what its ranks say goes there, and back."""

        def step(wire: Wire | None, said: bytes) -> None:
            if wire is not None:
                self.open(said)
                return
            with suppress(HostLostError):  # which the host itself notices, and stops the ranks
                first.send(Message("step", body=said))

        return step

    # In the ranks

    def _begin(self, epoch: int, stopped: Flag) -> bool:
        self._say(_JOIN, epoch)
        return self._answered(stopped) is not None

    def _agree(self, epoch: int, stopped: Flag) -> bool:
        """Meet the other hosts at the end of a step; False: the rank is to stop."""
        self._say(_ARRIVE, epoch, self._latest() - self._offset_ns)
        if (latest := self._answered(stopped)) is None:
            return False
        self._set_latest(latest + self._offset_ns)
        return True

    def _end(self, epoch: int) -> None:
        self._say(_LEAVE, epoch)

    def _say(self, what: int, epoch: int, end_ns: int = 0) -> None:
        self._saying.send_bytes(_SAID.pack(what, self.phase, epoch, end_ns))

    def _answered(self, stopped: Flag) -> int | None:
        """What the first host answers; None: this rank is to stop."""
        stopped_s = None
        while not self._answers.poll(_LOOK_S):
            if stopped.value:
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s >= self._patience_s:
                    return None
        end_ns: int = _ANSWER.unpack(self._answers.recv_bytes())[1]
        return end_ns


@dataclass
class _Epoch:
    """The hosts that take part in the steps of an epoch, and the ends of those that wait."""

    members: set[int]
    waiting: dict[int, int] = field(default_factory=dict)


class HostsSteps:
    """At the first host: who takes part in the steps of a phase, and has arrived at the next one.

    ``answer`` tells a host, by its number. ``always``: hosts that take part in all steps, as those
    of epoch 0.
    """

    def __init__(
        self, phase: int, answer: Callable[[int, bytes], None], always: Iterable[int] = ()
    ) -> None:
        self.phase, self.answer = phase, answer
        self._epochs = {0: _Epoch(set(always))}

    def hear(self, host: int, said: bytes) -> None:
        """What a host says. Raises ValueError, struct.error."""
        what, phase, number, end_ns = _SAID.unpack(said)
        if phase != self.phase:
            return
        epoch = self._epochs.setdefault(number, _Epoch(set()))
        if what == _JOIN:
            epoch.members.add(host)
            self.answer(host, _ANSWER.pack(phase, 0))
        elif what == _ARRIVE:
            epoch.waiting[host] = end_ns
        elif what == _LEAVE:
            epoch.members.discard(host)
        else:
            raise ValueError("it is nothing that is said at a barrier")
        if epoch.waiting and epoch.waiting.keys() >= epoch.members:
            answer = _ANSWER.pack(phase, max(epoch.waiting.values()))
            waiting, epoch.waiting = epoch.waiting, {}
            for other in waiting:
                self.answer(other, answer)


def lead_steps(
    wires: Wires, peers: Sequence[Wire], barrier: HostsBarrier, always: Iterable[int]
) -> Callable[[], None]:
    """At the first host: let the ranks of all hosts meet; return what ends that."""
    numbers = {wire: host for host, wire in enumerate(peers, 1)}

    def answer(host: int, said: bytes) -> None:
        if not host:
            barrier.open(said)
            return
        with suppress(HostLostError):  # which whoever receives from it notices
            peers[host - 1].send(Message("step", body=said))

    steps = HostsSteps(barrier.phase, answer, always)
    return wires.meet(
        barrier.said, lambda wire, said: steps.hear(numbers[wire] if wire else 0, said)
    )
