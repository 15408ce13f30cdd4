"""Rules for a checkpoint study, after MLPerf Storage's rules for checkpoints.

Rules.md (edition 3.0) 4.3 to 4.7: fsync in effect; the cache cleared before restores, unless a
checkpoint is larger than 3 x the host's memory; 10 saves and 10 restores; one of four models, by as
many ranks as it has. ``docs/rules.md`` compares the rules line by line.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...base.units import counted, format_bytes, format_percent, format_share
from ...record.checkpoint import Save, Study
from ...record.run import RunRecord, TrainingRecord
from ...record.training import Repetition
from ..cache import MAX_RESIDENT
from ..rules_data import RuleOutcome, unknown
from .study import end_s

MIN_SAVES = 10
MIN_BYTES = 32 * 1024**2
"""Smallest share of a rank, in bytes, for which a bandwidth is meaningful.

At 2 GiB/s it is written in 16 ms, about as long as creating and syncing its files may take.
"""

RESTORE_MEMORY_MULTIPLE = 3
RANKS = {"llama3-8b": 8, "llama3-70b": 64, "llama3-405b": 512, "llama3-1t": 1024}
"""The models of MLPerf Storage, and by how many processes each is saved (4.6.1)."""

CONTENTION = 0.1
"""Smallest effect of loads and saves on each other that is reported (0.1 = 10 % slower)."""


def _study(doc: RunRecord) -> Study:
    assert doc.checkpoints is not None
    return doc.checkpoints


def durable(doc: RunRecord) -> RuleOutcome | None:
    remedy = "set fsync=true: data that is not synced is lost if the host fails"
    study = _study(doc)
    if study.spec.fsync is False:
        return RuleOutcome(
            "saves were not synced (fsync=false), so their times are those of the page cache",
            remedy,
        )
    if any(save.durable_s is None for save in study.saves):
        return unknown("the time at which some saves were durable was not recorded", remedy)
    return None


def written(doc: RunRecord) -> RuleOutcome | None:
    """Check that fsync kept its promise: no page of a synced file is left to be written."""
    left = [save.unwritten_bytes for save in _study(doc).saves if save.unwritten_bytes]
    if not left:
        return None
    return RuleOutcome(
        f"after fsync, {format_bytes(max(left))} of a save were still only in memory",
        "find what makes fsync return early, such as a preloaded library: a crash loses this save",
    )


def proven(doc: RunRecord) -> RuleOutcome | None:
    """Check that it was seen whether fsync kept its promise."""
    study = _study(doc)
    if study.spec.fsync is False or (study.storage or doc.storage).page_cache is False:
        return None  # nothing was promised, or this host's page cache holds nothing of it
    if all(save.unwritten_bytes is not None for save in study.saves):
        return None
    return RuleOutcome(
        "whether fsync had written everything could not be seen",
        "use Linux 6.5 or newer (cachestat), and neither an overlay nor a file system in memory",
    )


def cold_restore(doc: RunRecord) -> RuleOutcome | None:
    study = _study(doc)
    memory = doc.memory_bytes
    if (
        not study.restores
        or doc.storage.page_cache is False
        or (memory and study.bytes > RESTORE_MEMORY_MULTIPLE * memory)
    ):
        return None
    remedy = (
        "make sure that no other process reads the checkpoints, or save more than "
        f"{RESTORE_MEMORY_MULTIPLE} x the host's memory"
    )
    if any(restore.residency_before is None for restore in study.restores):
        how = next(
            restore.residency_how for restore in study.restores if restore.residency_before is None
        )
        return unknown(
            f"page-cache residency before a restore was not measured{': ' + how if how else ''}",
            remedy,
        )
    highest = max(restore.residency_before or 0 for restore in study.restores)
    if highest > MAX_RESIDENT:
        return RuleOutcome(
            f"{format_percent(highest)} of a checkpoint was in the page cache when it was restored",
            remedy,
        )
    return None


def verified(doc: RunRecord) -> RuleOutcome | None:
    wrong = [restore.step for restore in _study(doc).restores if restore.verified is False]
    if wrong:
        remedy = (
            "the storage or the writer returned other bytes than were saved: do not use it for "
            "training"
        )
        return RuleOutcome(
            f"the restore of step {wrong[0]} returned other weights than were saved", remedy
        )
    return None


def count(doc: RunRecord) -> RuleOutcome | None:
    study = _study(doc)
    if min(len(study.saves), len(study.restores)) < MIN_SAVES:
        evidence = (
            f"{counted(len(study.saves), 'save')} and {counted(len(study.restores), 'restore')}, "
            f"fewer than {MIN_SAVES} each"
        )
        return RuleOutcome(evidence, f"run with --repeat {MIN_SAVES}")
    return None


def scaled(doc: RunRecord) -> RuleOutcome | None:
    study = _study(doc)
    if study.spec.weights_only:
        return RuleOutcome(
            f"the weights of {study.model} were saved without the optimizer's state: a training "
            "can't continue from them",
            "for what interruptions cost a training, save the whole state: leave weights_only out",
        )
    if study.state_bytes is not None:
        share = format_share(study.bytes / study.state_bytes)
        return RuleOutcome(
            f"each save but the first has only {share} of the state, which changed",
            "for saves of the whole state, leave --changed out",
        )
    if study.bytes >= study.full_bytes:
        return None
    evidence = (
        f"{format_bytes(study.bytes)} were saved of the {format_bytes(study.full_bytes)} that "
        f"{study.model} has"
    )
    return RuleOutcome(
        evidence,
        "the times for the whole model are computed from the measured bandwidth; to measure them, "
        "run without --scale",
    )


def model(doc: RunRecord) -> RuleOutcome | None:
    """Check that the model is one of MLPerf Storage's (4.3.3). Its other rules hold for any."""
    study = _study(doc)
    if study.model in RANKS:
        return None
    return RuleOutcome(
        f"model '{study.model}' cannot be submitted to MLPerf Storage: the study is held to its "
        "other rules, but is no result of that benchmark",
        f"for a result of that benchmark, use one of {', '.join(RANKS)}",
    )


