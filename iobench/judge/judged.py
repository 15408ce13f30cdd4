"""One record with its evidence and the decision on its bottleneck, which are found once.

Rates are in samples/s over all accelerators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import NamedTuple

from ..record.host import Host
from ..record.job import UserFacts
from ..record.run import TrainingRecord
from ..record.training import Ceiling, Repetition, TrainingRun
from ..record.verdict import Estimate
from ..settings.workload import Subject
from .again import job_again
from .bottleneck import decide
from .cache import relief, served_by_cache
from .evidence import NOISE_OF_FILL, Decision, Evidence, LaterEpochs, LoaderWaits
from .figures.ablations import interval, is_told
from .figures.curve import expected_rate, highest
from .figures.in_flight import bytes_per_sample, run_reads_in_flight, run_requests_per_batch
from .figures.ranktime import Shares, shares_of, starts_left_out
from .figures.rates import Lasting, lasting
from .statistics import NOISE
from .user_loader import repeated, start_left_out
from .watched import CLEAR, MOST

CHECKED = "iobench-check-"
"""In the names of the data that a check generates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A record, the evidence in it, and the bottleneck. All else follows from these three."""

    record: TrainingRecord
    evidence: Evidence
    decision: Decision

    @property
    def lasting_share(self) -> float | None:
        """The rate that lasts, on which the verdict rests, over that of the whole repetitions.

        It is without the start of epochs that a budget cut, and after a fall that lasts. None: one
        of them is not known.
        """
        whole, lasts = self.record.metrics.get("samples_per_s"), self.evidence.measured
        return lasts / whole.median if lasts and whole is not None and whole.median else None

    @property
    def epoch_share(self) -> float | None:
        """The rate of whole epochs of the dataset, over that of the whole repetitions.

        That which lasts, but with the start of each epoch where a budget cut the first one. None:
        as of ``lasting_share``.
        """
        lasts = self.lasting_share
        if lasts is None or self.evidence.lasting or not self.evidence.cut_fill:
            return lasts
        made = _made_of_epoch(self.record) or 0.0
        return 1 / (made + (1 - made) / lasts)


def judge(doc: TrainingRecord) -> Judged:
    """The record with its evidence and the decision on its bottleneck."""
    evidence = _gather(doc)
    return Judged(record=doc, evidence=evidence, decision=decide(evidence))


def _gather(doc: TrainingRecord) -> Evidence:
    """Collect the evidence in ``doc``. Missing keys become None, or the workload's own setting."""
    workload, loader, spec = doc.job.workload, doc.job.loader, doc.job.dataset.spec
    reader, settings = workload.reader, workload.loader
    size = bytes_per_sample(doc)
    fetch = doc.job.ceilings.get("fetch", Ceiling())
    cpu, rate = fetch.cpu_s_per_gb, fetch.bytes_per_s
    costs, cores = _cpu_costs(doc, size), effective_cores(doc)
    done = [repetition for repetition in doc.job.repetitions if repetition.complete]
    epochs = max([1, *(len(each.epochs) for each in done)])
    data, curve = doc.job.dataset, doc.job.curve
    shares, cut = shares_of(doc.job.repetitions), cut_by_budget(doc)
    lasts = _what_lasts(doc, done, shares, cut=cut)
    measured = doc.metrics.get("samples_per_s")
    utilization = doc.metrics.get("accelerator_utilization_sustained")
    found = Evidence(
        job=doc.job,
        raw_by=doc.job.ceilings.get("storage_raw", Ceiling()).by,
        raw=None if raw_has_too_few_reads(doc) else _rate(doc, "storage_raw", size),
        fetch=_rate(doc, "fetch", size),
        today=None if raw_has_too_few_reads(doc) else storage_today(doc),
        prep=_rate(doc, "prep", size),
        own_prep=doc.job.ceilings.get("prep", Ceiling()).details.own_samples_per_s,
        loader=_rate(doc, "loader", size),
        cpu=_cpu(doc, costs, cores, size),
        cpu_busy=_cpu_busy(done, cores),
        cpu_costs=costs,
        accelerator=_demand(doc, size),
        alone=_rate(doc, "accelerator", size) if doc.job.trained is not None else None,
        measured=lasts.rate,
        utilization=None if lasts.drained else lasts.utilization,
        required=workload.required_accelerator_utilization,
        accelerators=doc.job.accelerators,
        bytes_per_sample=size,
        cores=cores,
        fetch_cores=cpu * rate / 1e9 if cpu is not None and rate is not None else None,
        workers=doc.job.workers * doc.job.accelerators,
        subject=doc.job.subject,
        transport=str(
            loader.transport if "transport" in loader.model_fields_set else settings.transport or ""
        ),
        codec=spec.codec if spec else "none",
        decode=reader.decode and spec is not None and spec.content != "raw",
        compress_ratio=spec.compress_ratio if spec else 1.0,
        intervals=_intervals(doc),
        shares=replace(shares, fill=None) if cut else shares,
        cut_fill=lasts.fill,
        after_fill=lasts.fill > NOISE_OF_FILL,
        drained=lasts.drained,
        gains={
            each.stage: _beside(each.stage, each.gain, lasts.lasting)
            for each in doc.job.ablations
            if each.gain is not None and each.gain.value > 0 and not (each.stage == "fill" and cut)
        },
        curve=curve if curve is not None and curve.curve.points else None,
        samples=data.samples,
        batch_size=workload.batch_size,
        packed=data.samples > data.shards if data.samples and data.shards else None,
        access=loader.access or reader.access,
        rank_steps=_rank_steps(doc, done),
        reads_ahead=not doc.job.subject.reads_itself
        and not data.blocks
        and reader.read_ahead is not False,
        modelled=measured is not None and measured.n == 0,
        in_flight=float(run_reads_in_flight(doc)),
        requests_per_batch=run_requests_per_batch(doc),
        cached=served_by_cache(doc),
        made_after=_made_after_fill(doc, (_rank_steps(doc, done) or 0.0) / epochs),
        relief=relief(doc),
        unsteady=_unsteady(done),
        own=loader.user if doc.job.subject.users else None,
        lasting=lasts.lasting,
        mean_utilization=utilization.median if utilization else None,
        watched=loader_waits(doc),
        starting=_starting(done, loader.user) if doc.job.subject.users else None,
        later=_later_epochs(done[-1], doc.job.subject) if done and doc.job.subject.users else None,
        start=start_left_out(doc, cut=cut),
        again=partial(job_again, doc),
        repeated=several.evidence if (several := repeated(doc)) is not None else "",
    )
    if lasts.fill > NOISE_OF_FILL and lasts.lasting is None:
        found = _as_ceilings_allow(found, lasts.made_after)
    if found.cpu and found.between_saves:
        # The CPU time has the start of workers, and the rate has not: the cores deliver that.
        found = replace(found, cpu=max(found.cpu, found.between_saves))
    return _as_waits_allow(found)


