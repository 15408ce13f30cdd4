"""The figures of a model's loads: seconds until it is ready, what each stage costs, who is fastest.

All functions are pure functions of the recorded trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean, median
from typing import NamedTuple

from ..base.units import counted, format_percent
from ..record.metrics import Metric, metrics_of
from ..record.model_load import LoadFigures, LoadStage, LoadTrial, LocalCopy, ModelLoadRun, Retained
from ..record.run import ModelLoadRecord, RunRecord, Summary
from ..record.verdict import Estimate
from .cache import MAX_RESIDENT
from .figures.ablations import interval as known_to
from .figures.ablations import is_told
from .figures.ranktime import SlowHost, slow_hosts
from .rules_data import RuleOutcome, unknown
from .rules_ranks import SLOW_REMEDY, host_name
from .statistics import NOISE, mean_estimate, ratio_estimate

MEASURED = metrics_of("load")

COUNTED = 0.99
"""Share of the bytes of a model that the storage must have delivered for a cold load."""


WAITS, AS_PLAIN = 0.5, 1.1
"""A loader that can't load without the storage is limited by it if it takes less CPU time than this
share of a load, and its reads get what plain reads do, within this factor. Both are a choice."""

SHARED = 0.5
"""Share of the files in the page cache from which on replicas share what one of them has read."""


def value_of(job: ModelLoadRun, trial: LoadTrial, metric: Metric) -> float | None:
    """The metric of one trial; None if it was not measured."""
    match metric.name:
        case "ready_s":
            return trial.ready_s
        case "ready_skew_s":
            one = replicas_of(trial) * job.spec.tensor_parallel == 1
            return None if one else trial.ready_s - trial.first_ready_s
        case "load_bytes_per_s":
            return job.bytes / trial.ready_s if trial.ready_s > 0 else None
        case "load_amplification":
            return amplification(job, trial)
        case "load_cpu_s":
            return trial.cpu_s
    return trial.peak_memory_bytes


def amplification(job: ModelLoadRun, trial: LoadTrial) -> float | None:
    """Bytes that one replica's ranks read over the bytes of the model.

    By what the loader says that it read, otherwise by what the storage delivered to it.
    """
    read = trial.fetched_bytes if trial.read_bytes is None else trial.read_bytes
    return None if read is None or not job.bytes else read / replicas_of(trial) / job.bytes


def read_rate(job: ModelLoadRun, figures: LoadFigures) -> float:
    """Bytes/s that all replicas read together until the slowest of them is ready.

    From a warm page cache, where the storage delivers nothing, these are the bytes of the models.
    """
    models = figures.replicas * max(1, len(job.hosts))
    factor = figures.read_amplification
    if factor is None or job.spec.state == "warm":
        factor = 1.0
    return figures.bytes_per_s * models * factor


def replicas_of(trial: LoadTrial) -> int:
    """The replicas of all hosts."""
    return trial.replicas * len(trial.each_host)


def first_trials(job: ModelLoadRun) -> list[LoadTrial]:
    """The trials of the first loader with the fewest replicas: their figures are the run's."""
    if not job.spec.loaders or not job.spec.replicas:
        return []
    return trials_of(job, job.spec.loaders[0], min(job.spec.replicas))


def trials_of(
    job: ModelLoadRun,
    loader: str,
    replicas: int,
    *,
    without: LoadStage | None = None,
    one_read: bool = False,
    alone: bool = False,
    from_copy: bool = False,
) -> list[LoadTrial]:
    """The trials of one variant, in the order of their rounds."""
    return [
        each
        for each in job.trials
        if (each.loader, each.replicas, each.left_out) == (loader, replicas, without)
        and (each.one_read, each.alone, each.copy_s is not None) == (one_read, alone, from_copy)
    ]


def values_of_loads(job: ModelLoadRun, metric: Metric) -> list[float]:
    """The values of the metric in the trials whose figures are the run's."""
    values = (value_of(job, each, metric) for each in first_trials(job))
    return [float(value) for value in values if value is not None]


def summaries_of(job: ModelLoadRun) -> dict[str, Summary]:
    """The metrics of the run, for conditions and comparisons."""
    return Summary.of({each.name: values_of_loads(job, each) for each in MEASURED})


