"""The barrier at which the ranks of several hosts wait for each other after, or before, each step.

On each host it is ``StepBarrier``. The last rank of a host to arrive tells the process that has
forked it the latest nominal end of the host's ranks, and that process tells the first host. When
the last host has arrived, the first host tells all of them the latest end of all, for which each
host opens its barrier. So a barrier costs a host one round trip to the first host. Nominal ends are
on the clock of the first host.
"""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...base.errors import HostLostError
from ..barrier import StepBarrier
from ..messages import Flag
from .wire import Message, Step, Wire, Wires

_LOOK_S = 0.2
"""How often a host that waits looks whether it is to stop."""

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
