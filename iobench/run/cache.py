"""The page cache before each epoch: brought into the state that the workload asks for, and measured."""

from __future__ import annotations

from ..errors import StorageError
from ..spec.result import Epoch
from ..storage.base import Cached
from .plan import Plan


def prepare_cache(plan: Plan, epoch: int) -> Epoch:
    """Evict for a cold epoch, read everything once for a warm one; record the residency that this epoch starts with."""
    storage, keys = plan.storage, plan.keys
    if not isinstance(storage, Cached):
        return Epoch(epoch=epoch, residency_how="not measured: this storage has no page cache on this host")
    try:
        if plan.workload.cache == "cold":
            storage.evict(keys)
        elif plan.workload.cache == "warm" and epoch == 0:
            _warm(plan)
        residency = storage.residency(keys)
    except StorageError as error:
        return Epoch(epoch=epoch, residency_how=f"not measured: {error}")
    return Epoch(epoch=epoch, residency_before=residency.ratio, residency_how=residency.how)


def _warm(plan: Plan) -> None:
    buffer = memoryview(bytearray(8 << 20))
    for key in plan.keys:
        offset = 0
        while count := plan.storage.read_into(key, offset, buffer):
            offset += count
