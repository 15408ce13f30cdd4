"""Hosts and accelerators past what was measured: ``iobench whatif RUN... --hosts N``.

The error of the model comes first: each measured number of hosts is left out, and predicted from
the others. More than 4 times the measured hosts or accelerators is marked, and more than 32 times
is refused unless the user wants it anyway.

A save takes as long as that of the host with the largest share. Each writes at its own rate, as
long as the storage gives all of them together so much. After an interruption all hosts read the
checkpoint at the same time. How often that happens grows with the accelerators: the mean time
between interruptions is that of the Llama 3 training, unless it is stated (``checkpoint.interval``,
which also has the best interval between saves, and what is lost).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...base.units import RESTART_S, counted, format_count, format_percent
from ...judge.checkpoint_meaning import best_s, published_mtbf_s, waste
from ...judge.statistics import NOISE
from .hosts import SLOWEST_BARRIER, HostsChange, HostsModel, HostsPoint
from .jobs import RecordedJob
from .scaling import Band, Floats, either

NO_RATE = "the rate at which a host writes is not known: give --host-write"
NO_READS = "what the storage delivers was not measured: give --storage-limit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Storms:
    """Saves and restarts of all hosts. None: not known, and ``not_measured`` says why.

    ``restart_s`` is the time to read the checkpoint. ``lost``: the share of the time for saves,
    lost work, these reads, and the start of processes (``RESTART_S``) at ``interval_s``.
    ``samples_per_s``: what is left of the job's rate.
    """

    mtbf_s: float
    mtbf_stated: bool
    save_s: Band | None = None
    restart_s: Band | None = None
    interval_s: Band | None = None
    lost: Band | None = None
    samples_per_s: Band | None = None
    not_measured: str = ""


def storms(model: HostsModel, at: HostsPoint) -> Storms | None:
    """The storms of the job at a point; None if no checkpoint was asked about."""
    stated = model.stated
    if stated.checkpoint_bytes is None:
        return None
    mtbf = stated.mtbf_s or published_mtbf_s(at.accelerators)
    found = Storms(mtbf_s=mtbf, mtbf_stated=stated.mtbf_s is not None)
    if stated.host_write_bytes_per_s is None:
        return replace(found, not_measured=NO_RATE)
    save = save_s(
        stated.checkpoint_bytes,
        hosts=at.hosts,
        measured=model.base.hosts,
        of_one=stated.host_write_bytes_per_s,
        of_all=stated.storage_write_bytes_per_s,
    )
    restart = _restart_s(model, at.hosts, stated.checkpoint_bytes)
    if restart is None:
        return replace(found, save_s=save, not_measured=NO_READS)
    low, high = (
        waste(best_s(blocked, mtbf), blocked, mtbf, RESTART_S + until)
        for blocked, until in ((save.low, restart.low), (save.high, restart.high))
    )
    value = None
    if save.value is not None and restart.value is not None:
        value = waste(best_s(save.value, mtbf), save.value, mtbf, RESTART_S + restart.value)
    rate = at.samples_per_s
    left = None if value is None or rate.value is None else rate.value * (1 - value)
    return replace(
        found,
        save_s=save,
        restart_s=restart,
        interval_s=save.moved(lambda blocked: best_s(blocked, mtbf)),
        lost=Band(value, low, high),
        samples_per_s=Band(left, rate.low * (1 - high), rate.high * (1 - low)),
    )


def save_s(size: float, *, hosts: int, measured: int, of_one: float, of_all: float | None) -> Band:
    """Seconds until a checkpoint of ``size`` bytes is durable, written by ``hosts`` hosts.

    ``of_one``: bytes/s of one host; ``of_all``: of the storage. If that is not known, it is
    between what the ``measured`` hosts got and no limit.
    """
    best = size / (hosts * of_one)
    if of_all is not None:
        found = max(best, size / of_all)
        return Band(found, found, found)
    worst = size / (min(hosts, measured) * of_one)
    return Band(best if math.isclose(best, worst) else None, best, worst)


def _restart_s(model: HostsModel, hosts: int, size: float) -> Band | None:
    """All hosts read a checkpoint of ``size`` bytes at once, past every cache."""
    sample, storage = model.base.bytes_per_sample, model.supply.storage(hosts)
    if not sample or not np.isfinite(storage.best).all():
        return None
    through, missed = model.supply.network(hosts), model.supply.missed(hosts)

    def seconds(rates: Floats) -> Floats:
        found: Floats = size / (missed * sample * rates[1:].clip(max=through))
        return found

    likely = None if storage.likely is None else seconds(storage.likely)
    return either(seconds(storage.best), likely, seconds(storage.worst), same=NOISE)


MARKED, REFUSED = 4, 32
"""Times the largest measured number beyond which a figure is marked, and refused."""

FAR_OFF = 0.2
"""A measured rate by so much beyond the predicted interval is a remark."""

MIN_LEFT_OUT = 3
"""Different numbers of hosts without which none can be left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A measured number of hosts, predicted without it. ``error``: predicted over measured - 1.

    ``error`` is None where the others do not tell one rate.
    """

    hosts: int
    accelerators: int
    measured_samples_per_s: float
    predicted_samples_per_s: Band
    error: float | None


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """One of the recorded runs."""

    run_id: str
    hosts: int
    accelerators: int
    samples_per_s: float
    accelerator_utilization: float

    @classmethod
    def of(cls, job: RecordedJob) -> MeasuredJob:
        rate, used = job.samples_per_s, job.accelerator_utilization
        return cls(job.run_id, job.hosts, job.ranks, rate, used)

    @property
    def per_host(self) -> float:
        return self.accelerators / self.hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsPrediction:
    """The job on ``hosts`` hosts, which is ``what_if`` among the points of ``over_hosts``.

    ``storage_takes_over_from``: the hosts from which on the steps wait for the storage above all.
    Its ends are the worst and the best storage that the runs allow; None: not up to ``searched``
    hosts. ``times_measured``: how far past the largest measured number the question is.
    """

    hosts: int
    accelerators: int
    leave_one_out: tuple[LeftOut, ...]
    no_leave_one_out: str  # why it is empty
    times_measured: float
    marked: bool
    what_if: HostsPoint
    over_hosts: tuple[HostsPoint, ...]
    measured: tuple[MeasuredJob, ...]
    storage_takes_over_from: tuple[int | None, int | None]
    storms: Storms | None
    bases: tuple[str, ...]
    required: float = field(metadata=UNPRINTED)
    per_host: float = field(metadata=UNPRINTED)
    searched: int = field(metadata=UNPRINTED)


def on_more_hosts(jobs: Sequence[RecordedJob], change: HostsChange) -> HostsPrediction:
    """Predict the job on the hosts that were asked for.

    Raises UsageError for numbers that make no sense, or that are too far from what was measured.
    """
    base = jobs[-1]
    per_host = base.per_host if change.per_host is None else float(change.per_host)
    factor = _checked(jobs, change, per_host)
    model = HostsModel(jobs, change)
    at = model.point(change.hosts, per_host)
    searched = max(change.hosts, REFUSED * base.hosts)
    return HostsPrediction(
        hosts=at.hosts,
        accelerators=at.accelerators,
        leave_one_out=_left_out(jobs, change),
        no_leave_one_out=_no_error(jobs),
        times_measured=factor,
        marked=factor > MARKED,
        what_if=at,
        over_hosts=tuple(
            at if hosts == change.hosts else model.point(hosts, per_host)
            for hosts in _numbers(jobs, change.hosts)
        ),
        measured=tuple(MeasuredJob.of(job) for job in jobs),
        storage_takes_over_from=model.storage_takes_over(per_host, most=searched),
        storms=storms(model, at),
        bases=_bases(model, at),
        required=base.required,
        per_host=per_host,
        searched=searched,
    )


def _checked(jobs: Sequence[RecordedJob], question: HostsChange, per_host: float) -> float:
    """How far past the measured numbers it is. Raises UsageError, see ``on_more_hosts``."""
    fewest, most = min(job.ranks for job in jobs), max(job.ranks for job in jobs)
    asked = question.hosts * per_host
    limits = question.storage_bytes_per_s, question.host_network_bytes_per_s
    if any(limits) and not jobs[-1].bytes_per_sample:
        raise UsageError(
            f"run {jobs[-1].run_id} does not record the size of its samples, so a limit in bytes/s "
            "can't be applied",
            remedy="leave it out, or name a run that measured its fetch ceiling",
        )
    if asked < fewest:
        raise UsageError(
            f"{counted(round(asked), 'accelerator')} are fewer than the {format_count(fewest)} of "
            "the smallest run, and only more can be predicted",
            remedy="name a run with fewer accelerators, or measure it: that many are at hand",
        )
    factor = max(question.hosts / max(job.hosts for job in jobs), asked / most)
    if factor > REFUSED and not question.anyway:
        raise UsageError(
            f"{counted(question.hosts, 'host')} with {counted(round(asked), 'accelerator')} is "
            f"{format_count(factor)} times what was measured, and past {REFUSED} times nothing "
            "tells whether the model still holds",
            remedy="measure more hosts, or add --anyway",
        )
    return factor


def _numbers(jobs: Sequence[RecordedJob], asked: int) -> list[int]:
    """Powers of two up to the asked number of hosts, it, and the measured ones."""
    some = {2**power for power in range(asked.bit_length()) if 2**power <= asked}
    return sorted({*some, asked, *(job.hosts for job in jobs)})


def _no_error(jobs: Sequence[RecordedJob]) -> str:
    counts = len({job.hosts for job in jobs})
    if counts >= MIN_LEFT_OUT:
        return ""
    return (
        f"it takes runs with at least {MIN_LEFT_OUT} different numbers of hosts, and these have "
        f"{counts}"
    )


def _left_out(jobs: Sequence[RecordedJob], change: HostsChange) -> tuple[LeftOut, ...]:
    """Each measured job, predicted from those with other numbers of hosts."""
    if _no_error(jobs):
        return ()
    found = []
    for job in jobs:
        others = [each for each in jobs if each.hosts != job.hosts]
        rate = HostsModel(others, change).point(job.hosts, job.per_host).samples_per_s
        found.append(
            LeftOut(
                hosts=job.hosts,
                accelerators=job.ranks,
                measured_samples_per_s=job.samples_per_s,
                predicted_samples_per_s=rate,
                error=None if rate.value is None else rate.value / job.samples_per_s - 1,
            )
        )
    return tuple(found)


def _bases(model: HostsModel, at: HostsPoint) -> tuple[str, ...]:
    """What the figures rest on, and what is not in them."""
    found = [remark for job in model.jobs for remark in job.remarks]
    found += _far_off(model)
    found.append(_storage_basis(model))
    if model.stated.host_network_bytes_per_s is None:
        found.append("network: its limit was not given (--nic), and is not in the figures")
    if model.stated.cache_bytes is not None:
        hits = model.supply.hits(at.hosts)
        found.append(
            f"cache: the hosts' own serve {format_percent(hits)} of the reads from the second "
            "epoch on; a cache of the storage was not measured apart"
        )
    found += _synchrony_bases(model, at)
    found.append(
        f"overlap: a closed queue with {counted(model.base.tokens, 'batch', 'batches')} of each "
        "accelerator under way; times between equal and exponential ones are in the interval"
    )
    return tuple(found)


def _far_off(model: HostsModel) -> list[str]:
    """Runs that the model does not give back: something that it does not know slowed them."""
    found = []
    for job in model.jobs:
        rate, measured = model.point(job.hosts, job.per_host).samples_per_s, job.samples_per_s
        if not rate.low / (1 + FAR_OFF) <= measured <= rate.high * (1 + FAR_OFF):
            found.append(
                f"run {job.run_id} had {format_count(measured)} samples/s, and the model gives it "
                f"between {format_count(rate.low)} and {format_count(rate.high)}: it can't be "
                "trusted before that is explained"
            )
    return found


def _storage_basis(model: HostsModel) -> str:
    counts = model.supply.counts
    stated = model.stated.storage_bytes_per_s is not None
    if len(counts) >= MIN_LEFT_OUT:
        told = ", ".join(map(str, counts))
        return f"storage: the universal scalability law, fitted to {told} hosts" + (
            ", at most the stated limit" if stated else ""
        )
    if stated:
        return "storage: each host gets what one got, and all together at most the stated limit"
    if not counts:
        return "storage: not measured, between what it delivered and no limit (--storage-limit)"
    return (
        f"storage: measured with {counted(counts[-1], 'host')}, and not its limit: between no more "
        "than that for all hosts, and as much for each (--storage-limit tells)"
    )


def _synchrony_bases(model: HostsModel, at: HostsPoint) -> list[str]:
    base = model.base
    if not base.in_step:
        return ["ranks: they never wait for each other (accelerator.sync)"]
    found = []
    if model.steps is None:
        found.append(
            "stragglers: too few steps were recorded, so the slowest rank is not in the figures, "
            "which are upper bounds"
        )
    elif at.accelerators > model.steps.seen:
        found.append(
            f"stragglers: at least so much, since the slowest of {format_count(at.accelerators)} "
            f"was not among the {format_count(model.steps.seen)} recorded steps"
        )
    else:
        found.append(
            f"stragglers: the slowest of {format_count(at.accelerators)} by the order statistics "
            "of the recorded steps, a host's ranks together"
        )
    if model.levelled:
        found.append(
            "stragglers: the recorded steps waited for their batches, so the ranks are late by "
            "between what is left over all batches under way, and each step for itself"
        )
    if model.fitted_barrier is not None:
        law = model.fitted_barrier
        how = "as given" if model.stated.barrier is not None else "fitted to the runs"
        found.append(
            f"barrier: {law.base_s * 1e3:.3g} ms + {law.log_s * 1e3:.3g} ms x ln(accelerators), "
            f"{how}"
        )
    elif model.barrier_unknown(at.hosts):
        slowest = SLOWEST_BARRIER.log_s * 1e3
        found.append(
            "barrier: not measured over a network, so between nothing and the slowest one that was "
            f"published, {slowest:.3g} ms x ln(accelerators) (--barrier)"
        )
    elif base.last_s is not None:
        found.append(
            f"barrier: measured with {counted(base.ranks, 'accelerator')}, "
            f"{base.last_s * 1e3:.3g} ms; between that and growing with ln(accelerators)"
        )
    return found
