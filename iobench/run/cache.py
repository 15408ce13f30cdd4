"""The page cache before each epoch: brought into the state that the workload asks for, and measured."""

from __future__ import annotations

from ..errors import StorageError
from ..load.layouts import layout_keys
from ..spec.result import Epoch
from ..storage.base import Cached, Storage
from .plan import Plan


def prepare_cache(plan: Plan, epoch: int) -> Epoch:
    """Evict for a cold epoch, read everything once for a warm one; record the residency that this epoch starts with."""
    storage, keys = (
        plan.storage,
        [*plan.keys, *layout_keys(plan.storage, plan.workload.loader.kind)],
    )
    if not isinstance(storage, Cached):
        return Epoch(
            epoch=epoch, residency_how="not measured: this storage has no page cache on this host"
        )
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
