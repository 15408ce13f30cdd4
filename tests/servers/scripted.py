"""An HTTP server on loopback whose answers a test makes up: it lies, drips or points elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple


class Asked(NamedTuple):
    """A request; the names of its headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | Iterable[bytes]
"""What is sent. Of pieces, each is asked for when the one before was sent, so that a generator can
wait; a client that hangs up ends it."""


def answer(status: int, body: bytes = b"", *lines: str, length: str | None = None) -> bytes:
    """``length``: what is said instead of the true one."""
    said = str(len(body)) if length is None else length
    head = [f"HTTP/1.1 {status} Text", f"Content-Length: {said}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


class ScriptedServer:
    """``script`` answers; ``asked`` has all requests."""

    def __init__(self, script: Callable[[Asked], Answer], address: str = "127.0.0.1") -> None:
        self._script = script
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((address, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://{address}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError), client, client.makefile("rb") as lines:
            while first := lines.readline():
                headers = {}
                while (line := lines.readline().strip()) != b"":
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                method, path, _ = first.decode("latin-1").split(" ")
                if "expect" in headers:
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = lines.read(int(headers.get("content-length", 0)))
                self.asked.append(Asked(method, path, headers, body))
                sent = self._script(self.asked[-1])
                for piece in (sent,) if isinstance(sent, bytes) else sent:
                    client.sendall(piece)
