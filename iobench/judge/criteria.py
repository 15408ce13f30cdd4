"""The checks of ``bottleneck``: whether a row has the answer, or why, or the answer itself.

By the ceilings and where the time went: a data-loading roofline. The stages (fetch, prep, loader,
accelerator) overlap, so the predicted rate is the lowest ceiling. Fetch and prep run in the same
workers, which also hand the batches over. If the workers do not read ahead, the true rate lies
between the prediction and the serial rate 1 / (1/fetch + 1/prep + 1/loader); the rule
``verdict.gap`` reports when the measured rate differs by more than 20 %.

By the stages that were left out in turns with the repetitions: ``gain(stage)`` is the rate without
the stage over the rate with it. The stage with the largest gain is the bottleneck, if its interval
excludes 1 by the noise threshold. The accelerator is what the others are to feed, so it is the
bottleneck only where none of them does.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..base.units import format_percent, format_share
from ..record.job import UserFacts
from ..record.verdict import Stage
from .evidence import IN_TURNS, Case, Decision, Evidence
from .figures.ablations import FEW_ROUNDS, interval, is_told
from .statistics import NOISE
from .user_loader import MOST_OF_MAKING, MOST_OF_WAITS, WAITING
from .watched import CLEAR, why_filling

MIN_EXPLAINED = 0.8
"""A ceiling explains the measured rate if the rate is at least this share of the ceiling."""

FED = 0.95
"""Accelerators that are as busy as this wait for nothing that is significant."""

_READ_FROM_A_CACHE = "reading limits the run, but a cache served the reads"

DOMINANT = 0.8
"""A stage that needs this part of the CPU time is named itself, and not the CPU."""


def lost_beside_loading(case: Case) -> Decision | None:
    """The part beside loading that took the most time, if it took more than all waiting.

    Where the run is as fast as its lowest ceiling, that time can't be gained: ranks that share a
    slow storage wait for each other, too.
    """
    shares = case.evidence.shares
    stages: dict[Stage, float | None] = {
        "checkpoint": shares.saves,
        "fill": shares.fill,
        "sync": shares.sync,
    }
    workload = case.evidence.job.workload
    if workload.log.to is not None and workload.accelerator.sync == "none":
        stages["log"] = stages.pop("sync")  # no rank waits for another one
    known = {stage: share for stage, share in stages.items() if share}
    if not known:
        return None
    top = max(known, key=lambda stage: known[stage])
    waiting = shares.wait or 0.0
    gain = 1 / max(1 - known[top], 1e-9)
    if gain <= 1 + NOISE or known[top] <= waiting or _is_at_its_ceiling(case):
        return None
    if top != "fill":
        return Decision(bottleneck=top)
    return _behind_the_fill(case) or Decision(bottleneck=top, reason=why_filling(case.evidence))


def _is_at_its_ceiling(case: Case) -> bool:
    measured, known = case.evidence.measured, case.ceilings
    return bool(known and measured) and known[case.lowest] <= (measured or 0.0) * (1 + NOISE)


def accelerators_are_busy(case: Case) -> bool:
    busy = case.evidence.utilization
    return busy is not None and busy >= FED


def nothing_is_known(case: Case) -> str:
    if case.ceilings:
        return ""
    return case.evidence.cached or "no ceiling of storage, prep or loader was measured"


def storage_is_far_too_slow(case: Case) -> bool:
    """Whether the storage alone delivers far too little, and the workers mostly waited for it.

    Then few steps are enough to name it: longer runs can't make it fast enough.
    """
    evidence = case.evidence
    if evidence.storage is None or evidence.accelerator is None or evidence.cached:
        return False
    enough = evidence.required * evidence.accelerator
    return 2 * evidence.storage < enough and waited_for(evidence, least=0.0) == "storage"


def cached_reads_are_slowest(case: Case) -> str:
    evidence = case.evidence
    rates = [*case.ceilings.values(), evidence.accelerator or math.inf]
    slowest = evidence.storage is not None and evidence.storage * (1 + NOISE) < min(rates)
    return _READ_FROM_A_CACHE if evidence.cached and slowest else ""


def cores_are_shared(case: Case) -> str:
    """The CPU ceiling explains the rate, and no stage takes nearly all of the CPU time.

    How busy the CPU was decides where that is recorded.
    """
    evidence, parts = case.evidence, case.evidence.cpu_costs.values()
    if not evidence.cpu or not evidence.measured or not parts:
        return ""
    busy = evidence.cpu_busy is None or evidence.cpu_spent
    explains = MIN_EXPLAINED * evidence.cpu <= evidence.measured
    lowest = evidence.cpu * (1 + NOISE) < case.ceilings[case.lowest]
    shared = max(parts) < DOMINANT * sum(parts)
    every = busy and explains and lowest and shared
    return "the stages share the cores, and all of them are taken" if every else ""


def utilization_is_missing(case: Case) -> str:
    if case.evidence.utilization is not None or not case.missing:
        return ""
    return f"{_missing(case)}, and neither was the accelerators' utilization"


def utilization_is_unknown(case: Case) -> bool:
    return case.evidence.utilization is None


def workers_took_longest(case: Case) -> Decision | None:
    """A ceiling may have been measured while the storage was faster."""
    waited: Stage | None = waited_for(case.evidence)
    if waited in case.refuted:
        waited = "prep"  # the worker waited while it made a batch, for something else
    if waited is None:
        return None
    return Decision(
        bottleneck=waited,
        reason=f"the workers took longest for {'reads' if waited == 'storage' else waited}, "
        "although its ceiling alone is above the demand",
    )


def in_turns(case: Case) -> Decision | None:
    """Fetch and prep are too slow if a worker does them one after the other."""
    serial, measured = case.evidence.serial, case.evidence.between_saves or 0.0
    if serial is None or case.lowest not in ("storage", "prep"):
        return None
    if serial >= FED * (case.evidence.accelerator or 0.0) or measured < (1 - IN_TURNS) * serial:
        return None
    return Decision(
        bottleneck=case.lowest,
        reason="each worker fetches samples and prepares them one after the other",
    )


def nothing_explains_the_waits(case: Case) -> str:
    each = "each measured stage" if case.missing else "each stage"
    reason = f"the accelerators wait although {each} alone is faster than their demand"
    return f"{reason}, and {_missing(case)}" if case.missing else reason


_NAMES: dict[Stage, str] = {"storage": "storage", "prep": "preparation", "loader": "the loader"}


def _missing(case: Case) -> str:
    """``preparation and the loader were not measured``."""
    names = [_NAMES.get(stage, stage) for stage in case.missing]
    return f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} not measured"


def rivals(case: Case) -> str:
    """Ceilings that are the same as the lowest one within noise, or whose intervals overlap.

    Each stage delivers at least what the run got, whatever was measured of it alone.
    """
    near = [stage for stage in case.ceilings if stage != case.lowest and _is_near(case, stage)]
    both = f"{case.lowest} and {' and '.join(near)}"
    return f"the ceilings of {both} can't be told apart" if near else ""


def _is_near(case: Case, stage: Stage) -> bool:
    lowest = max(case.ceilings[case.lowest], case.evidence.between_saves or 0.0)
    if case.ceilings[stage] <= lowest * (1 + NOISE):
        return True
    one, other = (case.evidence.intervals.get(each) for each in (case.lowest, stage))
    if one is None or other is None:
        return False
    # Two windows that differ by a sixth have an interval that begins at 0, where no rate lies: the
    # lower end is as far from the rate, as a factor, as the upper end is as a part of it.
    rate = case.ceilings[stage]
    return one[1] >= max(other[0], rate * math.exp(1 - max(1.0, other[1] / rate)))


def a_ceiling_is_missing(case: Case) -> str:
    share = (case.evidence.between_saves or 0.0) / case.ceilings[case.lowest]
    if not case.missing or share >= MIN_EXPLAINED:
        return ""
    return (
        f"{_missing(case)}, and {_NAMES.get(case.lowest, case.lowest)} alone does not explain why "
        f"the run reached only {format_share(share)} of its ceiling"
    )


def reading_takes_all_cores(case: Case) -> str:
    evidence = case.evidence
    if case.lowest != "storage" or not evidence.client_bound:
        return ""
    return f"reading alone takes {evidence.fetch_cores:.1f} of {evidence.cores:g} cores"


def lowest_ceiling(case: Case) -> Decision:
    return Decision(bottleneck=case.lowest)


def waited_for(evidence: Evidence, *, least: float = NOISE) -> Stage | None:
    """The stage for which batches were waited, if one of fetch and prep clearly took longer.

    ``least``: the share of the time that both together have to take for that.

    A loader of the user's own is divided by its CPU time: on a busy host, its waits for a core
    would look like preparing.
    """
    fetch, prep = evidence.shares.fetch, evidence.shares.prep
    share = evidence.own.cpu_share if evidence.own is not None else None
    if share is not None and fetch is not None and prep is not None:
        fetch, prep = (fetch + prep) * (1 - share), (fetch + prep) * share
    if fetch is None or prep is None or fetch + prep <= least:
        return None
    if fetch >= CLEAR * prep and not evidence.cached:
        return "storage"
    return "prep" if prep >= CLEAR * fetch else None


def computing(evidence: Evidence) -> float:
    """Share of the time of preparation for which its processes compute; they wait for the rest.

    It is 1 where nothing tells that they wait: a busy host makes CPU work take longer, too.
    """
    if not evidence.prep:
        return 1.0
    if evidence.subject.users:
        share = evidence.own.cpu_share if evidence.own is not None else None
        alone = evidence.cpu_costs.get("prep", 0.0) * evidence.prep / evidence.streams
        return 1.0 if share is None or share >= WAITING else min(1.0, max(share, alone))
    slept = 0.0 if evidence.subject.reads_itself else evidence.job.workload.reader.prep_time
    return max(0.0, 1 - slept * evidence.prep / evidence.streams)


MIN_SHARED = 0.2
"""Fetch and prep share the CPU if each of them needs at least this part of its time."""

MOSTLY = 0.5
"""A part of a time that is larger than the rest of it."""

UNEVEN = 0.5
"""Leaving out the barrier has to bring this part of what another stage brings (in logarithms)."""


def only_reading_gains(case: Case) -> str:
    return "" if case.gaining else _READ_FROM_A_CACHE


def sampler_takes_most(case: Case) -> str:
    """Why a user's loader waits mostly for its sampler: it was timed, so no test is needed."""
    own = case.evidence.own
    if own is None or case.evidence.fed or (own.sampling or 0.0) <= MOST_OF_WAITS:
        return ""
    return (
        f"in {format_percent(own.sampling or 0.0)} of the waits for batches, the sampler chose "
        "samples in the training process, where no worker can help"
    )