def _as_waits_allow(found: Evidence) -> Evidence:
    """The evidence in which no stage gains more than accelerators that never wait would bring.

    Rounds may differ by more. The steps of a real model may be faster without a stage, too: as
    fast as alone.
    """
    demand = max(found.accelerator or 0.0, found.alone or 0.0)
    if not demand or not found.measured:
        return found
    most = max(1.0, demand / found.measured)

    def allowed(gain: Estimate) -> Estimate:
        if is_told(gain, found.unsteady) and interval(gain)[0] >= most:  # it takes all that is lost
            return Estimate(value=most, low=most, high=most, n=gain.n)
        return gain.each(lambda end: min(end, most))

    gains = {
        stage: gain if stage == "accelerator" else allowed(gain)
        for stage, gain in found.gains.items()
    }
    return replace(found, gains=gains)


def _demand(doc: TrainingRecord, size: float | None) -> float | None:
    """Samples/s of accelerators that never wait."""
    spec, batch = doc.job.workload.accelerator, doc.job.workload.batch_size
    if spec.step_time and batch and spec.kind != "null":
        # The specified step time is the demand; the calibration only checks it.
        return doc.job.accelerators * batch / spec.step_time
    return trained_rate(doc) or _rate(doc, "accelerator", size)


def trained_rate(doc: TrainingRecord) -> float | None:
    """Samples/s of a real model's steps as long as they took beside the loader; None without."""
    done = [one for one in doc.job.repetitions if one.complete and one.busy_s and one.samples]
    if doc.job.trained is None or not done:
        return None
    busy_s = sum((one.busy_s or 0.0) * one.accelerators for one in done)
    return doc.job.accelerators * sum(one.samples for one in done) / busy_s


def _rank_steps(doc: TrainingRecord, done: Sequence[Repetition]) -> float | None:
    """Steps of a rank in a repetition."""
    return median(each.steps for each in done) / doc.job.accelerators if done else None


class _Lasts(NamedTuple):
    """What lasts of the repetitions: after a fall, or after the fill where a budget cut them.

    ``fill``: the share of the time that is left out for it. ``made_after``: the smallest share of
    the batches after the fill that were not made during it; ``drained``: whether these alone would
    not keep the accelerators as busy as is required.
    """

    rate: float | None
    utilization: float | None
    lasting: Lasting | None
    fill: float
    made_after: float
    drained: bool


