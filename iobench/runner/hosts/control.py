"""The controller of a job over many hosts: what it knows of the others, and asks of them."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...base.errors import HostLostError, InterruptedRun, IobenchError, WorkerError, rebuilt
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...record.host import Host
from ...storage.base import Storage
from ..agent import CacheState, FetchCounter, HostAgent, Used, change_cache
from ..plan import Plan
from .barrier import BarrierServer
from .clock import ECHOES, Clock, Echo
from .interface import set_interface
from .meeting import Joined, Meeting
from .wire import Wire
from .words import Ask, Bye, Counted, Interrupted, Ping, Pong, Refused, Told

log = logging.getLogger(__name__)

M = TypeVar("M")
A = TypeVar("A")

CLOCKS_S = 5.0
"""Offsets that are older than this are measured again before a phase."""

WORKING_CLOCKS_S, WORKING_ECHOES = 30.0, 20
"""The same while ranks work, and the echoes that are then sent."""

GOODBYE_S = 5.0
"""How long all hosts together have to read the last words before their connections are closed."""


class Peer:
    """Another host, as the controller sees it.

    ``inbox``: what came while something else was awaited.
    """

    def __init__(self, host: Joined, wire: Wire) -> None:
        self.host, self.wire = host, wire
        self.clock = Clock()
        self.inbox: deque[object] = deque()
        self.lost: HostLostError | None = None
        self.interrupted = False

    def send(self, message: object) -> None:
        """Raises HostLostError."""
        if self.lost is not None:
            raise self.lost
        try:
            self.wire.send(message)
        except HostLostError as error:
            self.lost = error
            raise

    def next(self) -> object:
        """The next message. Raises HostLostError, KeyboardInterrupt if that host got Ctrl-C."""
        if self.inbox:
            return self.inbox.popleft()
        if self.lost is not None:
            raise self.lost
        try:
            message = self.wire.receive()
        except HostLostError as error:
            self.lost = error
            raise
        if isinstance(message, Interrupted):
            self.interrupted = True
            raise KeyboardInterrupt
        return message

    def await_(self, kind: type[M]) -> M:
        """The next message of this kind to come; others are kept. Raises the error of Refused."""
        kept = list(self.inbox)
        self.inbox.clear()
        try:
            while True:
                message = self.next()
                if isinstance(message, kind):
                    return message
                if isinstance(message, Refused) and message.rank is None:
                    raise named(message.error, self.host)
                if not isinstance(message, Counted):
                    kept.append(message)
        finally:
            self.inbox.extend(kept)

    def ready(self) -> bool:
        """Whether ``next`` returns at once."""
        if self.inbox or self.lost is not None:
            return True
        try:
            return self.wire.poll()
        except HostLostError as error:
            self.lost = error
            return True

    def echo(self) -> Echo:
        sent = time.monotonic_ns()
        self.send(Ping())
        there = self.await_(Pong).at_ns
        return Echo(sent, there, time.monotonic_ns())


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def named(error: IobenchError, host: Joined) -> IobenchError:
    """The error with the name of the host on which it happened."""
    return rebuilt(error, f"{host.label}: {error.what}")


class Control:
    """The other hosts of a job, in their order, and the ranks that each host has."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.peers = [
            Peer(host, wire) for host, wire in zip(meeting.hosts[1:], meeting.wires, strict=True)
        ]
        self.phases = 0
        self._barriers: BarrierServer | None = None

    @property
    def barrier_port(self) -> int:
        """Where ranks of all hosts meet after each step: a server that begins when first used."""
        if self._barriers is None:
            self._barriers = BarrierServer(self.meeting)
        return self._barriers.port

    def expect(self, hosts: Sequence[int]) -> None:
        """The ranks of these hosts take part in all steps of the current phase."""
        assert self._barriers is not None, "their port was asked for"
        self._barriers.expect(self.phases, hosts)

    def rendezvous(self) -> str:
        """The URL of a port of this host at which ranks of all hosts meet, for torch."""
        set_interface(self.meeting)
        address = self.meeting.launch.address
        return f"tcp://{f'[{address}]' if ':' in address else address}:{_free_port()}"

    def share(self, accelerators: int) -> list[range]:
        """The ranks of each host, numbered through, if there are so many in all.

        As many as each host was started with if that is their sum, otherwise evenly.
        """
        count = len(self.meeting.hosts)
        each = [host.accelerators for host in self.meeting.hosts]
        if accelerators != sum(each):
            each = [accelerators // count + (n < accelerators % count) for n in range(count)]
        found, first = [], 0
        for number in each:
            found.append(range(first, first + number))
            first += number
        return found

    def set_clocks(self, *, again: bool = False, while_working: bool = False) -> None:
        """Measure the offset of each host's clock, unless that was done just now.

        ``while_working``: ranks work, so it is done more rarely, and with fewer echoes.
        """
        now = time.monotonic_ns()
        after_s = WORKING_CLOCKS_S if while_working else CLOCKS_S
        for peer in self.peers:
            known = peer.clock.known
            if again or not known or now - known[-1].at_ns > after_s * 1e9:
                count = WORKING_ECHOES if while_working else ECHOES
                found = peer.clock.measure(peer.echo, count)
                log.debug("%s: %s", peer.host.label, found)

    @property
    def round_trip_ns(self) -> int:
        """The longest of the hosts' shortest round trips."""
        return max(2 * peer.clock.known[-1].error_ns for peer in self.peers)

    def there(self, host: int, at_ns: int) -> int:
        """What the clock of a host shows when that of this one shows ``at_ns``."""
        return self.peers[host - 1].clock.there(at_ns) if host else at_ns

    def ask(self, ask: Ask, kind: type[M], mine: Callable[[], M]) -> list[M]:
        """Ask all hosts, and do the same here, at the same time; the answers in their order.

        Raises HostLostError, or the error of the first host that failed.
        """
        everyone = dict.fromkeys(range(len(self.meeting.hosts)), ask)
        return self.ask_each(everyone, kind, lambda _: mine())

    def ask_each(self, asks: Mapping[int, A], kind: type[M], mine: Callable[[A], M]) -> list[M]:
        """Ask some hosts, by their numbers, each something of its own; ``mine`` does it here.

        Returns and raises as ``ask``.
        """
        others = {host: ask for host, ask in asks.items() if host}
        for host, ask in others.items():
            self.peers[host - 1].send(ask)
        found: dict[int, M] = {}
        failure: IobenchError | None = None
        try:
            if 0 in asks:
                found[0] = mine(asks[0])
        except IobenchError as error:
            failure = error
        for peer in (self.peers[host - 1] for host in others):
            try:
                value = peer.await_(Told).value
                if value is not None and not isinstance(value, kind):
                    raise WorkerError(f"{peer.host.label} has answered {type(value).__name__}")
                found[peer.host.index] = value  # type: ignore[assignment]
            except HostLostError:
                raise
            except IobenchError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return [found[host] for host in asks]

    def say_bye(self, code: int, why: str = "") -> None:
        """End the run on all hosts that are not lost."""
        if self._barriers is not None:
            self._barriers.close()
            self._barriers = None
        for peer in self.peers:
            try:
                peer.send(Bye(code, why))
            except HostLostError as error:
                log.info("%s", error)
        deadline = time.monotonic() + GOODBYE_S
        for peer in self.peers:
            if peer.lost is None:
                peer.wire.drain(deadline)
            peer.wire.close()


def led(control: Control, act: Callable[[], M], code: Callable[[M], int] = lambda done: 0) -> M:
    """Do something with the other hosts, and let them go, however it ends.

    ``code``: the exit code of all hosts, where what was done has one. Raises what ``act`` raises.
    """
    try:
        done = act()
    except IobenchError as error:
        control.say_bye(error.exit_code, str(error))
        raise
    except KeyboardInterrupt:
        control.say_bye(InterruptedRun.exit_code, "interrupted")
        raise
    except BaseException:
        control.say_bye(1, "the controller has failed")
        raise
    control.say_bye(code(done))
    return done


class HostsAgent(HostAgent):
    """The agents of all hosts as one: what it is asked, it asks all of them at the same time."""

    def __init__(self, storage: Storage, control: Control, plan: Plan) -> None:
        super().__init__(storage)
        self.control, self.plan = control, plan
        self._one = HostAgent(storage)
        self._all: FetchCounter | None = None

    def of(self, plan: Plan) -> HostsAgent:
        return HostsAgent(plan.storage, self.control, plan)

    def describe_all(self) -> list[Host]:
        return self.control.ask(Ask("host"), Host, self.describe)

    def empty_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("empty", keys)

    def fill_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("fill", keys)

    def cache_state(self, keys: Sequence[str]) -> CacheState:
        return self._cache("state", keys)

    def _cache(self, what: str, keys: Sequence[str]) -> CacheState:
        asked = Ask(what)  # type: ignore[arg-type]
        states = self.control.ask(asked, CacheState, lambda: change_cache(self._one, what, keys))
        return worst_state(states)

    def fetch_counter(self, keys: Sequence[str], *, direct: bool) -> FetchCounter:
        """The counter that all hosts have, if they have the same."""
        if self._all is None:
            found = self.control.ask(
                Ask("counter", direct),
                FetchCounter,
                lambda: self._one.fetch_counter(keys, direct=direct),
            )
            self._all = found[0]
            if any(each.by != found[0].by for each in found):
                without = next(
                    (each for each in found if each.by == "nobody"),
                    FetchCounter(by="nobody", how="not measured: the hosts have other counters"),
                )
                self._all = without
        return self._all

    def mount_counters(self) -> MountStats | None:
        """The sums of the counters of all hosts' mounts; None if one is missing."""
        if self._all is None or self._all.by != "mount":
            return None
        found = self.control.ask(Ask("mount"), MountStats, self._mine)
        total = found[0]
        if total is None or any(each is None for each in found):
            return None
        return total._replace(read_bytes=sum(each.read_bytes for each in found))

    def snapshot(self) -> Snapshot:
        """Of this host; the others take one at the same time, and keep it."""
        taken: list[Snapshot] = []

        def mine() -> bool:
            taken.append(self._one.snapshot())
            return True

        self.control.ask(Ask("snapshot"), bool, mine)
        return taken[0]

    def used_since(self, before: Snapshot) -> Used:
        """What all hosts did since the last snapshot; this one's alone if a host is lost."""
        own = self._one.used_since(before)
        try:
            return replace(own, hosts=tuple(self.control.ask(Ask("used"), Used, lambda: own)))
        except HostLostError as error:
            log.info("%s", error)
            return own

    def _mine(self) -> MountStats:
        return self._one.mount_counters()  # type: ignore[return-value]


def worst_state(states: Sequence[CacheState]) -> CacheState:
    """The states of several hosts' page caches as one: the one that holds the most."""
    ratios = tuple(state.ratio for state in states)
    known = [ratio for ratio in ratios if ratio is not None]
    worst = max(known) if len(known) == len(ratios) else None
    how = next((state.how for state in states if state.ratio == worst), states[0].how)
    return CacheState(worst, how, ratios)
