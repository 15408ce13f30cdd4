"""The store in which the hosts of a job meet: torch's TCPStore, and what iobench asks of it.

The first host runs it, or its launcher does (torchrun). The hosts of a job trust whoever can reach
it, as torch's own launchers do.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ...base.errors import UsageError, WorkerError
from .launch import ADDRESS, Launch
from .wire import watch_silence

_LOOK_S = 0.2
"""How often a wait looks whether it is to end."""


class Store:
    """A connection to the store, for one process: it is opened anew after a fork."""

    def __init__(self, launch: Launch, *, serve: bool = False, timeout_s: float = 60.0) -> None:
        """``serve``: run it here. Raises UsageError if it can't be run, or not be reached."""
        from torch._C._distributed_c10d import TCPStore
        from torch.distributed import DistError

        self.launch = launch
        self._errors: tuple[type[Exception], ...] = (DistError, RuntimeError)
        try:
            self._store = TCPStore(
                launch.address,
                launch.port,
                is_master=serve,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )
        except self._errors as error:
            raise UsageError(
                f"the hosts can't meet at {launch.address}:{launch.port}: {_line(error)}",
                remedy=f"check that {ADDRESS} is the name of host 0, that it does not resolve to a "
                "loopback address there, and that its port is free and reachable",
            ) from None
        self._prefix = f"iobench/{launch.attempt}/"
        _watch_silence_at(launch.port)

    def claim(self, key: str, value: str) -> bool:
        """Set a key that nobody has set before; return whether nobody had.

        Raises WorkerError if the store is gone; so do all methods.
        """
        try:
            found = self._store.compare_set(self._prefix + key, "", value)
        except self._errors as error:
            raise self._gone(error) from None
        return bytes(found) == value.encode()

    def has(self, key: str) -> bool:
        try:
            return bool(self._store.check([self._prefix + key]))
        except self._errors as error:
            raise self._gone(error) from None

    def get(self, keys: Sequence[str], timeout_s: float) -> list[str] | None:
        """The values of all keys, waiting for them; None if one is missing after ``timeout_s``."""
        whole = [self._prefix + key for key in keys]
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                left = max(0.001, min(_LOOK_S, deadline - time.monotonic()))
                self._store.set_timeout(timedelta(seconds=left))
                try:
                    # It waits for the keys itself: a wait before it would be a round trip more.
                    values = self._store.multi_get(whole)
                except self._errors:
                    # A missing key and a lost store raise the same; a check tells them apart.
                    if not self._store.check(whole) and time.monotonic() >= deadline:
                        return None
                    continue
                return [bytes(value).decode(errors="replace") for value in values]
        except self._errors as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> WorkerError:
        return WorkerError(
            f"the store of the hosts at {self.launch.address}:{self.launch.port} was lost: "
            f"{_line(error)}",
            remedy="see the output of iobench on host 0",
        )


def _watch_silence_at(port: int) -> None:
    """Have this process's connections to this port end if the other host answers nothing.

    torch's client of the store waits for an answer without a limit, in code that no signal ends.
    """
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue  # a copy of what is no socket would stay open
            with socket.socket(fileno=os.dup(int(entry))) as connected:
                if connected.family != socket.AF_UNIX and connected.getpeername()[1] == port:
                    watch_silence(connected)


def _line(error: Exception) -> str:
    return " ".join(str(error).split("Exception raised from")[0].split())[:200]


_SIOCGIFADDR = 0x8915  # linux/sockios.h


def set_interface(connected: socket.socket) -> None:
    """Name the network interface of this connection to another host, for gloo and NCCL.

    gloo takes the interface whose address the host's own name resolves to, which often is the
    loopback interface. What the user has named in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME stays.
    """
    address = str(connected.getsockname()[0])
    name = interface_of(address.removeprefix("::ffff:"))
    if name is not None:
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torch would look for torchrun's store


def interface_of(address: str) -> str | None:
    """The interface that has this IPv4 address; None if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
