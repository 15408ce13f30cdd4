"""Numbered tasks that all hosts of a job share, of which the controller gets every result.

``SharedTasks`` stands in for ``generator.pool.run_tasks``, so a verb whose work is numbered tasks
runs over many hosts as it does on one: each host does its share with workers of its own, and what
is done with the results (a manifest, a report) is done once, by the controller.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from ...data.generator.pool import run_tasks
from .control import Control, Peer

T = TypeVar("T")


def share_of_tasks(tasks: Sequence[int], host: int, hosts: int) -> list[int]:
    """The tasks of one host of so many: every task is one host's, and each has equally many."""
    return list(tasks[host::hosts])


@dataclass(kw_only=True)
class HostShare:
    """What one host did. ``took_s``: until its last result; None: it has not done all."""

    name: str
    tasks: int = 0
    done_bytes: int = 0
    took_s: float | None = None


class SharedTasks:
    """``run_tasks`` over all hosts: see there. ``control``: of the others; None: there are none.

    ``hosts``: what each did, where there are several. ``kind``: of the results, and ``weigh`` their
    bytes. ``seen`` is sent with the order: what the other hosts need to see at the same place
    before they begin.
    """

    def __init__(
        self,
        control: Control | None,
        kind: type[Any],
        weigh: Callable[[Any], int],
        seen: Callable[[], str] = lambda: "",
    ) -> None:
        self.peers = control.peers if control is not None else []
        self.kind, self.weigh, self.seen = kind, weigh, seen
        hosts = control.meeting.hosts if control is not None else []
        self.hosts = [HostShare(name=host.label) for host in hosts]
        self._began = 0.0

    def __call__(
        self,
        tasks: Sequence[int],
        make: Callable[[], Callable[[int], T]],
        *,
        workers: int,
        remedy: str = "run the same command again: finished work is kept",
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[T]:
        """Also raises HostLostError, and the error of a task of another host with its name."""
        peers, count = self.peers, len(self.hosts)
        if not peers:
            yield from run_tasks(tasks, make, workers=workers, remedy=remedy, check=check)
            return
        # Imported late, since it imports torch.
        from .member import Member

        self._began = time.monotonic()
        seen = self.seen()
        for peer in peers:
            peer.call(Member.share, tuple(share_of_tasks(tasks, peer.host.index, count)), seen)
        busy = list(peers)
        arrived: deque[T] = deque()

        def look() -> None:
            check()
            for peer in list(busy):
                if self._hear(peer, arrived):
                    busy.remove(peer)

        mine = share_of_tasks(tasks, 0, count)
        if mine:
            here = min(workers, len(mine))
            for result in run_tasks(mine, make, workers=here, remedy=remedy, check=look):
                self._count(0, result)
                yield result
                while arrived:
                    yield arrived.popleft()
        self._end(0)
        while busy or arrived:
            while arrived:
                yield arrived.popleft()
            wait([peer.wire.fileno() for peer in busy], timeout=0.2)
            look()

    def _hear(self, peer: Peer, arrived: deque[Any]) -> bool:
        """Take what a host has sent until now; return whether its share is done."""
        while peer.ready():
            message = peer.next()
            match message.kind:
                case "report":
                    arrived.append(peer.wire.read(message, self.kind))
                    self._count(peer.host.index, arrived[-1])
                case "refused":
                    raise peer.refusal(message)
                case _:
                    self._end(peer.host.index)
                    return True
        return False

    def _count(self, host: int, result: object) -> None:
        self.hosts[host].tasks += 1
        self.hosts[host].done_bytes += self.weigh(result)

    def _end(self, host: int) -> None:
        self.hosts[host].took_s = time.monotonic() - self._began
