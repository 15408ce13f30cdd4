"""Tasks: what each rank does. A crew starts the ranks, and gives each a link to the parent."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from .messages import Answer, Command, Failed


@dataclass(frozen=True, slots=True)
class Link:
    """A rank's connection to the parent. ``rank``: 0 to ``world`` - 1."""

    rank: int
    world: int
    _pipe: Connection

    def send(self, message: Answer | Failed) -> None:
        """Send a message. Raises BrokenPipeError if the parent is gone."""
        self._pipe.send(message)

    def receive(self) -> Command:
        """Wait for the next command. Raises EOFError if the parent is gone."""
        command: Command = self._pipe.recv()
        return command

    def close(self) -> None:
        self._pipe.close()


class Task(Protocol):
    """What all ranks do. One object describes it for all; ``run`` makes what one rank needs."""

    def run(self, link: Link) -> None:
        """Carry out the task as rank ``link.rank``, in that rank's process.

        Raises IobenchError, which the parent raises again.
        """