def with_figures(doc: ModelLoadRecord) -> ModelLoadRun:
    """The job with the figures of each loader and number of replicas, and the best loader."""
    job = doc.job
    figures = [
        found
        for loader, count, one_read in product(
            job.spec.loaders, sorted(job.spec.replicas), (False, True)
        )
        if (found := _figures(job, loader, count, one_read=one_read)) is not None
    ]
    fewest = [each for each in figures if each.replicas == least(job) and not each.one_read]
    fewest.sort(key=lambda each: each.ready_s)
    gain = _over(job, fewest[0].loader, fewest[1].loader) if len(fewest) > 1 else None
    return job.model_copy(
        update={
            "retained": retained(doc),
            "figures": figures,
            "best": fewest[0].loader if fewest else "",
            "gain": gain,
            # A comparison that is shown with its interval: two rounds alone are not enough for it.
            "significant": gain is not None and (gain.low or 0.0) > 1 + NOISE,
            "copied": job.copied and _break_even(job, job.copied),
        }
    )


def retained(doc: ModelLoadRecord) -> Retained | None:
    """What the hosts had of the files before each load; None where that was not shown."""
    if any(rule(doc) is not None for rule in (cold_residency, cold_fetch, warm_residency)):
        return None
    if doc.job.spec.state == "warm":
        return "page cache warm"
    remote = doc.storage.page_cache is False or doc.storage.is_network
    return "nothing local" if remote else "local and cold"


def least(job: ModelLoadRun) -> int:
    """The fewest replicas that were asked for."""
    return min(job.spec.replicas, default=1)


def storage_rate(
    job: ModelLoadRun, replicas: int | None = None, *, more: bool = False
) -> Estimate | None:
    """Bytes/s of plain reads of the files, with as many in flight as so many replicas have.

    By default with those of the fewest replicas; ``more``: with several times as many. None: not
    measured.
    """
    count = least(job) if replicas is None else replicas
    found = [each for each in job.plain if (each.replicas, each.more) == (count, more)]
    rates = [each.bytes_per_s for each in found]
    return mean_estimate(rates, median(rates)) if rates else None


def _figures(job: ModelLoadRun, loader: str, count: int, *, one_read: bool) -> LoadFigures | None:
    trials = trials_of(job, loader, count, one_read=one_read)
    if not trials:
        return None
    times = [each.ready_s for each in trials]
    ready = median(times)
    read = [each for each in (amplification(job, trial) for trial in trials) if each is not None]
    gains: dict[LoadStage, Estimate] = {}
    if count == least(job) and not one_read:
        for stage in ("storage", "assembly", "device"):
            if (gain := _gain(job, loader, stage)) is not None:
                gains[stage] = gain
    limits = bottleneck(gains, max(times) / max(min(times), 1e-9) - 1)
    plain_s = None
    if count == least(job) and not one_read and "storage" not in gains:
        plain_s = _plain_s(job, trials)
    if plain_s is not None and _waits_as_plain_reads(job, trials, plain_s):
        limits = ["storage"]
    promised, alone = None, trials_of(job, loader, count, alone=True)
    if one_read or alone or count > least(job):
        promised = promise(job, loader, count, one_read=one_read)
    return LoadFigures(
        loader=loader,
        replicas=count,
        one_read=one_read,
        ready_s=ready,
        low_s=min(times),
        high_s=max(times),
        n=len(times),
        bytes_per_s=job.bytes / ready if ready else 0.0,
        read_amplification=median(read) if read else None,
        gains=gains,
        bottleneck=limits,
        plain_s=plain_s,
        alone_s=median(each.ready_s for each in alone) if alone and not one_read else None,
        promised_s=promised,
        kept=None if promised is None else _kept(promised, ready),
    )


def _plain_s(job: ModelLoadRun, trials: Sequence[LoadTrial]) -> float | None:
    """Seconds that plain reads take for the bytes of these cold loads; None: not known."""
    read = [each for each in (amplification(job, trial) for trial in trials) if each is not None]
    rate = storage_rate(job, trials[0].replicas)
    if job.spec.state != "cold" or not read or rate is None or rate.value <= 0:
        return None
    return replicas_of(trials[0]) * median(read) * job.bytes / rate.value


