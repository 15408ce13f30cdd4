"""The figures of a checkpoint study, and the rules for it, after MLPerf Storage's for checkpoints.

All functions are pure functions of the recorded saves and restores. The rules are those of Rules.md
(edition 3.0) 4.3 to 4.7: fsync in effect; the cache cleared before restores, unless a checkpoint is
larger than 3 x the host's memory; 10 saves and 10 restores; one of four models, by as many ranks as
it has. ``docs/rules.md`` compares the rules line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ..base.units import counted, format_bytes, format_percent, format_share
from ..record.checkpoint import RankSave, Restore, Save, Spread, Study
from ..record.metrics import Metric, metrics_of
from ..record.run import RunRecord, Summary, TrainingRecord
from ..record.training import Repetition
from .cache import MAX_RESIDENT
from .rules_data import RuleOutcome, unknown

MEASURED = metrics_of("save", "restore")
BANDWIDTHS = tuple(each.name for each in MEASURED if each.unit == "bytes/s")


MIN_FOR_P95 = 20
"""Fewest values whose p95 is known from them: of fewer, it is the largest or above it."""


def spread(values: Sequence[float]) -> Spread:
    """Median, mean, p95, minimum, maximum and count of ``values``.

    The p95 is the value of the nearest rank; None for fewer than ``MIN_FOR_P95`` values.
    """
    ordered = sorted(values)
    told = len(ordered) >= MIN_FOR_P95
    return Spread(
        median=median(ordered),
        mean=fmean(ordered),
        p95=ordered[-(-95 * len(ordered) // 100) - 1] if told else None,
        min=ordered[0],
        max=ordered[-1],
        n=len(ordered),
    )


def end_s(save: Save) -> float | None:
    """Time at which the save was durable, or only accepted if it was not synced (fsync=false)."""
    return save.durable_s if save.durable_s is not None else save.accepted_s


def duration_s(save: Save) -> float:
    """Time that storage took for the save: from the end of the copy, if any, to its own end.

    A copy begins when the previous save has ended, so the wait for that is left out.
    """
    return (end_s(save) or 0.0) - (save.waited_s or 0.0) - (save.staged_s or 0.0)


def _ranks(done: Restore) -> bool:
    """Whether several ranks restored, so that one of them can be the slowest."""
    return len(done.rank_s) > 1


def value_of(done: Save | Restore, metric: Metric) -> float | None:
    """The metric of one save or restore; None if it is of the other kind, or was not measured.

    Bandwidth follows MLPerf's rule: a job is as fast as its slowest process.
    """
    if metric.name == "cpu_s":
        return done.cpu_s
    if isinstance(done, Restore):
        took = done.wall_s
        own, rate = "restore_s", "restore_bytes_per_s"
    else:
        took = duration_s(done)
        own, rate = "", "write_bytes_per_s"
    if metric.name == rate:
        return done.bytes / took if took > 0 else None
    if isinstance(done, Restore):
        if metric.name == "restore_skew_s":
            return took - done.first_done_s if _ranks(done) and done.first_done_s else None
        return took if metric.name == own else None
    value: float | None = getattr(done, metric.name, None)
    return value


def values_of_study(study: Study, metric: Metric) -> list[float]:
    """All values of the metric over the study's saves or restores."""
    done: Sequence[Save | Restore] = study.saves if metric.of == "save" else study.restores
    return [float(value) for one in done if (value := value_of(one, metric)) is not None]


def with_figures(study: Study) -> Study:
    """Return ``study`` with the spread of its times, and with its bandwidths."""
    figures: dict[str, Spread] = {}
    missing: dict[str, str] = {}
    for metric in MEASURED:
        if values := values_of_study(study, metric):
            figures[metric.name] = spread(values)
    if not study.saves:
        missing["write_bytes_per_s"] = "no save was finished"
    if not study.restores:
        missing["restore_bytes_per_s"] = (
            "no restore was requested"
            if study.spec.restores == 0
            else study.no_restores or "no restore was finished"
        )
    return study.model_copy(
        update={
            "files": study.saves[-1].files if study.saves else 0,
            "figures": figures,
            "not_measured": missing,
            **{each: figures[each].median if each in figures else None for each in BANDWIDTHS},
        }
    )


def summaries_of(study: Study) -> dict[str, Summary]:
    """The study's figures in the form of a run's metrics, for conditions and comparisons.

    ``cpu_s`` is left out, because in a run's metrics this name is that of a repetition's CPU time.
    """
    told = (each for each in MEASURED if each.name != "cpu_s")
    return Summary.of({each.name: values_of_study(study, each) for each in told})


def cpu_s_per_gb(done: Sequence[Save] | Sequence[Restore]) -> float | None:
    """CPU seconds of all ranks per 1e9 bytes, over all operations.

    The result is None if the CPU time of the writer alone is unknown.
    """
    spent = [one.cpu_s for one in done]
    total = sum(one.bytes for one in done)
    return (
        sum(value for value in spent if value is not None) / (total / 1e9)
        if total and None not in spent
        else None
    )


