"""Rules that check whether cold reads were cold, from the start of an epoch to its last batch.

The residency before an epoch shows only how the epoch began. During it, buffered reads fill the
page cache, and so do other processes that read the same files. The rules therefore compare the
bytes that storage delivered to the ranks and their workers with the stored bytes of the samples
that they received. Within an epoch the same bytes may be read twice (a row group, for several of
its rows), and the second read may come from the cache. But each sample is delivered once, so
storage must deliver its bytes at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...schema.host import DeviceFacts
from ...schema.record import TrainingRecord
from ...schema.training import Epoch
from ...schema.workload import OWN_LOADER, USER_LOADER
from ...units import counted, format_bytes, format_percent
from .rules_data import Outcome, unknown
from .rules_hosts import host_name

MAX_RESIDENT = 0.01
"""Share of the dataset's bytes that may be in the page cache before a cold epoch."""

MAX_CACHED = 0.01
"""Share of the bytes delivered in a cold epoch that may come from a cache."""

MIN_WARM = 0.9
"""Share of the dataset's bytes that must be in the page cache before a warm epoch.

A few pages may go between the read that fills the cache and the epoch.
"""

MEMORY_MULTIPLE = 5


class Delivery(NamedTuple):
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


def epoch_deliveries(doc: TrainingRecord) -> Iterator[Delivery]:
    """Deliveries of the epochs of a cold run.

    An interrupted repetition claims nothing, so its epochs without a count are left out.
    """
    read = share_read(doc)
    for where, epoch, complete in _epochs(doc):
        if complete or epoch.bytes_fetched is not None:
            yield _delivery(doc, where, epoch, read=read)


def ceiling_deliveries(doc: TrainingRecord) -> Iterator[Delivery]:
    """Deliveries of the ceilings that the reader measured on cold storage."""
    for name, ceiling in doc.job.ceilings.items():
        if ceiling.cold is not None:
            yield _delivery(doc, f"the measurement of ceiling {name}", ceiling.cold, read=1.0)


def _delivery(doc: TrainingRecord, where: str, epoch: Epoch, *, read: float) -> Delivery:
    """Delivery of one epoch; ``read`` is the loader's files as a share of the stored bytes."""
    # A library, or a long ceiling measurement, may deliver samples twice: count one epoch at most.
    wanted = min(epoch.sample_bytes or 0, (doc.job.dataset.stored_bytes or 0)) * read
    return Delivery(where, int(wanted), epoch.bytes_fetched, epoch.fetched_how)


def share_read(doc: TrainingRecord) -> float:
    """Size of the loader's files, as a share of the dataset's stored bytes.

    It is below 1 for a library's own layout without framing.
    """
    layout, stored = doc.job.loader.layout, doc.job.dataset.stored_bytes
    return min(1.0, layout.bytes / stored) if layout and stored else 1.0


def cold_residency(doc: TrainingRecord) -> Outcome | None:
    if not is_cold(doc):
        return None
    remedy = _remedy(doc)
    cached = [
        (where + _on_hosts(doc, epoch), epoch.residency_before)
        for where, epoch, _ in _epochs(doc)
        if (epoch.residency_before or 0) > MAX_RESIDENT
    ]
    if cached:
        where, share = max(cached, key=lambda item: item[1] or 0)
        return Outcome(
            f"the run claims cold reads, but {format_percent(share or 0)} of the dataset was in "
            f"the page cache ({where})",
            remedy,
        )
    if not doc.job.repetitions or any(not repetition.epochs for repetition in doc.job.repetitions):
        return unknown("page-cache residency was not recorded for every epoch", remedy)
    gaps = [
        (where, epoch.residency_how)
        for where, epoch, _ in _epochs(doc)
        if epoch.residency_before is None
    ]
    if gaps and not uncached(doc):
        where, how = gaps[0]
        return unknown(
            f"page-cache residency was not measured ({where}{': ' + how if how else ''})", remedy
        )
    return None


def cold_parts(doc: TrainingRecord) -> tuple[str, float] | None:
    """The warm epoch before which the page cache held least, and how much it held.

    None if all of them found it filled, or if nobody measured it.
    """
    found = [
        (where, epoch.residency_before)
        for where, epoch, _ in _epochs(doc)
        if epoch.residency_before is not None and epoch.residency_before < MIN_WARM
    ]
    return min(found, key=lambda each: each[1]) if found else None


