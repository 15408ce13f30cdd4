"""Find a counter of the bytes that the storage delivers to a run; it is tried once per run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import StorageError
from ..filesystem import NFS, mount_of
from ..measure import fetched, nfs
from ..storage.base import Files, Storage
from ..storage.catalog import innermost

NO_CACHE = "not measured: this storage has no page cache on this host"

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
        return FetchCounter(by="nobody", how=NO_CACHE)
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