def collating_costs_most(case: Case) -> str:
    """Why a user's loader is slow by its ``collate_fn``, which no ablation leaves out, or empty.

    Its workers collate the samples that are kept, too, so that its ceiling has little else.
    """
    own, loader = case.evidence.own, case.evidence.loader
    if own is None or not loader or (own.collating or 0.0) < MOST_OF_MAKING or _made(own):
        return ""
    if (case.evidence.measured or 0.0) <= MOSTLY * loader:
        return ""
    return (
        "your loader takes most of the time even over samples that are kept in memory, and "
        "collate_fn most of the time in which a batch is made"
    )


def collating_costs_more(case: Case) -> str:
    return collating_costs_most(case) if leaves_most(case, case.top) else ""


def hand_over_costs_more(case: Case) -> str:
    return hand_over_costs_most(case) if leaves_most(case, case.top) else ""


def prep_was_not_left_out(case: Case) -> str:
    """A loader of the user's own could not run without its dataset, and this is its cost.

    Only the storage was left out then, which may bring something without being the bottleneck.
    """
    alone = case.evidence.subject.users and "prep" not in case.evidence.gains
    if case.top != "storage" or not alone or not leaves_most(case, "storage"):
        return ""
    return (
        "the page cache brings less than what is lost beside it, and that time is your loader's own"
    )


