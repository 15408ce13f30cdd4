"""Checks of what was read: the right bytes, cold, enough of them, often enough. Each returns None where all is well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..spec.result import Epoch, Repetition, RunDocument
from ..units import format_bytes, format_count, format_percent
from .evidence import OWN_LOADER

MOST_RESIDENT = 0.01
MEMORY_MULTIPLE = 5
LEAST_STEPS = 500
LEAST_REPETITIONS = 5


class Outcome(NamedTuple):
    """What a rule found. ``known`` False: the evidence is missing."""

    evidence: str
    remedy: str = ""
    known: bool = True


def unknown(evidence: str, remedy: str = "") -> Outcome:
    return Outcome(evidence, remedy, known=False)


def complete(doc: RunDocument) -> list[Repetition]:
    return [repetition for repetition in doc.repetitions if repetition.complete]


def _epochs(doc: RunDocument) -> Iterator[tuple[str, Epoch]]:
    for index, repetition in enumerate(doc.repetitions):
        for epoch in repetition.epochs:
            yield f"repetition {index}, epoch {epoch.epoch}", epoch


def _uncached(doc: RunDocument) -> bool:
    """This host's page cache plays no part: object storage, or every read goes past it."""
    return doc.storage.get("page_cache") is False or doc.loader.get("direct") is True


def data_mismatch(doc: RunDocument) -> Outcome | None:
    """Samples must be read from storage, each once in an epoch: bytes that were never read cannot be delivered."""
    done = complete(doc)
    if not done:
        return unknown("no repetition was completed")
    remedy = "a sample that comes from elsewhere, or not at all, makes every rate false: run iobench verify, and report this as a defect"
    for index, repetition in enumerate(done):
        if repetition.bytes_read is not None and repetition.bytes_read < repetition.sample_bytes:
            read, delivered = (
                format_bytes(repetition.bytes_read),
                format_bytes(repetition.sample_bytes),
            )
            return Outcome(
                f"repetition {index} delivered {delivered} of samples but read {read}", remedy
            )
    samples = doc.dataset.get("samples")
    if not samples:
        return unknown("the dataset's sample count is not recorded")
    whole = (
        doc.workload.get("max_steps") is None
        and (doc.workload.get("reader") or {}).get("tail", "keep") == "keep"
    )
    expected = int(samples) * int(doc.workload.get("epochs", 1))
    most = expected + _padding(doc) * int(doc.workload.get("epochs", 1))
    wrong = [
        each.samples for each in done if each.samples > most or (whole and each.samples < expected)
    ]
    if wrong:
        return Outcome(
            f"{format_count(wrong[0])} samples were delivered, {format_count(expected)} are in the dataset's epochs",
            remedy,
        )
    return None


def _padding(doc: RunDocument) -> int:
    """Samples that a loader library may deliver twice in an epoch, to make ranks equal: what torch's DistributedSampler does."""
    return max(0, doc.accelerators - 1) if doc.loader.get("kind", OWN_LOADER) != OWN_LOADER else 0


def data_changed(doc: RunDocument) -> Outcome | None:
    """An object that was replaced or removed under the run: nobody knows what was measured."""
    changed = doc.dataset.get("changed")
    if changed is None:
        why = doc.dataset.get("changed_unknown") or "not recorded"
        return unknown(f"whether the data changed during the run is not known: {why}")
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return Outcome(
            f"{changed[0]}{more} changed or vanished during the run",
            "keep writers away from the data, and run again",
        )
    return None


def storage_throttled(doc: RunDocument) -> Outcome | None:
    counts = [
        repetition.throttled for repetition in doc.repetitions if repetition.throttled is not None
    ]
    if not counts:
        return unknown("whether the server asked to slow down was not recorded")
    times = sum(counts)
    if not times:
        return None
    remedy = "fewer requests in flight, or a higher quota (S3: more prefixes); the rate is the quota's, not the storage's"
    return Outcome(
        f"the server asked to slow down {format_count(times)} times (503 SlowDown or 429)", remedy
    )


