"""What a local cache did for each epoch: its hit rate, and the rate that this predicts.

With reads in a new random order in each epoch, LRU serves less than the cache holds. An object is
at the place x of one epoch and y of the next, in shares of an epoch; between its two reads come
those after x and those before y, of which some are the same: ``1 - x (1 - y)`` of all objects. It
is still there if that is below c, the share of the dataset that fits. Over all x and y that has the
probability ``c + (1 - c) ln(1 - c)``: 15 % for half of a dataset. In an order that never changes,
each object is removed just before its turn. A cache without eviction serves c in any order.

The rate of an epoch follows from two ceilings: the storage delivers what the cache does not have,
and the cache's disk the rest. If both work beside each other, the slower of them counts; if a
reader waits for one after the other, their times add up. Copying into the cache is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ...record.run import TrainingRecord
from ...record.training import CachedEpoch, Ceiling, Epoch, LocalCacheFacts
from ...settings.workload import LocalCacheSpec
from ..evidence import Evidence

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