def ranks_are_uneven(case: Case) -> bool:
    """Ranks wait for each other, and not all of them for the slow stage.

    Without its stage a slow rank is as fast as the others, so that stage gains, too.
    """
    found = case.gaining
    if "sync" not in found or case.top not in ("storage", "prep"):
        return False
    return math.log(found["sync"].value) >= UNEVEN * math.log(found[case.top].value)


def steps_are_slowed(case: Case) -> str:
    """Why a stage gains more than all waiting could bring: a real model's steps gain, too."""
    evidence = case.evidence
    demand, alone, measured = evidence.accelerator, evidence.alone, evidence.measured
    if case.top not in ("storage", "prep") or not demand or not alone or not measured:
        return ""
    times = alone / demand
    if times <= 1 + NOISE or interval(case.gaining[case.top])[0] <= (1 + NOISE) * demand / measured:
        return ""
    return (
        f"a step of the model takes {times:.2f} x as long beside the loader as alone, so leaving "
        f"out {_NAMES[case.top]} brings more than all waiting takes"
    )


def gains_share_the_cores(case: Case) -> str:
    """The CPU is spent, and not by preparation alone."""
    costs = case.evidence.cpu_costs
    if case.top not in ("storage", "prep") or not case.evidence.cpu_spent:
        return ""
    needed = "storage" in case.gaining
    if costs:
        needed = costs["storage"] >= MIN_SHARED * sum(costs.values())
    return "the stages share the cores, so each of them slows the others" if needed else ""


