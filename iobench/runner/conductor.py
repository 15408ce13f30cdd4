"""The parent's side of every task: one loop, which knows no kind of task.

It starts the crew, passes on what the ranks report, and answers them when all of them wait. A
``Handler`` says what a task's parent does at these moments.

Ctrl-C and SIGTERM take effect between two messages, never within one. Then the ranks are asked to
stop, those that wait for a command get Stop, and what they still report is passed on as before. So
the handler has everything that was recorded, and KeyboardInterrupt is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

from ..base.errors import IobenchError
from ..base.interrupts import defer_interrupts
from .crew import GRACE_S, Crew
from .messages import Command, Last, Point, Report, Stop

PATIENCE_S = 2.0
"""How long after a stop a rank may take to end its current step, before it must report at once."""

_MIN_GRACE_S = 1.0
"""Time for ranks to end after an interrupt whose grace is used up."""

L = TypeVar("L", bound=Last)


class Handler:
    """The parent's part of a task. ``conduct`` calls it; what it gathers is its own affair."""

    def heard(self, rank: int, message: Report | Last) -> None:
        """A rank has reported this. An interrupt waits until this returns."""

    def prepare(self, waiting: Mapping[int, Point]) -> None:
        """Every rank that has not ended waits. Do what takes time before they are answered.

        An interrupt takes effect at once.
        """

    def answer(self, waiting: Mapping[int, Point]) -> Mapping[int, Command]:
        """After ``prepare``: a command for each rank, or for some of those that wait.

        They are sent at once. An interrupt waits until they are sent.
        """
        return dict.fromkeys(waiting, Stop())

    def tick(self) -> None:
        """Called a few times a second, between messages."""


def conduct(crew: Crew, handler: Handler) -> None:
    """Run the crew's task to its end.

    Raises a rank's own IobenchError, WorkerError for a rank that died, KeyboardInterrupt. In any
    case the ranks have ended when this returns, and the handler has what they reported.
    """
    conductor = _Conductor(crew, handler)
    started = interrupted = False
    grace_s = GRACE_S
    try:
        crew.start()
        started = True
        conductor.serve()
        crew.end()
    except KeyboardInterrupt:
        interrupted = True
        if started:
            crew.stop()
            with defer_interrupts(discard=True):
                grace_s = max(_MIN_GRACE_S, GRACE_S - conductor.collect())
        raise
    finally:
        crew.stop()
        with defer_interrupts(discard=interrupted):
            crew.end(grace_s)


def last_messages(crew: Crew, kind: type[L], tick: Callable[[], None] = lambda: None) -> list[L]:
    """Run a task whose ranks send nothing but one last message; return these, in their order.

    ``tick`` is called a few times a second, and ends the task by raising an error.
    """
    found: dict[int, L] = {}

    class _Keep(Handler):
        def heard(self, rank: int, message: Report | Last) -> None:
            if isinstance(message, kind):
                found[rank] = message

        def tick(self) -> None:
            tick()

    conduct(crew, _Keep())
    return [found[rank] for rank in sorted(found)]


Script = Generator[Callable[[], Command], list[Point], None]
"""A task as the parent's commands, one after the other; see ``Scripted``."""


class Scripted(Handler):
    """Gives all ranks the same command, again and again: a script says which.

    Each ``yield`` of the script hands over a function that makes the next command, which is called
    at the instant at which the command is sent, and gets the points at which the ranks have arrived
    after it, in their order. What lies between two of them is done while all ranks wait. The ranks
    stop where the script ends.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._next: Callable[[], Command] | None = None

    def prepare(self, waiting: Mapping[int, Point]) -> None:
        try:
            if self._next is None:
                self._next = next(self._script)
            else:
                self._next = self._script.send([waiting[rank] for rank in sorted(waiting)])
        except StopIteration:
            self._next = Stop

    def answer(self, waiting: Mapping[int, Point]) -> Mapping[int, Command]:
        assert self._next is not None, "prepare comes first"
        return dict.fromkeys(waiting, self._next())


class _Conductor:
    """Where each rank is: at work, waiting at a point, or ended."""

    def __init__(self, crew: Crew, handler: Handler) -> None:
        self.crew, self.handler = crew, handler
        self.working = list(crew.ranks)  # that have not sent their last message
        self.waiting: dict[int, Point] = {}

    def serve(self) -> None:
        """Serve the ranks until all of them have sent their last message."""
        while self.working:
            with defer_interrupts():
                self._listen()
            if self.working and len(self.waiting) == len(self.working):
                self.handler.prepare(self.waiting)
                with defer_interrupts():
                    commands = self.handler.answer(self.waiting)
                    if not commands:
                        raise RuntimeError("all ranks wait, and none of them was answered")
                    self._answer(commands)
            self.handler.tick()

    def collect(self) -> float:
        """Collect what the ranks have recorded, after a stop; return the seconds that it took.

        A rank that still works after ``PATIENCE_S`` is asked to report at once. Ranks that fail
        now, or do not stop in time, are left out.
        """
        began = time.monotonic()
        while self.working and (waited := time.monotonic() - began) < GRACE_S:
            if waited > PATIENCE_S:
                self.crew.hurry(self.working)
            try:
                self._answer(dict.fromkeys(self.waiting, Stop()))
                self._listen()
            except IobenchError:
                self.working = [rank for rank in self.working if self.crew.is_alive(rank)]
        return time.monotonic() - began

    def _listen(self) -> None:
        for rank, message in self.crew.receive(list(self.working)):
            if isinstance(message, Point):
                self.waiting[rank] = message
                continue
            if isinstance(message, Last):
                self.working.remove(rank)
            self.handler.heard(rank, message)

    def _answer(self, commands: Mapping[int, Command]) -> None:
        for rank, command in commands.items():
            del self.waiting[rank]
            self.crew.send(rank, command)
