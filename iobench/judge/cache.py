"""What caches did for a run: how cold its reads were, and which of them a cache served.

``served_by_cache`` says why the reads of a run tell nothing about its storage: a cache served them,
or there were none. The rules about cold reads (``rules_cache``) rest on the same counts.

A local cache has a hit rate in each epoch, from which a rate follows. With reads in a new random
order in each epoch, LRU serves less than the cache holds. An object is at the place x of one epoch
and y of the next, in shares of an epoch; between its two reads come those after x and those before
y, of which some are the same: ``1 - x (1 - y)`` of all objects. It is still there if that is below
c, the share of the dataset that fits. Over all x and y that has the probability
``c + (1 - c) ln(1 - c)``: 15 % for half of a dataset. In an order that never changes, each object
is removed just before its turn. A cache without eviction serves c in any order.

The rate of an epoch follows from two ceilings: the storage delivers what the cache does not have,
and the cache's disk the rest. If both work beside each other, the slower of them counts; if a
reader waits for one after the other, their times add up. Copying into the cache is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from ..base.units import format_bytes, format_share
from ..record.host import DeviceFacts
from ..record.run import TrainingRecord
from ..record.training import CachedEpoch, Ceiling, Epoch, LocalCacheFacts
from ..settings.workload import LocalCacheSpec
from .evidence import Evidence
from .statistics import NOISE

MAX_RESIDENT = 0.01
"""Share of the dataset's bytes that may be in the page cache before a cold epoch."""


MIN_WARM = 0.9
"""Share of the dataset's bytes that must be in the page cache before a warm epoch.

A few pages may go between the read that fills the cache and the epoch.
"""


MAX_CACHED = 0.01
"""Share of the bytes delivered in a cold epoch that may come from a cache."""


class EpochDelivery(NamedTuple):
    """Bytes that a cold epoch (or the measurement of a ceiling) needed, and bytes from storage.

    ``fetched`` is None if it was not measured; ``how`` then gives the reason.
    """

    where: str
    wanted: int  # bytes that storage must deliver if no cache serves any of them
    fetched: int | None
    how: str

    @property
    def cached(self) -> float:
        return cached_share(wanted=self.wanted, fetched=self.fetched)


def cached_share(*, wanted: int, fetched: int | None) -> float:
    """Share of the wanted bytes that a cache served, 0 to 1; 0 if ``fetched`` is unknown."""
    if not wanted or fetched is None:
        return 0.0
    return max(0, wanted - fetched) / wanted


def epoch_deliveries(doc: TrainingRecord) -> Iterator[EpochDelivery]:
    """Deliveries of the epochs of a cold run.

    An interrupted repetition claims nothing, so its epochs without a count are left out.
    """
    read = share_read(doc)
    for where, epoch, complete in epochs_of(doc):
        if complete or epoch.bytes_fetched is not None:
            yield _delivery(doc, where, epoch, read=read)


def ceiling_deliveries(doc: TrainingRecord) -> Iterator[EpochDelivery]:
    """Deliveries of the ceilings that the reader measured on cold storage."""
    for name, ceiling in doc.job.ceilings.items():
        if ceiling.cold is not None:
            yield _delivery(doc, f"the measurement of ceiling {name}", ceiling.cold, read=1.0)


def _delivery(doc: TrainingRecord, where: str, epoch: Epoch, *, read: float) -> EpochDelivery:
    """Delivery of one epoch; ``read`` is the loader's files as a share of the stored bytes."""
    # A library, or a long ceiling measurement, may deliver samples twice: count one epoch at most.
    wanted = min(epoch.sample_bytes or 0, (doc.job.dataset.stored_bytes or 0)) * read
    if epoch.local_cache is not None:
        wanted = min(wanted, epoch.local_cache.storage_bytes)
    return EpochDelivery(where, int(wanted), epoch.bytes_fetched, epoch.fetched_how)


