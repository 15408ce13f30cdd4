"""An HTTP server on loopback whose answers a test makes up: it lies, drips or points elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from tests.servers.listener import Accepting


class Asked(NamedTuple):
    """A request; the names of its headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | Iterable[bytes]
"""What is sent. Of pieces, each is asked for when the one before was sent, so that a generator can
wait; a client that hangs up ends it, and an empty piece ends the connection."""


def answer(status: int, body: bytes = b"", *lines: str, length: str | None = None) -> bytes:
    """``length``: what is said instead of the true one."""
    said = str(len(body)) if length is None else length
    head = [f"HTTP/1.1 {status} Text", f"Content-Length: {said}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


class ScriptedServer(Accepting):
    """``script`` answers; ``asked`` has all requests."""

    def __init__(self, script: Callable[[Asked], Answer], address: str = "127.0.0.1") -> None:
        self._script = script
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        super().__init__(address)

    def close(self) -> None:
        self.ended.set()
        super().close()

    def serve(self, client: socket.socket) -> None:
        with suppress(ValueError), client, client.makefile("rb") as lines:
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
                    if not piece:
                        return
                    client.sendall(piece)
