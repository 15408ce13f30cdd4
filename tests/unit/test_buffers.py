"""Memory to read into: aligned, zeroed, shared where it says so, and gone without a trace."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench import buffers
from iobench.load.slots import NO_SLOT, SlotRing

SIZES = [1, 4096, 5000, (2 << 20) - 1, 2 << 20, (4 << 20) + 4097]


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


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


@pytest.mark.parametrize("size", SIZES)
def test_shared_memory_is_zeroed_and_page_aligned(
    shared: Callable[[int], buffers.Region], size: int
) -> None:
    region = shared(size)
    assert region.array.nbytes == size
    assert region.array.ctypes.data % mmap.PAGESIZE == 0
    assert not region.array.any()
    region.array[:] = 7
    os.close(region.fd)


def test_direct_io_reads_into_either(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(np.random.default_rng(1).bytes(8192))
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip(f"{tmp_path} has no O_DIRECT")
    for region in (buffers.private(8192), buffers.shared(8192)):
        assert os.preadv(fd, [region.array.data], 0) == 8192
        assert region.array.tobytes() == file.read_bytes()
    os.close(fd)


def test_a_forked_process_writes_into_shared_memory(
    shared: Callable[[int], buffers.Region],
) -> None:
    region, mine = shared(3 << 20), buffers.private(100)
    child = os.fork()
    if child == 0:
        region.array[-5:] = (1, 2, 3, 4, 5)
        mine.array[:] = 9
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert region.array[-6:].tolist() == [0, 1, 2, 3, 4, 5]
    assert not mine.array.any()
    os.close(region.fd)


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


def test_shared_memory_leaves_no_name_behind(shared: Callable[[int], buffers.Region]) -> None:
    mounts = set(Path("/proc/self/mountinfo").read_text().splitlines())
    region = shared(1 << 20)
    name = os.readlink(f"/proc/self/fd/{region.fd}")
    assert name.startswith("/memfd:") or name.endswith("(deleted)")
    new = set(Path("/proc/self/mountinfo").read_text().splitlines()) - mounts
    assert not [
        line for line in new if " hugetlbfs " in line
    ]  # others may mount what they like meanwhile
    os.close(region.fd)


def test_attaching_keeps_no_descriptor_open() -> None:
    region = buffers.shared(1 << 20)
    before = fds()
    held = [buffers.attach(region.fd, 1 << 20) for _ in range(5)]
    del held
    assert fds() == before
    os.close(region.fd)


@pytest.mark.parametrize("is_shared", [True, False])
def test_rings_give_their_descriptors_back(is_shared: bool) -> None:
    before = fds()
    for _ in range(5):
        ring = SlotRing(2, 100, shared=is_shared)
        ring.view(1)[0] = 1
        del ring
    assert fds() == before


def test_slots_do_not_overlap() -> None:
    ring = SlotRing(3, 5000, shared=True)
    for slot in range(3):
        ring.view(slot)[:] = bytes([slot + 1]) * ring.slot_bytes
    assert [ring.lease(slot).tobytes() for slot in range(3)] == [
        bytes([slot + 1]) * ring.slot_bytes for slot in range(3)
    ]
    assert ring.slot_bytes >= 5000


def test_a_slot_comes_back_with_its_last_view() -> None:
    ring = SlotRing(2, 100, shared=False)
    slots = [ring.acquire(), ring.acquire()]
    assert sorted(slots) == [0, 1]
    assert ring.acquire() == NO_SLOT
    assert ring.misses == 1
    lease = ring.lease(slots[0])
    view = lease[10:20].reshape(2, 5)
    del lease
    assert ring.free == 0
    del view
    assert ring.free == 1
    assert ring.acquire() == slots[0]
    ring.release(NO_SLOT)
    assert ring.free == 0


def test_a_lease_outlives_the_ring() -> None:
    ring = SlotRing(1, 100, shared=True)
    lease = ring.lease(ring.acquire())
    ring.view(0)[:3] = b"abc"
    del ring
    assert lease[:3].tobytes() == b"abc"


def test_a_ring_passed_to_a_spawned_process_is_the_same_memory() -> None:
    ring = SlotRing(2, 100, shared=True)

    class Handed:
        """What DupFd makes of a descriptor on the other side."""

        def __init__(self, fd: int) -> None:
            self.fd = fd

        def detach(self) -> int:
            return os.dup(self.fd)

    state: dict[str, Any] = {
        "count": ring.count,
        "slot_bytes": ring.slot_bytes,
        "fd": Handed(ring.region.fd),
    }
    before = fds()
    other = SlotRing.__new__(SlotRing)
    other.__setstate__(state)
    other.view(1)[7] = 77
    assert ring.view(1)[7] == 77
    assert other.acquire() == NO_SLOT  # slots are the training process's to hand out
    del other
    assert fds() == before
