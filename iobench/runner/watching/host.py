"""What is looked at once for each host around the iterations: page cache, counters, storage."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...base import pagecache
from ...base.errors import DatasetError, IobenchError
from ...data.dataset import Dataset
from ...host import nfs, resources
from ...host.samples import Sampler
from ...record.host import NfsTraffic, Resources, StorageFacts
from ...record.job import DatasetFacts
from ...storage import is_local, open_storage
from ...storage.base import Storage, innermost, local_root
from ..agent import CacheState, HostAgent
from ..facts import dataset_facts, storage_facts

MAX_KEYS = 10_000
"""Files of the dataset whose pages are counted; of more, these are spread over it."""

MAX_WALK_S = 2.0
"""Seconds for which a directory without a manifest is searched for files."""

MAX_LOOK_S = 1.0
"""If one look at the page cache takes longer, there is none before later epochs."""

NO_DATA = "not measured: watch(data=...) did not say where the dataset is"


@dataclass(frozen=True, kw_only=True)
class Data:
    """The dataset of a training, as far as it is known."""

    storage: Storage | None = None
    root: str = ""  # its directory on this host; empty if it has none
    keys: Sequence[str] = ()
    of: str = ""  # what the keys are, if they are not all files
    facts: DatasetFacts = field(default_factory=DatasetFacts)
    about: StorageFacts = field(default_factory=StorageFacts)
    stored_bytes: float = 0.0  # of a sample, on average; 0: not known


def look_at(data: str | Path | None) -> Data:
    """Open the dataset: one that iobench has written or scanned, or any directory.

    Raises IobenchError if there is none.
    """
    if data is None:
        return Data()
    url = str(data)
    try:
        dataset = Dataset.open(url)
    except DatasetError:
        if not is_local(url) or not Path(url).is_dir():
            raise
        return _directory(Path(url).resolve())
    manifest, storage = dataset.manifest, open_storage(dataset.place)
    keys = manifest.keys()
    return Data(
        storage=storage,
        root=str(local_root(innermost(storage)) or ""),
        keys=_some(keys),
        of="" if len(keys) <= MAX_KEYS else f"of {MAX_KEYS:,} of its {len(keys):,} files",
        facts=dataset_facts(manifest, location=str(Path(url).resolve()) if is_local(url) else url),
        about=storage_facts(storage),
        stored_bytes=manifest.mean_stored_bytes,
    )


def _directory(root: Path) -> Data:
    """Any directory: how large a sample is in it is not known."""
    found: list[str] = []
    until = time.monotonic() + MAX_WALK_S
    whole = True
    for folder, folders, files in os.walk(root):
        folders.sort()
        found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(files)]
        if len(found) > MAX_KEYS or time.monotonic() > until:
            whole = False
            break
    storage = open_storage(str(root))
    return Data(
        storage=storage,
        root=str(root),
        keys=found[:MAX_KEYS],
        of="" if whole else f"of the first {min(len(found), MAX_KEYS):,} files",
        facts=DatasetFacts(
            location=str(root),
            files=len(found) if whole else None,
        ),
        about=storage_facts(storage),
    )


class HostWatch:
    """The page cache before each iteration, and the host's counters over time."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.agent = HostAgent(data.storage) if data.storage is not None else None
        self._root = data.root or None
        self.sampler = Sampler(self._root)
        self._before = resources.Snapshot.take(self._root)
        self._slow = ""

    def prepare(self, epoch: int) -> tuple[float | None, str]:
        if self._slow:
            self.sampler.prepare()
            return None, self._slow
        began = time.monotonic()
        state = self.cache_state()
        took = time.monotonic() - began
        if took > MAX_LOOK_S:
            self._slow = f"not measured: a look at the page cache took {took:.1f} s"
        self.sampler.prepare()
        return state.ratio, state.how

    def cache_state(self) -> CacheState:
        """What the page cache holds of the dataset."""
        if self.agent is None:
            return CacheState(None, NO_DATA)
        if not self.data.keys:
            return CacheState(None, "not measured: the directory has no file")
        state = self.agent.cache_state(self.data.keys)
        return CacheState(state.ratio, ", ".join(filter(None, (state.how, self.data.of))))

    def begin(self, epoch: int, start_ns: int) -> None:
        self.sampler.begin(epoch, start_ns)

    def tick(self) -> None:
        self.sampler.tick()

    def end(self) -> None:
        self.sampler.end()

    def used(self) -> tuple[Resources, NfsTraffic | None]:
        """What the host and the client of its NFS mount did since this was made."""
        now = resources.Snapshot.take(self._root)
        return resources.diff(self._before, now), nfs.diff(self._before.nfs, now.nfs)


def opened_files(names: Sequence[str], of: int) -> tuple[float | None, str]:
    """(share in the page cache, how it was measured) of files that a loader opened."""
    there = [name for name in names if Path(name).is_file()]
    if not there:
        return None, "not measured: no file that the loader opened is known"
    try:
        found = pagecache.residency(there)
    except IobenchError as error:
        return None, f"not measured: {error}"
    return found.ratio, f"{found.how}, {len(there):,} of the {of:,} files that were opened"


def _some(keys: list[str]) -> list[str]:
    step = -(-len(keys) // MAX_KEYS)
    return keys[:: max(1, step)]