def share_read(doc: TrainingRecord) -> float:
    """Size of the loader's files, as a share of the dataset's stored bytes.

    It is below 1 for a library's own layout without framing.
    """
    layout, stored = doc.job.loader.layout, doc.job.dataset.stored_bytes
    return min(1.0, layout.bytes / stored) if layout and stored else 1.0


def cold_parts(doc: TrainingRecord) -> tuple[str, float] | None:
    """The warm epoch before which the page cache held least, and how much it held.

    None if all of them found it filled, or if nobody measured it.
    """
    found = [
        (where, epoch.residency_before)
        for where, epoch, _ in epochs_of(doc)
        if epoch.residency_before is not None and epoch.residency_before < MIN_WARM
    ]
    return min(found, key=lambda each: each[1]) if found else None


def cached_image(doc: TrainingRecord) -> DeviceFacts | None:
    """The loop device below the data whose image goes through the page cache, if there is one."""
    loops = (each for each in doc.storage.devices if each.backing_file and not each.backing_direct)
    return next(loops, None)


def epochs_of(doc: TrainingRecord) -> Iterator[tuple[str, Epoch, bool]]:
    """(place in the run, epoch, whether its repetition is complete) for every epoch."""
    named = [(f"repetition {index}", each) for index, each in enumerate(doc.job.repetitions)]
    named += [("the repetition without checkpoints", doc.job.quiet)] if doc.job.quiet else []
    for name, repetition in named:
        for epoch in repetition.epochs:
            yield f"{name}, epoch {epoch.epoch}", epoch, repetition.complete


def uncached(doc: TrainingRecord) -> bool:
    """True if this host's page cache is not used: object storage, or all reads are direct."""
    return doc.storage.page_cache is False or doc.job.loader.direct is True


def is_cold(doc: TrainingRecord) -> bool:
    return doc.job.workload.cache == "cold"


ONE_DEVICE = frozenset({"ext2", "ext3", "ext4", "xfs"})
"""File systems that keep the bytes of a file as they are, on one block device.

Others may compress them (btrfs, zfs) or spread them over several devices.
"""


MAX_SERVED = 0.1
"""A cache that served more of the reads than this hides what the storage can do."""


MIN_READ = 8 << 20
"""Bytes that a loader must have read for the devices' share of them to say anything."""


MAX_UNSEEN = 0.01
"""Share of a loader's bytes that it may read for other reasons than the samples: its own code."""


OWN_PAGES = 1 << 20
"""Bytes of its own code that a loader may fetch; of a small dataset at most half of its bytes.

The kernel fetches pages of libraries when they are first used.
"""


MIN_CACHED = 0.9
"""Share of a dataset in the page cache from which on a training does not wait for its storage."""


def served_by_cache(doc: TrainingRecord) -> str:
    """Why the reads of a run say nothing about its storage; empty if they do.

    Either the run asked for a warm page cache, and it was, or more than ``MAX_SERVED`` of what it
    read was there, or its loader read nothing. A simulated storage keeps its limits whatever serves
    the bytes below it.
    """
    storage = doc.storage
    if uncached(doc) or storage.bandwidth_bytes_per_s or storage.iops or storage.latency_s:
        return ""
    if doc.job.subject.watched:
        return _waits_were_cached(doc)
    if doc.job.workload.cache == "warm" and not cold_parts(doc):
        return "the page cache was filled before the run"
    resident = max(
        (
            epoch.residency_before or 0.0
            for repetition in doc.job.repetitions
            for epoch in repetition.epochs
        ),
        default=0.0,
    )
    if resident > MAX_SERVED:
        return (
            f"up to {format_share(resident)} of the dataset was in the page cache before an epoch"
        )
    if nothing := read_nothing(doc):
        return nothing
    served = max((each.cached for each in epoch_deliveries(doc)), default=0.0)
    return (
        f"up to {format_share(served)} of an epoch came from a cache" if served > MAX_SERVED else ""
    )


