"""Rules that compare what the block device read with what the run fetched.

The device's counters are of the whole machine. More than the run fetched is the load of others;
less than the samples that it received came from a cache. Only data on a block device of one host
has such counters: on other storage the rules find nothing. Each rule returns None if it finds no
violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...schema.record import TrainingRecord
from ...schema.training import Repetition
from ...units import format_bytes, format_percent
from .evidence import bytes_per_sample
from .rules_cache import cold_fetch, is_cold, share_read, uncached
from .rules_data import Outcome, unknown

MAX_OTHER = 0.2
"""Bytes of others, as a share of the bytes that the run fetched."""

MAX_CACHED = 0.2
"""Share of the samples' bytes that the device did not read."""

MIN_BYTES = 64 << 20
"""A smaller difference says nothing: programs are loaded, and directories are read."""

ONE_DEVICE = frozenset({"ext2", "ext3", "ext4", "xfs"})
"""File systems that keep the bytes of a file as they are, on one block device.

Others may compress them (btrfs, zfs) or spread them over several devices.
"""


class Traffic(NamedTuple):
    """What the device read during a repetition; ``bytes`` is None if its counter failed."""

    repetition: int
    one: Repetition
    device: str
    bytes: int | None


def _traffic(doc: TrainingRecord) -> Iterator[Traffic]:
    """The traffic of each complete repetition of which the device is known.

    A warm run reads the dataset once before it begins, so its traffic says nothing.
    """
    if doc.job.workload.cache == "warm" or len(doc.hosts) > 1:
        return
    for number, one in enumerate(doc.job.repetitions):
        if one.complete and one.resources is not None and one.resources.device:
            used = one.resources
            yield Traffic(number, one, used.device or "", used.device_read_bytes)


def _not_counted(traffic: list[Traffic]) -> Outcome | None:
    gap = next((each for each in traffic if each.bytes is None), None)
    if gap is None:
        return None
    return unknown(
        f"the bytes that device {gap.device} read in repetition {gap.repetition} were not counted"
    )


def other_load(doc: TrainingRecord) -> Outcome | None:
    """Check that the device read little for others.

    Buffered reads of which nobody counted what they fetched are left out: what the kernel reads
    ahead for them cannot be told apart from the load of others.
    """
    traffic = list(_traffic(doc))
    if gap := _not_counted(traffic):
        return gap
    found = []
    for each in traffic:
        fetched = _fetched(doc, each.one)
        excess = (each.bytes or 0) - (fetched or 0)
        if fetched is not None and excess > max(MAX_OTHER * fetched, MIN_BYTES + _prefetched(doc)):
            found.append((excess, fetched, each))
    if not found:
        return None
    excess, fetched, each = max(found, key=lambda item: item[0])
    return Outcome(
        f"during repetition {each.repetition}, device {each.device} read "
        f"{format_bytes(each.bytes or 0)}, but this run fetched {format_bytes(fetched)}: another "
        f"process or another tenant of the device read {format_bytes(excess)}{_busy(each.one)}",
        "find out who else uses the device (iostat, iotop, fatrace), and run again without that "
        "load: the rate may be only what was left of the device",
    )


def served_by_cache(doc: TrainingRecord) -> Outcome | None:
    """Check that the device read the samples that were delivered.

    What ``cache.cold-fetch`` has found is not said again.
    """
    if doc.storage.fs_type not in ONE_DEVICE:
        return None
    traffic = list(_traffic(doc))
    if gap := _not_counted(traffic):
        return gap
    cold = cold_fetch(doc)
    if cold is not None and cold.known:
        return None
    found = []
    for each in traffic:
        wanted = _wanted(doc, each.one)
        lacking = wanted - (each.bytes or 0)
        if lacking > max(MAX_CACHED * wanted, MIN_BYTES):
            found.append((lacking / wanted, wanted, each))
    if not found:
        return None
    share, wanted, each = max(found, key=lambda item: item[0])
    bypassed = is_cold(doc) or uncached(doc)
    return Outcome(
        f"in repetition {each.repetition} the run received {format_bytes(wanted)} of samples, but "
        f"device {each.device} read {format_bytes(each.bytes or 0)}: "
        f"{format_percent(share)} came from "
        + (
            "elsewhere, although no page cache may serve this run" if bypassed else "the page cache"
        ),
        "look for files with holes, and for reads with O_DIRECT that the file system serves from "
        "its cache: the rate is not that of the device"
        if bypassed
        else "the rate is partly that of memory: set cache: cold, or read with reader.direct=true, "
        "to measure the device",
    )


def _fetched(doc: TrainingRecord, one: Repetition) -> int | None:
    """Bytes that the run made the device read; None if that is not known.

    Direct reads fetch what the readers asked for, with the excess of alignment.
    """
    counts = [epoch.bytes_fetched for epoch in one.epochs]
    known = [count for count in counts if count is not None]
    if counts and len(known) == len(counts):
        return sum(known)
    return one.bytes_read if doc.job.loader.direct else None


def _prefetched(doc: TrainingRecord) -> float:
    """Bytes of batches that were read, but not delivered, at the ends of all epochs."""
    job = doc.job
    in_flight = job.loader.in_flight_batches or job.workers * job.workload.loader.prefetch_factor
    samples = in_flight * (job.workload.batch_size or 1) * job.accelerators * job.workload.epochs
    return samples * (bytes_per_sample(doc) or 0.0)


def _busy(one: Repetition) -> str:
    """How busy the device was, where this was measured."""
    busy = one.resources.device_busy if one.resources is not None else None
    return "" if busy is None else f" (requests were in flight {format_percent(busy)} of the time)"


def _wanted(doc: TrainingRecord, one: Repetition) -> int:
    """Bytes that the device must read, each once in an epoch, if no cache serves any of them."""
    stored = doc.job.dataset.stored_bytes
    epochs = [epoch.sample_bytes for epoch in one.epochs if epoch.sample_bytes is not None]
    if not stored or len(epochs) < len(one.epochs):
        return int(one.sample_bytes * share_read(doc))
    return int(sum(min(delivered, stored) for delivered in epochs) * share_read(doc))
