"""How the hosts of a job find each other, and agree that they measure the same.

Every host says in a store who it is. It is torch's TCPStore, which the first host runs, or its
launcher (torchrun); the hosts trust whoever can reach it, as torch's own launchers do. The first
host, the controller, listens for the others, which prove by a secret from the store that they
belong to the job. Then all make their plans, and the controller compares them.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psutil

from ... import __version__
from ...base.cgroup import read_text
from ...base.errors import HostLostError, UsageError
from ...base.processes import interrupted_with_parent
from ...base.units import counted, format_duration
from ...record.typed import Count, Name, Port, of_text, to_text
from .launch import ADDRESS, Launch
from .wire import Wire, Wires

T = TypeVar("T")

JOIN_S = 120.0
"""How long the hosts wait for each other, if the user says nothing else."""

_TOKEN_BYTES = 32
_AT_LEAST_S = 2.0
_MAX_SAID = 4096

MAX_STRANGERS = 64
"""Who connects when there are so many takes the place of the one who came first."""

STRANGER_S = 2.0
"""Who has not said who he is within this time is turned away."""

_RETRY_S = 0.02
"""Until the next try where nobody can be let in."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a host says of itself in the store. ``port`` is that of host 0.

    ``hosts``: how many it was told there are. ``token``: of host 0, the secret that lets others in;
    of another one, what tells it from a second process with its number on the same machine.
    """

    index: int
    name: Name
    machine: Name  # the same for two processes on one machine, even in two containers
    version: Name
    accelerators: Count
    hosts: Count = 1
    port: Port = 0
    token: Name = ""

    @property
    def label(self) -> str:
        """For messages: ``host 1 (node7)``."""
        return f"host {self.index} ({self.name})"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The hosts of a job, in their order, and the connections of this one.

    The controller has one to each other host, in their order (``peers``), and another host has one
    to it.
    """

    launch: Launch
    hosts: Sequence[Joined]
    wires: Wires
    peers: Sequence[Wire]

    @property
    def is_controller(self) -> bool:
        return self.launch.index == 0

    @property
    def accelerators(self) -> int:
        """Of all hosts together."""
        return sum(host.accelerators for host in self.hosts)

    @property
    def here(self) -> range:
        """The ranks of this host, numbered through all hosts."""
        first = sum(host.accelerators for host in self.hosts[: self.launch.index])
        return range(first, first + self.hosts[self.launch.index].accelerators)


def meet(launch: Launch, *, accelerators: int, within_s: float = JOIN_S) -> Meeting:
    """Join the job as the host that ``launch`` names, and wait until all others have joined.

    ``accelerators``: the ranks of this host. Raises UsageError if not all hosts join in time, if
    one joins twice, or if they have different versions of iobench; HostLostError.
    """
    if launch.leaves:  # a run that nobody awaits any more ends on all hosts, as with Ctrl-C
        interrupted_with_parent()
    deadline = time.monotonic() + within_s
    controls = launch.index == 0
    listener = listen() if controls else None
    wires = Wires(leads=controls)
    try:
        me = Joined(
            index=launch.index,
            name=socket.gethostname()[:255] or "unnamed",
            machine=(read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip(),
            version=__version__,
            accelerators=accelerators,
            hosts=launch.hosts,
            port=listener.getsockname()[1] if listener else 0,
            token=secrets.token_hex(_TOKEN_BYTES),
        )
        store, hosts = _joined(launch, me, within_s)
        check_hosts(hosts)
        if listener is not None:
            peers = _accept(listener, wires, hosts, deadline, within_s)
        else:
            peers = [_connect(launch, wires, hosts, deadline)]
    except BaseException:
        wires.close()
        raise
    finally:
        if listener is not None:
            listener.close()
    del store  # now that nobody needs it any more
    return Meeting(launch=launch, hosts=hosts, wires=wires, peers=peers)


def check_hosts(hosts: Sequence[Joined]) -> None:
    """Raises UsageError for hosts that can't measure together."""
    first = hosts[0]
    for host in hosts[1:]:
        if host.hosts != first.hosts:
            raise UsageError(
                f"{host.label} was told that there are {host.hosts} hosts, but {first.label} that "
                f"there are {first.hosts}",
                remedy="start the same command with the same number of hosts on all of them",
            )
        if host.version != first.version:
            raise UsageError(
                f"{host.label} has iobench {host.version}, but {first.label} has {first.version}",
                remedy="install the same version on all hosts",
            )


def _joined(launch: Launch, me: Joined, within_s: float) -> tuple[object, list[Joined]]:
    """Say in the store who this host is; return the store, and all hosts once they have joined.

    Where this host runs the store, it lasts as long as somebody holds it. Raises UsageError.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed import DistStoreError

    deadline = time.monotonic() + within_s

    def left() -> timedelta:
        return timedelta(seconds=max(0.1, deadline - time.monotonic()))  # none is no limit

    def join() -> tuple[object, list[Joined]]:
        served = TCPStore(
            launch.address,
            launch.port,
            is_master=launch.index == 0 and not launch.shared,
            timeout=left(),
            wait_for_workers=False,
        )
        store = PrefixStore(f"iobench/{launch.attempt}", served)
        keys = [f"host/{index}" for index in range(launch.hosts)]
        said = to_text(me, Joined)
        if (known := store.compare_set(keys[me.index], "", said.decode())) != said:
            raise UsageError(
                f"host {me.index} has joined already, from {_parsed(known, me.index).name}",
                remedy="start one process on each host, with a number of its own",
            )
        try:
            store.wait(keys[:1], left())
            check_hosts([_parsed(store.get(keys[0]), 0), me])  # whoever else is still missing
            store.wait(keys, left())
        except DistStoreError:
            missing = [str(index) for index, key in enumerate(keys) if not store.check([key])]
            shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
            raise UsageError(
                f"{counted(len(missing), 'host')} of {launch.hosts} did not join within "
                f"{format_duration(within_s)}: {'number' if len(missing) == 1 else 'numbers'} "
                f"{shown}",
                remedy="start the same command on every host, or wait longer with --join-within",
            ) from None
        return store, [_parsed(text, index) for index, text in enumerate(store.multi_get(keys))]

    try:
        return _within(within_s + _AT_LEAST_S, join)
    except (RuntimeError, TimeoutError) as error:  # torch's are RuntimeErrors
        why = " ".join(str(error).split("Exception raised from")[0].split())[:200]
        raise UsageError(
            f"the hosts can't meet at {launch.address}:{launch.port}: "
            f"{why or 'what listens there does not answer as a store of torch'}",
            remedy=f"check that {ADDRESS} is the name of host 0, that it does not resolve to a "
            "loopback address there, that its port is free and reachable, and what iobench says "
            "there",
        ) from None


def _within(seconds: float, make: Callable[[], T]) -> T:
    """What ``make`` returns or raises; TimeoutError if it takes longer.

    torch's client waits for the answers of a store in code that neither its own limit nor a signal
    ends. Such a call stays in its thread, with which the process may end.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(make())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="iobench-store", daemon=True).start()
    return answer.result(seconds)