def _waits_as_plain_reads(job: ModelLoadRun, trials: Sequence[LoadTrial], plain_s: float) -> bool:
    """Whether loads do little but wait, for as long as plain reads of their bytes take."""
    ready = median(each.ready_s for each in trials)
    ranks = replicas_of(trials[0]) * job.spec.tensor_parallel
    waits = median(each.cpu_s for each in trials) / ranks < WAITS * ready
    return waits and plain_s / AS_PLAIN <= ready <= AS_PLAIN * plain_s


def _gain(job: ModelLoadRun, loader: str, stage: LoadStage) -> Estimate | None:
    """How many times as long a load takes as the same one without a stage, over the rounds."""
    # Bytes that are read and dropped are the same for every loader.
    reads = "" if stage == "assembly" else loader
    return _ratio(
        trials_of(job, reads, least(job), without=stage), trials_of(job, loader, least(job))
    )


def _over(job: ModelLoadRun, fast: str, slow: str) -> Estimate | None:
    return _ratio(trials_of(job, fast, least(job)), trials_of(job, slow, least(job)))


def _ratio(fast: Iterable[LoadTrial], slow: Iterable[LoadTrial]) -> Estimate | None:
    """The time of the slow trials over that of the fast ones of the same round."""
    base = {each.round: each.ready_s for each in slow}
    pairs = [
        (1 / each.ready_s, 1 / base[each.round])
        for each in fast
        if each.ready_s > 0 and base.get(each.round, 0) > 0
    ]
    return ratio_estimate(pairs)


def bottleneck(gains: dict[LoadStage, Estimate], unsteady: float = 0.0) -> list[LoadStage]:
    """The stage whose absence helps most, if that is significant; all that can't be told from it.

    ``unsteady``: by how much the fastest round was faster than the slowest one, which a gain of few
    rounds has to exceed. Empty: inconclusive. Without ``storage`` left out, bytes that are read
    alone may be there sooner because they are read in another way, which tells nothing of the
    assembly.
    """
    if "storage" not in gains:
        return []
    told = sorted(
        ((stage, gain) for stage, gain in gains.items() if is_told(gain, unsteady)),
        key=lambda each: -each[1].value,
    )
    if not told:
        return []
    floor = known_to(told[0][1])[0]
    return [stage for stage, gain in told if stage == told[0][0] or known_to(gain)[1] >= floor]


def storage_share(figures: LoadFigures) -> Estimate | None:
    """The share of the time that the load would not take if the storage took none.

    Its interval is that by which ``bottleneck`` decides.
    """
    gain = figures.gains.get("storage")
    if gain is None:
        return None
    if gain.low is not None:
        low, high = known_to(gain)
        gain = gain.model_copy(update={"low": low, "high": high})
    return gain.each(lambda factor: max(0.0, 1 - 1 / max(factor, 1e-9)))


def shared_cache(job: ModelLoadRun, loader: str) -> bool:
    """Whether replicas on one host share what the first one read: it stays in the page cache."""
    trials = _fewest(job, loader)
    return bool(trials) and all(
        each.buffered and (each.residency_after or 0) > SHARED for each in trials
    )


def promise(
    job: ModelLoadRun, loader: str, count: int, *, one_read: bool = False
) -> Estimate | None:
    """The seconds that ``count`` replicas on each host need, by the trials with the fewest.

    Replicas share the link to the storage: they take as long as one, or as long as the storage
    takes for the bytes of all. A host whose replicas exchange what they read once, or find in the
    page cache what one of them has read, needs the bytes of the model once. Nothing is promised of
    a warm page cache, from which no storage keeps replicas.
    """
    if job.spec.state == "warm":
        return None
    trials, hosts = _fewest(job, loader), max(1, len(job.hosts))
    times = [each.ready_s for each in trials]
    one, rate = mean_estimate(times, median(times)) if times else None, storage_rate(job, count)
    once = one_read or shared_cache(job, loader)
    read = [amplification(job, each) for each in trials]
    factors = [each for each in read if each is not None]
    if one is not None and rate is not None and rate.value > 0 and factors and one_read:
        # What several ranks of the one replica read of the same bytes is read once, too.
        least_s = job.bytes / rate.value
        less_s = max(0.0, median(factors) - 1) * least_s
        value = max(one.value - less_s, min(one.value, least_s))
        low = None if one.low is None else min(one.low, value)
        one = one.model_copy(update={"value": value, "low": low})
    if one is None or (once and hosts == 1):
        return one
    if rate is None or rate.value <= 0 or not (once or factors):
        return None
    total = hosts * (1 if once else count * median(factors)) * job.bytes
    # An interval from 0 on tells no longest time.
    slow, fast = rate.low or rate.value, rate.high or rate.value
    known = bool(rate.low) and one.low is not None
    return Estimate(
        value=max(one.value, total / rate.value),
        low=max(one.low or 0.0, total / fast) if known else None,
        high=max(one.high or 0.0, total / slow) if known else None,
        n=min(one.n, rate.n),
    )