def read_nothing(doc: TrainingRecord) -> str:
    """That a loader of the user's own did not read in a cold run; empty if it may have.

    What it mapped into memory had to be fetched, since the cache was emptied; what it read from a
    cache was returned by read calls.
    """
    facts = doc.job.loader.user
    if not doc.job.subject.users or facts is None or uncached(doc) or not is_cold(doc):
        return ""
    found = list(epoch_deliveries(doc))
    fetched = [each.fetched for each in found if each.fetched is not None]
    if not found or len(fetched) < len(found) or facts.files_inside or facts.process_bytes is None:
        return ""
    wanted = max(each.wanted for each in found)
    most = max(MAX_UNSEEN * wanted, min(OWN_PAGES, wanted / 2))
    if facts.process_bytes > MAX_UNSEEN * facts.delivered_bytes or max(fetched) > most:
        return ""
    return "your loader read nothing of the dataset at all"


def _waits_were_cached(doc: TrainingRecord) -> str:
    """Why a training that was watched did not wait for its storage; empty if it may have.

    Nobody empties the cache before a training, and only its first epoch may be cold. So each epoch
    counts by how long batches were waited for in it. A training that reads a part of its dataset
    says nothing of what the cache holds of the rest: there the counts of the processes tell.
    """
    facts = doc.job.loader.user
    if facts is not None and facts.files_inside and doc.storage.fs_type in ONE_DEVICE:
        read, delivered = facts.process_bytes or 0, facts.device_bytes
        if delivered is not None and read >= MIN_READ and delivered <= MAX_SERVED * read:
            return (
                f"devices delivered {format_bytes(delivered)} of the {format_bytes(read)} that the "
                "loader read"
            )
    waits = [
        (epoch.residency_before, epoch.wait_s or 0.0)
        for repetition in doc.job.repetitions
        for epoch in repetition.epochs
    ]
    waited = sum(wait_s for _, wait_s in waits)
    if not waited or any(share is None for share, wait_s in waits if wait_s):
        return ""
    cached = sum((share or 0.0) * wait_s for share, wait_s in waits) / waited
    return (
        f"{format_share(cached)} of the dataset was in the page cache while batches were waited for"
        if cached >= MIN_CACHED
        else ""
    )


_WHOLE = 0.99
"""Share of the dataset's bytes from which on an epoch counts as whole."""


def expected_share(spec: LocalCacheSpec, share: float, *, shuffled: bool) -> float:
    """The share of an epoch's bytes that the cache serves, where ``share`` of the dataset fits.

    For whole epochs over objects that are each read as one, after the first epoch.
    """
    if share >= 1 or spec.eviction == "none":
        return min(1.0, share)
    return share + (1 - share) * math.log(1 - share) if shuffled else 0.0


def relief(doc: TrainingRecord) -> float:
    """How many times as fast the storage seems to be behind the cache, over all epochs."""
    epochs = [epoch for one in doc.job.repetitions if one.complete for epoch in one.epochs]
    uses = [epoch.local_cache for epoch in epochs if epoch.local_cache is not None]
    stored = sum(epoch.sample_bytes or 0 for epoch in epochs)
    fetched, hit = sum(use.storage_bytes for use in uses), sum(use.hit_bytes for use in uses)
    if not uses or not stored:
        return 1.0
    storage, cache = _bytes_per_s(doc, "fetch"), _bytes_per_s(doc, "cache")
    limits = [stored / fetched] if fetched else []
    if storage and cache and hit:
        limits.append(cache / storage * stored / hit)
    return min(limits, default=1.0)


def reads_more(doc: TrainingRecord) -> float | None:
    """How many times the bytes of the samples the storage delivers behind a local cache.

    None: there is no cache, or it spares the storage bytes, or hardly adds any.
    """
    times = 1 / relief(doc)
    return times if times > 1 + NOISE else None


