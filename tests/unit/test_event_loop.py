"""The event loop reads what the threads read from S3, and leaves to the storage what is not the
plain good answer.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.base.errors import StorageError, UsageError
from iobench.load.choose import make_reader
from iobench.load.engines.base import Columns, Extent
from iobench.load.engines.event_loop import EventLoopEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.settings.workload import ReaderSpec
from iobench.storage.base import Retries
from iobench.storage.s3.storage import S3Storage
from tests.children import in_child
from tests.processes import descriptors, wait_until
from tests.servers.scripted import Asked, ScriptedServer

CONTENT = np.random.default_rng(5).bytes(200_000)

Answer = Callable[[int, int], list[bytes]]


def good(first: int, last: int, *lines: str, status: str = "206 Partial Content") -> bytes:
    body = CONTENT[first : last + 1]
    if not body:
        return b"HTTP/1.1 416 Beyond\r\nContent-Length: 0\r\n\r\n"
    end = first + len(body) - 1
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Range: bytes {first}-{end}/{len(CONTENT)}",
        f"Content-Length: {len(body)}",
        'ETag: "1"',
        "Last-Modified: Mon, 02 Jan 2023 03:04:05 GMT",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def _usual(first: int, last: int) -> list[bytes]:
    return [good(first, last)]


class Server(ScriptedServer):
    """One object under every key. ``answers``: for the next requests of a loop, one each."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.usual: Answer = _usual
        self.requests = 0  # of loops
        self.released = threading.Event()
        super().__init__(self.answer)

    def answer(self, asked: Asked) -> list[bytes]:
        first, last = map(int, asked.headers["range"].removeprefix("bytes=").split("-"))
        if "user-agent" in asked.headers:  # the library tells its name
            return _usual(first, last)
        self.requests += 1
        return (self.answers.pop(0) if self.answers else self.usual)(first, last)

    def hang_up(self) -> None:
        for connection in self.open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def silent(self, first: int, last: int) -> list[bytes]:
        self.released.wait()
        return [good(first, last)]

    def close(self) -> None:
        self.released.set()
        super().close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def storage_on(server: Server, **options: str) -> S3Storage:
    given = {"endpoint": server.url, "signing": "none", "timeout": "20s", **options}
    return S3Storage.open("s3://bucket/x", direct=False, options=given)


@pytest.fixture
def engine(server: Server) -> Iterator[Callable[..., EventLoopEngine]]:
    made: list[EventLoopEngine] = []

    def make(*, concurrency: int = 4, block: int = 1 << 20, **options: str) -> EventLoopEngine:
        storage = storage_on(server, **options)
        made.append(EventLoopEngine(storage, concurrency=concurrency, block_size=block))
        return made[-1]

    yield make
    server.released.set()
    for one in made:
        one.close()
        one.storage.close()


def left(engine: EventLoopEngine) -> int:
    """How many requests were left to the storage."""
    return engine._loop.left_to_storage


def extents(*ranges: tuple[int, int]) -> list[Extent]:
    at, found = 0, []
    for number, (offset, length) in enumerate(ranges):
        needed = max(0, min(length, len(CONTENT) - offset))
        found.append(Extent(f"{number}", offset, length, at, needed))
        at += length
    return found


def read_few(reading: EventLoopEngine) -> None:
    """All of ``FEW``, as they are."""
    memory = bytearray(len(TEXT))
    assert reading.read(extents(*FEW), memoryview(memory)) == len(TEXT)
    assert memory == TEXT


FEW = [(10_000 * number, 1000) for number in range(12)]
TEXT = b"".join(CONTENT[offset:][:1000] for offset, _ in FEW)


@settings(max_examples=10)
@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 199_999), st.integers(1, 50_000)), min_size=1, max_size=8
    ),
    block=st.integers(2_000, 70_000),
    concurrency=st.sampled_from([1, 3, 17]),
    cut=st.sampled_from([1, 100, 301, 5_000, 1 << 20]),
    arrays=st.booleans(),
)
def test_every_byte_lands_once(
    one_server: Server,
    ranges: list[tuple[int, int]],
    block: int,
    concurrency: int,
    cut: int,
    arrays: bool,
) -> None:
    """Whatever the pieces in which an answer's beginning arrives."""

    def in_pieces(first: int, last: int) -> list[bytes]:
        whole = good(first, last)
        start = [whole[at : at + cut] for at in range(0, min(len(whole), 12 * cut), cut)]
        rest = whole[len(start) * cut :]
        return [*start, rest] if rest else start

    one_server.usual = in_pieces
    asked = extents(*ranges)
    memory = bytearray(sum(extent.length for extent in asked))
    storage = storage_on(one_server)
    reading = EventLoopEngine(storage, concurrency=concurrency, block_size=block)
    total = reading.read(Columns.of(asked) if arrays else asked, memoryview(memory))
    beyond = sum(
        at >= len(CONTENT)
        for extent in asked
        for at in range(extent.offset, extent.offset + extent.length, block)
    )
    assert left(reading) == beyond
    reading.close()
    storage.close()
    assert total == sum(extent.needed for extent in asked)
    for extent in asked:
        found = memory[extent.landing :][: extent.length]
        assert found == CONTENT[extent.offset :][: extent.length].ljust(extent.length, b"\0")


def chunked(first: int, last: int) -> list[bytes]:
    body = CONTENT[first : last + 1]
    head = good(first, last, "Transfer-Encoding: chunked").partition(b"\r\n\r\n")[0]
    return [head + b"\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"]


def whole_object(first: int, last: int) -> list[bytes]:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
    return [head.encode() + CONTENT]