def _parsed(said: bytes, index: int) -> Joined:
    """What a host has said of itself: each field is of its type, and of a size that one can show.

    Raises UsageError for anything else.
    """
    with suppress(ValueError):
        found: Joined = of_text(said[:_MAX_SAID], Joined)
        if found.index == index:
            return found
    raise UsageError(
        f"what host {index} said in the store is not of this iobench",
        remedy="install the same version on all hosts",
    )


# The connections


def listen() -> socket.socket:
    """A socket on all addresses, since only the launcher knows which of them the others use."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)


def _accept(
    listener: socket.socket,
    wires: Wires,
    hosts: Sequence[Joined],
    deadline: float,
    within_s: float,
) -> list[Wire]:
    """Wait for all other hosts to connect; whoever does not know the secret is turned away."""
    left_s = max(deadline - time.monotonic(), _AT_LEAST_S)  # the last one may just have joined
    found: dict[int, Wire] = {}
    try:
        asyncio.run(asyncio.wait_for(_let_in(listener, wires, hosts, found), left_s))
    except TimeoutError:
        missing = next(host for host in hosts[1:] if host.index not in found)
        raise UsageError(
            f"{missing.label} has joined, but did not connect to this host within "
            f"{format_duration(within_s)}",
            remedy=f"check that {ADDRESS} is a name of this host that does not resolve to a "
            "loopback address there, and that no firewall stands between",
        ) from None
    return [found[index] for index in sorted(found)]


async def _let_in(
    listener: socket.socket, wires: Wires, hosts: Sequence[Joined], found: dict[int, Wire]
) -> None:
    """Add the connections of all other hosts to ``found``, by their numbers.

    A port scanner, a probe of a load balancer, or somebody who means harm may connect as well. None
    of them is waited for, there are never many of them, and none stays for long.
    """
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    token = hosts[0].token.encode()
    size = len(token) + 4

    async def hear(connected: socket.socket) -> None:
        with ExitStack() as held, suppress(OSError):  # TimeoutError is one
            held.callback(connected.close)
            said = b""
            async with asyncio.timeout(STRANGER_S):
                while more := await loop.sock_recv(connected, size - len(said)):
                    said += more
            index = int.from_bytes(said[-4:], "big")
            known = len(said) == size and hmac.compare_digest(said[:-4], token)
            if known and 0 < index < len(hosts) and index not in found:
                found[index] = wires.add(connected, hosts[index].label)
                held.pop_all()
                if len(found) == len(hosts) - 1:
                    over.set()

    async def accept() -> None:
        latest: deque[asyncio.Task[None]] = deque()
        while True:
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError:  # he has gone already, or no descriptor is left for him
                await asyncio.sleep(_RETRY_S)
                continue
            latest.append(loop.create_task(hear(connected)))
            await asyncio.sleep(0)  # so that it has begun, and closes the connection at its end
            if len(latest) > MAX_STRANGERS:
                latest.popleft().cancel()

    listener.setblocking(False)
    accepting = loop.create_task(accept())
    await over.wait()
    accepting.cancel()


def _connect(launch: Launch, wires: Wires, hosts: Sequence[Joined], deadline: float) -> Wire:
    controller = hosts[0]
    try:
        connected = socket.create_connection(
            (launch.address, controller.port), timeout=max(1.0, deadline - time.monotonic())
        )
    except OSError as error:
        raise UsageError(
            f"{controller.label} can't be reached at {launch.address}:{controller.port}: "
            f"{error.strerror or error}",
            remedy=f"check that {ADDRESS} names that host here, and that no firewall stands "
            "between",
        ) from None
    try:
        connected.sendall(controller.token.encode() + launch.index.to_bytes(4, "big"))
        return wires.add(connected, controller.label)
    except OSError:
        with closing(connected):
            raise HostLostError(f"{controller.label} has closed the connection") from None


def set_interface(connected: socket.socket) -> None:
    """Name the network interface of this connection to another host, for gloo and NCCL.

    gloo takes the interface whose address the host's own name resolves to, which often is the
    loopback interface. What the user has named in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME stays.
    """
    address = str(connected.getsockname()[0]).removeprefix("::ffff:")
    for name, known in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in known):
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torch would look for torchrun's store
