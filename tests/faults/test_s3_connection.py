"""Reads over a connection of a thread's own, of a real S3 server and of one that misbehaves: they
read, count and fail as those of the client library do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from iobench.base.errors import StorageError
from iobench.storage import open_storage
from iobench.storage.base import ReadByThreads, Retries
from iobench.storage.s3.connection import OwnConnection
from iobench.storage.s3.storage import S3Storage
from tests.faults.test_s3 import certificates
from tests.servers.faultproxy import SLOW_DOWN, Fault, FaultProxy
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, rclone_server, s3_environment, swift_s3
from tests.servers.scripted import ScriptedServer, answer

__all__ = ["rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

DATA = np.random.default_rng(3).bytes(300_000)
Opened = Callable[..., OwnConnection]


def stored(server: S3Server) -> str:
    client = server.client()
    client.put_object(Bucket=BUCKET, Key="own/x", Body=DATA)
    client.close()
    return f"s3://{BUCKET}/own"


@pytest.fixture
def opened() -> Iterator[Opened]:
    """``opened(url, option=value, ...)``."""
    made: list[tuple[OwnConnection, S3Storage]] = []

    def make(url: str, **options: object) -> OwnConnection:
        storage = open_storage(url, options={name: str(value) for name, value in options.items()})
        assert isinstance(storage, S3Storage)
        assert isinstance(storage, ReadByThreads)
        made.append((storage.own_reader(), storage))
        return made[-1][0]

    yield make
    for reader, storage in made:
        reader.close()
        storage.close()


def read(reader: OwnConnection, offset: int, length: int, key: str = "x") -> bytes:
    memory = bytearray(length)
    return bytes(memory[: reader.read_into(key, offset, memoryview(memory))])


def retried(reader: OwnConnection) -> Retries:
    return reader._storage.retried()


@pytest.mark.parametrize("server", ["rclone", pytest.param("swift", marks=pytest.mark.nightly)])
def test_what_is_read_is_what_was_stored(
    request: pytest.FixtureRequest, opened: Opened, server: str
) -> None:
    running = request.getfixturevalue(f"{server}_s3")
    reader = opened(stored(running), endpoint=running.endpoint)
    assert read(reader, 0, 400_000) == DATA
    assert read(reader, 1234, 100_000) == DATA[1234:][:100_000]
    assert read(reader, 299_990, 100) == DATA[299_990:]
    assert reader._storage._open is not None
    assert read(reader, 400_000, 10) == b""  # 416, which the storage explains
    assert read(reader, 5, 0) == b""
    with pytest.raises(StorageError, match="missing"):
        read(reader, 0, 10, "missing")
    assert retried(reader) == Retries(0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_faults_are_survived_and_counted(rclone_s3: S3Server, opened: Opened, seed: int) -> None:
    url, chance = stored(rclone_s3), random.Random(seed)
    faults = [SLOW_DOWN, Fault(answer=(500, "InternalError")), Fault(reset_after=20_000)]
    with FaultProxy(rclone_s3.port) as proxy:
        reader = opened(url, endpoint=f"http://127.0.0.1:{proxy.port}", retries=50)
        reader._storage.read_into("x", 1, memoryview(bytearray(10)))
        planned = [chance.choice(faults) for _ in range(6)]
        proxy.plan.extend(planned)
        for _ in range(3):
            assert read(reader, 1, 299_999) == DATA[1:]
        assert not proxy.plan
    throttled = sum(one.answer is not None and one.answer[0] == 503 for one in planned)
    assert retried(reader) == Retries(len(planned), throttled)


def test_a_connection_that_the_server_closed_is_made_again_and_is_no_retry(opened: Opened) -> None:
    """The server says nothing of it, and closes after each answer."""
    with ScriptedServer(lambda asked: answer(206, b"abcd", "Content-Range: bytes 1-4/9")) as server:
        reader = opened("s3://bucket/p", endpoint=f"http://127.0.0.1:{server.port}")
        assert read(reader, 1, 4) == b"abcd"
        assert reader._socket is not None
        reader._socket.shutdown(2)
        assert read(reader, 1, 4) == b"abcd"
    assert len(server.asked) == 2
    assert retried(reader) == Retries(0, 0)


def test_a_server_with_tls_is_read_and_one_that_is_not_trusted_is_not(
    tmp_path: Path, opened: Opened
) -> None:
    authority, certificate, key = certificates(tmp_path)
    tls = ("--cert", str(certificate), "--key", str(key))
    with rclone_server(tmp_path / "rclone", *tls) as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        folder = tmp_path / "rclone/data" / BUCKET / "own"
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(DATA)
        url = f"s3://{BUCKET}/own"
        reader = opened(url, endpoint=endpoint, tls_verify=authority)
        assert read(reader, 1234, 200_000) == DATA[1234:][:200_000]
        assert reader._socket is not None
        with pytest.raises(StorageError):
            read(opened(url, endpoint=endpoint, retries=0), 0, 10)
