"""Rules that check whether cold reads were cold, and whether the block device tells the same.

The residency before an epoch shows only how the epoch began. During it, buffered reads fill the
page cache, and so do other processes that read the same files. The rules therefore compare the
bytes that storage delivered to the ranks and their workers with the stored bytes of the samples
that they received. Within an epoch the same bytes may be read twice (a row group, for several of
its rows), and the second read may come from the cache. But each sample is delivered once, so
storage must deliver its bytes at least once.

The block device's counters are of the whole machine. More than the run fetched is the load of
others; less than the samples that it received came from a cache. Only data on a block device of one
host has such counters: on other storage the rules find nothing. Each rule returns None if it finds
no violation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ..base.units import counted, format_bytes, format_percent
from ..record.run import TrainingRecord
from ..record.training import Epoch, Repetition
from .cache import (
    MAX_CACHED,
    MAX_RESIDENT,
    ONE_DEVICE,
    cached_image,
    ceiling_deliveries,
    cold_parts,
    epoch_deliveries,
    epochs_of,
    is_cold,
    read_nothing,
    reads_more,
    share_read,
    uncached,
)
from .figures.in_flight import bytes_per_sample
from .rules_data import RuleOutcome, unknown
from .rules_ranks import host_name
from .statistics import of_all

MEMORY_MULTIPLE = 5


def cold_residency(doc: TrainingRecord) -> RuleOutcome | None:
    if not is_cold(doc):
        return None
    remedy = _remedy(doc)
    cached = [
        (where + _on_hosts(doc, epoch), epoch.residency_before)
        for where, epoch, _ in epochs_of(doc)
        if (epoch.residency_before or 0) > MAX_RESIDENT
    ]
    if cached:
        where, share = max(cached, key=lambda item: item[1] or 0)
        return RuleOutcome(
            f"the run claims cold reads, but {format_percent(share or 0)} of the dataset was in "
            f"the page cache ({where})",
            remedy,
        )
    if not doc.job.repetitions or any(not repetition.epochs for repetition in doc.job.repetitions):
        return unknown("page-cache residency was not recorded for every epoch", remedy)
    gaps = [
        (where, epoch.residency_how)
        for where, epoch, _ in epochs_of(doc)
        if epoch.residency_before is None
    ]
    if gaps and not uncached(doc):
        where, how = gaps[0]
        return unknown(
            f"page-cache residency was not measured ({where}{': ' + how if how else ''})", remedy
        )
    return None


def warm_residency(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a run that asks for a warm cache found its data there."""
    if doc.job.workload.cache != "warm" or uncached(doc):
        return None
    found = cold_parts(doc)
    if found is None:
        return None
    where, share = found
    memory, stored = doc.memory_bytes, doc.job.dataset.stored_bytes
    fits = ""
    if memory and stored:
        fits = f". The dataset is {stored / memory:.2f} x the memory ({format_bytes(memory)})"
    return RuleOutcome(
        f"the run asks for a warm cache, but only {format_percent(share)} of the dataset was in "
        f"the page cache ({where}){fits}",
        "use a dataset that fits into the memory that iobench may use, beside what the loader "
        "takes, or set cache: cold or cache: any",
    )


def _on_hosts(doc: TrainingRecord, epoch: Epoch) -> str:
    """The hosts whose page cache held some of the data, where there are several."""
    held = [
        host_name(doc.job.hosts, host)
        for host, ratio in enumerate(epoch.residencies)
        if (ratio or 0) > MAX_RESIDENT
    ]
    return f", {' and '.join(held)}" if held else ""