def _fewest(job: ModelLoadRun, loader: str) -> list[LoadTrial]:
    """The trials by which others are predicted: of the first host alone where there are several."""
    alone = trials_of(job, loader, least(job), alone=True)
    return alone or trials_of(job, loader, least(job))


class HostFigures(NamedTuple):
    """What one of several hosts took, by the best loader with the fewest replicas: medians."""

    host: int
    ready_s: float
    low_s: float
    high_s: float
    n: int  # rounds
    read_bytes: float | None  # that the storage delivered, or the loader asked for
    late_s: float  # the latest start of a rank


def host_loads(job: ModelLoadRun) -> list[HostFigures]:
    """Each host, the slowest first; nothing for a run of one host."""
    trials = trials_of(job, job.best, least(job))
    found = []
    for host, each in enumerate(zip(*(trial.hosts for trial in trials), strict=False)):
        times = [load.ready_s for load in each]
        read = [
            load.read_bytes if load.fetched_bytes is None else load.fetched_bytes for load in each
        ]
        known = [count for count in read if count is not None]
        found.append(
            HostFigures(
                host,
                median(times),
                min(times),
                max(times),
                len(times),
                median(known) if known else None,
                max(load.late_s for load in each),
            )
        )
    return sorted(found, key=lambda each: -each.ready_s)


def slow_ones(job: ModelLoadRun) -> list[SlowHost]:
    """The hosts whose replicas are ready clearly later than those of the others."""
    rounds = [[1 / max(host.ready_s, 1e-9) for host in each.hosts] for each in first_trials(job)]
    return slow_hosts([rates for rates in rounds if rates])


def _kept(promised: Estimate, found: float) -> bool:
    low, high = (promised.low, promised.high) if promised.low is not None else known_to(promised)
    return (low or 0.0) / (1 + NOISE) <= found <= (high or 0.0) * (1 + NOISE)


def _break_even(job: ModelLoadRun, copied: LocalCopy) -> LocalCopy:
    """After how many starts a copy has paid, of the first loader with the fewest replicas."""
    far = {each.round: each.ready_s for each in first_trials(job)}
    near = [
        each
        for each in trials_of(job, job.spec.loaders[0], least(job), from_copy=True)
        if each.round in far
    ]
    if not near:
        return copied
    copies = [each.copy_s or 0.0 for each in near]
    saved = [far[each.round] - each.ready_s for each in near]
    starts: Estimate | None = None
    if min(saved) > 0:
        each_round = [copy / one for copy, one in zip(copies, saved, strict=True)]
        starts = mean_estimate(each_round, fmean(copies) / fmean(saved))
    elif fmean(saved) > 0:
        starts = Estimate(value=fmean(copies) / fmean(saved))
    found = {"copy_s": median(copies), "ready_s": median(each.ready_s for each in near)}
    return copied.model_copy(update={**found, "starts": starts, "never": starts is None})


# Rules


def _job(doc: RunRecord) -> ModelLoadRun:
    assert isinstance(doc.job, ModelLoadRun)
    return doc.job


def _loads(job: ModelLoadRun) -> list[LoadTrial]:
    """The trials of whole loads, by which the run is judged."""
    return [each for each in job.trials if each.left_out is None and each.copy_s is None]