def asynchronous(study: Study) -> bool:
    """Whether training went on while a save was written."""
    return any(save.staged_s is not None for save in study.saves)


def slowdown(study: Study) -> float | None:
    """Duration of a training step during a background save over that of an undisturbed step.

    1.0 means no slowdown; the result is None if no such steps were measured.
    """
    overlapped = [
        save.step_overlapped_s for save in study.saves if save.step_overlapped_s is not None
    ]
    alone = [save.step_alone_s for save in study.saves if save.step_alone_s is not None]
    return fmean(overlapped) / fmean(alone) if overlapped and alone and fmean(alone) > 0 else None


@dataclass(frozen=True, kw_only=True)
class HostSaves:
    """One host in all saves and restores of a study. Times are medians, in seconds.

    ``bytes``: of its ranks, in one save. None: not measured.
    """

    host: int
    ranks: int
    bytes: int | None
    blocked_s: float | None
    durable_s: float | None
    restore_s: float | None
    late_s: float | None  # the latest start of one of its ranks, over all restores

    @property
    def total_s(self) -> float:
        """For the order: the time of a save and a restore."""
        return (self.durable_s or 0.0) + (self.restore_s or 0.0)


def host_saves(study: Study) -> list[HostSaves]:
    """What each host took, the slowest first; nothing for a study of one host."""
    found = []
    for number, host in enumerate(study.hosts if len(study.hosts) > 1 else ()):
        mine = slice(host.first_rank, host.first_rank + host.ranks)
        saves = [save.ranks[mine] for save in study.saves if len(save.ranks) == study.ranks]
        restores = [each.rank_s[mine] for each in study.restores if each.rank_s]
        late = [each.rank_late_s[mine] for each in study.restores if each.rank_late_s]
        found.append(
            HostSaves(
                host=number,
                ranks=host.ranks,
                bytes=sum(part.bytes for part in saves[-1]) if saves else None,
                blocked_s=_median([part.blocked_s for part in save] for save in saves),
                durable_s=_median([_end_s(part) for part in save] for save in saves),
                restore_s=_median(restores),
                late_s=max((max(each) for each in late if each), default=None),
            )
        )
    return sorted(found, key=lambda host: -host.total_s)


def _end_s(part: RankSave) -> float:
    known = (part.durable_s, part.accepted_s)
    return next((value for value in known if value is not None), part.blocked_s)


def _median(times: Iterable[Sequence[float]]) -> float | None:
    """Of the slowest rank of each."""
    slowest = [max(each) for each in times if each]
    return median(slowest) if slowest else None


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


def unmeasured(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a run that was asked to save did so in at least one complete repetition."""
    if _study(doc).saves:
        return None
    steps = max((each.steps for each in doc.job.repetitions), default=0)
    return RuleOutcome(
        f"no checkpoint was measured: none was due within {counted(steps, 'step')}, the most of a "
        "repetition",
        "save more often (--checkpoint-every), or give more steps (a longer --budget, or "
        "--set max_steps)",
    )


def contention(doc: TrainingRecord) -> RuleOutcome | None:
    """Check how much loads and saves slow each other down, since they share the storage."""
    study = _study(doc)
    if not study.saves:
        return None
    if doc.job.quiet is None or not study.alone:
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
    together, alone = _median_s(study.saves), _median_s(study.alone)
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


def _median_s(saves: Sequence[Save]) -> float | None:
    """Median of ``duration_s`` of the saves whose end was recorded; None if there are none."""
    took = [duration_s(save) for save in saves if end_s(save) is not None]
    return median(took) if took else None


def _read_cost(repetition: Repetition) -> float | None:
    """Worker seconds per byte read (per byte of samples, if reads were not counted)."""
    size = repetition.sample_bytes if repetition.bytes_read is None else repetition.bytes_read
    return repetition.read_s / size if repetition.read_s and size else None


_NO_WAIT_S = 0.01
"""Until all ranks may begin to save passes some time, which is no wait for another save."""

WAITED = 0.05
"""A save waits for the one before it if that takes more than this share of what blocks training."""


def back_pressure(doc: RunRecord) -> RuleOutcome | None:
    """Check that an asynchronous save was finished and committed before the next one was due."""
    saves = _study(doc).saves
    waits = [(each.waited_s or 0.0) + (each.held_s or 0.0) for each in saves]
    blocks = [each.blocked_s + (each.held_s or 0.0) for each in saves]
    waited = [
        wait
        for wait, block in zip(waits, blocks, strict=True)
        if wait > max(_NO_WAIT_S, WAITED * block)
    ]
    total, blocked = sum(waited), sum(blocks)
    if blocked and total > WAITED * blocked:
        remedy = (
            "save less often, or use faster storage; until then the saves are not fully "
            "asynchronous"
        )
        evidence = (
            f"{len(waited)} of {counted(len(saves), 'save')} had to wait for the previous one, "
            f"{total:.2f} s in total"
        )
        return RuleOutcome(evidence, remedy)
    return None