def cold_fetch(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no cache served a cold epoch, or a cold ceiling, after its reads began."""
    if not is_cold(doc):
        return None
    if nothing := read_nothing(doc):
        return unknown(f"no reads were cold or cached: {nothing}", _READ)
    found = [*epoch_deliveries(doc), *ceiling_deliveries(doc)]
    served = [each for each in found if each.cached > MAX_CACHED]
    if served:
        worst = max(served, key=lambda each: each.cached)
        others = len(served) - 1
        more = f" (and some in {counted(others, 'other measurement')})" if others else ""
        if doc.job.subject.users:
            return unknown(
                f"storage delivered {format_bytes(worst.fetched or 0)} in {worst.where}, less than "
                f"the {format_bytes(worst.wanted)} of these samples: a cache served the rest, or "
                "your loader does not read all of each file",
                _remedy(doc),
            )
        return RuleOutcome(
            f"the run claims cold reads, but a cache served {format_percent(worst.cached)} of them "
            f"in {worst.where}{more}. Storage delivered {format_bytes(worst.fetched or 0)} of "
            f"{format_bytes(worst.wanted)}",
            _remedy(doc),
        )
    if uncached(doc):
        return None
    gap = next((each for each in found if each.fetched is None), None)
    if gap is not None or not found:
        how = f" ({gap.where}: {gap.how or 'not recorded'})" if gap is not None else ""
        return unknown(
            f"whether a cache served reads during cold epochs is not known{how}", _remedy(doc)
        )
    return None


_READ = "have it read the files below the directory that it is given as data, or those scanned"


def loop_device(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no loop device takes cold reads from an image in this host's page cache.

    Neither eviction nor O_DIRECT reaches the pages of the image, and no counter tells of them.
    """
    image = cached_image(doc)
    if not is_cold(doc) or image is None:
        return None
    return RuleOutcome(
        f"the run claims cold reads, but {image.name or 'the device'} is a loop device, and this "
        f"host's page cache may hold its image {image.backing_file}",
        f"losetup --direct-io=on /dev/{image.name or 'loopN'}, or put the data on the file system "
        "of the image",
    )


_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def cache_reads_more(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a local cache spares the storage more than its copies of whole objects add."""
    facts, stored = doc.job.local_cache, doc.job.dataset.stored_bytes
    if facts is None or (more := reads_more(doc)) is None:
        return None
    holds = f", and holds {format_percent(facts.share)} of the dataset" if facts.share else ""
    enough = f" (--cache-size {math.ceil(stored / 1e6):,}MB)".replace(",", "") if stored else ""
    return RuleOutcome(
        f"with the local cache the storage delivered {more:.2f} x the bytes of the samples: the "
        f"cache copies whole objects{holds}",
        f"run without --cache-dir, or make the cache as large as the dataset{enough} and read it "
        "for several epochs",
    )


def local_cache(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the reads from a local cache's directory were reads of its disk."""
    facts = doc.job.local_cache
    if facts is None or not is_cold(doc):
        return None
    remedy = "name a directory on a disk whose file system has O_DIRECT, or set cache: any"
    if facts.fs_type in _IN_MEMORY:
        return RuleOutcome(
            f"the local cache in {facts.directory} is in this host's memory ({facts.fs_type})",
            remedy,
        )
    if facts.direct:
        return None
    later = [
        (where, epoch.local_cache.residency_before)
        for where, epoch, _ in epochs_of(doc)
        if epoch.local_cache is not None and epoch.epoch and epoch.local_cache.hits
    ]
    held = [(where, share) for where, share in later if share is not None and share > MAX_RESIDENT]
    if held:
        where, share = max(held, key=lambda each: each[1])
        return RuleOutcome(
            f"the page cache held {format_percent(share)} of the local cache's copies ({where})",
            remedy,
        )
    if doc.job.dataset.samples == doc.job.dataset.shards and None not in dict(later).values():
        return None  # each copy is read once in an epoch
    return unknown(
        "reads of the local cache go through the page cache, which may have served copies that "
        "were made in the same epoch",
        remedy,
    )


def residency_unknown(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a run without a claim about the cache recorded what was in the cache."""
    if is_cold(doc) or uncached(doc):
        return None
    measured = [epoch.residency_before is not None for _, epoch, _ in epochs_of(doc)]
    remedy = (
        "the rates may be those of the page cache; measuring residency requires Linux 6.5 "
        "(cachestat), or files that can be mapped (mincore)"
    )
    if not any(measured):
        if doc.job.subject.watched:
            remedy = "name the dataset, whose pages can then be counted: iobench.watch(data=...)"
        return unknown("page-cache residency was not measured", remedy)
    if not all(measured):
        return RuleOutcome(
            f"page-cache residency was measured in {sum(measured)} of {len(measured)} epochs",
            remedy,
        )
    return None


def dataset_size(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the dataset is larger than 5 x memory, unless the run proves its reads cold.

    The size is only a substitute for that proof.
    """
    if uncached(doc) or _proven_cold(doc):
        return None
    memory, stored = doc.memory_bytes, doc.job.dataset.stored_bytes
    if not memory or not stored:
        return unknown(
            "the host's memory or the dataset's size is not recorded, and reads are not proven cold"
        )
    if stored < MEMORY_MULTIPLE * memory:
        return RuleOutcome(
            f"the dataset is {stored / memory:.2f} x the host's memory{_allowed(doc)} "
            f"({format_bytes(memory)}) and reads are not proven cold",
            f"generate with --memory-multiple {MEMORY_MULTIPLE}, or set cache: cold, which empties "
            "the page cache before each epoch, or read with reader.direct=true",
        )
    return None


def _allowed(doc: TrainingRecord) -> str:
    """That the memory is a part of what the hosts have, if it is."""
    whole = doc.installed_memory_bytes
    return " that its control group allows" if whole and whole != doc.memory_bytes else ""


def _proven_cold(doc: TrainingRecord) -> bool:
    return is_cold(doc) and cold_residency(doc) is None and cold_fetch(doc) is None


def _remedy(doc: TrainingRecord) -> str:
    mapped = doc.job.workload.reader.mmap
    # Reads through a memory map are never direct, and libraries have no direct IO.
    direct = "reader.mmap=false and reader.direct=true" if mapped else "reader.direct=true"
    read = f", or read with {direct}" if not doc.job.subject.reads_itself else ""
    return (
        f"make sure that no other process reads or maps the dataset{read}, or set cache: any. "
        "Each of two runs over one dataset fills the cache for the other"
    )


MAX_OTHER = 0.2
"""Bytes of others, as a share of the bytes that the run fetched."""

MAX_UNREAD = 0.2
"""Share of the samples' bytes that the device did not read."""

MIN_BYTES = 64 << 20
"""A smaller difference says nothing: programs are loaded, and directories are read."""


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


def _not_counted(traffic: list[Traffic]) -> RuleOutcome | None:
    gap = next((each for each in traffic if each.bytes is None), None)
    if gap is None:
        return None
    return unknown(
        f"the bytes that device {gap.device} read in repetition {gap.repetition} were not counted"
    )


def device_other_load(doc: TrainingRecord) -> RuleOutcome | None:
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
    return RuleOutcome(
        f"during repetition {each.repetition}, device {each.device} read "
        f"{format_bytes(each.bytes or 0)}, but this run fetched {format_bytes(fetched)}. Another "
        f"process or another tenant of the device read {format_bytes(excess)}{_busy(each.one)}",
        "find out who else uses the device (iostat, iotop, fatrace), and run again without that "
        "load. The rate may be only what was left of the device",
    )


def device_served_by_cache(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the device read the samples that were delivered.

    What ``cache.cold-fetch`` has found is not said again.
    """
    if doc.storage.fs_type not in ONE_DEVICE:
        return None
    traffic = list(_traffic(doc))
    if gap := _not_counted(traffic):
        return gap
    cold = cold_fetch(doc)
    if cold is not None and (cold.known or read_nothing(doc)):
        return None
    found = []
    for each in traffic:
        wanted = _wanted(doc, each.one)
        lacking = wanted - (each.bytes or 0)
        if lacking > max(MAX_UNREAD * wanted, MIN_BYTES):
            found.append((lacking / wanted, wanted, each))
    if not found:
        return None
    share, wanted, each = max(found, key=lambda item: item[0])
    bypassed = is_cold(doc) or uncached(doc)
    return RuleOutcome(
        f"in repetition {each.repetition} the run received {format_bytes(wanted)} of samples, but "
        f"device {each.device} read {format_bytes(each.bytes or 0)}. "
        f"{format_percent(share)} came from "
        + (
            "elsewhere, although no page cache may serve this run" if bypassed else "the page cache"
        ),
        "look for files with holes, and for reads with O_DIRECT that the file system serves from "
        "its cache. The rate is not that of the device"
        if bypassed
        else "the rate is partly that of memory: set cache: cold, or read with reader.direct=true, "
        "to measure the device",
    )


def _fetched(doc: TrainingRecord, one: Repetition) -> int | None:
    """Bytes that the run made the device read; None if that is not known.

    Direct reads fetch what the readers asked for, with the excess of alignment.
    """
    fetched = of_all(sum, (epoch.bytes_fetched for epoch in one.epochs))
    return one.bytes_read if fetched is None and doc.job.loader.direct else fetched


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
    epochs = [
        min(epoch.sample_bytes, epoch.local_cache.storage_bytes)
        if epoch.local_cache is not None
        else epoch.sample_bytes
        for epoch in one.epochs
        if epoch.sample_bytes is not None
    ]
    if not stored or len(epochs) < len(one.epochs):
        return int(one.sample_bytes * share_read(doc))
    return int(sum(min(delivered, stored) for delivered in epochs) * share_read(doc))