def error(status: int, code: str, *, whole: bool = True) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>odd</Message></Error>"
    if whole:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n"
        return lambda first, last: [head.encode() + text.encode()]
    head = f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n{len(text):x}\r\n{text}"
    return lambda first, last: [head[:60].encode(), head[60:].encode() + b"\r\n0\r\n\r\n"]


ODD: dict[str, tuple[Answer, Retries]] = {
    "chunks": (chunked, Retries(0, 0)),
    "the whole object": (whole_object, Retries(0, 0)),
    "another range": (lambda first, last: [good(first + 1, last + 1)], Retries(0, 0)),
    "too much": (lambda first, last: [good(first, last) + b"more"], Retries(0, 0)),
    "an old version": (
        lambda first, last: [good(first, last).replace(b"HTTP/1.1", b"HTTP/1.0"), b""],
        Retries(0, 0),
    ),
    "another protocol": (lambda first, last: [b"220 mail.example ESMTP\r\n\r\n"], Retries(0, 0)),
    "an endless head": (
        lambda first, last: [b"HTTP/1.1 206 X\r\n" + b"X: y\r\n" * 12_000, b""],
        Retries(0, 0),
    ),
    "elsewhere": (error(307, "TemporaryRedirect"), Retries(0, 0)),
    "denied": (error(403, "ExpiredToken"), Retries(0, 0)),
    "missing": (error(404, "NoSuchKey", whole=False), Retries(0, 0)),
    "slow down": (error(503, "SlowDown"), Retries(1, 1)),
    "slow down in chunks": (error(503, "SlowDown", whole=False), Retries(1, 1)),
    "failed": (error(500, "InternalError"), Retries(1, 0)),
    "lost before": (lambda first, last: [b""], Retries(1, 0)),
    "lost in the head": (lambda first, last: [good(first, last)[:40], b""], Retries(1, 0)),
    "lost in the body": (lambda first, last: [good(first, last)[:-1], b""], Retries(1, 0)),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_left_to_the_storage(
    server: Server, engine: Callable[..., EventLoopEngine], name: str
) -> None:
    answer, retried = ODD[name]
    reading = engine()
    server.answers = [answer]
    read_few(reading)
    assert left(reading) == 1
    assert reading.storage.retried() == retried


def test_a_connection_that_is_to_be_closed_is_not_used_again(
    server: Server, engine: Callable[..., EventLoopEngine]
) -> None:
    server.usual = lambda first, last: [good(first, last, "Connection: close")]
    reading = engine()
    read_few(reading)
    assert left(reading) == 0
    assert len(server.open) == len(FEW)


def test_connections_are_kept_and_what_the_server_closed_is_no_failure(
    server: Server, engine: Callable[..., EventLoopEngine]
) -> None:
    reading = engine(concurrency=2)
    for _ in range(2):
        read_few(reading)
    assert len(server.open) == 2
    server.hang_up()
    loop = reading._loop
    wait_until(lambda: not loop._connections, "closed connections are noticed")
    read_few(reading)
    assert left(reading) == 0
    assert reading.storage.retried() == Retries(0, 0)


@pytest.mark.parametrize("by", ["the loop", "the storage"])
def test_what_was_given_up_is_never_written(
    server: Server, engine: Callable[..., EventLoopEngine], by: str
) -> None:
    reading = engine()
    server.usual = server.silent
    if by == "the storage":
        server.answers = [error(503, "SlowDown")] * 4  # its threads sleep before they try again
    memory = bytearray(len(TEXT))
    begun = reading.begin(extents(*FEW), memoryview(memory))
    wait_until(lambda: server.requests >= 4, "the requests are sent")
    reading.settle()
    then = bytes(memory)  # what had been read again before it was given up, on a busy machine
    with pytest.raises(StorageError, match="given up"):
        reading.wait(begun)
    server.released.set()
    read_few(reading)
    assert memory == then


@pytest.mark.timeout(method="thread")  # the alarm is the test's own
def test_ctrl_c_gets_through(server: Server, engine: Callable[..., EventLoopEngine]) -> None:
    reading = engine(timeout="3000s", deadline="3000s")
    server.usual = server.silent
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            reading.read(extents(*FEW), memoryview(bytearray(len(TEXT))))
    finally:
        signal.signal(signal.SIGALRM, before)
    reading.close()


def test_a_forked_process_has_a_loop_of_its_own(
    server: Server, engine: Callable[..., EventLoopEngine]
) -> None:
    reading = engine(concurrency=2)
    read_few(reading)

    def read_and_close() -> None:
        read_few(reading)
        reading.close()

    in_child(read_and_close)
    assert len(server.open) == 4
    read_few(reading)
    assert len(server.open) == 4  # the child has closed its own alone
    assert left(reading) == 0


def test_nothing_is_left_behind(server: Server) -> None:
    def loops() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name.startswith("iobench-loop")]

    before = descriptors()
    for close in (True, False):
        reading: Any = EventLoopEngine(storage_on(server), concurrency=4, block_size=1 << 20)
        reading.read(extents(*FEW), memoryview(bytearray(len(TEXT))))
        if close:
            reading.close()
        del reading  # without a word: it ends its loop as well
        wait_until(lambda: not loops(), "its threads have ended")
        server.hang_up()
        wait_until(lambda: descriptors() <= before, "its connections are closed")


def test_only_s3_has_an_event_loop(make_dataset: Any, server: Server) -> None:
    manifest, path = make_dataset(format="files")
    from iobench.storage.local.storage import LocalStorage

    spec = ReaderSpec(engine="event_loop")
    with pytest.raises(UsageError, match=r"reader\.engine=event_loop reads from S3"):
        make_reader(manifest, LocalStorage(path), spec)
    for client, made in (("obstore", EventLoopEngine), ("boto3", ThreadEngine)):
        reader = make_reader(manifest, storage_on(server, client=client), spec)
        assert type(reader._engine) is made
        reader.close()
