"""A loader of the user's own that delivers samples more than once in an epoch.

torch gives each worker a copy of an iterable dataset, which must ask which share is that worker's.
One that does not ask delivers everything as often as there are workers.
"""

from __future__ import annotations

from ...schema.job import UserFacts
from ...schema.record import Finding, TrainingRecord
from ...units import counted, format_count

MIN_SHARED = 0.01
"""Share of samples that several ranks or workers may deliver: some are equal by chance.

An epoch may also have as many more than its dataset: samplers fill the last batches up.
"""

OPENED_AGAIN = 1.5
"""As many times the files of a dataset are opened by several workers, and not by chance.

Each process counts a file once.
"""

ONE_FILE_EACH = 0.25
"""If as many files were opened as samples came, but for this share, each sample is a file."""

_SHARE = "in an IterableDataset, ask get_worker_info() which samples are this worker's share"


def repeated(doc: TrainingRecord) -> Finding | None:
    """That samples came several times in an epoch, from several workers; None if they did not."""
    facts = doc.job.loader.user
    if facts is None:
        return None
    shared, compared = facts.worker_shared_samples, facts.worker_compared_samples
    if shared and compared and shared / compared > MIN_SHARED:
        return Finding(
            rule="user.workers_overlap",
            level="warning",
            evidence=f"of {format_count(compared)} samples in the first batches, "
            f"{format_count(shared)} were delivered by more than one worker of a rank: an epoch "
            "has them several times",
            remedy=_SHARE,
        )
    more = _more_samples(doc, facts) or _more_opens(doc, facts)
    if not more:
        return None
    workers = f" (the loader has {counted(facts.workers, 'worker')})" if facts.workers else ""
    return Finding(
        rule="user.samples_repeat",
        level="warning",
        evidence=f"{more}{workers}",
        remedy=f"{_SHARE}; where the loader repeats the dataset on purpose, its epochs are as long "
        "as it makes them",
    )


def _more_samples(doc: TrainingRecord, facts: UserFacts) -> str:
    """That an epoch has more samples than the dataset; empty if none has."""
    most, what = doc.job.dataset.samples, "the dataset has"
    delivered = sum(each.samples for each in doc.job.repetitions)
    opened = facts.files_inside or 0
    if most is None and abs(opened - delivered) <= ONE_FILE_EACH * delivered:
        most, what = doc.job.dataset.files, "each opens a file, and the directory has"
    for each in doc.job.repetitions:
        samples = each.samples / max(1, len(each.epochs))
        if most and samples > (1 + MIN_SHARED) * most + each.accelerators:
            return (
                f"an epoch has {format_count(round(samples))} samples; {what} {format_count(most)}"
            )
    return ""


def _more_opens(doc: TrainingRecord, facts: UserFacts) -> str:
    """That an epoch opened files of single samples more than once; empty if none did."""
    files, last = doc.job.dataset.samples, doc.job.repetitions[-1:]
    if not files or files != doc.job.dataset.shards or not last:
        return ""
    opened = (facts.files_inside or 0) / max(1, len(last[0].epochs))
    if opened <= OPENED_AGAIN * files:
        return ""
    return (
        f"an epoch opened {format_count(round(opened))} files of the dataset, which has "
        f"{format_count(files)}, of one sample each"
    )
