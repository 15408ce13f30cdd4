"""Memory to read into: aligned, zeroed, and shared where it says so."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from iobench.base import buffers

SIZES = [1, 4096, 5000, (2 << 20) - 1, 2 << 20, (4 << 20) + 4097]


@pytest.fixture(params=["best", "4 KiB pages"])
def shared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], buffers.Region]:
    """The best that this host grants, and what remains where it grants nothing."""
    if request.param != "best":

        def refused(nbytes: int) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(buffers, "_tmpfs_huge", refused)
        monkeypatch.setattr(buffers, "_hugetlb", refused)
    return buffers.shared


@pytest.mark.parametrize("prefault", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_private_memory_is_zeroed_and_starts_on_a_huge_page(size: int, prefault: bool) -> None:
    region = buffers.private(size, prefault=prefault)
    assert region.array.nbytes == size
    assert region.array.ctypes.data % (2 << 20) == 0
    assert not region.array.any()
    region.array[:] = 7
    assert region.array.sum(dtype=np.int64) == 7 * size


def test_another_mapping_shows_the_same_bytes(shared: Callable[[int], buffers.Region]) -> None:
    region = shared(5000)
    other = buffers.attach(region.fd, 5000)
    assert other.ctypes.data != region.array.ctypes.data
    assert other.nbytes == 5000
    region.array[4321] = 42
    assert other[4321] == 42
    os.close(region.fd)  # the mappings outlive it
    other[0] = 1
    assert region.array[0] == 1
