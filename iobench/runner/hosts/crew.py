"""A crew whose ranks are on many hosts: forked here, and by the other hosts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...base.errors import HostLostError
from ...base.interrupts import defer_interrupts
from ..counters import Counters
from ..crew import GRACE_S, ForkedCrew
from ..messages import Answer, Command, Last, LoadNow, RestoreNow, SaveNow, Start, Task
from .control import Control, Peer
from .hosts import Begin
from .member import Counted, FromRank, Member
from .wire import SILENCE_S

log = logging.getLogger(__name__)


class HostsCrew:
    """The ranks of this host, which are ``local``, and those that other hosts ``begin``.

    ``ended`` is called once all of them have ended.
    """

    def __init__(
        self,
        control: Control,
        local: ForkedCrew,
        begins: Mapping[Peer, Begin],
        task: Task,
    ) -> None:
        self.control, self.local = control, local
        self.ranks = range(local.world)
        self.counters: Counters | None = getattr(task, "counters", None)
        self.ended: Callable[[], None] = lambda: None
        self._shares = {
            peer: range(begin.first, begin.first + begin.count) for peer, begin in begins.items()
        }
        self._begins = begins
        self._peers = {rank: peer for peer, share in self._shares.items() for rank in share}
        self._dead: set[int] = set()
        self._started: list[Peer] = []
        self._stopped = False

    def start(self) -> None:
        """Raises HostLostError, or the error because of which a host could not start its ranks."""
        for peer, begin in self._begins.items():
            peer.call(Member.begin, begin)
            self._started.append(peer)
        self.local.start()
        for peer in self._begins:
            peer.answer(None)

    def send(self, rank: int, command: Command) -> None:
        peer = self._peers.get(rank)
        if peer is None:
            self.local.send(rank, command)
            return
        if isinstance(command, Start | SaveNow | RestoreNow | LoadNow):
            command = replace(command, at_ns=peer.clock.there(command.at_ns))
        peer.tell(Member.to_rank, rank, command)

    def is_alive(self, rank: int) -> bool:
        peer = self._peers.get(rank)
        if peer is None:
            return self.local.is_alive(rank)
        return peer.wire.lost is None and rank not in self._dead

    def stop(self) -> None:
        self.local.stop()
        if not self._stopped:
            self._stopped = True
            for peer in self._started:
                peer.tell(Member.stop)

    def hurry(self, ranks: Sequence[int]) -> None:
        self.local.hurry([rank for rank in ranks if rank not in self._peers])
        others = [rank for rank in ranks if rank in self._peers]
        for peer in self._started if others else ():
            peer.tell(Member.hurry, others)

    def receive(
        self, awaited: Sequence[int], timeout_s: float = 0.2
    ) -> Iterator[tuple[int, Answer]]:
        """As ``Crew.receive``; raises HostLostError for a host that is gone or silent."""
        mine = [rank for rank in awaited if rank not in self._peers]
        peers = list(dict.fromkeys(self._peers[rank] for rank in awaited if rank in self._peers))
        if peers:
            self.control.keep_clocks()
        wires = [peer.wire.fileno() for peer in peers]
        self.local.wait([*map(self.local.pipe, mine), *wires], timeout_s)
        if mine:
            yield from self.local.receive(mine, 0.0)
        for peer in peers:
            yield from self._from(peer)

    def _from(self, peer: Peer) -> Iterator[tuple[int, Answer]]:
        """What a host has sent until now."""
        while peer.ready():
            message = peer.next()
            match message.kind, message.what:
                case "report", "rank":
                    rank, answer = peer.wire.read(message, FromRank)
                    if isinstance(answer, Last):
                        self._dead.add(rank)
                    yield rank, answer
                case "report", "counted" if self.counters is not None:
                    first, rows = peer.wire.read(message, Counted)
                    for rank, row in enumerate(rows, first):
                        if rank in self._shares[peer]:
                            self.counters.put(rank, row)
                case "refused", _:
                    if not message.code:
                        self._dead |= set(self._shares[peer])
                    raise peer.refusal(message)

    def end(self, grace_s: float = GRACE_S) -> None:
        started, self._started = self._started, []
        with defer_interrupts():
            for peer in started:
                try:
                    peer.call(Member.end_ranks, grace_s)
                except HostLostError as error:
                    log.info("%s", error)
            self.local.end(grace_s)
            for peer in started:
                self._await_end(peer, grace_s + SILENCE_S)
            self.ended()
            self.ended = lambda: None

    def _await_end(self, peer: Peer, timeout_s: float) -> None:
        """Wait until a host says that none of its ranks is left; one that does not is lost."""
        deadline = time.monotonic() + timeout_s
        while peer.wire.lost is None:
            try:
                if not peer.wire.poll(max(0.0, deadline - time.monotonic())):
                    peer.wire.give_up("its ranks did not end")
                elif (said := peer.next()).kind == "answer" and said.code == peer.calls:
                    return
            except KeyboardInterrupt:
                continue  # that host was interrupted, too, and its ranks are ending
            except HostLostError:
                return
