"""Rules that check what was read: the right bytes, enough of them, and in enough repetitions.

Each rule returns None if it finds no violation. The rules about cold reads are in ``rules_cache``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from ..base.text import printable
from ..base.units import counted, format_bytes, format_count, format_duration
from ..record.checkpoint import Restore, Save
from ..record.model_load import LoadTrial
from ..record.run import (
    CHANGED_REMEDY,
    CheckpointRecord,
    KvCacheRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ..record.serving import RequestWindow
from ..record.training import Repetition
from .evidence import LONGER, cut_epochs
from .judged import Judged

MIN_STEPS = 500
MIN_REPETITIONS = 5
MIN_WALL_S = 10.0
"""Shortest repetition whose rate shows more than its start, in seconds.

Filling the pipeline, and caches and credits of a device, may take some seconds. MLPerf Storage has
no such rule: 500 steps of DLRM (0.4 ms each) are 0.2 s. The value is iobench's own.
"""


MAX_CHANGES = 3
"""Differences of a record that its finding names."""


class RuleOutcome(NamedTuple):
    """What a rule found.

    ``known`` is False if the evidence for a decision is missing. ``refuses`` is False if the
    violation does not make the run's result wrong: then it is at most a warning.
    """

    evidence: str
    remedy: str = ""
    known: bool = True
    refuses: bool = True


def unknown(evidence: str, remedy: str = "") -> RuleOutcome:
    return RuleOutcome(evidence, remedy, known=False)


def complete(doc: TrainingRecord) -> list[Repetition]:
    return [repetition for repetition in doc.job.repetitions if repetition.complete]


def interposed(doc: RunRecord) -> RuleOutcome | None:
    """Check that the C library itself answers the calls on which figures rest."""
    found = {
        library: call for host in doc.hosts for call, library in (host.interposed or {}).items()
    }
    if not found:
        return None
    names = ", ".join(printable(library) for library in sorted(found))
    calls = sorted({call for host in doc.hosts for call in host.interposed or {}})
    return RuleOutcome(
        f"{names} answers {', '.join(map(printable, calls))} in place of the C library",
        "run without LD_PRELOAD and /etc/ld.so.preload, unless you know what it does",
    )


def data_mismatch(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the samples were read from storage, and each of them once in an epoch.

    If fewer bytes were read than delivered, some samples did not come from storage.
    """
    done = complete(doc)
    if not done:
        return unknown("no repetition was completed")
    remedy = (
        "samples that are missing, or do not come from storage, make every rate wrong: run iobench "
        "verify, and report this as a defect"
    )
    for index, repetition in enumerate(done):
        if repetition.bytes_read is not None and repetition.bytes_read < repetition.sample_bytes:
            read, delivered = (
                format_bytes(repetition.bytes_read),
                format_bytes(repetition.sample_bytes),
            )
            return RuleOutcome(
                f"repetition {index} delivered {delivered} of samples but read {read}", remedy
            )
    if doc.job.subject.users:
        return None  # which samples an epoch has is for the user's code to decide
    samples = doc.job.dataset.in_epoch
    if not samples:
        return unknown("the dataset's sample count is not recorded")
    whole = doc.job.workload.max_steps is None and doc.job.workload.reader.tail == "keep"
    expected = samples * doc.job.workload.epochs
    limit = expected + _padding(doc) * doc.job.workload.epochs
    wrong = [
        each.samples for each in done if each.samples > limit or (whole and each.samples < expected)
    ]
    if wrong:
        return RuleOutcome(
            f"{format_count(wrong[0])} samples were delivered, {format_count(expected)} are in the "
            "dataset's epochs",
            remedy,
        )
    return None


def _padding(doc: TrainingRecord) -> int:
    """Samples that a loader library may deliver twice in an epoch.

    torch's DistributedSampler does this, so that all ranks get equally many.
    """
    return max(0, doc.job.accelerators - 1) if doc.job.subject.reads_itself else 0


def record_changed(doc: RunRecord) -> RuleOutcome | None:
    """Check that the tables beside the record, and the figures in it, are those of the run."""
    if not doc.changed:
        return None
    shown, more = doc.changed[:MAX_CHANGES], len(doc.changed) - MAX_CHANGES
    evidence = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    return RuleOutcome(evidence, CHANGED_REMEDY)


