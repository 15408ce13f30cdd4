"""A task of a new kind goes through the engine as it is: a crew of real processes, and every way to
end.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from iobench.base.errors import NoMemoryError, WorkerError
from iobench.runner import conductor
from iobench.runner.conductor import Handler, conduct
from iobench.runner.crew import ForkedCrew
from iobench.runner.messages import HURRY, Command, Last, Link, Point, Report, Stop

pytestmark = pytest.mark.usefixtures("nothing_left")

WORLD = 3
ENDLESS = 1 << 60


@dataclass(frozen=True)
class CountTo(Command):
    number: int


@dataclass(frozen=True)
class Ready(Point):
    count: int


@dataclass(frozen=True)
class HasBegun(Report):
    pass


@dataclass(frozen=True)
class Counted(Last):
    total: int
    left: str  # how the rank came to its end


class Count:
    """Ranks that count as far as they are told, again and again; a toy that touches no storage."""

    def __init__(self, step: Callable[[Link], None] = lambda link: time.sleep(0.001)) -> None:
        self.step = step

    def run(self, link: Link) -> None:
        total = 0
        while True:
            link.send(Ready(total))
            command = link.receive()
            if not isinstance(command, CountTo):
                link.send(Counted(total, type(command).__name__))
                return
            while total < command.number:
                self.step(link)
                total += 1
                if total == 1:
                    link.send(HasBegun())
                if link.stopped.value:
                    break


class Counting(Handler):
    """Has all ranks count to 5 and then to 10, or without end; keeps what they report."""

    def __init__(self, *goals: int) -> None:
        self.goals = [Stop(), *(CountTo(goal) for goal in reversed(goals))]
        self.begun: list[int] = []
        self.found: dict[int, Counted] = {}
        self.ready: list[dict[int, int]] = []

    def heard(self, rank: int, message: Report | Last) -> None:
        if isinstance(message, Counted):
            self.found[rank] = message
        else:
            self.begun.append(rank)

    def answer(self, waiting: Mapping[int, Point]) -> Mapping[int, Command]:
        self.ready.append(
            {rank: point.count for rank, point in waiting.items() if isinstance(point, Ready)}
        )
        return dict.fromkeys(waiting, self.goals.pop())


class Pressing(Counting):
    """Somebody presses Ctrl-C, once all ranks work."""

    def tick(self) -> None:
        if len(self.begun) == WORLD:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_task_runs_to_its_end() -> None:
    handler = Counting(5, 10)
    conduct(ForkedCrew(WORLD, Count()), handler)
    assert handler.ready == [dict.fromkeys(range(WORLD), count) for count in (0, 5, 10)]
    assert handler.found == dict.fromkeys(range(WORLD), Counted(10, "Stop"))
    assert sorted(handler.begun) == list(range(WORLD))


def test_ctrl_c_while_all_wait_keeps_what_each_has_done() -> None:
    class Slow(Counting):
        def prepare(self, waiting: Mapping[int, Point]) -> None:
            if self.begun:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)  # cut short: an interrupt takes effect at once here

    handler = Slow(5, 10)
    with pytest.raises(KeyboardInterrupt):
        conduct(ForkedCrew(WORLD, Count()), handler)
    assert handler.found == dict.fromkeys(range(WORLD), Counted(5, "Stop"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dies", range(WORLD))
def test_a_rank_that_dies_within_a_message_is_named(dies: int) -> None:
    """Nobody waits for the rest of it, also where the other ranks go on for a while."""

    def step(link: Link) -> None:
        if link.rank == dies:
            os.write(link._pipe.fileno(), (1 << 20).to_bytes(4, "big") + b"the beginning")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)

    with pytest.raises(WorkerError, match=f"rank {dies} died"):
        conduct(ForkedCrew(WORLD, Count(step)), Counting(200))


def test_a_host_that_starts_no_more_processes_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork, started = os.fork, []

    def limited() -> int:
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(0)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    with pytest.raises(NoMemoryError, match="did not start 3 ranks: Resource temporarily"):
        conduct(ForkedCrew(WORLD, Count()), Counting(5))


def hangs_for_good(link: Link) -> None:
    signal.signal(HURRY, signal.SIG_IGN)
    link.send(HasBegun())
    time.sleep(3600)


def one_hangs(hang: Callable[[Link], None]) -> Count:
    """Rank 1 hangs. The others end by the flag alone, however slow the machine is."""

    def step(link: Link) -> None:
        if link.rank == 1:
            hang(link)
        signal.signal(HURRY, signal.SIG_IGN)
        time.sleep(0.001)

    return Count(step)


@pytest.mark.slow
def test_a_rank_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "PATIENCE_S", 0.1)
    monkeypatch.setattr(conductor, "GRACE_S", 0.5)
    with pytest.raises(KeyboardInterrupt):  # and no process is left
        conduct(ForkedCrew(WORLD, one_hangs(hangs_for_good)), Pressing(ENDLESS))
