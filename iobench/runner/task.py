"""Tasks: what each rank does. A crew starts the ranks, and gives each a link to the parent."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from .messages import Answer, Command, Failed

HURRY = signal.SIGUSR1
"""Signal that asks a rank to send its last message now, and to end.

It comes some time after a stop, to a rank that may hang in its storage. A task that has something
to report handles it. A task that must not be cut in two ignores it. Any other rank ends by it.
"""


class Flag(Protocol):
    """A flag in memory that a rank shares with the parent."""

    value: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A rank's connection to the parent. ``rank``: 0 to ``world`` - 1, over all hosts.

    ``first``: the first rank of this host, which has ``on_host`` of them (0: all).
    ``stopped`` becomes true when the task is to end soon. A rank that works looks at it between two
    steps; a rank that waits for a command gets Stop.
    """

    rank: int
    world: int
    stopped: Flag
    _pipe: Connection
    first: int = 0
    on_host: int = 0

    @property
    def local(self) -> int:
        """The number of this rank on its host, from 0."""
        return self.rank - self.first

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
    """What all ranks do. One object describes it for all; ``run`` makes what one rank needs.

    A task whose ranks run code of others has an attribute ``others_code`` that is true: what such a
    rank has started is ended with it, see ``guard``.
    """

    def run(self, link: Link) -> None:
        """Carry out the task as rank ``link.rank``, in that rank's process.

        The rank sends a Point wherever it needs a command, and exactly one Last message. Raises
        IobenchError, which the parent raises again.
        """
