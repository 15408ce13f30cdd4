"""A TCP proxy on loopback between an NFS client and its server, which looks at each call.

The calls are ONC RPC in record marking (RFC 5531): 4 bytes of length, whose first bit says that a
record ends, then the record: number, kind (0: a call), version of RPC, program, its version, and
the procedure.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.servers.listener import Accepting

NFS, CREATE, REMOVE = 100003, 8, 12
"""The program and two procedures of NFS version 3 (RFC 1813)."""


class RpcProxy(Accepting):
    """``seen(procedure)`` is called for each call of NFS before it is passed on."""

    def __init__(self, upstream: int, seen: Callable[[int], None]) -> None:
        self._upstream, self._seen = upstream, seen
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._upstream))
        self.open.append(server)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._down, args=(server, client), daemon=True).start()
        self._up(client, server)

    def _down(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _up(self, source: socket.socket, sink: socket.socket) -> None:
        begins = True  # the next fragment begins a record
        with source.makefile("rb") as calls:
            while len(mark := calls.read(4)) == 4:
                length = int.from_bytes(mark, "big") & 0x7FFFFFFF
                fragment = calls.read(length)
                if begins and fragment[4:8] == bytes(4):
                    program, procedure = fragment[12:16], fragment[20:24]
                    if int.from_bytes(program, "big") == NFS:
                        self._seen(int.from_bytes(procedure, "big"))
                begins = bool(mark[0] & 0x80)
                sink.sendall(mark + fragment)
        sink.shutdown(socket.SHUT_RDWR)