def data_changed(doc: TrainingRecord | ServingRecord | ModelLoadRecord) -> RuleOutcome | None:
    """Check that no object was replaced or removed during the run: the reads would be undefined."""
    data = doc.job if isinstance(doc, ModelLoadRecord) else doc.job.dataset
    changed = data.changed
    if changed is None:
        why = data.changed_unknown or "not recorded"
        return unknown(f"whether the data changed during the run is not known: {why}")
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return RuleOutcome(
            f"{changed[0]}{more} changed or disappeared during the run",
            "make sure that nothing writes to the data, and run again",
        )
    return None


def storage_throttled(judged: Judged) -> RuleOutcome | None:
    """Check that the server asked for no slower requests, unless the accelerators were fed."""
    found = throttled(judged.record)
    return found and found._replace(refuses=not judged.evidence.fed)


def throttled(doc: RunRecord) -> RuleOutcome | None:
    """Check that the server asked for no slower requests, which would limit what is measured."""
    times = _counted(doc, "throttled")
    if times is None:
        return unknown("whether the server asked for a lower request rate was not recorded")
    if not times:
        return None
    return RuleOutcome(
        f"the server asked for a lower request rate {counted(times, 'time')} (503 SlowDown or 429)",
        "use fewer requests in flight, or a higher quota (S3: more prefixes); until then the rate "
        "is that of the quota, not of the storage",
    )


def storage_retries(doc: RunRecord) -> RuleOutcome | None:
    """Check that no request had to be sent again, except because the server asked for fewer."""
    again = _counted(doc, "retries")
    if again is None:
        return unknown("requests that were sent again were not counted")
    again -= _counted(doc, "throttled") or 0
    if again <= 0:
        return None
    reads = _counted(doc, "requests") if isinstance(doc, TrainingRecord) else 0
    share = f" beside {counted(reads, 'read')}" if reads else ""
    return RuleOutcome(
        f"{_were(again, 'request')} sent again{share}, after an error or a time-out; these pauses "
        "are in all figures",
        "check the network and the server's log",
    )


def _counted(doc: RunRecord, name: Literal["retries", "throttled", "requests"]) -> int | None:
    """The sum over what a run measured; None: it was not counted."""
    if isinstance(doc, TrainingRecord):
        return _total(getattr(each, name) for each in doc.job.repetitions)
    trials: Sequence[RequestWindow | LoadTrial | Save | Restore] = ()
    if isinstance(doc, ServingRecord | KvCacheRecord):
        trials = doc.job.repetitions
    elif isinstance(doc, ModelLoadRecord):
        trials = doc.job.trials
    elif isinstance(doc, CheckpointRecord):
        trials = [*doc.job.saves, *doc.job.restores]
    return sum(int(getattr(each, name)) for each in trials)


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum of the counts that are known; None if no count is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _were(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'was' if count == 1 else 'were'}"


def run_incomplete(doc: TrainingRecord) -> RuleOutcome | None:
    unfinished = sum(not repetition.complete for repetition in doc.job.repetitions)
    if doc.status != "ok" or unfinished:
        what = f"the run's status is {doc.status}" + (f" ({doc.error})" if doc.error else "")
        if unfinished:
            what += f"; {unfinished} of {len(doc.job.repetitions)} repetitions stopped early"
        return RuleOutcome(what, "run it again and let it finish; the partial figures are kept")
    return None if doc.job.repetitions else unknown("no repetition is recorded")


def run_steps(judged: Judged) -> RuleOutcome | None:
    doc = judged.record
    steps = [
        repetition.steps // max(repetition.accelerators, 1)
        for repetition in complete(doc)
        if repetition.steps
    ]
    if not steps:
        return unknown("no step was recorded")
    if min(steps) < MIN_STEPS:
        enough = f"at least {MIN_STEPS} steps for each accelerator"
        remedy = f"use a larger dataset, more epochs or a smaller batch: {enough}"
        if cut_epochs(judged.evidence) is not None:
            remedy = f"{LONGER}: {enough}"
        return RuleOutcome(
            f"{counted(min(steps), 'step')} for each accelerator in a repetition, fewer than "
            f"{MIN_STEPS}",
            remedy,
        )
    return None


