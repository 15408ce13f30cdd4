"""A task: what each rank does. A crew starts the ranks, and gives each a link to the parent."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from .messages import Answer, Command, Failed


@dataclass(frozen=True, slots=True)
class Link:
    """A rank's end of the line to the parent. ``rank``: 0 to ``world`` - 1."""

    rank: int
    world: int
    _pipe: Connection

    def send(self, message: Answer | Failed) -> None:
        """Raises BrokenPipeError where the parent is gone."""
        self._pipe.send(message)

    def receive(self) -> Command:
        """The next command; waits for it. Raises EOFError where the parent is gone."""
        command: Command = self._pipe.recv()
        return command

    def close(self) -> None:
        self._pipe.close()


class Task(Protocol):
    """What all ranks do. One object describes it for all of them; ``run`` makes a rank's own."""

    def run(self, link: Link) -> None:
        """Do it as rank ``link.rank``, in that rank's process, and return at its end.

        Raises IobenchError, which the parent raises again.
        """
