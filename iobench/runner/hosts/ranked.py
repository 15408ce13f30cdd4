"""The agent of a host that has ranks.

It starts them, and passes on what they and the controller tell each other. If the controller is
lost, its ranks end with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Annotated

from ...base.errors import HostLostError, IobenchError
from ...host.timeline import Array
from ...record.typed import OneOf
from .. import messages
from ..crew import ForkedCrew
from ..messages import Answer, Command, Last, Recorded, Stop, Task
from ..tasks.checkpoint import Checkpoint
from .localreads import LocalReads, ReadingHost
from .meeting import Meeting
from .orders import Begin
from .place import SavesThere, text_at
from .words import deed, refused

log = logging.getLogger(__name__)

COLLECT_S = 3.0
"""How long the ranks have to say what they recorded, after the controller was lost."""


AnyCommand = Annotated[Command, OneOf(*Command.__subclasses__())]

FromRank = tuple[
    int,
    Annotated[
        Answer,
        OneOf(
            *messages.Point.__subclasses__(),
            *(messages.PartSaved, messages.Recorded, messages.Ended),
        ),
    ],
]
"""What a rank of another host says, with its number."""

Counted = tuple[int, Array]
"""What the ranks of a host have done so far, from a rank on: rows of ``runner.counters``."""

_TURN_S = 0.2
"""How long to wait for a message until the next turn."""


class StartedRanks:
    """The ranks of this host in one phase, or in a study."""

    def __init__(self, begin: Begin, task: Task, crew: ForkedCrew) -> None:
        self.order, self.task, self.crew = begin.order, task, crew
        self.working = list(range(crew.first, crew.first + begin.count))
        self.kept: dict[int, Recorded] = {}
        self.failed = False


class RankedAgent(ReadingHost):
    """Serves the controller of a job that has ranks. In a study they only save (``saves``)."""

    def __init__(
        self, meeting: Meeting, reads: LocalReads, saves: SavesThere | None = None
    ) -> None:
        super().__init__(meeting, reads)
        self.saves = saves
        self.ranks: StartedRanks | None = None

    def task_of(self, begin: Begin) -> Task:
        """The task of the ranks that are to begin. Raises IobenchError."""
        assert begin.saves is not None
        assert self.saves is not None
        return Checkpoint(self.saves.maker(begin.saves.rendezvous))

    def keep(self, ranks: StartedRanks) -> None:
        """The ranks have ended."""

    def close(self) -> None:
        if self.ranks is not None:
            self._collect(self.ranks)
            self.ranks.crew.end(1.0)
            self.keep(self.ranks)

    def _collect(self, ranks: StartedRanks) -> None:
        """Keep what the ranks have recorded, since the controller can't collect it any more."""
        began = time.monotonic()
        ranks.crew.stop()
        for rank in ranks.working:
            with suppress(IobenchError):
                ranks.crew.send(rank, Stop())  # at the next point at which it waits
        while ranks.working and (waited := time.monotonic() - began) < COLLECT_S:
            if waited > COLLECT_S / 2:
                ranks.crew.hurry(ranks.working)
            try:
                for rank, answer in ranks.crew.receive(list(ranks.working)):
                    if isinstance(answer, Last):
                        ranks.working.remove(rank)
                    if isinstance(answer, Recorded):
                        ranks.kept[rank] = answer
            except IobenchError:
                ranks.working = [rank for rank in ranks.working if ranks.crew.is_alive(rank)]

    def wait(self) -> None:
        if self.ranks is None or self.ranks.failed:
            wait([self.wire.connection], timeout=_TURN_S)
            return
        crew = self.ranks.crew
        crew.wait([self.wire.connection, *map(crew.pipe, self.ranks.working)], _TURN_S)

    @deed
    def begin(self, begin: Begin) -> None:
        """Start the ranks of this host."""
        task = self.task_of(begin)
        crew = ForkedCrew(begin.count, task, first=begin.first, world=begin.order.accelerators)
        self.ranks = StartedRanks(begin, task, crew)
        crew.start()

    @deed
    def text(self, key: str) -> str:
        """A short text at the place of the checkpoints."""
        assert self.saves is not None
        return text_at(self.saves.plan.url, key)

    @deed
    def to_rank(self, rank: int, command: AnyCommand) -> None:
        """Send a command to a rank; its instants are on the clock of this host."""
        if self.ranks is not None:
            self._or_refused(lambda ranks: ranks.crew.send(rank, command))

    @deed
    def stop(self) -> None:
        """Set the flag ``stopped`` of the ranks."""
        if self.ranks is not None:
            self.ranks.crew.stop()

    @deed
    def hurry(self, ranks: list[int]) -> None:
        """Ask these ranks to send their last message now."""
        if self.ranks is not None:
            self.ranks.crew.hurry([rank for rank in ranks if rank in self.ranks.working])

    @deed
    def end_ranks(self, grace_s: float) -> None:
        """End all ranks within this time."""
        if self.ranks is not None:
            self.ranks.crew.stop()
            self.ranks.crew.end(grace_s)
            self.keep(self.ranks)
            self.ranks = None

    def turn(self) -> None:
        """Pass on what the ranks have sent."""
        ranks = self.ranks
        if ranks is None:
            return

        def listen(ranks: StartedRanks) -> None:
            for rank, answer in ranks.crew.receive(list(ranks.working), 0.0):
                if isinstance(answer, Last):
                    ranks.working.remove(rank)
                if isinstance(answer, Recorded):
                    ranks.kept[rank] = answer
                self.report("rank", (rank, answer), FromRank)

        if ranks.working and not ranks.failed:
            self._or_refused(listen)

    def _or_refused(self, act: Callable[[StartedRanks], None]) -> None:
        """Do this with the ranks; their failure is the controller's affair, that of the wire not.

        After a failure nothing more is heard from the ranks, until the controller ends them.
        """
        assert self.ranks is not None
        try:
            act(self.ranks)
        except HostLostError:
            raise
        except IobenchError as error:
            self.ranks.failed = True
            self.wire.send(refused(error))