def _what_lasts(
    doc: TrainingRecord, done: Sequence[Repetition], shares: Shares, *, cut: bool
) -> _Lasts:
    fill = (shares.fill or 0.0) if cut else 0.0
    measured = doc.metrics.get("samples_per_s")
    utilization = doc.metrics.get("accelerator_utilization_sustained")
    told = measured is not None and measured.n != 0 and not doc.job.subject.watched
    lasts, rest = lasting(done) if told else None, max(1e-9, 1 - fill)
    saves = shares.saves or 0.0  # bins of a repetition leave them out, and its rate does not
    rate = lasts.after * (1 - saves) if lasts else measured.median / rest if measured else None
    # accelerators are as busy as batches arrive
    times = rate / measured.median if rate and measured and measured.median else 1 / rest
    busy = min(1.0, utilization.median * times) if utilization else None
    required = doc.job.workload.required_accelerator_utilization
    made_after = _made_after_fill(doc, _rank_steps(doc, done) or 0.0)
    return _Lasts(
        rate=rate,
        utilization=busy,
        lasting=lasts,
        fill=fill,
        made_after=made_after,
        drained=fill > NOISE_OF_FILL and busy is not None and busy >= required > busy * made_after,
    )


def _as_ceilings_allow(found: Evidence, made_after: float) -> Evidence:
    """The evidence of cut repetitions, whose rate after the fill batches from the fill may raise.

    ``made_after``: the smallest share of these batches that can't be from the fill. Where they came
    faster than the lowest ceiling allows, that ceiling is what lasts, as far as that share allows.
    Without ceilings, accelerators that starve don't get more than the whole time tells.
    """
    # That of the CPU comes from these repetitions, too.
    rate, lowest, busy = found.measured, replace(found, cpu=None).predicted, found.utilization
    if not rate:
        return found
    if found.storage is None and found.prep is None and found.loader is None:
        lowest = rate if found.fed or found.drained else 0.0
    whole = 1 - found.cut_fill
    lasts = min(rate, max(rate if lowest is None else lowest, rate * max(made_after, whole)))
    busy = None if busy is None else busy * lasts / rate
    return replace(found, measured=lasts, utilization=busy, after_fill=lasts > rate * whole)


def _beside(stage: str, gain: Estimate, lasts: Lasting | None) -> Estimate:
    """A gain over the rate that lasts.

    Rounds compare whole repetitions. Without the storage there is no fall, so it brings more
    over the rate after the fall; without another stage the storage still falls.
    """
    if lasts is None or stage != "storage" or (gain.low or gain.value) <= 1 + NOISE:
        return gain
    share = lasts.share
    return gain.each(lambda end: end / share)


def _unsteady(done: Sequence[Repetition]) -> float:
    rates = [each.samples_per_s for each in done if each.samples_per_s]
    return max(rates) / min(rates) - 1 if rates else 0.0


def _made_after_fill(doc: TrainingRecord, steps: float) -> float:
    """The smallest share of the batches after the fill that can't have been made during it.

    A rank had no more than its batches in flight then. ``steps``: of a rank.
    """
    workers = max(1, doc.job.workers)
    prefetch = max(1, doc.job.workload.loader.prefetch_factor)
    after = steps - workers
    return max(0.0, 1 - workers * prefetch / after) if after > 0 else 0.0


def cut_by_budget(doc: TrainingRecord) -> bool:
    """Whether a budget ended the repetitions within their first epoch, or made the epochs short.

    What the fill of an epoch costs is then a matter of the budget, and says nothing of the job. The
    data that a check generates is as large as its time allows.
    """
    made = _made_of_epoch(doc)
    return made is not None and made < 1


def _made_of_epoch(doc: TrainingRecord) -> float | None:
    """The share of an epoch of the dataset that a budget left of the repetitions; 1: all of it.

    0 for data that a check generated, and None where no budget made the repetitions shorter.
    """
    if CHECKED in (doc.storage.url or ""):
        return 0.0
    job, batch = doc.job, doc.job.workload.batch_size
    samples = job.dataset.in_epoch
    if job.fitted is None or not batch or not samples or not job.repetitions:
        return None
    epoch = math.ceil(samples / job.accelerators / batch)
    return min(1.0, median(each.steps for each in job.repetitions) / job.accelerators / epoch)


