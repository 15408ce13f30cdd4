"""The event loop, and connections of a thread's own, against a real S3 server, also one that
misbehaves: they read, count and fail as the client library does.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import IobenchError, StorageError
from iobench.load.build import make_loader
from iobench.load.engines.base import Extent, ReadEngine
from iobench.load.engines.event_loop import EventLoopEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.storage import open_storage
from iobench.storage.base import Retries
from iobench.storage.s3.storage import S3Storage
from tests.datasets import generated
from tests.faults.test_s3 import certificate_of_its_own
from tests.servers.faultproxy import SLOW_DOWN, Fault, FaultProxy
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, rclone_server, s3_environment, swift_s3
from tests.servers.scripted import ScriptedServer, answer

__all__ = ["rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

DATA = np.random.default_rng(3).bytes(300_000)
ODD_KEY = "größe & +=~%41/a b's(1)!*"


def stored(server: S3Server) -> str:
    """The URL, without options, of a prefix with two objects."""
    client = server.client()
    for key in ("x", ODD_KEY):
        client.put_object(Bucket=BUCKET, Key=f"loop/{key}", Body=DATA)
    client.close()
    return f"s3://{BUCKET}/loop"


@pytest.fixture(scope="module")
def written(rclone_s3: S3Server) -> str:
    return stored(rclone_s3)


@pytest.fixture
def proxy(rclone_s3: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(rclone_s3.port) as proxy:
        yield proxy


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    """``engine(kind, url, option=value, ...)``."""
    made: list[Any] = []

    def make(
        kind: Any,
        url: str,
        *,
        concurrency: int = 4,
        block: int = 1 << 20,
        **options: Any,
    ) -> ReadEngine:
        storage = open_storage(url, options={name: str(value) for name, value in options.items()})
        made.append(kind(storage, concurrency=concurrency, block_size=block))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.storage.close()


class OwnConnections:
    """Reads as an engine does, one at a time, over a connection of this thread's own."""

    def __init__(self, storage: S3Storage, **_: object) -> None:
        self.storage, self.reader = storage, storage.own_reader()

    def read(self, extents: list[Extent], memory: memoryview) -> int:
        return sum(self.reader.read_into(each.key, each.offset, memory) for each in extents)

    def close(self) -> None:
        self.reader.close()


OURS = (EventLoopEngine, OwnConnections)
ALL = (ThreadEngine, *OURS)
each_of_ours = pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)


def read(reading: ReadEngine, key: str, offset: int, length: int) -> bytes:
    memory = bytearray(length)
    count = reading.read([Extent(key, offset, length, 0, 0)], memoryview(memory))
    return bytes(memory[:count])


def left(reading: Any) -> int:
    """Requests of the event loop that the client library made."""
    return int(reading._loop.left_to_storage) if isinstance(reading, EventLoopEngine) else 0


@each_of_ours
@pytest.mark.parametrize("server", ["rclone", "swift"])
def test_a_server_understands_the_signed_requests(
    request: pytest.FixtureRequest, engine: Callable[..., Any], server: str, kind: type
) -> None:
    """rclone answers ranges with 200, Swift with 206."""
    running = request.getfixturevalue(f"{server}_s3")
    reading = engine(kind, stored(running), endpoint=running.endpoint)
    for key in ("x", ODD_KEY):
        assert read(reading, key, 0, 400_000) == DATA
        assert read(reading, key, 1234, 100_000) == DATA[1234:][:100_000]
        assert read(reading, key, 299_990, 100) == DATA[299_990:]
    assert left(reading) == 0
    assert read(reading, "x", 400_000, 10) == b""  # 416, which the storage explains
    assert reading.storage.retried() == Retries(0, 0)


@each_of_ours
@pytest.mark.parametrize("seed", range(3))
def test_faults_are_survived_and_counted(
    written: str, proxy: FaultProxy, engine: Callable[..., Any], seed: int, kind: type
) -> None:
    chance = random.Random(seed)
    reading = engine(
        kind,
        written,
        endpoint=f"http://127.0.0.1:{proxy.port}",
        concurrency=8,
        block=30_000,
        retries=50,
    )
    storage: S3Storage = reading.storage
    # obstore learns how ranges are answered. From the start of an object it may ask twice.
    storage.read_into("x", 1, memoryview(bytearray(10)))
    faults = [
        SLOW_DOWN,
        Fault(answer=(429, "TooManyRequests")),
        Fault(answer=(500, "InternalError")),
        Fault(reset_after=0),
        Fault(reset_after=100),
        Fault(reset_after=20_000),
    ]
    planned = [chance.choice(faults) for _ in range(12)]
    proxy.plan.extend(planned)
    for _ in range(3):
        assert read(reading, "x", 1, 299_999) == DATA[1:]
    assert not proxy.plan
    throttled = sum(one.answer is not None and one.answer[0] in (429, 503) for one in planned)
    assert storage.retried() == Retries(len(planned), throttled)