def ranks(doc: RunRecord) -> RuleOutcome | None:
    """Check that as many ranks save the model as MLPerf Storage demands (4.6.1)."""
    study = _study(doc)
    needed = RANKS.get(study.model)
    if needed is None or study.ranks == needed:
        return None
    return RuleOutcome(
        f"{counted(study.ranks, 'rank')} saved {study.model}; CLOSED demands {needed}",
        f"run with --ranks {needed}",
    )


def tiny(doc: RunRecord) -> RuleOutcome | None:
    """Check that saves are large enough to show the bandwidth, and so the times of the whole model.

    In a very small save, opening and syncing files takes most of the time.
    """
    study = _study(doc)
    if study.bytes >= study.full_bytes or study.bytes >= MIN_BYTES * max(1, study.ranks):
        return None
    evidence = (
        f"{format_bytes(study.bytes)} by {counted(study.ranks, 'rank')} are "
        "too few bytes to measure a bandwidth"
    )
    return RuleOutcome(
        evidence,
        "the times for the whole model are too long: use a larger --scale, with at least "
        f"{format_bytes(MIN_BYTES)} for each rank",
    )


def stopped_early(doc: RunRecord) -> RuleOutcome | None:
    study = _study(doc)
    asked = study.spec.count
    if study.budget_s is not None and doc.status == "ok":
        return None  # as many as there was time for
    if doc.status != "ok" or len(study.saves) < asked:
        what = f"the study's status is {doc.status}" + (f" ({doc.error})" if doc.error else "")
        return RuleOutcome(
            f"{what}; {len(study.saves)} of {asked} saves were finished",
            "run it again and let it finish; the partial figures are kept",
        )
    return None


def contention(doc: TrainingRecord) -> RuleOutcome | None:
    """Check how much loads and saves slow each other down, since they share the storage."""
    study = _study(doc)
    if doc.job.quiet is None or not study.alone or not study.saves:
        return unknown(
            "saves and loads were not measured alone, so their effect on each other is not known"
        )
    reading = [
        cost
        for repetition in doc.job.repetitions
        if repetition.complete and (cost := _read_cost(repetition))
    ]
    quiet = _read_cost(doc.job.quiet)
    if not reading or not quiet:
        return unknown("the time that reads took was not recorded")
    together, alone = _median_end_s(study.saves), _median_end_s(study.alone)
    if not together or not alone:
        return unknown("the time that saves took was not recorded")
    slower, saving = median(reading) / quiet, together / alone
    if max(slower, saving) < 1 + CONTENTION:
        return None
    evidence = (
        f"when both run, a save takes {saving:.2f} x as long as alone, and reading a byte "
        f"{slower:.2f} x as long as without saves"
    )
    return RuleOutcome(
        evidence,
        "saves and the reads of the workers share the storage: use separate file systems, or "
        "storage that is fast enough for the sum of both",
    )


def _median_end_s(saves: Sequence[Save]) -> float | None:
    """Median time of the saves whose end was recorded; None if there are none."""
    ends = [end for save in saves if (end := end_s(save)) is not None]
    return median(ends) if ends else None


def _read_cost(repetition: Repetition) -> float | None:
    """Worker seconds per byte read (per byte of samples, if reads were not counted)."""
    size = repetition.sample_bytes if repetition.bytes_read is None else repetition.bytes_read
    return repetition.read_s / size if repetition.read_s and size else None


def back_pressure(doc: RunRecord) -> RuleOutcome | None:
    """Check that an asynchronous save was finished before the next one was due."""
    waited = [save.waited_s for save in _study(doc).saves if save.waited_s]
    blocked = sum(save.blocked_s for save in _study(doc).saves)
    if blocked and sum(waited) > 0.05 * blocked:
        remedy = (
            "save less often, or use faster storage; until then the saves are not fully "
            "asynchronous"
        )
        evidence = (
            f"{len(waited)} of {len(_study(doc).saves)} saves had to wait for the previous one, "
            f"{sum(waited):.2f} s in total"
        )
        return RuleOutcome(evidence, remedy)
    return None
