"""What every host that is not the controller does, whatever the verb: it answers until the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType
from typing import TYPE_CHECKING

from ...base.errors import HostLostError, InterruptedRun, IobenchError
from .meeting import Meeting
from .words import (
    Ask,
    Bye,
    EmptyCacheOf,
    Interrupted,
    Ping,
    Pong,
    ReadNow,
    Refused,
    Told,
)

if TYPE_CHECKING:
    from .localreads import LocalReads

Asked = Ask | ReadNow | EmptyCacheOf

PATIENCE_S = 30.0
"""How long after Ctrl-C a host waits for the controller to end the run."""


class Serving:
    """Serves the controller of a meeting until it says goodbye.

    A verb adds to ``obey`` the orders that it has, to ``told`` what it can be asked for, to
    ``turn`` what is done between two orders, and to ``close`` how its work ends. ``reads``: how the
    points of a storage curve are read here.
    """

    def __init__(self, meeting: Meeting, reads: LocalReads | None = None) -> None:
        self.meeting, self.reads = meeting, reads
        (self.wire,) = meeting.wires
        self.bye: Bye | None = None
        self._interrupted: float | None = None
        self._told_interrupt = False

    def serve(self) -> Bye:
        """Do what the controller asks, until it ends the run; return its last words.

        Raises HostLostError if the controller is lost, and InterruptedRun if it does not end the
        run within ``PATIENCE_S`` after Ctrl-C. Nothing that was begun is left in any case.
        """
        with self._deferring_interrupts():
            try:
                while self.bye is None:
                    self.look()
                    self.wait()
                    self.obey_all()
                    if self.bye is None:
                        self.turn()
            finally:
                self.close()
                self.wire.close()
        return self.bye

    def obey_all(self) -> None:
        """Do what the controller has asked until now."""
        while self.bye is None and self.wire.poll():
            self.obey(self.wire.receive())

    def wait(self) -> None:
        """Wait a moment for something to do."""
        wait([self.wire.connection], timeout=0.2)

    def turn(self) -> None:
        """Called again and again, at least each 0.2 s while no order takes longer."""

    def close(self) -> None:
        """Called at the end, also after an error."""

    def obey(self, message: object) -> None:
        match message:
            case Ping():
                self.wire.send(Pong(time.monotonic_ns()))
            case Ask() | ReadNow() | EmptyCacheOf():
                self._answer(message)
            case Bye():
                self.bye = message
                self.wire.close()  # the controller waits for that
            case _:
                raise HostLostError(f"{self.wire.name} has sent {type(message).__name__}")

    def told(self, ask: Asked) -> object:
        """The answer. An IobenchError is sent to the controller in its place."""
        if self.reads is not None and isinstance(ask, ReadNow):
            return self.reads.read(ask)
        if self.reads is not None and isinstance(ask, EmptyCacheOf):
            return self.reads.empty(ask)
        raise HostLostError(f"{self.wire.name} has asked for {type(ask).__name__}")

    def _answer(self, ask: Asked) -> None:
        try:
            self.wire.send(Told(self.told(ask)))
        except HostLostError:
            raise
        except IobenchError as error:
            self.wire.send(Refused(error))

    @contextmanager
    def _deferring_interrupts(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are told to the controller, which ends the run on all hosts."""

        def note(number: int, frame: FrameType | None) -> None:
            self._interrupted = self._interrupted or time.monotonic()

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def look(self) -> None:
        """Tell the controller of Ctrl-C on this host. Raises as ``serve``."""
        if self._interrupted is None:
            return
        if not self._told_interrupt:
            self._told_interrupt = True
            self.wire.send(Interrupted())
        if time.monotonic() - self._interrupted > PATIENCE_S:
            raise InterruptedRun("interrupted; the controller did not end the run")


def error_of(bye: Bye) -> IobenchError:
    """The error with which the run has ended."""
    kind = InterruptedRun if bye.code == InterruptedRun.exit_code else IobenchError
    error = kind(f"the run has ended: {bye.why}")
    error.exit_code = bye.code
    return error