def read_and_prepared_in_one(case: Case) -> Decision | None:
    """A loader of the user's own ran without its dataset, but in no round with a cached one.

    Reading and preparing were left out together. Its ceiling over the page cache tells them apart,
    if the run is about as fast, and otherwise the workers' times do.
    """
    evidence = case.evidence
    in_one = evidence.subject.users and "storage" not in evidence.gains
    if case.top != "prep" or not in_one or evidence.cached:
        return None
    if (evidence.measured or 0.0) >= MIN_EXPLAINED * (evidence.prep or math.inf):
        return Decision(
            bottleneck="prep",
            basis="tested",
            reason="your loader is hardly faster with its dataset in the page cache, so what it "
            "waits for is not its files",
        )
    waited = waited_for(evidence)
    other: tuple[Stage, ...] = () if waited is not None else ("storage",)
    return Decision(
        bottleneck=waited or "prep",
        also=other,
        basis="tested",
        reason="your loader reads and prepares in one, and its workers' times tell which took "
        "longer",
    )


def fill_hides_a_stage(case: Case) -> Decision | None:
    return _behind_the_fill(case) if "fill" in case.gaining and case.top == "fill" else None


def _behind_the_fill(case: Case) -> Decision | None:
    """The stage that takes more than the fill of the epochs, if no longer epochs could do.

    In short epochs most batches are made during the fill, and hide what a stage costs after it.
    Without the fill the run is at most as fast as the lowest ceiling, and what that is below the
    demand is lost all the same.
    """
    evidence, known = case.evidence, refuting(case)
    demand, measured = evidence.accelerator, evidence.measured
    if not known.ceilings or not demand or not measured:
        return None
    if cached := cached_reads_are_slowest(known):
        return Decision(bottleneck="undecided", reason=cached)
    ceiling = known.ceilings[known.lowest]
    lowest = max(ceiling, evidence.after_start)
    fill, rest = lowest / measured, demand / lowest
    enough = lowest >= evidence.required * demand
    if enough or ceiling < (1 - NOISE) * measured or fill > rest * (1 + FEW_ROUNDS):
        return None
    return Decision(
        bottleneck=known.lowest,
        also=("fill",) if rest <= fill * (1 + FEW_ROUNDS) else (),
        reason=f"longer epochs alone can't feed the accelerators: the ceiling of "
        f"{_NAMES[known.lowest]} is {lowest / demand:.2f} x their demand",
    )