def storage_retries(doc: RunDocument) -> Outcome | None:
    counts = [
        repetition.retries for repetition in doc.repetitions if repetition.retries is not None
    ]
    if not counts:
        return unknown("requests that were sent again were not counted")
    again = sum(counts)
    if not again:
        return None
    remedy = "look at the network and at the server's log"
    return Outcome(
        f"{format_count(again)} requests were sent again after an error or a time-out", remedy
    )


def cold_residency(doc: RunDocument) -> Outcome | None:
    if doc.workload.get("cache", "cold") != "cold":
        return None
    mapped = (doc.workload.get("reader") or {}).get("mmap")
    direct = (
        "reader.mmap=false and reader.direct=true" if mapped else "reader.direct=true"
    )  # a map is never direct
    read = (
        f", or read with {direct}"
        if str(doc.loader.get("kind") or OWN_LOADER) == OWN_LOADER
        else ""
    )  # libraries have no direct IO
    remedy = f"evict the dataset before each epoch (no other process may read it or have it mapped){read}, or say cache: any"
    cached = [
        (where, epoch.residency_before)
        for where, epoch in _epochs(doc)
        if (epoch.residency_before or 0) > MOST_RESIDENT
    ]
    if cached:
        where, share = max(cached, key=lambda item: item[1] or 0)
        return Outcome(
            f"the run claims cold reads, but {format_percent(share or 0)} of the dataset was in the page cache ({where})",
            remedy,
        )
    if not doc.repetitions or any(not repetition.epochs for repetition in doc.repetitions):
        return unknown("page-cache residency was not recorded for every epoch", remedy)
    gaps = [
        (where, epoch.residency_how)
        for where, epoch in _epochs(doc)
        if epoch.residency_before is None
    ]
    if gaps and not _uncached(doc):
        where, how = gaps[0]
        return unknown(
            f"page-cache residency was not measured ({where}{': ' + how if how else ''})", remedy
        )
    return None


def residency_unknown(doc: RunDocument) -> Outcome | None:
    """A run that makes no claim about the cache should still know what came from it."""
    if doc.workload.get("cache", "cold") == "cold" or _uncached(doc):
        return None
    measured = [epoch.residency_before is not None for _, epoch in _epochs(doc)]
    remedy = "rates may be the page cache's; Linux 6.5 has cachestat, older kernels mincore on files that can be mapped"
    if not any(measured):
        return unknown("page-cache residency was not measured", remedy)
    if not all(measured):
        return Outcome(
            f"page-cache residency was measured in {sum(measured)} of {len(measured)} epochs",
            remedy,
        )
    return None


def run_incomplete(doc: RunDocument) -> Outcome | None:
    unfinished = sum(not repetition.complete for repetition in doc.repetitions)
    if doc.status != "ok" or unfinished:
        what = f"the run's status is {doc.status}" + (f" ({doc.error})" if doc.error else "")
        return Outcome(
            f"{what}; {unfinished} of {len(doc.repetitions)} repetitions stopped early",
            "run it again to its end; partial figures are kept",
        )
    return None if doc.repetitions else unknown("no repetition is recorded")


def run_steps(doc: RunDocument) -> Outcome | None:
    steps = [
        repetition.steps // max(repetition.accelerators, 1)
        for repetition in complete(doc)
        if repetition.steps
    ]
    if not steps:
        return unknown("no step was recorded")
    if min(steps) < LEAST_STEPS:
        remedy = f"a larger dataset, more epochs or a smaller batch: at least {LEAST_STEPS} steps for each accelerator"
        return Outcome(
            f"{format_count(min(steps))} steps for each accelerator in a repetition, fewer than {LEAST_STEPS}",
            remedy,
        )
    return None


