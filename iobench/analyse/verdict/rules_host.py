"""Rules about the host of the ranks: what else ran on it."""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ...schema.training import Repetition
from ...units import counted
from .rules_data import MIN_WALL_S, Outcome, complete, unknown

MAX_OTHER_LOAD = 0.25
"""Share of a host's cores that others may use on average.

The kernel's own threads (network, encryption) and this run's parent process are among the others,
so the bound is generous.
"""


def other_cores(doc: TrainingRecord, one: Repetition) -> float | None:
    """How many cores of the host other processes used at least, on average over a repetition.

    The warm-up of a model is in the host's counters, but its CPU time is not in that of the ranks:
    all cores may have been theirs for so long. None: not recorded.
    """
    host, cores = one.resources, doc.host.cores
    if host is None or host.cpu_busy is None or one.cpu_s is None or not cores:
        return None
    trained = doc.job.trained
    warm_up_s = (trained.warm_up_s if trained is not None else None) or 0.0
    if host.wall_s <= warm_up_s:
        return None
    busy_s = cores * (host.cpu_busy * host.wall_s - warm_up_s)
    return max(0.0, (busy_s - one.cpu_s) / (host.wall_s - warm_up_s))


def other_load(doc: TrainingRecord) -> Outcome | None:
    """Compare how busy the host's cores were with the CPU time of this run's ranks and workers.

    In a short repetition most of the rest is the start of this run's own processes, so it says
    nothing, nor does a record without the host's counters (older versions).
    """
    found = [
        one
        for one in complete(doc)
        if one.resources is not None and one.resources.wall_s >= MIN_WALL_S
    ]
    if not found:
        return None
    cores = doc.host.cores
    if len(doc.hosts) != 1 or not cores:
        return unknown("how busy the cores of all hosts were was not recorded")
    others = [used for one in found if (used := other_cores(doc, one)) is not None]
    if not others:
        return unknown("how busy the host's cores were was not recorded")
    if max(others) <= MAX_OTHER_LOAD * cores:
        return None
    return Outcome(
        f"other processes used {max(others):.1f} of the host's {counted(cores, 'core')} during a "
        "repetition",
        "run on a host that does nothing else: a lack of CPU time can look like slow storage",
    )