BAD: dict[str, tuple[dict[str, object], Callable[[FaultProxy], object]]] = {
    "missing": ({}, lambda proxy: None),
    "denied": ({}, lambda proxy: proxy.plan.extend([Fault(answer=(403, "AccessDenied"))] * 9)),
    "expired": ({}, lambda proxy: proxy.plan.extend([Fault(answer=(400, "ExpiredToken"))] * 9)),
    "elsewhere": (
        {},
        lambda proxy: proxy.plan.extend([Fault(answer=(301, "PermanentRedirect"))] * 9),
    ),
    "throttled": ({"retries": 2}, lambda proxy: setattr(proxy, "slow_down", 1)),
    "lost": ({"retries": 1}, lambda proxy: proxy.plan.extend([Fault(reset_after=9)] * 99)),
    "refused": ({"retries": 1}, lambda proxy: proxy.stop()),
    "silent": (
        {"retries": 1, "timeout": "500ms", "deadline": "20s"},
        lambda proxy: setattr(proxy, "silent", True),
    ),
    "anonymous": ({"signing": "none"}, lambda proxy: None),
}


@pytest.mark.parametrize("name", BAD)
def test_both_fail_in_the_same_words(
    rclone_s3: S3Server, written: str, engine: Callable[..., Any], name: str
) -> None:
    options, breaks = BAD[name]
    told = []
    for kind in ALL:
        with FaultProxy(rclone_s3.port) as proxy:
            endpoint = f"http://127.0.0.1:{proxy.port}"
            reading = engine(kind, written, endpoint=endpoint, concurrency=1, **options)
            breaks(proxy)
            with pytest.raises(IobenchError) as caught:
                read(reading, "none" if name == "missing" else "x", 0, 100)
        text = re.sub(r"in [0-9.]+ s|127\.0\.0\.1:\d+", "", str(caught.value))
        told.append((type(caught.value), text, caught.value.remedy, reading.storage.retried()))
    assert told[0] == told[1] == told[2]


def test_a_connection_that_the_server_closed_is_made_again_and_is_no_retry(
    engine: Callable[..., Any],
) -> None:
    """The server says nothing of it, and closes after each answer."""
    with ScriptedServer(lambda asked: answer(206, b"abcd", "Content-Range: bytes 1-4/9")) as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        reading = engine(OwnConnections, "s3://bucket/p", endpoint=endpoint)
        assert read(reading, "x", 1, 4) == b"abcd"
        reading.reader._socket.shutdown(2)
        assert read(reading, "x", 1, 4) == b"abcd"
    assert len(server.asked) == 2
    assert reading.storage.retried() == Retries(0, 0)


def test_tls_is_verified(
    tmp_path: Path, engine: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = certificate_of_its_own(tmp_path)
    with rclone_server(
        tmp_path / "server", "--cert", str(certificate), "--key", str(key)
    ) as server:
        (tmp_path / "server" / "data" / BUCKET / "x").write_bytes(DATA)
        endpoint = server.endpoint.replace("http:", "https:")
        for kind, verify in itertools.product(OURS, (str(certificate), "false")):
            reading = engine(
                kind,
                f"s3://{BUCKET}",
                endpoint=endpoint,
                tls_verify=verify,
                block=70_000,
            )
            for _ in range(3):
                assert read(reading, "x", 0, 300_000) == DATA
            assert left(reading) == 0
        told = []
        for kind in ALL:
            reading = engine(kind, f"s3://{BUCKET}", endpoint=endpoint)
            with pytest.raises(StorageError, match="TLS failed") as caught:
                read(reading, "x", 0, 100)
            told.append(str(caught.value))
        assert told[0] == told[1] == told[2]
        assert "can't verify the server" in caplog.text


@pytest.fixture(scope="module")
def dataset(rclone_s3: S3Server) -> str:
    """The URL of a dataset of 60 files."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in rclone_s3.environment.items():
            patch.setenv(name, value)
        url = rclone_s3.url()
        storage = open_storage(url)
        generated(storage, samples=60, sample_size={"mean": 20_000}, format="files")
        storage.close()
    return url


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_delivers_the_same_batches(
    dataset: str, workers: int, nothing_left: set[int]
) -> None:
    found = []
    for name in ("threads", "event_loop"):
        loader: Any = make_loader(
            dataset,
            batch_size=7,
            reader={"engine": name, "decode": False, "check": "content", "concurrency": 8},
            loader={"workers": workers},
        )
        assert isinstance(loader.reader._engine, EventLoopEngine) == (name == "event_loop")
        found.append([sample.numpy().tobytes() for batch in loader for sample in batch])
        loader.shutdown()
        assert len(found[-1]) == 60
    assert found[0] == found[1]