def run_repetitions(doc: RunDocument) -> Outcome | None:
    if not doc.repetitions:
        return unknown("no repetition is recorded")
    done = len(complete(doc))
    if done < LEAST_REPETITIONS:
        remedy = (
            "run with --repeat 6: the smallest number whose [min, max] covers the median with 95 %"
        )
        return Outcome(
            f"{done} complete repetition{'' if done == 1 else 's'}, fewer than {LEAST_REPETITIONS}",
            remedy,
        )
    return None


def seed_changes(doc: RunDocument) -> Outcome | None:
    seeds = [repetition.seed for repetition in doc.repetitions]
    if not seeds:
        return unknown("no repetition is recorded")
    if len(set(seeds)) < len(seeds):
        return Outcome(
            "two repetitions share a seed, so they read in the same order",
            "give each repetition a seed of its own",
        )
    return None


def dataset_size(doc: RunDocument) -> Outcome | None:
    """5 x memory is a proxy for cold reads, so a run that proves them cold needs no more."""
    residencies = [epoch.residency_before for _, epoch in _epochs(doc)]
    if _uncached(doc) or (
        residencies and all(share is not None and share <= MOST_RESIDENT for share in residencies)
    ):
        return None
    memory, stored = doc.host.get("memory_bytes"), doc.dataset.get("stored_bytes")
    if not memory or not stored:
        return unknown(
            "the host's memory or the dataset's size is not recorded, and reads are not proven cold"
        )
    if stored < MEMORY_MULTIPLE * memory:
        remedy = f"generate with --memory-multiple {MEMORY_MULTIPLE}, or evict before each epoch (cache: cold), or read with reader.direct=true"
        return Outcome(
            f"the dataset is {stored / memory:.2f} x the host's memory ({format_bytes(memory)}) and reads are not proven cold",
            remedy,
        )
    return None


def nfs_retransmits(doc: RunDocument) -> Outcome | None:
    """A request that is sent again has cost its time-out, which is a minute by default: the network or the server dropped it."""
    if not str(doc.storage.get("fs_type", "")).startswith("nfs"):
        return None
    counted = [repetition.nfs for repetition in doc.repetitions if repetition.nfs is not None]
    if not counted:
        return unknown("the NFS client's counters (/proc/self/mountstats) were not recorded")
    again = sum(int(nfs.get("retransmits", 0)) for nfs in counted)
    if again:
        ops = sum(int(nfs.get("read_ops", 0)) for nfs in counted)
        what = "request was" if again == 1 else "requests were"
        evidence = f"{format_count(again)} NFS {what} sent again (beside {format_count(ops)} reads), by the mount's counters"
        return Outcome(
            evidence,
            "look for lost packets and a server that is overloaded or was restarted; such a run shows a fault, not a speed",
        )
    return None


def delivered_samples(doc: RunDocument) -> Outcome | None:
    """A loader library must deliver the dataset's samples, each once in an epoch, or its speed is that of another job."""
    proof = doc.loader.get("delivery")
    if proof is None:
        return None
    if "not_measured" in proof:
        return unknown(
            f"what loader '{doc.loader.get('kind')}' delivers was not proven: {proof['not_measured']}"
        )
    dropped = 0  # that reader.tail=drop allows: each worker's last batch, where it is not full
    if (doc.workload.get("reader") or {}).get("tail") == "drop":
        dropped = (int(doc.workload.get("batch_size") or 1) - 1) * max(
            1, int(doc.loader.get("workers") or 0)
        )
        dropped *= max(1, doc.accelerators)
    allowed = {"missing": dropped, "repeated": _padding(doc), "unknown": 0}
    wrong = {key: proof[key] for key, most in allowed.items() if (proof[key] or 0) > most}
    if not wrong:
        return None
    counts = ", ".join(f"{format_count(count)} {key}" for key, count in wrong.items())
    looked = "an epoch" if proof["whole_epoch"] else "a part of an epoch"
    return Outcome(
        f"{looked} of loader '{doc.loader.get('kind')}' ({doc.loader.get('library')}) is not the dataset's {proof['of']} samples: {counts}",
        "the rate is that of another job: use another loader.kind, or report this as a defect",
    )
