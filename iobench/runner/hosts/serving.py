"""What every host that is not the controller does, whatever the verb: it answers until the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from ...base.errors import HostLostError, InterruptedRun, IobenchError
from ...record.typed import to_text
from .meeting import Meeting
from .words import Message, arguments_of, deed, refused, result_of

PATIENCE_S = 30.0
"""How long after Ctrl-C a host waits for the controller to end the run."""


class Serving:
    """Serves the controller of a meeting until it says goodbye.

    A verb adds deeds, methods that the controller calls by their names; to ``turn`` what is done
    between two of them, and to ``close`` how its work ends.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        (self.wire,) = meeting.wires
        self.bye: Message | None = None
        self._interrupted: float | None = None
        self._told_interrupt = False

    def serve(self) -> int:
        """Do what the controller asks, until it ends the run; return the exit code.

        Raises the error with which the run has ended, HostLostError if the controller is lost, and
        InterruptedRun if it does not end the run within ``PATIENCE_S`` after Ctrl-C. Nothing that
        was begun is left in any case.
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
        if why := self.wire.read(self.bye, str):
            raise error_of(why, self.bye.code)
        return self.bye.code

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

    @deed
    def clock(self) -> int:
        """The instant on the clock of this host, in nanoseconds."""
        return time.monotonic_ns()

    def report(self, what: str, value: object, kind: Any) -> None:
        """Tell the controller something unasked. ``kind``: the type of the value."""
        self.wire.send(Message("report", what, body=to_text(value, kind)))

    def obey(self, message: Message) -> None:
        """Do what the controller asks for. An IobenchError is sent to it in place of an answer."""
        if message.kind == "bye":
            self.bye = message
            self.wire.close()  # the controller waits for that
            return
        act = getattr(type(self), message.what, None)
        if message.kind not in ("call", "tell") or not getattr(act, "is_deed", False):
            raise HostLostError(f"{self.wire.name} has sent {message.kind} {message.what[:80]}")
        assert act is not None
        arguments = self.wire.read(message, arguments_of(act))
        try:
            answer = to_text(act(self, *arguments), result_of(act))
        except HostLostError:
            raise
        except IobenchError as error:
            self.wire.send(refused(error, message.code))
            return
        if message.kind == "call" and not self.wire.closed:
            self.wire.send(Message("answer", code=message.code, body=answer))

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
            self.wire.send(Message("interrupted"))
        if time.monotonic() - self._interrupted > PATIENCE_S:
            raise InterruptedRun("interrupted; the controller did not end the run")


def error_of(why: str, code: int) -> IobenchError:
    """The error with which the run has ended."""
    kind = InterruptedRun if code == InterruptedRun.exit_code else IobenchError
    error = kind(f"the run has ended: {why}")
    error.exit_code = code
    return error