def with_cached_epochs(doc: TrainingRecord, evidence: Evidence) -> LocalCacheFacts | None:
    """The facts of the run's cache, with what each epoch of its complete repetitions shows."""
    facts = doc.job.local_cache
    if facts is None:
        return None
    done = [one.epochs for one in doc.job.repetitions if one.complete]
    numbers = sorted({epoch.epoch for epochs in done for epoch in epochs})
    found = [
        _cached_epoch(doc, evidence, number, [each for each in done if _at(each, number)])
        for number in numbers
    ]
    return facts.model_copy(update={"epochs": found})


def _at(epochs: Sequence[Epoch], number: int) -> Epoch | None:
    found = next((each for each in epochs if each.epoch == number), None)
    return found if found is not None and found.local_cache is not None else None


def _cached_epoch(
    doc: TrainingRecord, evidence: Evidence, number: int, repetitions: Sequence[Sequence[Epoch]]
) -> CachedEpoch:
    epochs = [found for each in repetitions if (found := _at(each, number)) is not None]
    shares = [share for each in epochs if (share := _cached_share(each)) is not None]
    predicted = [both for each in epochs if (both := _predicted(doc, evidence, each)) is not None]
    rates = [each.samples_per_s for each in epochs if each.samples_per_s is not None]
    hits = [rate for each in epochs if each.local_cache and (rate := each.local_cache.hit_rate)]
    return CachedEpoch(
        epoch=number,
        hit_rate=median([*hits, *[0.0] * (len(epochs) - len(hits))]) if epochs else None,
        cached_share=median(shares) if shares else None,
        expected_share=_expected(doc, number, repetitions),
        samples_per_s=median(rates) if rates else None,
        predicted_low=median(low for low, _ in predicted) if predicted else None,
        predicted_high=median(high for _, high in predicted) if predicted else None,
    )


def _cached_share(epoch: Epoch) -> float | None:
    if not epoch.sample_bytes or epoch.local_cache is None:
        return None
    return max(0.0, 1 - epoch.local_cache.storage_bytes / epoch.sample_bytes)


def _expected(
    doc: TrainingRecord, number: int, repetitions: Sequence[Sequence[Epoch]]
) -> float | None:
    """What LRU must serve; None where objects are read in parts, or epochs are not whole."""
    job, data = doc.job, doc.job.dataset
    spec, facts = job.workload.local_cache, job.local_cache
    whole = data.samples == data.shards or job.loader.access == "sequential"
    if spec is None or facts is None or facts.share is None or not whole:
        return None
    if number == 0:
        return 0.0
    least = _WHOLE * (data.stored_bytes or math.inf)
    before = [each for epochs in repetitions for each in epochs if each.epoch <= number]
    if any((each.sample_bytes or 0) < least for each in before):
        return None
    return expected_share(spec, facts.share, shuffled=job.workload.reader.shuffle)


def _predicted(doc: TrainingRecord, evidence: Evidence, epoch: Epoch) -> tuple[float, float] | None:
    """Samples/s of an epoch by its bytes from storage and from the cache: (low, high)."""
    use, stored, size = epoch.local_cache, epoch.sample_bytes, evidence.bytes_per_sample
    storage, cache = _bytes_per_s(doc, "fetch"), _bytes_per_s(doc, "cache")
    if use is None or not stored or not size or not storage or (use.hit_bytes and not cache):
        return None
    times = (use.storage_bytes / storage, use.hit_bytes / cache if cache else 0.0)
    others = [rate for rate in (evidence.prep, evidence.loader, evidence.accelerator) if rate]
    samples = stored / size
    least = max((samples / rate for rate in others), default=0.0)
    slow, fast = max(sum(times), least), max(*times, least)
    return (samples / slow, samples / fast) if fast > 0 else None


def _bytes_per_s(doc: TrainingRecord, ceiling: str) -> float | None:
    return doc.job.ceilings.get(ceiling, Ceiling()).bytes_per_s
