"""A host that is not the first one: it does what the first host asks, until that ends the job.

The first host calls deeds: methods of what serves it here, by their names. Arguments, results and
reports are JSON, which is checked against the types that the method declares. A deed that fails is
answered with its error. If the first host is lost, what was begun here ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import wait
from typing import Any, TypeVar, get_type_hints

from ...base.errors import HostLostError, InterruptedRun, IobenchError
from ...record.typed import to_text
from .meeting import Meeting
from .wire import Error, Message

PATIENCE_S = 30.0
"""How long after Ctrl-C a host waits for the first one to end the run."""

TURN_S = 0.2
"""How long to wait for a message until the next turn."""

F = TypeVar("F", bound=Callable[..., Any])


def deed(function: F) -> F:
    """Mark a method as one that the first host may call here."""
    function.is_deed = True  # type: ignore[attr-defined]
    return function


@cache
def arguments_of(function: Callable[..., object]) -> Any:
    """The type of a deed's arguments, as a tuple."""
    hints = get_type_hints(function, include_extras=True)
    return tuple[tuple(hint for name, hint in hints.items() if name != "return")]  # type: ignore[misc]


@cache
def result_of(function: Callable[..., object]) -> Any:
    """The type of what a deed returns."""
    return get_type_hints(function, include_extras=True)["return"]


class Serving:
    """Serves the first host of a meeting until it says goodbye.

    A verb adds deeds; to ``turn`` what is done between two of them, and to ``close`` how its work
    ends.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        (self.wire,) = meeting.peers
        self.bye: Message | None = None
        self._interrupted: float | None = None
        self._told_interrupt = False

    def serve(self) -> int:
        """Do what the first host asks, until it ends the run; return the exit code.

        Raises the error with which the run has ended, HostLostError if the first host is lost, and
        InterruptedRun if it does not end the run within ``PATIENCE_S`` after Ctrl-C. Nothing that
        was begun is left in any case.
        """

        def note(number: int, frame: object) -> None:
            self._interrupted = self._interrupted or time.monotonic()

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self.bye is None:
                self.look()
                self.wait()
                self.obey_all()
                if self.bye is None:
                    self.turn()
        finally:
            self.close()
            self.meeting.wires.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if why := self.wire.read(self.bye, str):
            interrupted = self.bye.code == InterruptedRun.exit_code
            error = (InterruptedRun if interrupted else IobenchError)(f"the run has ended: {why}")
            error.exit_code = self.bye.code
            raise error
        return self.bye.code

    def look(self) -> None:
        """Tell the first host of Ctrl-C or SIGTERM on this one. Raises as ``serve``."""
        if self._interrupted is None:
            return
        if not self._told_interrupt:
            self._told_interrupt = True
            self.wire.send(Message("interrupted"))
        if time.monotonic() - self._interrupted > PATIENCE_S:
            raise InterruptedRun("interrupted; the controller did not end the run")

    def wait(self) -> None:
        """Wait a moment for something to do."""
        wait([self.wire.fileno()], timeout=TURN_S)

    def obey_all(self) -> None:
        """Do what the first host has asked until now."""
        while self.bye is None and self.wire.poll():
            self.obey(self.wire.receive())

    def turn(self) -> None:
        """Called again and again, at least each 0.2 s while no deed takes longer."""

    def close(self) -> None:
        """Called at the end, also after an error."""

    def report(self, what: str, value: object, kind: Any) -> None:
        """Tell the first host something unasked. ``kind``: the type of the value."""
        self.wire.send(Message("report", what, body=to_text(value, kind)))

    def refuse(self, error: IobenchError, call: int = 0) -> None:
        self.wire.send(Message("refused", code=call, body=to_text(error, Error)))

    def obey(self, message: Message) -> None:
        if message.kind == "bye":
            self.bye = message
            self.wire.close()  # the first host waits for that
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
            self.refuse(error, message.code)
            return
        if message.kind == "call" and not self.wire.closed:
            self.wire.send(Message("answer", code=message.code, body=answer))
