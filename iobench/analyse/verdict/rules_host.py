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


MIN_COUNTED_S = 1.0
"""Time over which the kernel's ticks tell how busy cores are."""


def other_cores(doc: TrainingRecord, one: Repetition) -> float | None:
    """How many cores of the host other processes used at least, on average over a repetition.

    None: not recorded.
    """
    found = _of_others(doc, one)
    return found[0] / found[1] if found is not None else None


def _of_others(doc: TrainingRecord, one: Repetition) -> tuple[float, float] | None:
    """(CPU seconds of other processes, seconds) of a repetition; None: not recorded.

    Older records have the CPU time of the ranks and their workers alone. The warm-up of a model is
    in the host's counters, but not in that: all cores may have been theirs for so long.
    """
    host, cores = one.resources, doc.host.cores
    if host is None or host.cpu_busy is None or one.cpu_s is None or not cores:
        return None
    busy_s = cores * host.cpu_busy * host.wall_s
    if (own_s := _own_s(one)) is not None:
        return max(0.0, busy_s - own_s), host.wall_s
    trained = doc.job.trained
    warm_up_s = (trained.warm_up_s if trained is not None else None) or 0.0
    if host.wall_s <= warm_up_s:
        return None
    return max(0.0, busy_s - cores * warm_up_s - one.cpu_s), host.wall_s - warm_up_s


def _own_s(one: Repetition) -> float | None:
    """CPU time of all of iobench's processes in a repetition, their start and end included."""
    host = one.resources
    if host is None or host.own_cpu_s is None or host.children_cpu_s is None:
        return None
    # A process that nobody waited for is no child that has ended; what it said of itself counts.
    return host.own_cpu_s + max(host.children_cpu_s, one.cpu_s or 0.0)


def other_load(doc: TrainingRecord) -> Outcome | None:
    """Compare how busy the host's cores were with the CPU time of this run's own processes.

    Short repetitions are looked at together. In records of older versions most of the rest of a
    short one is the start of this run's own processes, so it says nothing there; nor does a record
    without the host's counters.
    """
    counted_ones = [one for one in complete(doc) if one.resources is not None]
    long = [one for one in counted_ones if one.resources and one.resources.wall_s >= MIN_WALL_S]
    short = [one for one in counted_ones if one not in long and _own_s(one) is not None]
    short_s = sum(one.resources.wall_s for one in short if one.resources)
    if not long and short_s < MIN_COUNTED_S:
        return None
    cores = doc.host.cores
    if len(doc.hosts) != 1 or not cores:
        return unknown("how busy the cores of all hosts were was not recorded")
    others = [used for one in long if (used := other_cores(doc, one)) is not None]
    together = [each for one in short if (each := _of_others(doc, one)) is not None]
    time_s = sum(seconds for _, seconds in together)
    if time_s >= MIN_COUNTED_S:
        others.append(sum(used for used, _ in together) / time_s)
    if not others:
        return unknown("how busy the host's cores were was not recorded")
    if max(others) <= MAX_OTHER_LOAD * cores:
        return None
    return Outcome(
        f"other processes used {max(others):.1f} of the host's {counted(cores, 'core')} during "
        + ("a repetition" if long else "the repetitions"),
        "run on a host that does nothing else: a lack of CPU time can look like slow storage",
    )
