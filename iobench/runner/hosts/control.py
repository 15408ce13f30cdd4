"""The first host of a job, its controller: what it knows of the others, and asks of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from statistics import median
from typing import Any, TypeVar

from ...base.errors import HostLostError, InterruptedRun, IobenchError, UsageError, rebuilt
from ...record.host import JobHost
from ...record.typed import to_text
from .meeting import Joined, Meeting
from .serving import Same, arguments_of, result_of
from .wire import ECHOES, Clock, Error, Message, Wire, offset_of

log = logging.getLogger(__name__)

M = TypeVar("M")
T = TypeVar("T")
Remote = Callable[..., M]
"""A method of what serves this host on the others, see ``member``."""

CLOCKS_S = 5.0
"""Offsets that are older than this are measured again before a phase."""

WORKING_CLOCKS_S = 30.0
"""The same while ranks work, by the echoes of all signs of life."""

BARRIERS = 100
"""How often the cost of a barrier is measured."""

GOODBYE_S = 5.0
"""How long all hosts together have to read the last words before their connections are closed."""


class Peer:
    """Another host, as the controller sees it."""

    def __init__(self, host: Joined, wire: Wire) -> None:
        self.host, self.wire = host, wire
        self.clock = Clock()
        self.calls = 0

    def next(self) -> Message:
        """The next message. Raises HostLostError, KeyboardInterrupt if that host got Ctrl-C."""
        message = self.wire.receive()
        if message.kind == "interrupted":
            raise KeyboardInterrupt
        return message

    def call(self, method: Remote[object], *arguments: object) -> None:
        """Have the host do something, whose ``answer`` comes later. Raises HostLostError."""
        self.calls += 1
        body = to_text(arguments, arguments_of(method))
        self.wire.send(Message("call", method.__name__, self.calls, body))

    def tell(self, method: Remote[None], *arguments: object) -> None:
        """Have the host do something, which it does not answer; a lost host does nothing."""
        body = to_text(arguments, arguments_of(method))
        with suppress(HostLostError):
            self.wire.send(Message("call", method.__name__, body=body))

    def answer(self, kind: Any) -> Any:
        """The answer to the last call, of this type. Raises what was refused.

        What else comes meanwhile is kept.
        """
        kept: list[Message] = []
        try:
            while True:
                message = self.next()
                mine = message.code == self.calls
                if mine and message.kind == "answer":
                    return self.wire.read(message, kind)
                if mine and message.kind == "refused":
                    raise self.refusal(message)
                if not message.code:  # not the answer of a call that was given up
                    kept.append(message)
        finally:
            self.wire.put_back(kept)

    def refusal(self, message: Message) -> IobenchError:
        """The error of a refusal, with the name of the host."""
        return named(self.wire.read(message, Error), self.host)

    def ready(self) -> bool:
        """Whether ``next`` returns at once."""
        try:
            return self.wire.poll()
        except HostLostError:
            return True  # which ``next`` raises


def named(error: IobenchError, host: Joined) -> IobenchError:
    """The error with the name of the host on which it happened."""
    return rebuilt(error, f"{host.label}: {error.what}")


class Control:
    """The other hosts of a job, in their order, and the ranks that each host has.

    ``phases`` and ``plans``: how many there were. ``used``: the plan that all hosts measure now.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.peers = [
            Peer(host, wire) for host, wire in zip(meeting.hosts[1:], meeting.peers, strict=True)
        ]
        self.phases = self.plans = self.used = 0

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

    def set_clocks(self, *, again: bool = False) -> None:
        """Measure the offset of each host's clock, unless that was done just now."""
        now = time.monotonic_ns()
        for peer in self.peers:
            known = peer.clock.known
            if again or not known or now - known[-1].at_ns > CLOCKS_S * 1e9:
                known.append(offset_of([peer.wire.echo() for _ in range(ECHOES)]))
                log.debug("%s: %s", peer.host.label, known[-1])

    def keep_clocks(self) -> None:
        """The same while ranks work, without waiting for echoes."""
        now = time.monotonic_ns()
        for peer in self.peers:
            known = peer.clock.known
            if now - known[-1].at_ns > WORKING_CLOCKS_S * 1e9 and (echoes := peer.wire.echoes()):
                known.append(offset_of(echoes))

    def barrier_s(self) -> float:
        """The median seconds until all hosts have answered: a barrier to which nobody is late."""
        took = []
        for _ in range(BARRIERS):
            began = time.monotonic_ns()
            for peer in self.peers:
                peer.wire.beat()
            for peer in self.peers:
                peer.wire.echo_since(began)
            took.append((time.monotonic_ns() - began) / 1e9)
        return median(took)

    @property
    def round_trip_ns(self) -> int:
        """The longest of the hosts' shortest round trips."""
        return max(2 * peer.clock.known[-1].error_ns for peer in self.peers)

    def known_hosts(self, ranks: int) -> list[JobHost]:
        """The hosts in their order, with so many ranks, and what is known of their clocks."""
        found = []
        for host, share in zip(self.meeting.hosts, self.share(ranks), strict=True):
            known = JobHost(
                name=host.name, first_rank=share.start, ranks=len(share), machine=host.machine
            )
            clock = self.peers[host.index - 1].clock if host.index else None
            if clock is not None and clock.known:
                known.offset_s = clock.known[-1].offset_ns / 1e9
                known.offset_error_s = clock.error_ns / 1e9
                known.offsets, known.drift = len(clock.known), clock.drift
            found.append(known)
        return found

    def there(self, host: int, at_ns: int) -> int:
        """What the clock of a host shows when that of this one shows ``at_ns``."""
        return self.peers[host - 1].clock.there(at_ns) if host else at_ns

    def ask(self, method: Remote[M], mine: Callable[[], M], *arguments: object) -> list[M]:
        """Have all other hosts do something, and do the same here, which ``mine`` does.

        All do it at the same time. Returns the results in the order of the hosts. Raises
        HostLostError, or the error of the first host that failed.
        """
        everyone = dict.fromkeys(range(len(self.meeting.hosts)), arguments)
        return self.ask_each(method, everyone, lambda *_: mine())

    def ask_each(
        self, method: Remote[M], asks: Mapping[int, tuple[object, ...]], mine: Callable[..., M]
    ) -> list[M]:
        """Have some hosts, by their numbers, do it, each with arguments of its own.

        Returns and raises as ``ask``.
        """
        others = {host: arguments for host, arguments in asks.items() if host}
        for host, arguments in others.items():
            self.peers[host - 1].call(method, *arguments)
        found: dict[int, M] = {}
        failure: IobenchError | None = None
        try:
            if 0 in asks:
                found[0] = mine(*asks[0])
        except IobenchError as error:
            failure = error
        for host in others:
            try:
                found[host] = self.peers[host - 1].answer(result_of(method))
            except HostLostError:
                raise
            except IobenchError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return [found[host] for host in asks]

    def tell(self, method: Remote[None], *arguments: object) -> None:
        """Have all other hosts that are not lost do something that nobody waits for."""
        for peer in self.peers:
            peer.tell(method, *arguments)

    def say_bye(self, code: int, why: str) -> None:
        """End the run on all hosts that are not lost."""
        for peer in self.peers:
            peer.wire.closed = True  # first, since the other end closes when it has read that
            try:
                peer.wire.send(Message("bye", code=code, body=to_text(why, str)))
            except HostLostError as error:
                log.info("%s", error)
        deadline = time.monotonic() + GOODBYE_S
        for peer in self.peers:  # which close when they have read that
            if peer.wire.lost is None:
                peer.wire.over.wait(max(0.0, deadline - time.monotonic()))
        self.meeting.wires.close()