def warm_residency(doc: TrainingRecord) -> Outcome | None:
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
        fits = f"; the dataset is {stored / memory:.2f} x the memory ({format_bytes(memory)})"
    return Outcome(
        f"the run asks for a warm cache, but only {format_percent(share)} of the dataset was in "
        f"the page cache ({where}){fits}",
        "use a dataset that fits into the memory that iobench may use, beside what the loader "
        "takes, or set cache: cold or cache: any",
    )


def _on_hosts(doc: TrainingRecord, epoch: Epoch) -> str:
    """The hosts whose page cache held some of the data, where there are several."""
    held = [
        host_name(doc, host)
        for host, ratio in enumerate(epoch.residencies)
        if (ratio or 0) > MAX_RESIDENT
    ]
    return f", {' and '.join(held)}" if held else ""


def cold_fetch(doc: TrainingRecord) -> Outcome | None:
    """Check that no cache served a cold epoch, or a cold ceiling, after its reads began."""
    if not is_cold(doc):
        return None
    found = [*epoch_deliveries(doc), *ceiling_deliveries(doc)]
    served = [each for each in found if each.cached > MAX_CACHED]
    if served:
        worst = max(served, key=lambda each: each.cached)
        others = len(served) - 1
        more = f" (and some in {counted(others, 'other measurement')})" if others else ""
        if doc.job.loader.kind == USER_LOADER:
            return unknown(
                f"storage delivered {format_bytes(worst.fetched or 0)} in {worst.where}, less than "
                f"the {format_bytes(worst.wanted)} of these samples: a cache served the rest, or "
                "your loader does not read all of each file",
                _remedy(doc),
            )
        return Outcome(
            f"the run claims cold reads, but a cache served {format_percent(worst.cached)} of them "
            f"in {worst.where}{more}: storage delivered {format_bytes(worst.fetched or 0)} of "
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


def loop_device(doc: TrainingRecord) -> Outcome | None:
    """Check that no loop device takes cold reads from an image in this host's page cache.

    Neither eviction nor O_DIRECT reaches the pages of the image, and no counter tells of them.
    """
    image = cached_image(doc)
    if not is_cold(doc) or image is None:
        return None
    return Outcome(
        f"the run claims cold reads, but {image.name or 'the device'} is a loop device, and this "
        f"host's page cache may hold its image {image.backing_file}",
        f"losetup --direct-io=on /dev/{image.name or 'loopN'}, or put the data on the file system "
        "of the image",
    )


def cached_image(doc: TrainingRecord) -> DeviceFacts | None:
    """The loop device below the data whose image goes through the page cache, if there is one."""
    loops = (each for each in doc.storage.devices if each.backing_file and not each.backing_direct)
    return next(loops, None)


def residency_unknown(doc: TrainingRecord) -> Outcome | None:
    """Check that a run without a claim about the cache recorded what was in the cache."""
    if is_cold(doc) or uncached(doc):
        return None
    measured = [epoch.residency_before is not None for _, epoch, _ in _epochs(doc)]
    remedy = (
        "the rates may be those of the page cache; measuring residency requires Linux 6.5 "
        "(cachestat), or files that can be mapped (mincore)"
    )
    if not any(measured):
        if doc.job.watched is not None:
            remedy = "name the dataset, whose pages can then be counted: iobench.watch(data=...)"
        return unknown("page-cache residency was not measured", remedy)
    if not all(measured):
        return Outcome(
            f"page-cache residency was measured in {sum(measured)} of {len(measured)} epochs",
            remedy,
        )
    return None


def dataset_size(doc: TrainingRecord) -> Outcome | None:
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
        return Outcome(
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


def _epochs(doc: TrainingRecord) -> Iterator[tuple[str, Epoch, bool]]:
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


def _proven_cold(doc: TrainingRecord) -> bool:
    return is_cold(doc) and cold_residency(doc) is None and cold_fetch(doc) is None


def _remedy(doc: TrainingRecord) -> str:
    mapped = doc.job.workload.reader.mmap
    # Reads through a memory map are never direct, and libraries have no direct IO.
    direct = "reader.mmap=false and reader.direct=true" if mapped else "reader.direct=true"
    own = (doc.job.loader.kind or OWN_LOADER) == OWN_LOADER
    read = f", or read with {direct}" if own else ""
    return (
        "make sure that no other process reads or maps the dataset (each of two runs over one "
        f"dataset fills the cache for the other){read}, or set cache: any"
    )
