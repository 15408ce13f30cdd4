"""A TCP proxy on loopback that breaks HTTP answers on purpose: resets, stalls, error answers, a
server that is gone or says nothing.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

_METHODS = (b"GET ", b"PUT ", b"HEAD", b"POST", b"DELE")


@dataclass(frozen=True)
class Fault:
    """What happens to one request."""

    reset_after: int | None = None  # bytes of the answer, then RST
    stall_after: int | None = None  # bytes of the answer, then nothing for stall_s
    stall_s: float = 5.0
    answer: tuple[int, str] | None = (
        None  # status and S3 error code, instead of the server's answer
    )
    message: str = "by the proxy"
    refuse: bool = False  # RST before the server has seen anything of the request


SLOW_DOWN = Fault(answer=(503, "SlowDown"))


def _error(status: int, code: str, message: str, *, head: bool) -> bytes:
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    body = f"<?xml version='1.0'?>{error}".encode()
    lines = (
        f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: "
        f"{len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + (b"" if head else body)


@dataclass
class FaultProxy:
    """Faults in ``plan`` befall the next requests, one each; ``slow_down`` is the probability of
    503 SlowDown for all others; so is answered each request of so many as ``slow_down_every`` says.
    """

    upstream: int
    plan: deque[Fault] = field(default_factory=deque)
    slow_down: float = 0.0
    slow_down_every: int = 0
    silent: bool = False  # requests are taken, and nothing comes back
    requests: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """From now on the port refuses connections; open ones are reset."""
        self._ended.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        with self._lock:
            for one in self._open:
                _reset(one)
            self._open.clear()

    def again(self) -> None:
        """After ``stop``: it listens again, on the same port."""
        self._ended.clear()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        listener = self._listener
        while not self._ended.is_set():
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=_Link(self, client, server).run, daemon=True).start()

    def fault(self, line: str = "") -> Fault:
        """What befalls the next request, whose first line this is."""
        with self._lock:
            self.requests += 1
            if self.plan:
                return self.plan.popleft()
            if self.slow_down_every and self.requests % self.slow_down_every == 0:
                return SLOW_DOWN
            return SLOW_DOWN if self._random.random() < self.slow_down else Fault()

    def forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)


class _Link:
    """One connection."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._fault = Fault()
        self._sent = 0  # bytes of the answer to the current request

    def run(self) -> None:
        back = threading.Thread(
            target=self._pump, args=(self._server, self._client, self._down), daemon=True
        )
        back.start()
        self._pump(self._client, self._server, self._up)
        back.join()
        self._proxy.forget(self._client, self._server)
        for one in (self._client, self._server):
            one.close()

    def _pump(self, source: socket.socket, sink: socket.socket, pass_on: object) -> None:
        try:
            while data := source.recv(1 << 18):
                if not pass_on(data):  # type: ignore[operator]
                    break
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _up(self, data: bytes) -> bool:
        if data.startswith(_METHODS):
            line = data[:200].partition(b"\r\n")[0].decode("ascii", "replace")
            self._fault, self._sent = self._proxy.fault(line), 0
            if self._fault.refuse:
                _reset(self._client)
                return False
            if self._fault.answer:
                self._client.sendall(
                    _error(*self._fault.answer, self._fault.message, head=data.startswith(b"HEAD"))
                )
                return False
        self._server.sendall(data)
        return True

    def _down(self, data: bytes) -> bool:
        if self._proxy.silent:
            self._proxy.wait(3600)
            return False
        fault = self._fault
        limit = fault.reset_after if fault.reset_after is not None else fault.stall_after
        if limit is None or self._sent + len(data) <= limit:
            self._client.sendall(data)
            self._sent += len(data)
            return True
        self._client.sendall(data[: limit - self._sent])
        if fault.stall_after is not None:
            self._proxy.wait(fault.stall_s)
            self._client.sendall(data[limit - self._sent :])
            self._fault = Fault()
            return True
        _reset(self._client)
        return False


def _reset(one: socket.socket) -> None:
    """RST instead of FIN: shutdown wakes the thread that reads, and closing with no time to linger
    sends it.
    """
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
        one.close()
    except OSError:
        pass
