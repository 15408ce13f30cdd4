"""Servers on loopback that give each connection a thread; one takes down all that it gets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Self

import pytest

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Accepting:
    """``serve`` is called with each connection, in a thread of its own, and may raise OSError.

    ``open``: the sockets that end with the server.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._listener = socket.create_server((address, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://{address}:{self.port}"
        self.open: list[socket.socket] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open.append(client)
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            self.serve(client)

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for one in (self._listener, *self.open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener(Accepting):
    """``requests`` has what was received: a connection alone counts as one, too."""

    def __init__(self, answer: bytes = NOT_FOUND) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        self.requests.append(b"")
        with client:
            while data := client.recv(1 << 16):
                self.requests.append(data)
                client.sendall(self.answer)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as made:
        yield made
