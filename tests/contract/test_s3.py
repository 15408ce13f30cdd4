"""S3 against real servers: the contract of storages with every client, and what S3 does in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from iobench.storage import open_storage
from iobench.storage.base import Storage
from tests.contract.test_storage_suite import StorageContract
from tests.servers.s3 import S3Server, rclone_s3, s3_environment, swift_s3

__all__ = ["rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

PAIRS = [("rclone", "obstore"), ("rclone", "s3fs"), ("rclone", "boto3"), ("swift", "obstore"), ("swift", "boto3")]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[S3Server, str]:
    server, client = request.param
    return request.getfixturevalue(f"{server}_s3"), client


@pytest.fixture
def s3(pair: tuple[S3Server, str]) -> Iterator[Any]:
    server, client = pair
    storage = open_storage(server.url(client=client, part_size="5MiB"))
    yield storage
    for entry in list(storage.list()):
        storage.delete(entry.key)
    storage.close()


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, s3: Storage) -> Storage:
        return s3
