"""What a host does and says for a run: its page cache, its counters, and what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..base.errors import StorageError
from ..base.filesystem import NFS, mount_of
from ..host import fetched, fio, host, nfs, resources
from ..host.nvml import GpuWatch
from ..host.samples import Sampler
from ..judge.statistics import of_all
from ..record.host import Host, NfsTraffic, Resources
from ..storage.base import Cached, Files, Storage, innermost, local_root

_NO_CACHE = "not measured: this storage has no page cache on this host"
_UNSEEN = (
    "not measured: the page cache of this host may serve reads of this storage, whose plug-in does "
    "not tell what it holds"
)

Change = Literal["empty", "fill", "state"]
"""Of a page cache; ``state``: none, it is only looked at."""

_TRIED = 40
"""Number of files that may be tried, spread over the dataset. (Paths of all files may take too much
memory.)
"""

_PROCESSES = (
    "read_bytes of /proc/PID/io, ranks and workers; whole pages, read-ahead and other files that "
    "they read count too, caches below this host's are not seen"
)
_MOUNT = (
    "bytes by server of /proc/self/mountstats; whole pages, read-ahead and other processes' reads "
    "of the mount count too, the server's caches are not seen"
)


@dataclass(frozen=True, kw_only=True)
class FetchCounter:
    """How the bytes that the storage delivers are counted for a dataset.

    ``by``: ``processes`` (each rank counts for itself and its workers), ``mount`` (this host's NFS
    client counts for all readers) or ``nobody``. ``how``: the same in words, with what the counter
    does not see, or why there is no counter.
    """

    by: Literal["processes", "mount", "nobody"]
    how: str
    mount_point: str = ""


def find_counter(storage: Storage, keys: Sequence[str], *, direct: bool) -> FetchCounter:
    """Find the counter that works for these objects. Reads and evicts small parts of some."""
    storage = innermost(storage)
    if not isinstance(storage, Files):
        return FetchCounter(by="nobody", how=_unseen(storage))
    step = max(1, len(keys) // _TRIED)
    try:
        paths = [storage.local_path(key) for key in keys[::step][:_TRIED]]
    except StorageError as error:
        return FetchCounter(by="nobody", how=f"not measured: {error}")
    mount = mount_of(paths[0])
    is_nfs = mount is not None and mount.fs_type in NFS
    if mount is not None and is_nfs and nfs.read(mount.point) is not None:
        return FetchCounter(by="mount", how=_MOUNT, mount_point=mount.point)
    why = fetched.probe(paths, direct=direct)
    if why:
        return FetchCounter(by="nobody", how=f"not measured: {why}")
    return FetchCounter(by="processes", how=_PROCESSES)


def _unseen(storage: Storage) -> str:
    """Why nobody knows what this host's page cache does for a storage."""
    return _UNSEEN if storage.traits.page_cache else _NO_CACHE


@dataclass(frozen=True)
class CacheState:
    """What this host's page cache holds of some objects. ``ratio``: of their bytes, 0 to 1.

    ``how``: how that was measured, or why it was not. ``hosts``: the ratio of each host, where
    there are several; ``ratio`` is then the largest.
    """

    ratio: float | None
    how: str
    hosts: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Used:
    """What the host and the client of its NFS mount did between two moments.

    ``hosts``: the same of each host, where there are several; what is above is the first one's.
    """

    resources: Resources
    nfs: NfsTraffic | None
    hosts: tuple[Used | None, ...] = ()

    @property
    def throttled_s(self) -> float | None:
        """How long the CPU quota stopped the host on which that was longest."""
        all_hosts = self.hosts or (self,)
        times = [None if each is None else each.resources.throttled_s for each in all_hosts]
        return of_all(max, times)


class HostAgent:
    """The agent of this host, for data that lies on one storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._root = local_root(innermost(storage))
        self._counter: FetchCounter | None = None

    def describe(self) -> Host:
        """The host's fingerprint."""
        return Host.model_validate(host.fingerprint())

    def describe_all(self) -> list[Host]:
        """The fingerprints of all hosts of the run, in the order of their ranks."""
        return [self.describe()]

    def empty_cache(self, keys: Sequence[str]) -> CacheState:
        """Drop these objects from the page cache; return what it still holds of them."""
        return self.cache("empty", keys)

    def fill_cache(self, keys: Sequence[str]) -> CacheState:
        """Read these objects once; return what the page cache then holds of them."""
        return self.cache("fill", keys)

    def cache_state(self, keys: Sequence[str]) -> CacheState:
        """What the page cache holds of these objects."""
        return self.cache("state", keys)

    def cache(self, what: Change, keys: Sequence[str]) -> CacheState:
        """Do this with what the page cache holds of these objects; return what it then holds."""
        storage = self.storage
        if not isinstance(storage, Cached):
            return CacheState(None, _unseen(innermost(storage)))
        try:
            if what == "empty":
                storage.evict(keys)
            elif what == "fill":
                _read_all(storage, keys)
            residency = storage.residency(keys)
        except StorageError as error:
            return CacheState(None, f"not measured: {error}")
        return CacheState(residency.ratio, residency.how)

    def fetch_counter(self, keys: Sequence[str], *, direct: bool) -> FetchCounter:
        """How the bytes that the storage delivers are counted here.

        The first call tries it with some of these objects: it reads and evicts parts of them.
        """
        if self._counter is None:
            self._counter = find_counter(self.storage, keys, direct=direct)
        return self._counter

    def mount_counters(self) -> nfs.MountStats | None:
        """The counters of the NFS mount, if these count what the storage delivers."""
        counter = self._counter
        if counter is None or counter.by != "mount":
            return None
        return nfs.read(counter.mount_point)

    def snapshot(self) -> resources.Snapshot:
        """The counters of the host and of the device that holds the data. Never raises."""
        return resources.Snapshot.take(self._root)

    def sampler(self, gpus: GpuWatch | None = None) -> Sampler:
        """Samples the same counters, and those of network, memory and GPUs, over time.

        ``gpus``: those of the job, which are watched in the same time.
        """
        return Sampler(self._root, gpus=gpus)

    def used_since(self, before: resources.Snapshot) -> Used:
        """What has happened since a snapshot."""
        now = self.snapshot()
        return Used(resources.diff(before, now), nfs.diff(before.nfs, now.nfs))

    def why_no_fio(self) -> str:
        """Why fio can't read this storage here; empty if it can."""
        if not isinstance(self.storage, Files):
            return "fio reads local files only"
        if not fio.available():
            return f"fio is not installed; install it with: {fio.install_hint()}"
        return ""


def _read_all(storage: Storage, keys: Sequence[str]) -> None:
    buffer = memoryview(bytearray(8 << 20))
    for key in keys:
        offset = 0
        while count := storage.read_into(key, offset, buffer):
            offset += count
