"""A server on loopback that takes down every request that it gets, and answers all alike."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Listener:
    """``requests`` has what was received: a connection alone counts as one, too."""

    def __init__(self, answer: bytes = NOT_FOUND) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.requests.append(b"")
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1 << 16):
                self.requests.append(data)
                connection.sendall(self.answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()