def cold_residency(doc: RunRecord) -> RuleOutcome | None:
    job = _job(doc)
    if job.spec.state != "cold" or doc.storage.page_cache is False:
        return None
    remedy = "make sure that no other process reads the files, or ask for --state warm"
    trials = _loads(job)
    before = [host.residency_before for each in trials for host in each.each_host]
    if None in before:
        how = next((each.residency_how for each in trials if each.residency_how), "")
        return unknown(
            f"page-cache residency before a load was not measured{': ' + how if how else ''}",
            remedy,
        )
    highest = max((share for share in before if share is not None), default=0.0)
    if highest <= MAX_RESIDENT:
        return None
    return RuleOutcome(
        f"{100 * highest:.0f} % of the files were in the page cache before a load", remedy
    )


def cold_fetch(doc: RunRecord) -> RuleOutcome | None:
    """Check that the storage delivered what a cold load needs: by counters, where there are any."""
    job = _job(doc)
    if job.spec.state != "cold" or job.spec.share != "all":
        return None
    known = [each for trial in _loads(job) for each in _fetched(trial)]
    if not known and doc.storage.page_cache is False:
        return None  # this host's page cache holds nothing of it
    if not known:
        return unknown("the bytes that the storage delivered were not counted")
    if min(known) >= COUNTED * job.bytes:
        return None
    return RuleOutcome(
        f"the storage delivered {100 * min(known) / max(1, job.bytes):.0f} % of the model's bytes "
        "in a load that was to be cold",
        "make sure that no other process reads the files meanwhile",
    )


def _fetched(trial: LoadTrial) -> list[float]:
    """What the storage delivered to each host; the mean of all where only their sum is known."""
    known = [each.fetched_bytes for each in trial.each_host if each.fetched_bytes is not None]
    if len(known) == len(trial.each_host):
        return [float(each) for each in known]
    total = trial.fetched_bytes
    return [] if total is None else [total / len(trial.each_host)]


def warm_residency(doc: RunRecord) -> RuleOutcome | None:
    job = _job(doc)
    before = [host.residency_before for each in _loads(job) for host in each.each_host]
    held = [share for share in before if share is not None]
    if job.spec.state != "warm" or not held or min(held) >= 1 - MAX_RESIDENT:
        return None
    return RuleOutcome(
        f"the page cache held {100 * min(held):.0f} % of the files before a load",
        "give the host more memory than the model has bytes",
    )


def slow_host(doc: RunRecord) -> RuleOutcome | None:
    """Check that the replicas of no host are ready later than those of the others by 10 %."""
    job = _job(doc)
    told = [
        f"{host_name(job.hosts, each.host)} loads at {format_percent(each.ratio)} "
        f"[{format_percent(each.low)}, {format_percent(each.high)}] of the rate of the others"
        for each in slow_ones(job)
    ]
    return RuleOutcome("; ".join(told), SLOW_REMEDY) if told else None


MIN_ROUNDS = 3
"""Fewer rounds tell no interval that could decide anything."""


def rounds(doc: RunRecord) -> RuleOutcome | None:
    job = _job(doc)
    made, asked = len(first_trials(job)), job.spec.repetitions
    if made >= max(MIN_ROUNDS, asked):
        return None
    if made < asked:
        evidence = f"{counted(made, 'round')} of {asked} made"
        remedy = "see load.failures" if job.failed else "give more time with --budget"
        return RuleOutcome(evidence, remedy)
    evidence = f"{counted(made, 'round')}, which cannot tell how much the times vary"
    return RuleOutcome(evidence, f"run with --repeat {MIN_ROUNDS}")


def failures(doc: RunRecord) -> RuleOutcome | None:
    """Check that no load, and no plain read of the files, failed."""
    failed = _job(doc).failed
    if not failed:
        return None
    found = "; ".join(f"{name}: {why}" for name, why in failed.items())
    return RuleOutcome(
        f"failed: {found}", "repair the storage: a replica whose load fails does not start"
    )


def left_out(doc: RunRecord) -> RuleOutcome | None:
    job = _job(doc)
    if not job.left_out:
        return None
    found = "; ".join(f"{name}: {why}" for name, why in sorted(job.left_out.items()))
    return RuleOutcome(f"not measured: {found}", "see the reasons")
