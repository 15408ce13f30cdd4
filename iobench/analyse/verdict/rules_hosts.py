"""Rules about the hosts of a job: whether one of them is slow, and whether they began together."""

from __future__ import annotations

from collections.abc import Sequence

from ...schema.record import TrainingRecord
from ...units import format_duration, format_percent
from .hosts import SlowHost, slow_hosts
from .rules_data import Outcome, complete

MAX_SKEW = 0.01
"""The most that the hosts' starts may differ, as a share of an epoch."""


def host_name(doc: TrainingRecord, host: int) -> str:
    """``host 1 (node7)``."""
    known = doc.job.hosts
    name = known[host].name if host < len(known) else ""
    return f"host {host} ({name})" if name else f"host {host}"


def slow(doc: TrainingRecord) -> Outcome | None:
    """Check that no host is slower than the others by 10 %, by fetching alone or in the run."""
    fetched = _by_fetch(doc)
    ran = [each for each in _by_run(doc) if each.host not in {one.host for one in fetched}]
    told = [
        f"{host_name(doc, each.host)} {did} at {format_percent(each.ratio)} "
        f"[{format_percent(each.low)}, {format_percent(each.high)}] of the rate of the others"
        for did, found in (("reads", fetched), ("loads", ran))
        for each in found
    ]
    if not told:
        return None
    return Outcome(
        "; ".join(told),
        "measure this host's path to the storage with iobench probe, and compare its network, "
        "mount options and cores with those of the others",
    )


def _by_fetch(doc: TrainingRecord) -> list[SlowHost]:
    """By the windows in which all hosts only read, at the same time."""
    ceiling = doc.job.ceilings.get("fetch")
    windows = ceiling.details.windows if ceiling is not None else []
    return slow_hosts([_each(doc, window.hosts_samples_per_s) for window in windows])


def _by_run(doc: TrainingRecord) -> list[SlowHost]:
    return slow_hosts(
        [
            [
                None if not host.own_samples_per_s else host.own_samples_per_s / max(1, host.ranks)
                for host in each.hosts
            ]
            for each in complete(doc)
            if each.hosts
        ]
    )


def _each(doc: TrainingRecord, rates: Sequence[float | None]) -> list[float | None]:
    """The rates of hosts for each of their ranks."""
    ranks = [host.ranks for host in doc.job.hosts]
    return [
        None if rate is None else rate / max(1, ranks[at] if at < len(ranks) else 1)
        for at, rate in enumerate(rates)
    ]


def skew(doc: TrainingRecord) -> Outcome | None:
    """Check that the epochs began at one instant on all hosts, as far as their clocks can tell."""
    errors = [host.offset_error_s or 0.0 for host in doc.job.hosts]
    worst, told = 0.0, ""
    for number, each in enumerate(complete(doc)):
        epoch_s = (each.wall_s or 0.0) / max(1, len(each.epochs))
        for host in each.hosts:
            error = errors[host.host] if host.host < len(errors) else 0.0
            late = (host.start_skew_s or 0.0) + error
            if epoch_s > 0 and late / epoch_s > max(worst, MAX_SKEW):
                worst = late / epoch_s
                told = (
                    f"{host_name(doc, host.host)} began up to {format_duration(late)} late in "
                    f"repetition {number}, the error of its clock included: "
                    f"{format_percent(worst)} of an epoch"
                )
    if not told:
        return None
    return Outcome(told, "make epochs longer (a larger dataset), or leave a core of that host free")
