"""Hosts and accelerators past what was measured: ``iobench whatif RUN... --hosts N``.

The error of the model comes first: each measured number of hosts is left out, and predicted from
the others. More than 4 times the measured hosts or accelerators is marked, and more than 32 times
is refused unless the user wants it anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from ...units import counted, format_count, format_percent
from .band import Band
from .jobs import Job
from .model import SLOWEST_BARRIER, Model, Point
from .storms import Saves, Storms, storms
from .supply import Stated
from .synchrony import Barrier

MARKED, REFUSED = 4, 32
"""Times the largest measured number beyond which a figure is marked, and refused."""

FAR_OFF = 0.2
"""A measured rate by so much beyond the predicted interval is a remark."""

MAX_HOSTS = 10**6
MIN_LEFT_OUT = 3
"""Different numbers of hosts without which none can be left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """``per_host``: accelerators of each host; None: as in the run with most hosts."""

    hosts: int
    per_host: int | None = None
    stated: Stated = field(default_factory=Stated)
    barrier: Barrier | None = None
    saves: Saves = field(default_factory=Saves)
    anyway: bool = False


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """``takes_over``: the hosts from which on the steps wait for the storage above all.

    Its ends are the worst and the best storage that the runs allow; None: not up to
    ``searched`` hosts. ``factor``: how far past the largest measured number the question is.
    """

    jobs: tuple[Job, ...]
    question: Question
    per_host: float
    left_out: tuple[LeftOut, ...]
    no_error: str  # why ``left_out`` is empty
    points: tuple[Point, ...]  # by hosts; the one that was asked for is ``at``
    at: Point
    factor: float
    takes_over: tuple[int | None, int | None]
    searched: int
    storms: Storms | None
    bases: tuple[str, ...]

    @property
    def marked(self) -> bool:
        return self.factor > MARKED


def predict(jobs: Sequence[Job], question: Question) -> Prediction:
    """Predict the job on the hosts that were asked for.

    Raises UsageError for numbers that make no sense, or that are too far from what was measured.
    """
    base = jobs[-1]
    per_host = base.per_host if question.per_host is None else float(question.per_host)
    factor = _checked(jobs, question, per_host)
    model = Model(jobs, stated=question.stated, barrier=question.barrier)
    at = model.point(question.hosts, per_host)
    searched = max(question.hosts, REFUSED * base.hosts)
    return Prediction(
        jobs=tuple(jobs),
        question=question,
        per_host=per_host,
        left_out=_left_out(jobs, question),
        no_error=_no_error(jobs),
        points=tuple(
            at if hosts == question.hosts else model.point(hosts, per_host)
            for hosts in _numbers(jobs, question.hosts)
        ),
        at=at,
        factor=factor,
        takes_over=model.storage_takes_over(per_host, most=searched),
        searched=searched,
        storms=storms(model, at, question.saves),
        bases=_bases(model, question, at),
    )


def _checked(jobs: Sequence[Job], question: Question, per_host: float) -> float:
    """How far past the measured numbers the question is. Raises UsageError, see ``predict``."""
    if question.hosts < 1 or per_host < 1:
        raise UsageError(
            f"a job needs at least one accelerator on one host, not {format_count(per_host)} on "
            f"{counted(question.hosts, 'host')}",
            remedy="give e.g. --hosts 64 --accelerators-per-host 8",
        )
    if question.hosts > MAX_HOSTS or per_host > MAX_HOSTS:
        raise UsageError(
            f"more than {format_count(MAX_HOSTS)} hosts, or accelerators in one, can't be "
            "predicted",
            remedy="give e.g. --hosts 64",
        )
    fewest, most = min(job.ranks for job in jobs), max(job.ranks for job in jobs)
    asked = question.hosts * per_host
    if asked < fewest:
        raise UsageError(
            f"{counted(round(asked), 'accelerator')} are fewer than the {format_count(fewest)} of "
            "the smallest run, and only more can be predicted",
            remedy="name a run with fewer accelerators, or measure it: that many are at hand",
        )
    question.saves.check()
    factor = max(question.hosts / max(job.hosts for job in jobs), asked / most)
    if factor > REFUSED and not question.anyway:
        raise UsageError(
            f"{counted(question.hosts, 'host')} with {counted(round(asked), 'accelerator')} is "
            f"{format_count(factor)} times what was measured, and past {REFUSED} times nothing "
            "tells whether the model still holds",
            remedy="measure more hosts, or add --anyway",
        )
    return factor


def _numbers(jobs: Sequence[Job], asked: int) -> list[int]:
    """Powers of two up to the asked number of hosts, it, and the measured ones."""
    some = {2**power for power in range(asked.bit_length()) if 2**power <= asked}
    return sorted({*some, asked, *(job.hosts for job in jobs)})


def _no_error(jobs: Sequence[Job]) -> str:
    counts = len({job.hosts for job in jobs})
    if counts >= MIN_LEFT_OUT:
        return ""
    return (
        f"the runs have {counted(counts, 'number')} of hosts, and none of fewer than "
        f"{MIN_LEFT_OUT} can be left out"
    )


def _left_out(jobs: Sequence[Job], question: Question) -> tuple[LeftOut, ...]:
    """Each measured job, predicted from those with other numbers of hosts."""
    if _no_error(jobs):
        return ()
    found = []
    for job in jobs:
        others = [each for each in jobs if each.hosts != job.hosts]
        model = Model(others, stated=question.stated, barrier=question.barrier)
        rate = model.point(job.hosts, job.per_host).samples_per_s
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


def _bases(model: Model, question: Question, at: Point) -> tuple[str, ...]:
    """What the figures rest on, and what is not in them."""
    found = [remark for job in model.jobs for remark in job.remarks]
    found += _far_off(model)
    found.append(_storage_basis(model, question))
    if question.stated.host_network_bytes_per_s is None:
        found.append("network: its limit was not given (--nic), and is not in the figures")
    if question.stated.cache_bytes is not None:
        hits = model.supply.hits(question.hosts)
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


def _far_off(model: Model) -> list[str]:
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


def _storage_basis(model: Model, question: Question) -> str:
    counts = model.supply.counts
    stated = question.stated.storage_bytes_per_s is not None
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


def _synchrony_bases(model: Model, at: Point) -> list[str]:
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
    if model.fitted_barrier is not None:
        law = model.fitted_barrier
        how = "as given" if model.stated_barrier is not None else "fitted to the runs"
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