def _working(done: Sequence[Repetition]) -> float | None:
    """Share of the time in which the workers read or prepared; None: not known."""
    known = [
        each.worker_time.read + each.worker_time.prep
        for each in done
        if each.worker_time is not None
        and each.worker_time.read is not None
        and each.worker_time.prep is not None
    ]
    return median(known) if known else None


def _intervals(doc: TrainingRecord) -> dict[str, tuple[float, float]]:
    """The intervals of the ceilings, by the stage that each of them limits."""
    found = {}
    for stage, name in (("storage", "fetch"), ("prep", "prep"), ("loader", "loader")):
        windows = doc.job.ceilings.get(name, Ceiling()).windows
        if windows is not None and windows.low is not None and windows.high is not None:
            found[stage] = (windows.low, windows.high)
    return found


def _cpu_costs(doc: TrainingRecord, size: float | None) -> dict[str, float]:
    """CPU seconds per sample of ``storage`` (fetch) and ``prep``, where both are known."""
    per_gb = {
        stage: doc.job.ceilings.get(name, Ceiling()).cpu_s_per_gb
        for stage, name in (("storage", "fetch"), ("prep", "prep"))
    }
    known = {stage: cost * size / 1e9 for stage, cost in per_gb.items() if cost and size}
    return known if len(known) == len(per_gb) else {}


def _cpu(
    doc: TrainingRecord, costs: dict[str, float], cores: float | None, size: float | None
) -> float | None:
    """The CPU ceiling in samples/s; from the costs of fetch and prep if it is not recorded.

    What prep costs includes the hand-over of its batches.
    """
    recorded = _rate(doc, "cpu", size)
    if recorded is not None or "cpu" in doc.job.ceilings:
        return recorded
    return cores / sum(costs.values()) if costs and cores else None


def _cpu_busy(done: Sequence[Repetition], cores: float | None) -> float | None:
    """Share of the usable cores that was busy, 0 to 1: by this run, or by all of the host."""
    own = [
        each.cpu_s / (each.wall_s * cores) for each in done if each.cpu_s and each.wall_s and cores
    ]
    host = [
        each.resources.cpu_busy
        for each in done
        if each.resources is not None and each.resources.cpu_busy is not None
    ]
    known = [median(shares) for shares in (own, host) if shares]
    return min(1.0, max(known)) if known else None


def effective_cores(doc: TrainingRecord) -> float | None:
    """Cores that this run could use on all of its hosts; None if that of a host is not known.

    On each host they are the smallest of the host's, the affinity's and the quota's.
    """
    known = [usable_cores(host) for host in doc.hosts]
    if not known or not all(known):
        return None
    return _over_machines(doc, [each or 0.0 for each in known])


def all_cores(doc: TrainingRecord) -> float:
    """The cores of all hosts."""
    return _over_machines(doc, [float(host.cores or 0) for host in doc.hosts])


def _over_machines(doc: TrainingRecord, cores: Sequence[float]) -> float:
    """Their sum, for each host; hosts that are one machine have no more than it has."""
    found: dict[str, float] = {}
    for number, (host, mine) in enumerate(zip(doc.hosts, cores, strict=True)):
        known = doc.job.hosts[number].machine if number < len(doc.job.hosts) else None
        machine = known or f"host {number}"
        found[machine] = min(found.get(machine, 0.0) + mine, float(host.cores or mine))
    return sum(found.values())


def usable_cores(host: Host) -> float | None:
    limits = (host.cores, host.affinity_cores, host.cpu_quota_cores, host.effective_cores)
    return min((float(limit) for limit in limits if limit), default=None)


def step_time_s(doc: TrainingRecord) -> float | None:
    return doc.job.workload.accelerator.step_time


def is_null_accelerator(job: TrainingRun) -> bool:
    return job.workload.accelerator.kind == "null"


def accelerators_fed(
    rate: float | None, per_accelerator: float | None, required: float
) -> int | None:
    """How many accelerators ``rate`` keeps at the utilization ``required`` (0 to 1).

    Each accelerator then consumes ``required`` of its full demand.
    """
    if rate is None or not per_accelerator:
        return None
    return math.floor(rate / (required * per_accelerator) + 1e-9)


def _rate(doc: TrainingRecord, name: str, size: float | None) -> float | None:
    """A ceiling in samples/s, or None if there is none or it is 0.

    A ceiling that is known only in bytes/s (from fio) is divided by ``size``, the stored bytes of
    a sample.
    """
    ceiling = doc.job.ceilings.get(name, Ceiling())
    if ceiling.samples_per_s:
        return ceiling.samples_per_s
    return ceiling.bytes_per_s / size if ceiling.bytes_per_s and size else None


