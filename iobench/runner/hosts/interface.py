"""The network interface through which this host reaches the others, for gloo and NCCL.

gloo takes the interface whose address the host's own name resolves to, which often is the loopback
interface. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name another one.
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
    """Set these variables for the ranks of this host, unless they are set or can't be told."""
    with socket.socket(fileno=os.dup(meeting.wires[0].fileno())) as wire:
        address = str(wire.getsockname()[0])
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
