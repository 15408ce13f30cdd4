"""The network interface through which this host reaches the others, for gloo.

gloo takes the interface whose address the host's own name resolves to, which often is the loopback
interface. GLOO_SOCKET_IFNAME names another one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

from .meeting import Meeting

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def set_interface(meeting: Meeting) -> None:
    """Set GLOO_SOCKET_IFNAME for the ranks of this host, unless it is set or can't be told."""
    with socket.socket(fileno=os.dup(meeting.wires[0].fileno())) as wire:
        address = str(wire.getsockname()[0])
    name = interface_of(address.removeprefix("::ffff:"))
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


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
