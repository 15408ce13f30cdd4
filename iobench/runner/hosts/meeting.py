"""How the hosts of a job find each other, and agree that they measure the same.

Every host says in the store who it is. The first one, the controller, listens for the others, which
prove by a secret from the store that they belong to the job. Then all make their plans, and the
controller compares them.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...base.cgroup import read_text
from ...base.errors import HostLostError, UsageError
from ...base.processes import interrupted_with_parent
from ...base.units import counted, format_duration
from ...record.typed import Count, Name, Port, of_text, to_text
from .launch import ADDRESS, Launch
from .store import Store
from .strangers import Strangers, listen
from .wire import Wire

JOIN_S = 120.0
"""How long the hosts wait for each other, if the user says nothing else."""

_TOKEN_BYTES = 32
_AT_LEAST_S = 2.0
_MAX_SAID = 4096


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a host says of itself in the store. ``port`` and ``token`` are those of host 0."""

    index: int
    name: Name
    machine: Name  # the same for two processes on one machine, even in two containers
    version: Name
    accelerators: Count
    port: Port = 0
    token: Name = ""

    @property
    def label(self) -> str:
        """For messages: ``host 1 (node7)``."""
        return f"host {self.index} ({self.name})"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The hosts of a job, in their order, and the connections of this one.

    The controller has one to each other host, in their order, and another host has one to it.
    """

    launch: Launch
    store: Store
    hosts: Sequence[Joined]
    wires: Sequence[Wire]

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
    try:
        store = Store(launch, serve=controls and not launch.shared, timeout_s=within_s)
        me = Joined(
            index=launch.index,
            name=_name(),
            machine=(read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip(),
            version=__version__,
            accelerators=accelerators,
            port=listener.getsockname()[1] if listener else 0,
            token=secrets.token_hex(_TOKEN_BYTES) if controls else "",
        )
        hosts = _joined(store, launch, me, deadline, within_s)
        check_hosts(hosts)
        if listener is not None:
            wires = _accept(listener, hosts, deadline, within_s)
        else:
            wires = [_connect(launch, hosts, deadline)]
    finally:
        if listener is not None:
            listener.close()
    return Meeting(launch=launch, store=store, hosts=hosts, wires=wires)


def check_hosts(hosts: Sequence[Joined]) -> None:
    """Raises UsageError for hosts that can't measure together."""
    first = hosts[0]
    for host in hosts[1:]:
        if host.version != first.version:
            raise UsageError(
                f"{host.label} has iobench {host.version}, but {first.label} has {first.version}",
                remedy="install the same version on all hosts",
            )


def _joined(
    store: Store, launch: Launch, me: Joined, deadline: float, within_s: float
) -> list[Joined]:
    said = to_text(me, Joined).decode()
    if not store.claim(f"host/{me.index}", said):
        (other,) = store.get([f"host/{me.index}"], 1.0) or [""]
        name = _parsed(other, me.index).name if other else "another process"
        raise UsageError(
            f"host {me.index} has joined already, from {name}",
            remedy="start one process on each host, with a number of its own",
        )
    keys = [f"host/{index}" for index in range(launch.hosts)]
    found = store.get(keys, deadline - time.monotonic())
    if found is None:
        missing = [str(index) for index, key in enumerate(keys) if not store.has(key)]
        shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
        raise UsageError(
            f"{counted(len(missing), 'host')} of {launch.hosts} did not join within "
            f"{format_duration(within_s)}: {'number' if len(missing) == 1 else 'numbers'} {shown}",
            remedy="start the same command on every host, or wait longer with --join-within",
        )
    return [_parsed(text, index) for index, text in enumerate(found)]


def _parsed(text: str, index: int) -> Joined:
    """What a host has said of itself: each field is of its type, and of a size that one can show.

    Raises UsageError for anything else.
    """
    with suppress(ValueError):
        found: Joined = of_text(text[:_MAX_SAID].encode("ascii", "replace"), Joined)
        if found.index == index:
            return found
    raise UsageError(
        f"what host {index} said in the store is not of this iobench",
        remedy="install the same version on all hosts",
    )


def _name() -> str:
    return socket.gethostname()[:255] or "unnamed"


# The connections


def _accept(
    listener: socket.socket, hosts: Sequence[Joined], deadline: float, within_s: float
) -> list[Wire]:
    """Wait for all other hosts to connect; whoever does not know the secret is turned away.

    Nobody waits for a stranger: all that have connected are heard at the same time.
    """
    token = hosts[0].token.encode()
    deadline = max(deadline, time.monotonic() + _AT_LEAST_S)  # the last one may just have joined
    found: dict[int, Wire] = {}
    with Strangers(listener) as strangers:
        while len(found) < len(hosts) - 1:
            if time.monotonic() > deadline:
                missing = next(host for host in hosts[1:] if host.index not in found)
                for wire in found.values():
                    wire.close()
                raise UsageError(
                    f"{missing.label} has joined, but did not connect to this host within "
                    f"{format_duration(within_s)}",
                    remedy=f"check that {ADDRESS} is a name of this host that does not resolve to "
                    "a loopback address there, and that no firewall stands between",
                )
            for connected, hello in strangers.heard(len(token) + 4, deadline):
                index = int.from_bytes(hello[-4:], "big")
                if (
                    hmac.compare_digest(hello[:-4], token)
                    and 0 < index < len(hosts)
                    and index not in found
                ):
                    found[index] = Wire(connected, hosts[index].label)
                    found[index].keep_alive()
                else:
                    connected.close()
    return [found[index] for index in sorted(found)]


def _connect(launch: Launch, hosts: Sequence[Joined], deadline: float) -> Wire:
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
    except OSError:
        with closing(connected):
            raise HostLostError(f"{controller.label} has closed the connection") from None
    wire = Wire(connected, controller.label)
    wire.keep_alive()
    return wire