def storage_today(doc: TrainingRecord) -> float | None:
    """Samples/s that the storage's curve has at the run's own reads in flight; None: not known."""
    found, raw = doc.job.curve, doc.job.ceilings.get("storage_raw", Ceiling())
    best = None if found is None else highest(found.curve.points)
    size = raw.details.read_bytes_per_sample
    if found is None or best is None or not size or not found.in_flight:
        return None
    reads = expected_rate(found.curve.points, found.in_flight)
    if reads is None or best.reads_per_s.value <= 0:
        return None
    most = found.curve.plateau_bytes_per_s or best.bytes_per_s
    return min(most.value, reads.value * best.bytes_per_s.value / best.reads_per_s.value) / size


def raw_has_too_few_reads(doc: TrainingRecord) -> bool:
    """Whether the run got more than the storage's curve, which ended below its reads in flight.

    A short time has points for few reads in flight alone, and their rate is then no ceiling.
    """
    curve, whole = doc.job.curve, doc.metrics.get("samples_per_s")
    raw = _rate(doc, "storage_raw", bytes_per_sample(doc))
    if raw is None or curve is None or curve.curve.plateau_bytes_per_s is not None:
        return False
    most = max((point.in_flight for point in curve.curve.points), default=0)
    few = most < (curve.in_flight or 0.0)
    return few and whole is not None and whole.n > 0 and raw * (1 + NOISE) < whole.median


def loader_waits(doc: TrainingRecord) -> LoaderWaits | None:
    """What was seen of the loader of a training that was watched; None for another run."""
    facts = doc.job.loader.user
    if not doc.job.subject.watched or facts is None:
        return None
    done = [each for each in doc.job.repetitions if each.complete]
    waited, starts = facts.wait_s or 0.0, facts.worker_starts
    return LoaderWaits(
        working=_busiest_working(done, facts),
        handed_over=_share(facts.hand_over_s, waited),
        held_back=facts.held_back,
        collate=facts.collating,
        starts=starts,
        uneven=facts.slow_worker,
        batch_bytes=facts.batch_bytes,
        pace=_pace(done[-1], facts) if done else None,
        prefetch=doc.job.workload.loader.prefetch_factor,
    )


def _pace(done: Repetition, facts: UserFacts) -> tuple[float, float] | None:
    """Seconds in which the workers make a batch, by the slowest, and the training takes one."""
    if not facts.fetch_s_by_worker or not facts.workers or not done.busy_s or not done.steps:
        return None
    made = max(facts.fetch_s_by_worker) / facts.workers
    return made, done.busy_s * done.accelerators / done.steps


def _later_epochs(done: Repetition, subject: Subject) -> LaterEpochs | None:
    """The epochs after the first one, if that had most of the waits, and far longer ones.

    A start of workers that counts in no rate is no wait here either.
    """
    waits, steps, walls = [], [], []
    for each, begun in zip(done.epochs, starts_left_out(done.epochs, subject), strict=True):
        if each.wait_s is None or not each.steps or not each.samples_per_s:
            return None
        waits.append(max(0.0, each.wait_s - sum(start or 0.0 for start in begun.startups_s)))
        steps.append(each.steps)
        walls.append(each.steps * done.samples / done.steps / each.samples_per_s)
    if len(waits) < 2:
        return None
    of_steps = [wait / count for wait, count in zip(waits, steps, strict=True)]
    if of_steps[0] <= CLEAR * median(of_steps[1:]) or waits[0] < MOST * sum(waits):
        return None
    waiting = sum(waits[1:]) / done.accelerators / sum(walls[1:])
    return LaterEpochs(len(waits), waits[0] / sum(waits), min(1.0, waiting))


def _busiest_working(done: Sequence[Repetition], facts: UserFacts) -> float | None:
    """Share of the time in which the busiest worker read or prepared.

    Workers get their batches in turns, so the busiest one is the one that takes longest for each.
    """
    working = _working(done)
    if working is None:
        return None
    means = facts.fetch_s_by_worker
    busiest = max(means) / fmean(means) if means and fmean(means) > 0 else 1.0
    return min(1.0, working * busiest)


def _starting(done: Sequence[Repetition], facts: UserFacts | None) -> float | None:
    """Share of a rank's time in which its workers started; they may stay from epoch to epoch."""
    walls = [rank.wall_s for each in done for rank in each.ranks]
    if facts is None or facts.usual_start_s is None or facts.worker_starts is None or not walls:
        return None
    starts = min(facts.worker_starts, len(done[-1].epochs))
    return _share(facts.usual_start_s * starts, median(walls))


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else min(1.0, part / whole)