def largest_gain(case: Case) -> Decision:
    found, top = case.gaining, case.top
    low, _ = interval(found[top])
    also = [stage for stage in found if stage != top and interval(found[stage])[1] >= low]
    also.sort(key=lambda stage: -found[stage].value)
    return Decision(bottleneck=top, also=tuple(also), basis="tested")


def accelerator_gains_alone(case: Case) -> bool:
    return case.evidence.utilization is None and _accelerator_gains(case.evidence)


def ceilings_keep_up(case: Case) -> bool:
    """Each ceiling is enough for the utilization that is required.

    What was not measured of the storage may be too little, unless leaving it out was tried.
    """
    evidence, demand = case.evidence, case.evidence.accelerator
    if "storage" in case.missing and "storage" not in evidence.gains:
        return False
    stages = (None if evidence.cached else evidence.storage, evidence.prep, evidence.loader)
    known = [rate for rate in (*stages, evidence.cpu) if rate is not None]
    if not evidence.drained or not known or demand is None:
        return False
    return min(known) >= evidence.required * demand


def accelerator_gains_most(case: Case) -> bool:
    """All waiting together would bring 1 / busy: the accelerator has to bring more."""
    evidence, busy = case.evidence, case.evidence.utilization
    if busy is None or not _accelerator_gains(evidence):
        return False
    lost = 1 / busy if busy else math.inf
    for gain in (gain for stage, gain in evidence.gains.items() if stage != "accelerator"):
        wide = gain.value > 1 + NOISE and (gain.high is None or gain.high >= lost)
        if wide or gain.value > math.sqrt(lost):
            return False  # another stage may be what is lost, although its rounds do not tell
    return interval(evidence.gains["accelerator"])[0] * busy > 1


def cores_are_busy(case: Case) -> str:
    return "no stage alone gains, and all cores are busy" if case.evidence.cpu_spent else ""


def _made(own: UserFacts) -> bool:
    """Whether the batches that were waited for were mostly made already."""
    return bool(own.wait_s) and (own.hand_over_s or 0.0) > MOSTLY * (own.wait_s or 0.0)


def hand_over_costs_most(case: Case) -> str:
    """Why most of the time of a user's loader goes into collating and handing over, or empty.

    Neither can be left out. So they bind where all that was left out brings less than what is lost.
    """
    evidence, own, loader = case.evidence, case.evidence.own, case.evidence.loader
    if not evidence.subject.users:
        return ""
    if own is not None and _made(own):
        return "the batches that were waited for were mostly made already, and on their way"
    if loader and (evidence.measured or 0.0) > MOSTLY * loader:
        return "your loader takes most of the time even over samples that are kept in memory"
    return ""


def loader_explains_it(case: Case) -> str:
    explained = explains(case.evidence.loader, case)
    return "no other stage gains anything if it is left out" if explained else ""


def explains(ceiling: float | None, case: Case) -> bool:
    """Whether the run is about as fast as a ceiling, and no faster, as on a busier host."""
    measured = case.evidence.between_saves or 0.0
    return bool(ceiling) and MIN_EXPLAINED <= measured / (ceiling or 1.0) <= 1 / MIN_EXPLAINED


def fill_gains(case: Case) -> bool:
    """It was computed from the events, without a run in which anything was left out."""
    return is_told(case.evidence.gains.get("fill"), case.evidence.unsteady)


def refuting(case: Case) -> Case:
    """The case without the storage, if leaving it out of a user's loader brought nothing.

    Time in which such a loader waits is counted as reading, but it may be any other wait.
    """
    tested = case.evidence.subject.users and "storage" in case.evidence.gains
    return replace(case, refuted=("storage",)) if tested else case


def _accelerator_gains(evidence: Evidence) -> bool:
    return is_told(evidence.gains.get("accelerator"), evidence.unsteady)


def leaves_most(case: Case, stage: Stage) -> bool:
    """Whether the gain of a stage is smaller than what is lost beside it."""
    busy, gain = case.evidence.utilization, case.gaining[stage]
    return bool(busy) and interval(gain)[1] < math.sqrt(1 / (busy or 1.0))
