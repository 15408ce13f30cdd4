"""A crew whose ranks are on many hosts: forked here, and by the agents of the other hosts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...base.errors import HostLostError
from ...base.interrupts import defer_interrupts
from ..counters import Counters
from ..crew import GRACE_S, ForkedCrew
from ..messages import Answer, Command, Last, RestoreNow, SaveNow, Start
from .agent import Agent, Counted, FromRank
from .control import Control, Peer
from .orders import Begin, PhaseOrder, SavesOrder
from .wire import SILENCE_S

log = logging.getLogger(__name__)


def begins_of(
    control: Control,
    order: PhaseOrder | SavesOrder,
    shares: Sequence[range],
    barrier_port: int = 0,
) -> dict[Peer, Begin]:
    """What tells each of the other hosts to start its ranks."""
    return {
        peer: Begin(
            order=order,
            first=share.start,
            count=len(share),
            offset_ns=peer.clock.there(now := time.monotonic_ns()) - now,
            barrier_port=barrier_port,
        )
        for peer, share in zip(control.peers, shares[1:], strict=True)
        if share
    }


class HostsCrew:
    """The ranks of this host, which are ``local``, and those that other hosts ``begin``."""

    def __init__(
        self,
        control: Control,
        local: ForkedCrew,
        begins: dict[Peer, Begin],
        counters: Counters | None = None,
    ) -> None:
        self.control = control
        self.ranks = range(local.world)
        self.local, self.counters = local, counters
        self._begins = begins
        self._peers = {
            rank: peer
            for peer, begin in begins.items()
            for rank in range(begin.first, begin.first + begin.count)
        }
        self._dead: set[int] = set()
        self._started: list[Peer] = []
        self._stopped = False

    def start(self) -> None:
        """Raises HostLostError, or the error because of which a host could not start its ranks."""
        for peer, begin in self._begins.items():
            peer.call(Agent.begin, begin)
            self._started.append(peer)
        self.local.start()
        for peer in self._begins:
            peer.answer(None)

    def send(self, rank: int, command: Command) -> None:
        peer = self._peers.get(rank)
        if peer is None:
            self.local.send(rank, command)
            return
        if isinstance(command, Start | SaveNow | RestoreNow):
            command = replace(command, at_ns=peer.clock.there(command.at_ns))
        peer.tell(Agent.to_rank, rank, command)

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
                peer.tell(Agent.stop)

    def hurry(self, ranks: Sequence[int]) -> None:
        self.local.hurry([rank for rank in ranks if rank not in self._peers])
        others = [rank for rank in ranks if rank in self._peers]
        for peer in self._started if others else ():
            peer.tell(Agent.hurry, others)

    def receive(
        self, awaited: Sequence[int], timeout_s: float = 0.2
    ) -> Iterator[tuple[int, Answer]]:
        """As ``Crew.receive``; raises HostLostError for a host that is gone or silent."""
        mine = [rank for rank in awaited if rank not in self._peers]
        peers = list(dict.fromkeys(self._peers[rank] for rank in awaited if rank in self._peers))
        if peers:
            self.control.set_clocks(while_working=True)
        if not any(peer.inbox for peer in peers):
            pipes = [self.local.pipe(rank) for rank in mine]
            self.local.wait([*pipes, *(peer.wire.connection for peer in peers)], timeout_s)
        if mine:
            yield from self.local.receive(mine, 0.0)
        for peer in peers:
            yield from self._from(peer)

    def _from(self, peer: Peer) -> Iterator[tuple[int, Answer]]:
        """What a host has sent until now."""
        while peer.ready():
            message = peer.next()
            begin = self._begins[peer]
            theirs = range(begin.first, begin.first + begin.count)
            match message.kind, message.what:
                case "report", "rank":
                    rank, answer = peer.wire.read(message, FromRank)
                    if isinstance(answer, Last):
                        self._dead.add(rank)
                    yield rank, answer
                case "report", "counted" if self.counters is not None:
                    first, rows = peer.wire.read(message, Counted)
                    for rank, row in enumerate(rows, first):
                        if rank in theirs:
                            self.counters.put(rank, row)
                case "refused", _:
                    if not message.code:
                        self._dead |= set(theirs)
                    raise peer.refusal(message)

    def end(self, grace_s: float = GRACE_S) -> None:
        started, self._started = self._started, []
        with defer_interrupts():
            for peer in started:
                try:
                    peer.call(Agent.end_ranks, grace_s)
                except HostLostError as error:
                    log.info("%s", error)
            self.local.end(grace_s)
            for peer in started:
                self._await_end(peer, grace_s + SILENCE_S)

    def _await_end(self, peer: Peer, timeout_s: float) -> None:
        """Wait until a host says that none of its ranks is left; one that does not is lost."""
        deadline = time.monotonic() + timeout_s
        peer.inbox.clear()
        while peer.wire.lost is None:
            try:
                if not peer.wire.poll(max(0.0, deadline - time.monotonic())):
                    peer.wire.give_up("its ranks did not end")
                elif (said := peer.next()).kind == "answer" and said.code == peer.calls:
                    peer.inbox.clear()
                    return
            except KeyboardInterrupt:
                continue  # that host was interrupted, too, and its ranks are ending
            except HostLostError:
                return
