"""The controller of a job over many hosts: what it knows of the others, and asks of them."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...base.errors import HostLostError, InterruptedRun, IobenchError, rebuilt
from ...record.typed import to_text
from .barrier import BarrierServer
from .clock import ECHOES, Clock, Echo
from .meeting import Joined, Meeting
from .serving import Serving
from .store import set_interface
from .wire import Wire
from .words import Error, Message, arguments_of, bye, result_of

log = logging.getLogger(__name__)

M = TypeVar("M")
Deed = Callable[..., M]
"""A method of what serves this host on the others, see ``words``."""

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
        self.inbox: deque[Message] = deque()
        self.calls = 0

    def next(self) -> Message:
        """The next message. Raises HostLostError, KeyboardInterrupt if that host got Ctrl-C."""
        if self.inbox:
            return self.inbox.popleft()
        message = self.wire.receive()
        if message.kind == "interrupted":
            raise KeyboardInterrupt
        return message

    def call(self, deed: Deed[object], *arguments: object) -> None:
        """Have the host do something, whose ``answer`` comes later. Raises HostLostError."""
        self.calls += 1
        body = to_text(arguments, arguments_of(deed))
        self.wire.send(Message("call", deed.__name__, self.calls, body))

    def tell(self, deed: Deed[None], *arguments: object) -> None:
        """Have the host do something, which it does not answer; a lost host does nothing."""
        body = to_text(arguments, arguments_of(deed))
        with suppress(HostLostError):
            self.wire.send(Message("tell", deed.__name__, body=body))

    def answer(self, kind: Any) -> Any:
        """The answer to the last call, of this type. Raises what was refused.

        What else comes meanwhile is kept.
        """
        kept = list(self.inbox)
        self.inbox.clear()
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
            self.inbox.extend(kept)

    def refusal(self, message: Message) -> IobenchError:
        """The error of a refusal, with the name of the host."""
        return named(self.wire.read(message, Error), self.host)

    def ready(self) -> bool:
        """Whether ``next`` returns at once."""
        try:
            return bool(self.inbox) or self.wire.poll()
        except HostLostError:
            return True  # which ``next`` raises

    def echo(self) -> Echo:
        sent = time.monotonic_ns()
        self.call(Serving.clock)
        there = self.answer(int)
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
    """The other hosts of a job, in their order, and the ranks that each host has.

    ``phases`` and ``plans``: how many there were. ``used``: the plan that all hosts measure now.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.peers = [
            Peer(host, wire) for host, wire in zip(meeting.hosts[1:], meeting.wires, strict=True)
        ]
        self.phases = self.plans = self.used = 0
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
        set_interface(self.meeting.wires[0].connection)
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

    def ask(self, deed: Deed[M], mine: Callable[[], M], *arguments: object) -> list[M]:
        """Have all other hosts do something, and do the same here, which ``mine`` does.

        All do it at the same time. Returns the results in the order of the hosts. Raises
        HostLostError, or the error of the first host that failed.
        """
        everyone = dict.fromkeys(range(len(self.meeting.hosts)), arguments)
        return self.ask_each(deed, everyone, lambda *_: mine())

    def ask_each(
        self, deed: Deed[M], asks: Mapping[int, tuple[object, ...]], mine: Callable[..., M]
    ) -> list[M]:
        """Have some hosts, by their numbers, do it, each with arguments of its own.

        Returns and raises as ``ask``.
        """
        others = {host: arguments for host, arguments in asks.items() if host}
        for host, arguments in others.items():
            self.peers[host - 1].call(deed, *arguments)
        found: dict[int, M] = {}
        failure: IobenchError | None = None
        try:
            if 0 in asks:
                found[0] = mine(*asks[0])
        except IobenchError as error:
            failure = error
        for host in others:
            try:
                found[host] = self.peers[host - 1].answer(result_of(deed))
            except HostLostError:
                raise
            except IobenchError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return [found[host] for host in asks]

    def tell(self, deed: Deed[None], *arguments: object) -> None:
        """Have all other hosts that are not lost do something that nobody waits for."""
        for peer in self.peers:
            peer.tell(deed, *arguments)

    def say_bye(self, code: int, why: str = "") -> None:
        """End the run on all hosts that are not lost."""
        if self._barriers is not None:
            self._barriers.close()
            self._barriers = None
        for peer in self.peers:
            try:
                peer.wire.send(bye(code, why))
            except HostLostError as error:
                log.info("%s", error)
        deadline = time.monotonic() + GOODBYE_S
        for peer in self.peers:
            if peer.wire.lost is None:
                peer.wire.drain(deadline)
            peer.wire.close()


def led(control: Control, act: Callable[[], int]) -> int:
    """Do something with the other hosts, and let them go, however it ends.

    Returns the exit code of all hosts, which ``act`` returns. Raises what it raises.
    """
    try:
        code = act()
    except IobenchError as error:
        control.say_bye(error.exit_code, str(error))
        raise
    except KeyboardInterrupt:
        control.say_bye(InterruptedRun.exit_code, "interrupted")
        raise
    except BaseException:
        control.say_bye(1, "the controller has failed")
        raise
    control.say_bye(code)
    return code
