"""A link between two network namespaces on which each packet takes a stated time.

The kernels of small virtual machines have no netem. Both ends are TUN devices, and a process of the
tests passes packets from one to the other when they are due.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from tests.processes import PATIENCE_S

_NEWNET = 0x40000000
_TUNSETIFF, _TUN_PACKETS = 0x400454CA, 0x1001
_PACKET_BYTES = 65_536
_EARLY_S = 0.0003
"""How long before a packet is due the relay no longer sleeps, which would end late."""

_PR_SET_PDEATHSIG = 1


def enter_network(namespace: str) -> None:
    """Put the calling thread into the network of this namespace."""
    _enter(f"/run/netns/{namespace}")


def _enter(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as opened:
        if libc.setns(opened.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {path}")


@contextmanager
def inside_of(namespace: str) -> Iterator[None]:
    """What this thread connects, listens or starts in this block is in that network."""
    with open("/proc/thread-self/ns/net") as before:
        enter_network(namespace)
        try:
            yield
        finally:
            _enter(f"/proc/self/fd/{before.fileno()}")


@contextmanager
def delayed(one: str, device: str, other: str, peer: str, delay_s: float) -> Iterator[None]:
    """``device`` in the namespace ``one`` and ``peer`` in ``other`` are a link of this delay."""
    ends = [_tun(one, device), _tun(other, peer)]
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for source, sink in (ends, ends[::-1]):
            queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(target=_take, args=(source, queue, delay_s), daemon=True).start()
            threading.Thread(target=_give, args=(sink, queue), daemon=True).start()
        while True:
            signal.pause()
    for end in ends:
        os.close(end)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _tun(namespace: str, device: str) -> int:
    """A new device in the namespace; it lives as long as the descriptor is open."""
    with inside_of(namespace):
        end = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _TUN_PACKETS))
        subprocess.run(["ip", "link", "set", device, "up"], check=True, timeout=PATIENCE_S)
    return end


def _take(source: int, queue: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    while True:
        packet = os.read(source, _PACKET_BYTES)
        queue.put((time.monotonic() + delay_s, packet))


def _give(sink: int, queue: SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, packet = queue.get()
        if (left := due - time.monotonic() - _EARLY_S) > 0:
            time.sleep(left)
        while time.monotonic() < due:
            pass
        os.write(sink, packet)