def run_duration(judged: Judged) -> RuleOutcome | None:
    """Check that a repetition is long enough to show more than how it starts."""
    doc = judged.record
    walls = [repetition.wall_s for repetition in complete(doc) if repetition.wall_s is not None]
    if not walls:
        return unknown("the time that a repetition took was not recorded")
    if min(walls) >= MIN_WALL_S:
        return None
    cut = cut_epochs(judged.evidence) is not None
    more = LONGER if cut else "use a larger dataset or more epochs"
    return RuleOutcome(
        f"a repetition took {format_duration(min(walls))}, less than {format_duration(MIN_WALL_S)}",
        f"{more}. A short run shows how the pipeline starts, and what a cache or the credits of a "
        "device give at first",
    )


def run_repetitions(doc: TrainingRecord) -> RuleOutcome | None:
    if not doc.job.repetitions:
        return unknown("no repetition is recorded")
    done = len(complete(doc))
    if done < MIN_REPETITIONS:
        remedy = (
            "run with --repeat 6, the smallest number whose [min, max] contains the true median "
            "with a probability of at least 95 %"
        )
        return RuleOutcome(
            f"{counted(done, 'complete repetition')}, fewer than {MIN_REPETITIONS}", remedy
        )
    return None


def seed_changes(doc: TrainingRecord) -> RuleOutcome | None:
    seeds = [repetition.seed for repetition in doc.job.repetitions]
    if not seeds:
        return unknown("no repetition is recorded")
    if len(set(seeds)) < len(seeds):
        return RuleOutcome(
            "two repetitions share a seed, so they read in the same order",
            "give each repetition a seed of its own",
        )
    return None


def nfs_retransmits(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the NFS client repeated no request because the network or the server dropped it.

    Each repeated request first waits for its time-out, which is one minute by default (nfs(5)).
    """
    if not (doc.storage.fs_type or "").startswith("nfs"):
        return None
    traffic = [repetition.nfs for repetition in doc.job.repetitions if repetition.nfs is not None]
    if not traffic:
        return unknown("the NFS client's counters (/proc/self/mountstats) were not recorded")
    again = sum(nfs.retransmits for nfs in traffic)
    if again:
        ops = sum(nfs.read_ops for nfs in traffic)
        evidence = (
            f"{_were(again, 'NFS request')} sent again; the mount's counters have "
            f"{counted(ops, 'read')} in total"
        )
        return RuleOutcome(
            evidence,
            "look for lost packets, and for a server that is overloaded or was restarted. The "
            "rates of this run show a fault, not the speed of the storage",
        )
    return None


def delivered_samples(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a loader library delivers each sample of the dataset once in an epoch.

    If it does not, its speed is that of another job.
    """
    proof = doc.job.loader.delivery
    if proof is None:
        return None
    if proof.not_measured is not None:
        return unknown(
            f"what loader '{doc.job.loader.kind}' delivers was not checked: {proof.not_measured}"
        )
    dropped = 0  # what reader.tail=drop allows: the last batch of each worker, if it is not full
    if doc.job.workload.reader.tail == "drop":
        dropped = ((doc.job.workload.batch_size or 1) - 1) * max(1, doc.job.loader.workers)
        dropped *= max(1, doc.job.accelerators)
    allowed = {"missing": dropped, "repeated": _padding(doc), "unknown": 0}
    wrong = {
        key: count for key, limit in allowed.items() if (count := getattr(proof, key) or 0) > limit
    }
    if not wrong:
        return None
    counts = ", ".join(f"{format_count(count)} {key}" for key, count in wrong.items())
    checked = "an epoch" if proof.whole_epoch else "a part of an epoch"
    return RuleOutcome(
        f"in {checked}, loader '{doc.job.loader.kind}' ({doc.job.loader.library}) did not deliver "
        f"each of the dataset's {proof.of} samples once: {counts}",
        "the rate is that of other work: use another loader.kind, or report this as a defect",
    )
