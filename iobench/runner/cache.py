"""Bring the page cache into the state that the workload asks for, and watch it during each epoch.

Residency before an epoch shows how the epoch began. During the epoch another process may read the
same files, so the bytes that the storage delivered are compared with the bytes that were read: if
they agree, no cache served the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import StorageError
from ..load.layouts import layout_keys
from ..measure import nfs
from ..schema.training import Epoch
from ..storage.base import Cached, Storage
from .fetches import NO_CACHE
from .loading import Tick, run_phase
from .phase import Outcome, Phase
from .plan import Plan


def run_cached_phase(
    plan: Plan,
    phase: Phase,
    *,
    look: Callable[[], None] = lambda: None,
    tick: Tick | None = None,
) -> Outcome:
    """``run_phase`` over the plan's storage, with the page cache prepared and watched.

    ``look`` is called before each epoch, while all ranks wait.
    """

    def prepare(epoch: int) -> Epoch:
        look()
        return prepare_cache(plan, epoch)

    if plan.workload.cache != "cold":
        return run_phase(phase, prepare=prepare, tick=tick)
    watched = _WatchedCache(plan, prepare)
    phase = replace(phase, counts_fetched=watched.counter.by == "processes")
    outcome = run_phase(phase, prepare=watched.prepare, finish=watched.finish, tick=tick)
    for context in outcome.epochs:
        if context.bytes_fetched is None and watched.counter.by != "nobody":
            context.fetched_how = "not measured: the counter could not be read"
    return outcome


class _WatchedCache:
    """Work before and after each epoch of a cold phase; the ranks wait meanwhile."""

    def __init__(self, plan: Plan, prepare: Callable[[int], Epoch]) -> None:
        self._prepare = prepare
        self.counter = plan.fetch_counter
        self._before: nfs.MountStats | None = None

    def prepare(self, epoch: int) -> Epoch:
        context = self._prepare(epoch)
        context.fetched_how = self.counter.how
        self._before = self._mount()
        return context

    def finish(self, context: Epoch) -> None:
        used = nfs.diff(self._before, self._mount())
        if used is not None:
            context.bytes_fetched = used.read_bytes

    def _mount(self) -> nfs.MountStats | None:
        return nfs.read(self.counter.mount_point) if self.counter.by == "mount" else None


def prepare_cache(plan: Plan, epoch: int) -> Epoch:
    """Evict the data for a cold epoch, or read it once for a warm run; return the residency."""
    storage, keys = (
        plan.storage,
        [*plan.keys, *layout_keys(plan.storage, plan.workload.loader.kind)],
    )
    if not isinstance(storage, Cached):
        return Epoch(epoch=epoch, residency_how=NO_CACHE)
    try:
        if plan.workload.cache == "cold":
            storage.evict(keys)
        elif plan.workload.cache == "warm" and epoch == 0:
            _warm(storage, keys)
        residency = storage.residency(keys)
    except StorageError as error:
        return Epoch(epoch=epoch, residency_how=f"not measured: {error}")
    return Epoch(epoch=epoch, residency_before=residency.ratio, residency_how=residency.how)


def _warm(storage: Storage, keys: list[str]) -> None:
    buffer = memoryview(bytearray(8 << 20))
    for key in keys:
        offset = 0
        while count := storage.read_into(key, offset, buffer):
            offset += count
