"""The contract of local and of throttled storage: ``iobench.testing`` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.storage import open_storage
from iobench.storage.base import Cached, Storage
from iobench.storage.local.storage import LocalStorage
from iobench.testing.storage import StorageContract, content, put, read


class TestLocal(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "root")

    def test_the_cache_can_be_emptied_and_measured(self, storage: Any) -> None:
        put(storage, "x", content(1 << 20))
        assert isinstance(storage, Cached)
        read(storage, "x", 0, 1 << 20)
        assert storage.residency(["x"]).ratio == 1.0
        storage.evict(["x"])
        assert storage.residency(["x"]).ratio == 0.0


class TestLocalDirect(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        probe = LocalStorage(tmp_path)
        (tmp_path / "probe").write_bytes(bytes(4096))
        if not probe.supports_direct("probe"):
            pytest.skip(f"{tmp_path} has no O_DIRECT")
        return LocalStorage(tmp_path / "root", direct=True)

    def test_direct_reads_leave_the_cache_alone(self, storage: Any) -> None:
        put(storage, "x", content(1 << 20))
        storage.evict(["x"])
        read(storage, "x", 0, 1 << 20)
        assert storage.residency(["x"]).ratio == 0.0


class TestThrottled(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(f"throttled+{tmp_path}/root?bandwidth=100GB&latency=10us")