def led(control: Control, act: Callable[[], int]) -> int:
    """Do something with the other hosts, and let them go, however it ends.

    Returns the exit code of all hosts, which ``act`` returns. Raises what it raises.
    """
    code, why = 1, "the controller has failed"
    try:
        code, why = act(), ""
        return code
    except IobenchError as error:
        code, why = error.exit_code, str(error)
        raise
    except KeyboardInterrupt:
        code, why = InterruptedRun.exit_code, "interrupted"
        raise
    finally:
        control.say_bye(code, why)


_WHAT = {
    "verb": "was started with '{there}', but {first} with '{here}'",
    "data": "reads {there}, but {first} reads {here}",
    "to": "writes to {there}, but {first} writes to {here}",
    "dataset": "has another dataset at that place than {first}",
    "spec": "would generate another dataset than {first}",
    "objects": "sees other files or objects at that place than {first}",
    "workload": "has another workload than {first}, or other settings of it",
    "settings": "has other settings than {first}",
}
"""What must be the same on all hosts, and what is said of a host where it is not."""

_SAME_DATA = "let all hosts see the same data there: a storage that they share, or equal copies"


def say_same(meeting: Meeting, make: Callable[[], T], same: Callable[[T], Same]) -> T:
    """Make this host's plan, and tell the controller of it. Raises what ``make`` raises."""
    (wire,) = meeting.peers
    try:
        plan = make()
        wire.send(Message("answer", body=to_text(same(plan), Same)))
    except IobenchError as error:
        wire.send(Message("refused", body=to_text(error, Error)))
        raise
    return plan


def check_same(control: Control, mine: Same, others: Iterable[Same]) -> None:
    """Raise UsageError for the first thing that should be the same on all hosts, and is not."""
    first = control.meeting.hosts[0].label
    for peer, theirs in zip(control.peers, others, strict=True):
        for key, here in mine.items():
            if here != (there := theirs.get(key)):
                told = _WHAT.get(key, f"was given another {key} than {{first}}").format(
                    first=first, here=here, there=there
                )
                raise UsageError(
                    f"{peer.host.label} {told}",
                    remedy=_SAME_DATA
                    if key in ("dataset", "objects")
                    else "start the same command on all hosts",
                )
